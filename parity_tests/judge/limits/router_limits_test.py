"""Choices that rounding allows, and those that it does not."""

import dataclasses
import zlib

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.reference import routing
from hpmoe.reference.contract import router as router_lib

_TOKENS, _EXPERTS, _TOP_K = 2000, 64, 6
# Tokens of whose experts two score within a float32 unit of each other.
_NUM_TIES = 40
# The same of more tokens.
_SWEEP = dict(tokens=10_000, num_ties=200)


def _router(rule: str) -> router_lib.Router:
  grouped = router_lib.RULES[rule].grouped
  groups = (8, 4) if grouped else (1, 1)
  return router_lib.Router(rule, _TOP_K, *groups, scale=2.5)


def _logits(rule: str, tokens: int = _TOKENS) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(zlib.crc32(rule.encode()))
  logits = rng.normal(size=(tokens, _EXPERTS)).astype(np.float32) * 2
  bias = (rng.normal(size=_EXPERTS) / 50).astype(np.float32)
  return logits, bias


def _plant_ties(rule: str, logits, bias, num_ties=_NUM_TIES) -> np.ndarray:
  """Makes the K-th and the next expert of some tokens score alike."""
  tied_logits = logits.copy()
  router = router_lib.Router(rule, _TOP_K)
  for token in range(num_ties):
    _, _, choice = routing.compute_scores(
      router, logits[token].astype(np.float64), bias.astype(np.float64)
    )
    order = np.argsort(-choice)
    last, after = order[_TOP_K - 1], order[_TOP_K]
    tied_logits[token, after] = tied_logits[token, last]
    if router.table.bias == 'choice':  # by the inverse of the sigmoid
      share = choice[last] - bias[after]
      if 0 < share < 1:  # else no logit ties
        tied_logits[token, after] = np.log(share / (1 - share))
      else:
        tied_logits[token] = logits[token]
    elif router.table.bias == 'logits':
      tied_logits[token, after] += bias[last] - bias[after]
  return tied_logits


def _choose(router, logits, bias, dtype, last_of_ties=False):
  """Returns `[T, K]` ids of a kernel that scores in `dtype`."""
  rule_bias = bias if router.table.bias else None
  if last_of_ties:
    flipped = routing.route(
      router,
      logits[None, :, ::-1],
      None if rule_bias is None else rule_bias[::-1],
    )
    return logits.shape[1] - 1 - flipped.topk_ids[0]
  if dtype == 'float32':
    return routing.route(router, logits[None], rule_bias).topk_ids[0]
  narrow = logits.astype(dtype)
  rule_bias = None if rule_bias is None else rule_bias.astype(dtype)
  return routing.route(router, narrow[None], rule_bias).topk_ids[0]


def _find_differing(ids: np.ndarray, other: np.ndarray) -> set[int]:
  """Returns the tokens whose experts `[T, K]` are not the same."""
  is_same = np.sort(ids, axis=-1) == np.sort(other, axis=-1)
  return {*np.flatnonzero(~is_same.all(-1)).tolist()}


@pytest.mark.parametrize('rule', [*router_lib.RULES])
class TestChoices:
  def test_right_kernels_are_right_with_near_ties(self, rule):
    # Given logits with planted near ties,
    router = _router(rule)
    logits, bias = _logits(rule)
    logits = _plant_ties(rule, logits, bias)
    scores = router_limits.bound_scores(
      router, logits, bias if router.table.bias else None
    )
    # when kernels in float32 choose, with ties to the lower and higher id,
    for last in (False, True):
      ids = _choose(router, logits, bias, 'float32', last)
      # then every choice is possible.
      assert router_limits.find_wrong_choice(router, scores, ids) is None

  def test_undecided_tokens_are_the_planted_ones(self, rule):
    router = _router(rule)
    logits, bias = _logits(rule)
    rule_bias = bias if router.table.bias else None
    before = router_limits.find_undecided(
      router, router_limits.bound_scores(router, logits, rule_bias)
    )
    tied_logits = _plant_ties(rule, logits, bias)
    after = router_limits.find_undecided(
      router, router_limits.bound_scores(router, tied_logits, rule_bias)
    )
    # A tie inside of groups that are not kept, or that moves a group, decides
    # nothing; elsewhere each is counted, and no token beside them.
    assert len(before) <= _TOKENS // 400
    assert {*after} <= {*before} | {*range(_NUM_TIES)}
    # A kernel adds the bias to logits or scores in float32: a tie that was
    # planted in float64 may be decided by then, but within its interval.
    minimum = 1 if router.groups > 1 else _NUM_TIES * 3 // 4
    assert len({*after} & {*range(_NUM_TIES)}) >= minimum

  @pytest.mark.slow
  def test_wrong_choices_among_many_near_ties_are_found(self, rule):
    # given: many tokens, some of them with a planted near tie
    router, tokens, ties = _router(rule), _SWEEP['tokens'], _SWEEP['num_ties']
    logits, bias = _logits(rule, tokens)
    logits = _plant_ties(rule, logits, bias, ties)
    rule_bias = bias if router.table.bias else None
    scores = router_limits.bound_scores(router, logits, rule_bias)
    undecided = {*router_limits.find_undecided(router, scores)}
    # when: kernels choose in float32, with either order of ties, and in bf16
    ids, late_ids = (
      _choose(router, logits, bias, 'float32', last) for last in (False, True)
    )
    narrow_ids = _choose(router, logits, bias, ml_dtypes.bfloat16)
    # then: float32 is right, and differs in undecided tokens alone
    assert router_limits.find_wrong_choice(router, scores, ids) is None
    assert router_limits.find_wrong_choice(router, scores, late_ids) is None
    differing = _find_differing(ids, late_ids)
    assert differing <= undecided
    assert len(undecided - {*range(ties)}) <= tokens // 400
    # then: planted ties are undecided, but for groups, and few tokens beside
    minimum = 1 if router.groups > 1 else ties * 3 // 4
    assert len(undecided & {*range(ties)}) >= minimum
    # then: of bf16's tokens those are wrong that no rounding explains
    wrong = {*router_limits.list_wrong_tokens(router, scores, narrow_ids)}
    changed_tokens = _find_differing(ids, narrow_ids)
    assert changed_tokens - undecided <= wrong <= changed_tokens
    assert wrong

  def test_every_alternative_is_a_possible_choice(self, rule):
    router = _router(rule)
    logits, bias = _logits(rule)
    logits = _plant_ties(rule, logits, bias)
    scores = router_limits.bound_scores(
      router, logits, bias if router.table.bias else None
    )
    ids = _choose(router, logits, bias, 'float32')
    for token, choices in router_limits.find_undecided(router, scores).items():
      assert tuple(sorted(ids[token].tolist())) in choices

  @pytest.mark.few(8)
  def test_scores_in_bf16_choose_wrongly_in_float32_rules(self, rule):
    router = _router(rule)
    logits, bias = _logits(rule)
    rule_bias = bias if router.table.bias else None
    scores = router_limits.bound_scores(router, logits, rule_bias)
    narrow_router = dataclasses.replace(router, dtype='bfloat16')
    narrow = router_limits.bound_scores(narrow_router, logits, rule_bias)
    ids = _choose(router, logits, bias, ml_dtypes.bfloat16)
    # A kernel of bfloat16 scores is wrong where float32 was declared,
    wrong = router_limits.find_wrong_choice(router, scores, ids)
    assert wrong is not None
    assert wrong.left_out_score > wrong.chosen_score
    # and right where bfloat16 was.
    wrong = router_limits.find_wrong_choice(narrow_router, narrow, ids)
    assert wrong is None

  def test_an_exchanged_expert_is_named_with_both_scores(self, rule):
    router = _router(rule)
    logits, bias = _logits(rule)
    scores = router_limits.bound_scores(
      router, logits, bias if router.table.bias else None
    )
    ids = _choose(router, logits, bias, 'float32').copy()
    token = 1234
    worst = int(np.argmin(scores.value[token]))
    ids[token, 0] = worst
    wrong = router_limits.find_wrong_choice(router, scores, ids)
    assert wrong is not None and wrong.token == token
    chosen_id = worst // 8 if wrong.unit == 'group' else worst
    assert wrong.chosen_id == chosen_id
    assert f'chose {wrong.unit} {chosen_id}' in str(wrong)

  def test_weights_are_within_their_roundings(self, rule):
    # Given weights in float32 and in float64 of the same choice,
    router = _router(rule)
    logits, bias = _logits(rule)
    rule_bias = bias if router.table.bias else None
    narrow = routing.route(router, logits[None], rule_bias)
    wide = routing.route(
      router,
      logits[None].astype(np.float64),
      None if rule_bias is None else rule_bias.astype(np.float64),
    )
    agreement = (narrow.topk_ids == wide.topk_ids).all(-1)
    # then they differ by the roundings that are counted, and not by a tenth
    # of them alone: a count that is far too large would hide a wrong weight.
    error = np.abs(narrow.topk_weights - wide.topk_weights)[agreement]
    size = np.abs(wide.topk_weights)[agreement] * 2.0**-24
    roundings = router_limits.count_weight_roundings(router, logits)
    assert agreement.mean() > 0.99
    assert (error <= roundings * size).all()
    if router.table.scores != 'none':
      assert (error / size).max() > roundings / 60


class TestEdges:
  def test_all_experts(self):
    # K = E: nothing is left to choose.
    router = router_lib.Router('softmax', 4)
    logits = np.zeros((3, 4), np.float32)
    scores = router_limits.bound_scores(router, logits)
    assert not router_limits.find_undecided(router, scores)
    ids = np.tile(np.arange(4), (3, 1))
    assert router_limits.find_wrong_choice(router, scores, ids) is None

  def test_no_token(self):
    router = router_lib.Router('sigmoid', 2)
    scores = router_limits.bound_scores(router, np.zeros((0, 8), np.float32))
    assert not router_limits.find_undecided(router, scores)
    ids = np.zeros((0, 2), int)
    assert router_limits.find_wrong_choice(router, scores, ids) is None

  def test_groups_of_minus_infinity_are_left_out(self):
    router = router_lib.Router('deepseek_v3', 2, 4, 2)
    logits = np.full((1, 16), -np.inf, np.float32)
    logits[0, 4:12] = np.arange(8)
    ids = routing.route(router, logits[None]).topk_ids[0]
    assert sorted(ids[0].tolist()) == [10, 11]
    scores = router_limits.bound_scores(router, logits)
    assert router_limits.find_wrong_choice(router, scores, ids) is None

  def test_a_bias_reverses_the_order(self):
    router = router_lib.Router('minimax2', 1)
    logits = np.array([[1.0, 0.0, -1.0]], np.float32)
    bias = np.array([0.0, 0.5, 1.0], np.float32)
    choice = routing.route(router, logits[None], bias)
    assert choice.topk_ids.tolist() == [[[2]]]
    assert choice.topk_weights[0, 0, 0] == pytest.approx(1)
    scores = router_limits.bound_scores(router, logits, bias)
    wrong = router_limits.find_wrong_choice(router, scores, np.array([[0]]))
    assert wrong is not None and (wrong.chosen_id, wrong.left_out_id) == (0, 2)

  @pytest.mark.parametrize('ids', [[0, 0], [0, 8], [-1, 2]])
  def test_what_is_no_choice_is_refused(self, ids):
    router = router_lib.Router('softmax', 2)
    scores = router_limits.bound_scores(router, np.zeros((1, 8), np.float32))
    with pytest.raises(ValueError, match='topk_ids: expected 2 different'):
      router_limits.find_wrong_choice(router, scores, np.array([ids]))


@pytest.mark.parametrize('rule', ['softmax', 'sigmoid', 'deepseek_v3'])
def test_scores_hold_those_of_every_logit_within_a_spread(rule):
  router = _router(rule)
  logits, bias = _logits(rule)
  rule_bias = bias if router.table.bias else None
  spread = np.abs(logits) * 2.0**-9
  scores = router_limits.bound_scores(router, logits, rule_bias, spread=spread)
  rng = np.random.default_rng(5)
  peak = logits.max(-1, keepdims=True).astype(np.float64)
  for sign in (-1.0, 1.0, rng.uniform(-1, 1, logits.shape)):
    other = (logits + sign * spread).astype(np.float64)
    _, shares, choice = routing.compute_scores(router, other, rule_bias)
    value = np.exp(other - peak) if rule == 'softmax' else choice
    assert shares.shape == value.shape
    assert np.all((scores.lowest <= value) & (value <= scores.highest))
  plain = router_limits.bound_scores(router, logits, rule_bias)
  zero = router_limits.bound_scores(
    router, logits, rule_bias, spread=np.zeros(logits.shape)
  )
  assert np.array_equal(plain.lowest, zero.lowest)
  assert np.array_equal(plain.highest, zero.highest)
