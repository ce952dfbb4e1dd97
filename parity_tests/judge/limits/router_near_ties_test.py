"""Limits of near ties: none is four times too narrow, or too wide.

The scores of the worst right kernel follow here from the rule: each of its
operations is off by the most that is allowed, for one of two experts and
against the other.  Ties are planted where that kernel just reverses the order,
and at twice that distance, where none does.
"""

import dataclasses
import zlib

import numpy as np
import pytest

from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.reference import routing
from hpmoe.reference.contract import router as router_lib

_EXPERTS, _TOP_K = 64, 6
_UNIT = dict(float32=2.0**-24, bfloat16=2.0**-8, float16=2.0**-11)
# Experts that are certainly chosen, of three groups.
_SURE = [0, 1, 8, 9, 16]
# Who ties: two experts of a group, or two groups by their two best experts.
_EXPERT_TIE = ([24], [25])
_GROUP_TIE = ([24, 25], [32, 33])
# In distances that the worst kernel reverses.
_INSIDE, _OUTSIDE = 0.95, 2.0

_TIES = [
  (name, ties)
  for name, rule in router_lib.RULES.items()
  for ties in (_EXPERT_TIE, _GROUP_TIE)[: 1 + rule.grouped]
]


def _make_router(rule: str, dtype: str) -> router_lib.Router:
  groups = (8, 4) if router_lib.RULES[rule].grouped else (1, 1)
  return router_lib.Router(rule, _TOP_K, *groups, dtype=dtype)


@dataclasses.dataclass(frozen=True)
class _Worst:
  """The scores of the worst kernel.

  Attributes:
    router: the rule.
    bias: `[E]`.
    peak: `[T]` largest logits.
  """

  router: router_lib.Router
  bias: np.ndarray
  peak: np.ndarray

  def _move(self, value, side, times=1):
    unit = _UNIT[self.router.dtype]
    return value + side * times * unit * np.abs(value)

  def _store(self, value, side):
    is_held = value.astype(self.router.dtype).astype('d') == value
    return np.where(is_held, value, self._move(value, side))

  def score(self, logits: np.ndarray, expert: int, side: int) -> np.ndarray:
    """Returns scores `[T]` of an expert, all errors to one side; 0: none."""
    rule, z, bias = self.router.table, logits[:, expert], self.bias[expert]
    z, bias = self._store(z, side), self._store(bias, side)
    if rule.bias == 'logits':
      z = self._move(z + bias, side)
    if rule.scores == 'sigmoid':
      total = 1 + self._move(np.exp(-z), -side, 4)
      z = self._move(1 / self._move(total, -side), side)
    elif rule.scores == 'softmax' and not rule.of_chosen:
      z = self._move(np.exp(self._move(z - self.peak, side)), side, 5)
    if rule.bias == 'choice':
      z = self._move(z + bias, side)
    return z

  def add(self, logits: np.ndarray, experts: list[int], side: int):
    """Returns scores `[T]` of an expert, or of a group with two."""
    total = sum(self.score(logits, expert, side) for expert in experts)
    return self._move(total, side) if len(experts) > 1 else total

  def find_logit(self, score: np.ndarray, expert: int) -> np.ndarray:
    """Returns the logits `[T]` of which an expert has a score."""
    rule, bias = self.router.table, self.bias[expert]
    if rule.bias == 'choice':
      score = score - bias
    if rule.scores == 'sigmoid':
      score = np.log(score / (1 - score))
    elif rule.scores == 'softmax' and not rule.of_chosen:
      score = np.log(score) + self.peak
    return score - bias if rule.bias == 'logits' else score


def _draw(rule: str, tokens: int, last: list[int], after: list[int]):
  """Returns logits `[T, E]` and a bias `[E]`, float32, as float64."""
  rng = np.random.default_rng(zlib.crc32(rule.encode()))
  logits = -6 - rng.random((tokens, _EXPERTS))
  logits[:, _SURE] = 1 + 2 * rng.random((tokens, len(_SURE)))
  logits[:, last + after] = -3
  logits[:, last[0]] = -2 + rng.random(tokens)
  bias = (rng.random(_EXPERTS) - 0.5) / 50 * bool(router_lib.RULES[rule].bias)
  return _fill(logits).astype('d'), bias.astype('f').astype('d')


def _fill(logits: np.ndarray) -> np.ndarray:
  """Returns float32 logits whose last bit no narrower dtype holds."""
  return (logits.astype(np.float32).view(np.int32) | 1).view(np.float32)


def _plant(router, ties, times: float, tokens: int):
  """Returns logits `[T, E]` and a bias with ties at a distance in reaches."""
  last, after = ties
  logits, bias = _draw(router.rule, tokens, last, after)
  worst = _Worst(router, bias, logits.max(-1))
  first, rest = after[0], after[1:]

  def reduce_gap(gap):
    target = worst.add(logits, last, 0) - gap
    for other in rest:
      target = target - worst.score(logits, other, 0)
    return worst.find_logit(target, first)

  logits[:, first] = _fill(reduce_gap(0.0))
  reach = worst.add(logits, after, 1) - worst.add(logits, after, 0)
  reach += worst.add(logits, last, 0) - worst.add(logits, last, -1)
  wide = reduce_gap(times * reach)
  narrow = wide.astype(np.float32)
  # Of the two neighbours in float32 that which is further from the limit.
  if times > 1:
    narrow = np.where(narrow < wide, narrow, np.nextafter(narrow, -np.inf))
  else:
    narrow = np.where(narrow >= wide, narrow, np.nextafter(narrow, np.inf))
  logits[:, first] = narrow if router.dtype == 'float32' else _fill(narrow)
  return logits.astype(np.float32), bias.astype(np.float32)


def _judge(rule: str, ties, dtype: str, times: float, tokens: int):
  """Returns tokens: decided ones, those wrong when reversed, and all."""
  router = _make_router(rule, dtype)
  logits, bias = _plant(router, ties, times, tokens)
  scores = router_limits.bound_scores(router, logits, bias)
  wide = routing.route(router, logits[None].astype('d'), bias.astype('d'))
  ids = wide.topk_ids[0]
  # A distance of less than a float32 unit may be none.
  is_planted = (ids == ties[0][0]).any(-1) & ~(ids == ties[1][0]).any(-1)
  assert is_planted.sum() >= 0.5 * tokens
  reversed_ids = np.where(ids == ties[0][0], ties[1][0], ids)
  undecided = {*router_limits.find_undecided(router, scores)}
  wrong = {*router_limits.list_wrong_tokens(router, scores, reversed_ids)}
  planted_tokens = {*np.flatnonzero(is_planted).tolist()}
  return planted_tokens - undecided, planted_tokens & wrong, planted_tokens


def _check(rule, ties, dtype, tokens):
  # Given: ties that the worst right kernel just reverses; then: each may be.
  decided, wrong, _ = _judge(rule, ties, dtype, _INSIDE, tokens)
  assert not decided and not wrong
  # Given: ties at twice the distance; then: all are decided.
  decided, wrong, planted_tokens = _judge(rule, ties, dtype, _OUTSIDE, tokens)
  assert decided == wrong == planted_tokens


@pytest.mark.parametrize('dtype', [*_UNIT])
@pytest.mark.parametrize(('rule', 'ties'), _TIES)
class TestLimits:
  def test_they_are_neither_too_narrow_nor_too_wide(self, rule, ties, dtype):
    _check(rule, ties, dtype, tokens=100)

  @pytest.mark.slow
  def test_nor_are_they_for_many_tokens(self, rule, ties, dtype):
    _check(rule, ties, dtype, tokens=10_000)
