"""The experts that a right kernel may choose, given its roundings.

The golden scores are computed here in float64, each with an interval that
contains the score of every right kernel of the declared dtype.  A choice is
possible if no expert outside it certainly scores higher than an expert in it.
A token with more than one possible choice is undecided.

With u the unit roundoff of the dtype, and every operation rounded once:

* a logit or bias that the dtype does not hold rounds by u of itself, and so
  does their sum, where the bias is one of the logits;
* sigmoid: exp within 4 u, the sum and the quotient: 8 u of the result;
* softmax: the argument z - max z rounds by u |z - max z|, exp by 4 u, the
  quotient by u; the sum is common to all experts of a token, and cancels when
  they are compared;
* adding a bias to a score rounds the sum by u of itself;
* the sum of a group rounds by u of itself;
* a result below the smallest normal number may be flushed to zero: of a softmax
  after it is divided by the sum;
* minus infinity, of an expert that nobody may choose, is not rounded.
"""

from collections.abc import Iterator
import dataclasses
import itertools

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference import routing
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import router as router_lib

_EXP = 4
_SIGMOID = _EXP + 2 + 2  # of sum and quotient, and what these add in turn
# The most choices of one token that are listed.  Data with more near ties
# cannot judge a router.
_MOST_CHOICES = 256


@dataclasses.dataclass(frozen=True)
class Scores:
  """The scores by which tokens choose experts.

  Attributes:
    value: `[T, E]` float64.
    lowest, highest: `[T, E]` float64, the interval of all right kernels.
  """

  value: at.Float[np.ndarray, 'T E']
  lowest: at.Float[np.ndarray, 'T E']
  highest: at.Float[np.ndarray, 'T E']


@dataclasses.dataclass(frozen=True)
class WrongChoice:
  """A choice that no rounding explains.

  Attributes:
    token: its number.
    chosen_id, left_out_id: experts, of which the second scores higher.
    chosen_score, left_out_score: their scores, in float64.
    unit: 'expert', or 'group' if a group was chosen wrongly.
    groups: the groups of the chosen experts, if more than the rule keeps.
    best_groups: the groups that the rule keeps.
  """

  token: int
  chosen_id: int
  left_out_id: int
  chosen_score: float
  left_out_score: float
  unit: str = 'expert'
  groups: tuple[int, ...] = ()
  best_groups: tuple[int, ...] = ()

  def __str__(self) -> str:
    if self.groups:
      return (
        f'token {self.token}: chose from groups {[*self.groups]}, where the '
        f'rule keeps {len(self.best_groups)}, {[*self.best_groups]}'
      )
    return (
      f'token {self.token}: chose {self.unit} {self.chosen_id}, which scores '
      f'{self.chosen_score:.9g}, and left out {self.unit} {self.left_out_id}, '
      f'which scores {self.left_out_score:.9g}'
    )


def bound_scores(
  router: router_lib.Router,
  logits: at.Float[np.ndarray, 'T E'],
  bias: at.Float[np.ndarray, 'E'] | None = None,
  spread: at.Float[np.ndarray, 'T E'] | None = None,
) -> Scores:
  """Returns golden scores with the intervals of right kernels.

  Args:
    router: the rule.
    logits: `[T, E]` as the kernel gets them.
    bias: `[E]`; None: 0.
    spread: `[T, E]` how far the kernel's logits may be from `logits`; None: 0.
  """
  wide = logits.astype(np.float64)
  wide_bias = None if bias is None else bias.astype(np.float64)
  reach = _spread_logits(router, wide, wide_bias, spread)
  peak = wide.max(-1, keepdims=True)
  value, error = _score(router, wide, wide_bias, peak)
  if not reach.any():
    return Scores(value, value - error, value + error)
  # Scores increase with their logit; the peak is common to a token.
  low, low_error = _score(router, wide - reach, wide_bias, peak)
  high, high_error = _score(router, wide + reach, wide_bias, peak)
  return Scores(value, low - low_error, high + high_error)


def _spread_logits(
  router: router_lib.Router,
  logits: np.ndarray,
  bias: np.ndarray | None,
  spread: np.ndarray | None,
) -> np.ndarray:
  """Returns how far logits `[..., E]`, with a bias of theirs, may be off."""
  dtype = router.dtype
  reach = _round_to(logits, dtype)
  if spread is not None:
    reach = reach + spread
  if bias is not None and router.table.bias == 'logits':
    own = ulp.unit_roundoff(dtype) * _size_finite(logits + bias)
    reach = reach + _round_to(bias, dtype) + own
  return reach


def _round_to(value: np.ndarray, dtype: str) -> np.ndarray:
  """Returns by how much rounding to a dtype may move float64 values."""
  with np.errstate(over='ignore'):
    rounded_value = value.astype(ulp.storage_dtype(dtype)).astype(np.float64)
  error = ulp.unit_roundoff(dtype) * _size_finite(value)
  return np.where(rounded_value == value, 0.0, error)


def _score(
  router: router_lib.Router,
  value: np.ndarray,
  bias: np.ndarray | None,
  peak: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns scores `[T, E]` of logits, and how far rounding moves them."""
  table, dtype = router.table, router.dtype
  u = ulp.unit_roundoff(dtype)
  tiny = ulp.smallest_normal(dtype)
  error = np.zeros_like(value)
  if bias is not None and table.bias == 'logits':
    value = value + bias
  if table.scores == 'sigmoid':
    value = _sigmoid(value)
    error = _flush(_SIGMOID * u * value, value, tiny)
  elif table.scores == 'softmax' and not table.of_chosen:
    below = np.where(np.isneginf(value), 0.0, np.abs(peak - value))
    value = np.exp(value - peak)
    flush_limit = tiny * value.sum(-1, keepdims=True)
    error = _flush((below + _EXP + 2) * u * value, value, flush_limit)
  if bias is not None and table.bias == 'choice':
    value = value + bias
    error = error + u * (_size_finite(value) + error) + _round_to(bias, dtype)
  return value, error


def _flush(error: np.ndarray, value: np.ndarray, flush_limit) -> np.ndarray:
  """Returns errors where values may be flushed that are below a limit."""
  return error + np.where(value - error < flush_limit, flush_limit, 0.0)


def _size_finite(value: np.ndarray) -> np.ndarray:
  """Returns sizes; 0 of infinities, which are not rounded."""
  return np.where(np.isinf(value), 0.0, np.abs(value))


def list_choices(
  router: router_lib.Router, scores: Scores, token: int
) -> list[tuple[int, ...]]:
  """Returns the possible choices of a token: sorted ids, at most 256."""
  row = _row(scores, token)
  choices = {
    choice
    for eligible in _kept_experts(router, row)
    for choice in _subsets(row.lowest, row.highest, router.top_k, eligible)
  }
  return sorted(choices)[:_MOST_CHOICES]


def is_possible(
  router: router_lib.Router,
  scores: Scores,
  token: int,
  choice: tuple[int, ...],
) -> bool:
  """Says whether a right kernel may choose these experts for a token."""
  row = _row(scores, token)
  for eligible in _kept_experts(router, row):
    rejected = eligible.copy()
    rejected[[*choice]] = False
    floor = row.highest[[*choice]].min()
    reach = row.lowest[rejected].max(initial=-np.inf)
    if eligible[[*choice]].all() and floor >= reach:
      return True
  return False


def find_undecided(
  router: router_lib.Router, scores: Scores
) -> dict[int, list[tuple[int, ...]]]:
  """Returns the possible choices of every token that has more than one."""
  tokens = np.flatnonzero(may_be_undecided(router, scores)).tolist()
  choices = {token: list_choices(router, scores, token) for token in tokens}
  return {token: c for token, c in choices.items() if len(c) > 1}


def find_wrong_choice(
  router: router_lib.Router,
  scores: Scores,
  ids: at.Int[np.ndarray, 'T K'],
) -> WrongChoice | None:
  """Returns the first choice of a kernel that no rounding explains, or None.

  Args:
    router: the rule.
    scores: of `bound_scores`.
    ids: `[T, K]` experts that the kernel chose, in any order.

  Raises:
    ValueError: an id is no expert, or a token has one twice.
  """
  experts = scores.value.shape[1]
  invalid_tokens = np.flatnonzero(find_invalid(ids, experts).any(-1))
  if invalid_tokens.size:
    token = int(invalid_tokens[0])
    raise ValueError(
      f'topk_ids: expected {ids.shape[1]} different experts below {experts}, '
      f'got {ids[token].tolist()} for token {token}'
    )
  wrong_tokens = list_wrong_tokens(router, scores, ids)
  if not wrong_tokens:
    return None
  return explain_wrong(router, scores, wrong_tokens[0], ids)


def find_invalid(
  ids: at.Int[np.ndarray, '*tokens K'], experts: int
) -> at.Bool[np.ndarray, '*tokens K']:
  """Returns bool, ids that are no experts, or duplicates in their token."""
  is_before = np.tri(ids.shape[-1], k=-1, dtype=bool)
  is_equal = ids[..., :, None] == ids[..., None, :]
  is_twice = (is_equal & is_before).any(-1)
  return (ids < 0) | (ids >= experts) | is_twice


def list_wrong_tokens(
  router: router_lib.Router,
  scores: Scores,
  ids: at.Int[np.ndarray, 'T K'],
) -> list[int]:
  """Returns the tokens `[T, K]` whose choice no rounding explains."""
  best = np.argsort(-scores.value, axis=-1, kind='stable')
  plain = np.sort(best[:, : router.top_k], -1) == np.sort(ids, -1)
  decided = plain.all(-1) if router.groups == 1 else np.zeros(len(ids), bool)
  return [
    token
    for token in np.flatnonzero(~decided).tolist()
    if not is_possible(router, scores, token, tuple(sorted(ids[token])))
  ]


def count_weight_roundings(
  router: router_lib.Router,
  logits: at.Float[np.ndarray, '*tokens E'],
  bias: at.Float[np.ndarray, 'E'] | None = None,
) -> float:
  """Returns the number of roundings in a routing weight of a right kernel.

  Each is a unit roundoff of the weight; the argument of exp rounds by the
  widest range of `logits` `[..., E]`, to which a rule may add its bias `[E]`.
  What rounds logits is not counted: see `spread_weights`.
  """
  table = router.table
  terms = router.top_k if table.of_chosen else logits.shape[-1]
  if table.scores == 'none':
    of_score = 0.0
  elif table.scores == 'sigmoid':
    of_score, terms = float(_SIGMOID), router.top_k
  else:
    wide = logits.astype(np.float64)
    if bias is not None and table.bias == 'logits':
      wide = wide + bias.astype(np.float64)
    finite = np.isfinite(wide)
    spread = np.where(finite, wide, -np.inf).max(-1) - np.where(
      finite, wide, np.inf
    ).min(-1)
    of_score = float(np.maximum(spread, 0).max(initial=0.0)) + _EXP
  divides = table.scores == 'softmax' or table.renormalise
  of_sum = of_score + terms + 1 if divides else 0.0
  if table.scores == 'softmax' and table.renormalise and not table.of_chosen:
    of_sum += of_score + router.top_k + 2
  return of_score + of_sum + 1 + (router.scale != 1.0)


def spread_weights(
  router: router_lib.Router,
  logits: at.Float[np.ndarray, '*tokens E'],
  bias: at.Float[np.ndarray, 'E'] | None,
  topk_ids: at.Int[np.ndarray, '*tokens K'],
  spread: at.Float[np.ndarray, '*tokens E'] | None = None,
) -> at.Float[np.ndarray, '*tokens K']:
  """Returns the errors of weights `[..., K]` due to those of their logits.

  Under every rule a weight increases with its own logit and decreases, if at
  all, with others: so its interval has its ends at those of the logits.

  Args:
    router: the rule.
    logits: `[..., E]`.
    bias: `[E]`; None: 0.
    topk_ids: `[..., K]` experts.
    spread: `[..., E]` how far a logit may be off before the rule rounds it;
      None: 0.
  """
  logits = logits.astype(np.float64)
  bias = None if bias is None else bias.astype(np.float64)
  spread = _spread_logits(router, logits, bias, spread)
  if not spread.any():
    return np.zeros(topk_ids.shape)
  weights = routing.weigh_choice(router, logits, bias, topk_ids)
  reach = np.zeros_like(weights)
  for slot in range(topk_ids.shape[-1]):
    is_own = topk_ids[..., slot, None] == np.arange(logits.shape[-1])
    for side in (spread, -spread):
      side_logits = np.where(is_own, logits + side, logits - side)
      ends = routing.weigh_choice(router, side_logits, bias, topk_ids)[
        ..., slot
      ]
      reach[..., slot] = np.maximum(
        reach[..., slot], np.abs(ends - weights[..., slot])
      )
  return reach


def bound_weight_ulp(
  router: router_lib.Router,
  logits: at.Float[np.ndarray, '*tokens E'],
  bias: at.Float[np.ndarray, 'E'] | None,
  topk_ids: at.Int[np.ndarray, '*tokens K'],
  spread: at.Float[np.ndarray, '*tokens E'] | None = None,
) -> float:
  """Returns the largest error of float32 weights, in their unit roundoff.

  Args:
    router: the rule.
    logits: `[..., E]`.
    bias: `[E]`; None: 0.
    topk_ids: `[..., K]` experts.
    spread: `[..., E]`, as of `spread_weights`.
  """
  logits = logits.astype(np.float64)
  bias = None if bias is None else bias.astype(np.float64)
  reach = spread_weights(router, logits, bias, topk_ids, spread)
  size = np.abs(routing.weigh_choice(router, logits, bias, topk_ids))
  relative = reach / np.where(size == 0, np.inf, size)
  of_spread = float(relative.max(initial=0.0)) / ulp.unit_roundoff('float32')
  return count_float32_roundings(router, logits, bias) + of_spread


def count_float32_roundings(
  router: router_lib.Router,
  logits: at.Float[np.ndarray, '*tokens E'],
  bias: at.Float[np.ndarray, 'E'] | None,
) -> float:
  """Returns `count_weight_roundings` of a weight in float32, in its roundings.

  For arguments see there.
  """
  of_rule = count_weight_roundings(router, logits, bias)
  units = ulp.unit_roundoff(router.dtype) / ulp.unit_roundoff('float32')
  return 1 + units * of_rule


def _sigmoid(z: np.ndarray) -> np.ndarray:
  power = np.exp(-np.abs(z))
  return np.where(z >= 0, 1.0, power) / (1.0 + power)


def _row(scores: Scores, token: int) -> Scores:
  return Scores(
    scores.value[token], scores.lowest[token], scores.highest[token]
  )


def _bound_groups(router: router_lib.Router, scores: Scores) -> Scores:
  """Returns scores `[..., G]` of groups, of experts' `[..., E]`."""

  def add(of_experts: np.ndarray) -> np.ndarray:
    groups = of_experts.reshape(*of_experts.shape[:-1], router.groups, -1)
    return np.sort(groups, -1)[..., -router_lib.GROUP_TERMS :].sum(-1)

  value = add(scores.value)
  rounding = ulp.unit_roundoff(router.dtype) * _size_finite(value)
  return Scores(
    value, add(scores.lowest) - rounding, add(scores.highest) + rounding
  )


def may_be_undecided(
  router: router_lib.Router, scores: Scores
) -> at.Bool[np.ndarray, 'T']:
  """Returns `[T]` bool; False where all right kernels make the same choice.

  There the intervals of the last chosen and the first other expert do not
  overlap, and neither do those of groups.
  """
  unsure = np.zeros(len(scores.value), bool)
  value = scores.value
  if router.groups > 1:
    groups = _bound_groups(router, scores)
    unsure = _overlaps(groups, groups.value, router.top_groups)
    best = np.argsort(-groups.value, axis=-1, kind='stable')
    kept_groups = np.zeros(groups.value.shape, bool)
    np.put_along_axis(kept_groups, best[:, : router.top_groups], True, -1)
    size = value.shape[1] // router.groups
    value = np.where(np.repeat(kept_groups, size, -1), value, -np.inf)
  return unsure | _overlaps(scores, value, router.top_k)


def _overlaps(scores: Scores, value: np.ndarray, count: int) -> np.ndarray:
  """Returns `[T]` bool, where the best `count` of `value` are not certain."""
  if count >= value.shape[1]:
    return np.zeros(len(value), bool)
  order = np.argsort(-value, axis=-1, kind='stable')
  chosen_id, rejected = order[:, :count], order[:, count:]
  lowest = np.take_along_axis(scores.lowest, chosen_id, -1).min(-1)
  apart = np.take_along_axis(value, rejected, -1)
  reach = np.take_along_axis(scores.highest, rejected, -1)
  return np.where(np.isneginf(apart), -np.inf, reach).max(-1) >= lowest


def _kept_experts(
  router: router_lib.Router, row: Scores
) -> Iterator[np.ndarray]:
  """Yields `[E]` bool for every possible set of kept groups."""
  experts = len(row.value)
  if router.groups == 1:
    yield np.ones(experts, bool)
    return
  groups = _bound_groups(router, row)
  all_groups = np.ones(router.groups, bool)
  for kept_groups in _subsets(
    groups.lowest, groups.highest, router.top_groups, all_groups
  ):
    eligible = np.zeros(router.groups, bool)
    eligible[[*kept_groups]] = True
    yield np.repeat(eligible, experts // router.groups)


def _subsets(
  lowest: np.ndarray, highest: np.ndarray, count: int, eligible: np.ndarray
) -> Iterator[tuple[int, ...]]:
  """Yields the possible choices of `count` allowed members."""
  members = np.flatnonzero(eligible)
  low, high = lowest[members], highest[members]
  # How many certainly come before a member, and how many possibly do.
  surely_before = (low[None, :] > high[:, None]).sum(1)
  maybe_before = (high[None, :] >= low[:, None]).sum(1) - 1
  sure = members[maybe_before < count]
  open_members = members[(surely_before < count) & (maybe_before >= count)]
  rest = count - len(sure)
  combinations = itertools.combinations(open_members.tolist(), rest)
  for chosen_id in itertools.islice(combinations, _MOST_CHOICES):
    choice = {*sure.tolist(), *chosen_id}
    rejected = [m for m in members.tolist() if m not in choice]
    floor = highest[[*choice]].min()
    if not rejected or floor >= lowest[rejected].max():
      yield tuple(sorted(choice))


def explain_wrong(
  router: router_lib.Router,
  scores: Scores,
  token: int,
  ids: at.Int[np.ndarray, 'T K'],
) -> WrongChoice:
  """Returns the clearest evidence that the choice of a token is wrong.

  Args:
    router: the rule.
    scores: of `bound_scores`.
    token: one of `list_wrong_tokens`.
    ids: `[T, K]` experts that the kernel chose, in any order.
  """
  choice = tuple(sorted(ids[token].tolist()))
  row, unit = _row(scores, token), 'expert'
  members_in, eligible = [*choice], np.ones(len(row.value), bool)
  if router.groups > 1:
    size = len(row.value) // router.groups
    groups = _bound_groups(router, row)
    used_groups = sorted({expert // size for expert in members_in})
    best = np.argsort(-groups.value, kind='stable')[: router.top_groups]
    if len(used_groups) > router.top_groups:
      return WrongChoice(
        *(token, choice[0], choice[0], 0.0, 0.0, 'group'),
        tuple(int(group) for group in used_groups),
        tuple(sorted(best.tolist())),
      )
    if not {*used_groups} <= {*best.tolist()}:
      row, members_in, unit = groups, used_groups, 'group'
      eligible = np.ones(router.groups, bool)
    else:
      eligible = np.repeat(np.isin(np.arange(router.groups), best), size)
  rejected = [
    m for m in np.flatnonzero(eligible).tolist() if m not in members_in
  ]
  worst = min(members_in, key=lambda member: row.value[member])
  best_omitted = max(rejected, key=lambda member: row.value[member])
  return WrongChoice(
    token,
    worst,
    best_omitted,
    float(row.value[worst]),
    float(row.value[best_omitted]),
    unit,
  )
