"""Tokens of one layer that two runs send to other experts, and why.

With z = W x in float64 of what a router read, the logits of a right router are
within

    min(D, 6 sqrt(D)) u32 sum |w x|  +  u |z|

of z: products are added in float32, in any order (the worst case, or six
standard deviations of random roundings), and the sum is rounded to the dtype of
the logits, of unit roundoff u.  `judge/limits/router_limits.py` bounds scores
of such logits.  Where a dump lacks x or W, its own logits are the reference,
with the second term.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference import routing
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import router as router_lib

# A token with other experts: the scores are a near tie; what the router read
# had parted before; or neither.
TIE, UPSTREAM, UNEXPLAINED = 'near tie', 'parted before', 'unexplained'
_DEVIATIONS = 6
# Routing weights that a rule explains may be off by so many roundings.
_WEIGHT_ROUNDINGS = 16
# Rules that are tried, where nothing says which it is.
_RULES = (
  'renormalize_naive',
  'softmax',
  'sigmoid_renorm',
  'sigmoid',
  'minimax2',
)


@dataclasses.dataclass(frozen=True)
class Side:
  """What one run has of a layer.

  Attributes:
    ids: `[N, K]` experts.
    weights: `[N, K]` their routing weights; None: the dump has none.
    x: `[N, D]` what the layer read.
    logits: `[N, E]` of the router.
    router: `[E, D]` its weights.
    shift: `[E]` added to its logits.
  """

  ids: at.Int[np.ndarray, 'N K']
  weights: np.ndarray | None = None
  x: np.ndarray | None = None
  logits: np.ndarray | None = None
  router: np.ndarray | None = None
  shift: np.ndarray | None = None

  @property
  def unit(self) -> float:
    """The unit roundoff of its logits, or of what else there is."""
    arrays = (self.logits, self.x, self.weights)
    array = next((a for a in arrays if a is not None), np.zeros(0, np.float32))
    return ulp.unit_roundoff(str(array.dtype))

  def bound_logits(self, unit: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns golden logits `[N, E]`, and how far right ones may be off.

    Args:
      unit: roundoff of the logits.

    None: the run has neither logits nor what they are of.
    """
    if self.x is None or self.router is None:
      if self.logits is None:
        return None
      wide = self.logits.astype(np.float64)
      return wide, unit * np.abs(wide)
    x, router = (a.astype(np.float64) for a in (self.x, self.router))
    logits = x @ router.T
    size = np.abs(x) @ np.abs(router).T
    depth = x.shape[1]
    terms = min(depth, _DEVIATIONS * depth**0.5)
    if self.shift is not None:
      logits = logits + self.shift.astype(np.float64)
    spread = terms * ulp.unit_roundoff('float32') * size
    return logits, spread + unit * np.abs(logits)


@dataclasses.dataclass(frozen=True)
class Choices:
  """How two runs choose in a layer.

  Attributes:
    is_other: `[N]` whether a token's experts differ.
    reordered: tokens with the same experts in other slots.
    reasons: of each token that differs, in order; '': nothing to judge it by.
    near_ties: tokens of the left that rounding leaves undecided; None: no
      scores.
    wrong: by side, tokens whose choice does not follow from what their own
      router read.
    texts: by side, what shows best that the first of them is wrong.
  """

  is_other: at.Bool[np.ndarray, 'N']
  reordered: int
  reasons: tuple[str, ...]
  near_ties: int | None
  wrong: dict[str, tuple[int, ...]]
  texts: dict[str, str]

  def count(self, reason: str) -> int:
    """Returns the tokens that differ for a reason."""
    return self.reasons.count(reason)


def find_first_slot(left: np.ndarray, right: np.ndarray) -> int:
  """Returns the first slot of left's experts `[K]` that right's lack."""
  return int(np.argmax(~np.isin(left, right)))


def compare(
  router: router_lib.Router | None,
  left: Side,
  right: Side,
  bias: np.ndarray | None = None,
) -> Choices:
  """Returns which tokens differ, and why.

  Args:
    router: the rule; None: it is not known, so that nothing is explained.
    left: the reference.
    right: the candidate, in the left's numbers of experts.
    bias: `[E]` of the choice.
  """
  sorted_ids = [np.sort(side.ids, -1) for side in (left, right)]
  is_other = (sorted_ids[0] != sorted_ids[1]).any(-1)
  reordered = int(((left.ids != right.ids).any(-1) & ~is_other).sum())
  unit = max(left.unit, right.unit)
  bounds = [
    None
    if router is None
    else _bound_scores(router, side, bias, max(side.unit, minimum))
    for side, minimum in ((left, 0.0), (right, 0.0), (left, unit))
  ]
  wrong: dict[str, tuple[int, ...]] = {}
  texts: dict[str, str] = {}
  for name, side, scores in zip(('left', 'right'), (left, right), bounds):
    if router is None or scores is None:
      continue
    tokens = router_limits.list_wrong_tokens(router, scores, side.ids)
    wrong[name] = tuple(tokens)
    if tokens:
      texts[name] = str(
        router_limits.explain_wrong(router, scores, tokens[0], side.ids)
      )
  reasons = _explain(
    router, bounds[2], right.ids, wrong, np.flatnonzero(is_other).tolist()
  )
  near_ties = None
  if router is not None and bounds[2] is not None:
    undecided = router_limits.may_be_undecided(router, bounds[2])
    near_ties = int(undecided.sum())
  return Choices(is_other, reordered, reasons, near_ties, wrong, texts)


def _bound_scores(
  router: router_lib.Router,
  side: Side,
  bias: np.ndarray | None,
  unit: float,
) -> router_limits.Scores | None:
  bounds = side.bound_logits(unit)
  if bounds is None:
    return None
  logits, spread = bounds
  return router_limits.bound_scores(router, logits, bias, spread=spread)


def _explain(
  router, scores, right_ids, wrong, tokens: Sequence[int]
) -> tuple[str, ...]:
  """Returns the reason of each token that differs."""
  if scores is None or not wrong:
    return ('',) * len(tokens)
  unexplained = {token for numbers in wrong.values() for token in numbers}
  reasons = []
  for token in map(int, tokens):
    choice = tuple(sorted(right_ids[token].tolist()))
    if token in unexplained:
      reasons.append(UNEXPLAINED)
    elif router_limits.is_possible(router, scores, token, choice):
      reasons.append(TIE)
    else:
      reasons.append(UPSTREAM)
  return tuple(reasons)


def find_wrong_scores(
  router: router_lib.Router, side: Side, bias: np.ndarray | None = None
) -> str:
  """Returns how a side's choice parts from its own logits; '': it does not."""
  if side.logits is None:
    return ''
  scores = router_limits.bound_scores(router, side.logits, bias)
  tokens = router_limits.list_wrong_tokens(router, scores, side.ids)
  if not tokens:
    return ''
  text = str(router_limits.explain_wrong(router, scores, tokens[0], side.ids))
  dtype = str(side.logits.dtype)
  if dtype in router_lib.DTYPES:
    narrow = dataclasses.replace(router, dtype=dtype)
    scores = router_limits.bound_scores(narrow, side.logits, bias)
    if not router_limits.list_wrong_tokens(narrow, scores, side.ids):
      text = f'scores in {dtype} would: --router=RULE:dtype={dtype}; {text}'
  return f'ignores its own logits in {len(tokens)} tokens: {text}'


def find_wrong_logits(side: Side) -> str:
  """Returns how a side's logits part from those of what it read; '': no."""
  if side.x is None or side.router is None or side.logits is None:
    return ''
  bounds = side.bound_logits(side.unit)
  assert bounds is not None
  logits, spread = bounds
  far = np.abs(side.logits.astype(np.float64) - logits) > spread
  if not far.any():
    return ''
  place = tuple(np.argwhere(far)[0])
  return (
    f"its logits do not follow from the router's input in "
    f'{int(far.any(-1).sum())} tokens: {float(side.logits[place]):.6g} for '
    f'{logits[place]:.6g}, token {place[0]}, expert {place[1]}'
  )


def find_router(
  side: Side, bias: np.ndarray | None = None
) -> tuple[router_lib.Router | None, str]:
  """Returns the rule whose weights a run's are, or None and why.

  Args:
    side: with logits, ids and weights.
    bias: `[E]` of the choice.
  """
  if side.logits is None or side.weights is None:
    return None, 'the dump lacks router logits or routing weights'
  logits = side.logits.astype(np.float64)
  weights = side.weights.astype(np.float64)
  unit = ulp.unit_roundoff(str(side.weights.dtype))
  unit += ulp.unit_roundoff('float32')
  for name in _RULES:
    if router_lib.RULES[name].bias and bias is None:
      continue
    router = router_lib.Router(name, side.ids.shape[1])
    expected = routing.weigh_choice(router, logits, bias, side.ids)
    scale = float(np.median(weights / expected))
    roundings = router_limits.count_weight_roundings(router, side.logits, bias)
    limit = (_WEIGHT_ROUNDINGS + roundings) * unit
    if np.all(np.abs(weights / (expected * scale) - 1) <= limit):
      is_one = abs(scale - 1) <= limit
      router = dataclasses.replace(router, scale=1.0 if is_one else scale)
      return _check_choice(router, side, bias)
  return None, (
    'the routing weights follow none of the known rules: name one by --router'
  )


def _check_choice(
  router: router_lib.Router, side: Side, bias: np.ndarray | None
) -> tuple[router_lib.Router | None, str]:
  """Returns the rule, if most of a run's tokens are chosen by it."""
  scores = router_limits.bound_scores(router, side.logits, bias)
  tokens = router_limits.list_wrong_tokens(router, scores, side.ids)
  if 2 * len(tokens) > len(side.ids):
    return None, (
      f'{len(tokens)} of {len(side.ids)} tokens of left do not choose by '
      f'{router.rule}: a bias or groups, which --model has'
    )
  return router, ''
