"""Draws follow the request, and only it."""

import numpy as np
import pytest

from hpmoe.models import sampling

GREEDY = sampling.Sampling(temperature=0)


class TestDraw:
  LOGITS = np.array([1.0, 3.0, 2.0, 3.0], np.float32)

  def _count_draws(self, rule, count=400):
    tokens = [sampling.draw(self.LOGITS, rule, place) for place in range(count)]
    return np.bincount(tokens, minlength=4)

  def test_greedy_takes_the_lower_of_two_best(self):
    assert self._count_draws(GREEDY, 3).tolist() == [0, 3, 0, 0]

  @pytest.mark.parametrize(
    'top_k, survivors',
    [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (9, [0, 1, 2, 3])],
  )
  def test_top_k_draws_from_the_best_alone(self, top_k, survivors):
    counts = self._count_draws(sampling.Sampling(top_k=top_k))
    assert np.flatnonzero(counts).tolist() == survivors

  # Shares are 0.05, 0.39, 0.14 and 0.39 if rounded, the lower 3.0 first.
  @pytest.mark.parametrize(
    'top_p, survivors',
    [(0.1, [1]), (0.4, [1, 3]), (0.8, [1, 2, 3]), (0.99, [0, 1, 2, 3])],
  )
  def test_top_p_draws_from_the_fewest_that_add_up_to_it(
    self, top_p, survivors
  ):
    counts = self._count_draws(sampling.Sampling(top_p=top_p))
    assert np.flatnonzero(counts).tolist() == survivors

  def test_top_p_is_of_what_temperature_and_top_k_leave(self):
    # Two are left, with half each.
    rule = sampling.Sampling(temperature=2.0, top_k=2, top_p=0.5)
    assert np.flatnonzero(self._count_draws(rule)).tolist() == [1]

  def test_the_same_seed_and_place_the_same_token(self):
    rule = sampling.Sampling(temperature=2.0, seed=7)
    logits = np.zeros(99, np.float32)
    places = [sampling.draw(logits, rule, place) for place in range(20)]
    repeats = [sampling.draw(logits, rule, place) for place in range(20)]
    other = sampling.Sampling(temperature=2.0, seed=8)
    assert places == repeats and len(set(places)) > 10
    assert places != [sampling.draw(logits, other, p) for p in range(20)]

  @pytest.mark.parametrize('temperature', [0.5, 1.0, 3.0])
  def test_temperature_divides_the_logits(self, temperature):
    counts = self._count_draws(sampling.Sampling(temperature), 4000)
    want = np.exp(self.LOGITS / temperature)
    want /= want.sum()
    # Six deviations of a share of 4,000 draws: 4 shares, 3 cases, 2e-8 each.
    limit = 6 * np.sqrt(want * (1 - want) / 4000)
    assert (np.abs(counts / 4000 - want) <= limit).all()

  @pytest.mark.parametrize(
    'wrong, text',
    [
      (dict(temperature=-1.0), 'temperature: expected 0 or more, got -1'),
      (dict(temperature=float('nan')), 'temperature: expected 0 or more'),
      (dict(top_k=-1), 'top_k: expected 0 or more, got -1'),
      (dict(top_p=0.0), 'top_p: expected above 0, at most 1, got 0'),
      (dict(top_p=1.5), 'top_p: expected above 0, at most 1, got 1.5'),
      (dict(seed=-1), 'seed: expected 0 or more, got -1'),
    ],
  )
  def test_refuses(self, wrong, text):
    with pytest.raises(ValueError, match=text):
      sampling.Sampling(**wrong)
