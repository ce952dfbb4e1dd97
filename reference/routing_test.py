"""Tests of routing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import routing
from hpmoe.reference import test_util
from hpmoe.reference.contract import checks

NEG = -np.inf


def scores_of(*rows: list[float]) -> jax.Array:
  """Returns one rank's scores `[1, T, E]`."""
  return jnp.array([rows], jnp.float32)


def random_scores(name: str, shape: tuple[int, ...]) -> np.ndarray:
  # A coarse grid, so that ties are common.
  rng = test_util.generator(name)
  return (rng.integers(-4, 5, shape) / 2).astype(np.float32)


# Eight roundings of float32 are below 1e-6; of float64, below 1e-14.
DTYPES = [('float32', 1e-6), ('float64', 1e-14)]


class TestSoftmaxTopk:
  @pytest.mark.parametrize(
    'row, expected',
    [
      ([1, 2, 2, 0], [1, 2, 0]),
      ([5, 5, 5, 5], [0, 1, 2]),
      ([0.0, -0.0, 0.0, -1], [0, 1, 2]),
      ([-0.0, 0.0, NEG, NEG], [0, 1, 2]),
      ([3, NEG, 4, 3], [2, 0, 3]),
    ],
  )
  def test_ties_go_to_the_lower_expert(self, row, expected):
    out = routing.softmax_topk(scores_of(row), 3)
    assert out.topk_ids.dtype == jnp.int32
    np.testing.assert_array_equal(out.topk_ids[0, 0], expected)

  @pytest.mark.parametrize('normalize', [True, False])
  @pytest.mark.parametrize('top_k', [1, 2, 8])
  @pytest.mark.parametrize('dtype, rtol', DTYPES)
  def test_equals_a_serial_loop(self, normalize, top_k, dtype, rtol):
    # Given.
    scores = random_scores('softmax', (2, 5, 8))
    # When.
    out = routing.softmax_topk(jnp.asarray(scores, dtype), top_k, normalize)
    # Then.
    assert out.topk_weights.dtype == dtype
    for r, t in np.ndindex(2, 5):
      row = scores[r, t].astype(np.float64)
      best = sorted(range(8), key=lambda e: (-row[e], e))[:top_k]
      shares = np.exp(row) / np.exp(row).sum()
      weights = shares[best] / (shares[best].sum() if normalize else 1)
      np.testing.assert_array_equal(out.topk_ids[r, t], best)
      np.testing.assert_allclose(out.topk_weights[r, t], weights, rtol=2 * rtol)


class TestSigmoidGroupTopk:
  @pytest.mark.parametrize(
    'top_k, num_groups, top_groups, normalize',
    [
      (4, 4, 2, True),
      (8, 4, 2, False),
      (3, 1, 1, True),
      (16, 4, 4, True),
      (2, 16, 2, True),
    ],
  )
  @pytest.mark.parametrize('dtype, rtol', DTYPES)
  def test_equals_a_serial_loop(
    self, top_k, num_groups, top_groups, normalize, dtype, rtol
  ):
    # Given.
    scores = random_scores('sigmoid', (2, 5, 16))
    bias = random_scores('bias', (16,)) / 8
    # When.
    out = routing.sigmoid_group_topk(
      jnp.asarray(scores, dtype),
      jnp.asarray(bias, dtype),
      top_k,
      num_groups,
      top_groups,
      normalize,
      1.3,
    )
    # Then.
    assert out.topk_weights.dtype == dtype
    size = 16 // num_groups
    for r, t in np.ndindex(2, 5):
      # The sigmoid is the module's own, so that ties are the same ties.
      share = np.asarray(jax.nn.sigmoid(jnp.asarray(scores[r, t], dtype)))
      biased = share + bias
      group = [
        biased.dtype.type(sum(sorted(biased[g * size : (g + 1) * size])[-2:]))
        for g in range(num_groups)
      ]
      kept = sorted(range(num_groups), key=lambda g: (-group[g], g))
      experts = [e for e in range(16) if e // size in kept[:top_groups]]
      best = sorted(experts, key=lambda e: (-biased[e], e))[:top_k]
      total = share[best].sum() if normalize else 1
      np.testing.assert_array_equal(out.topk_ids[r, t], best)
      np.testing.assert_allclose(
        out.topk_weights[r, t], 1.3 * share[best] / total, rtol=rtol
      )

  def test_underflow_of_all_sigmoids_is_zero_weight(self):
    out = routing.sigmoid_group_topk(
      scores_of([-200, -200]), jnp.zeros(2, jnp.float32), 2, 1, 1
    )
    np.testing.assert_array_equal(out.topk_weights[0, 0], [0, 0])


class TestBadInput:
  @pytest.mark.parametrize('value', [np.nan, np.inf])
  def test_check_scores_names_rank_and_token(self, value):
    scores = np.zeros((2, 3, 4), np.float32)
    checks.check_scores(scores)
    scores[1, 2, 0] = value
    with pytest.raises(ValueError, match='scores: .*rank 1, token 2'):
      checks.check_scores(scores)

  def test_check_scores_wants_an_expert_left(self):
    checks.check_scores(scores_of([NEG, 0]))
    with pytest.raises(ValueError, match='scores: .*-inf at rank 0, token 1'):
      checks.check_scores(scores_of([NEG, 0], [NEG, NEG]))

  @pytest.mark.parametrize(
    'name, call',
    [
      ('scores', lambda s: routing.softmax_topk(s[0], 1)),
      ('scores', lambda s: routing.softmax_topk(s.astype(int), 1)),
      ('top_k', lambda s: routing.softmax_topk(s, 0)),
      ('top_k', lambda s: routing.softmax_topk(s, 7)),
    ],
  )
  def test_softmax_arguments(self, name, call):
    with pytest.raises(ValueError, match=f'{name}: expected .* got'):
      call(jnp.zeros((1, 2, 6), jnp.float32))

  @pytest.mark.parametrize(
    'name, changed',
    [
      ('bias', dict(bias=jnp.zeros(5, jnp.float32))),
      ('bias', dict(bias=jnp.zeros(6, jnp.int32))),
      ('num_groups', dict(num_groups=4)),
      ('num_groups', dict(num_groups=0)),
      ('top_groups', dict(top_groups=3)),
      ('top_groups', dict(top_groups=0)),
      ('top_groups', dict(top_k=4, top_groups=1)),
      ('top_k', dict(top_k=7)),
    ],
  )
  def test_group_arguments(self, name, changed):
    valid = dict(
      scores=jnp.zeros((1, 2, 6), jnp.float32),
      bias=jnp.zeros(6, jnp.float32),
      top_k=2,
      num_groups=2,
      top_groups=2,
    )
    call = functools.partial(routing.sigmoid_group_topk, **valid)
    call()
    with pytest.raises(ValueError, match=f'{name}: expected .* got'):
      call(**changed)
