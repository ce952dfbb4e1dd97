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

softmax_topk = jax.jit(routing.softmax_topk, static_argnums=(1, 2))
group_topk = jax.jit(routing.sigmoid_group_topk, static_argnums=(2, 3, 4, 5, 6))
sigmoid = jax.jit(jax.nn.sigmoid)


def scores_of(*rows: list[float]) -> np.ndarray:
  """Returns one rank's scores `[1, T, E]`."""
  return np.array([rows], np.float32)


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
    out = softmax_topk(scores_of(row), 3)
    assert out.topk_ids.dtype == jnp.int32
    np.testing.assert_array_equal(out.topk_ids, [[expected]])

  @pytest.mark.parametrize('normalize', [True, False])
  @pytest.mark.parametrize('top_k', [1, 2, 8])
  @pytest.mark.parametrize('dtype, rtol', DTYPES)
  def test_equals_a_serial_loop(self, normalize, top_k, dtype, rtol):
    # Given.
    scores = random_scores('softmax', (2, 5, 8))
    # When.
    out = softmax_topk(scores.astype(dtype), top_k, normalize)
    out = jax.device_get(out)
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
    scores, bias = scores.astype(dtype), bias.astype(dtype)
    out = group_topk(
      scores,
      bias,
      top_k,
      num_groups,
      top_groups,
      normalize,
      1.3,
    )
    out = jax.device_get(out)
    # Then: the sigmoid is the module's own, so that ties are the same ties.
    assert out.topk_weights.dtype == dtype
    shares = np.asarray(sigmoid(scores))
    size = 16 // num_groups
    for r, t in np.ndindex(2, 5):
      share = shares[r, t]
      biased = share + bias
      group = [
        biased.dtype.type(sum(sorted(biased[g * size : (g + 1) * size])[-2:]))
        for g in range(num_groups)
      ]
      best_groups = sorted(range(num_groups), key=lambda g: (-group[g], g))
      experts = [e for e in range(16) if e // size in best_groups[:top_groups]]
      best = sorted(experts, key=lambda e: (-biased[e], e))[:top_k]
      total = share[best].sum() if normalize else 1
      np.testing.assert_array_equal(out.topk_ids[r, t], best)
      np.testing.assert_allclose(
        out.topk_weights[r, t], 1.3 * share[best] / total, rtol=rtol
      )

  def test_underflow_of_all_sigmoids_is_zero_weight(self):
    zeros = np.zeros(2, np.float32)
    out = group_topk(scores_of([-200, -200]), zeros, 2, 1, 1)
    np.testing.assert_array_equal(out.topk_weights, [[[0, 0]]])


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
      call(np.zeros((1, 2, 6), np.float32))

  @pytest.mark.parametrize(
    'name, changes',
    [
      ('bias', dict(bias=np.zeros(5, np.float32))),
      ('bias', dict(bias=np.zeros(6, np.int32))),
      ('num_groups', dict(num_groups=4)),
      ('num_groups', dict(num_groups=0)),
      ('top_groups', dict(top_groups=3)),
      ('top_groups', dict(top_groups=0)),
      ('top_groups', dict(top_k=4, top_groups=1)),
      ('top_k', dict(top_k=7)),
    ],
  )
  def test_group_arguments(self, name, changes):
    valid = dict(
      scores=np.zeros((1, 2, 6), np.float32),
      bias=np.zeros(6, np.float32),
      top_k=2,
      num_groups=2,
      top_groups=2,
    )
    call = functools.partial(routing.sigmoid_group_topk, **valid)
    jax.eval_shape(call)
    with pytest.raises(ValueError, match=f'{name}: expected .* got'):
      call(**changes)
