"""Which rounding explains a stage: neighbouring policies, on its own inputs.

A stage that is off by no more than roundings can do is computed again under
policies with one more rounding point, or one less, then with more of them.  The
policy whose bits the candidate has is named, with what else has these bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses

import numpy as np

from hpmoe.reference.contract import policies
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

# What roundings leave of a row's largest: in the mean less than unrelated rows
# do, in one element less than a lost term does.
_NEAR, _NEAR_EACH = 2.0**-5, 2.0**-3
# A policy is named that leaves so much of what is off; one word more is told
# where it leaves so much of that; two that differ by less are not told apart.
_ENOUGH, _MORE, _ALIKE = 0.25, 0.5, 1.25
# No more words are tried where so little of it is left, or where no word alone
# takes more away than that: of three that hang together each takes a fifth.
_LITTLE, _HARDLY = 1 / 16, 0.9
# What the words of a rounding have, and no others.
ASKS = '; --policy='
# Words that may hang together; sets of them that one more is tried with.
_MOST_WORDS, _BEAM = 3, 4


@dataclasses.dataclass(frozen=True)
class Stage:
  """A stage that fails.

  Attributes:
    name: of the tensor.
    policy: what was asked for.
    chain: what nobody saw of what it is computed from, and itself, in order.
    got: `[R, ...]` what the candidate has.
    expected: `[R, ...]` what it should have, computed as `under` does.
    real: `[R, ...]` bool, what is no padding.
    under: computes it under a policy, from what the candidate has.
  """

  name: str
  policy: precision.PrecisionPolicy
  chain: Sequence[str]
  got: np.ndarray
  expected: np.ndarray
  real: np.ndarray
  under: Callable[[precision.PrecisionPolicy], np.ndarray]


def explain(stage: Stage) -> str:
  """Returns the roundings that explain a stage, or ''."""
  off = _Off.of(stage)
  if off is None or not off.right > 0:
    return ''
  found = _search(stage, off)
  if not found:
    return ''
  alike = [*found]
  told = ' or '.join(_told(stage, words) for words in alike)
  best = min(found, key=lambda words: found[words])
  return f'{told}{_how_well(stage, off, best)}{_ask(stage, alike)}'


@dataclasses.dataclass(frozen=True)
class _Off:
  """How far off a stage is: mean over elements, of their row's largest.

  Attributes:
    got: `[n]` float64 what the candidate has.
    size: `[n]` float64 the largest of its row.
    right: of the policy that was asked for.
    least: that one element comes to.
  """

  got: np.ndarray
  size: np.ndarray
  right: float
  least: float

  @classmethod
  def of(cls, stage: Stage) -> '_Off | None':
    """Returns it, or None where more than roundings is wrong."""
    if not stage.real.any():
      return None
    wide = np.abs(stage.expected.astype(np.float64))
    size = np.broadcast_to(wide.max(axis=-1, keepdims=True), wide.shape)
    got = stage.got.astype(np.float64)
    size = np.where(size > 0, size, 1.0)[stage.real]
    unit = storage.FORMATS[str(stage.got.dtype)].unit_roundoff
    least = unit / max(len(size), 1)
    held = cls(got[stage.real], size, 0.0, least)
    each = held._each(stage, stage.expected)
    if not each.mean() < _NEAR or not each.max() < _NEAR_EACH:
      return None
    return dataclasses.replace(held, right=float(each.mean()))

  def left(self, stage: Stage, made: np.ndarray) -> float:
    return float(self._each(stage, made).mean())

  def _each(self, stage: Stage, made: np.ndarray) -> np.ndarray:
    wide = made[stage.real].astype(np.float64)
    with np.errstate(invalid='ignore'):
      off = np.abs(self.got - wide) / self.size
    return np.where(np.isfinite(off), off, np.inf)


def _search(stage: Stage, off: _Off) -> dict[tuple[str, ...], float]:
  """Returns sets of words that explain it, with what they leave.

  Sets of two and three words are tried that hold one of those, a word or a
  pair, that leave least.
  """
  words = [*_words(stage)]
  tried: dict[tuple[str, ...], float] = {(): off.right}
  sets: list[tuple[str, ...]] = [(word,) for word in words]
  for _ in range(_MOST_WORDS):
    for some in sets:
      tried[some] = off.left(stage, stage.under(_with(stage.policy, some)))
    least = min(tried.values())
    if least <= max(off.least, _LITTLE * off.right) or not sets:
      break
    if least > _HARDLY * off.right:
      return {}
    going_on = sorted(sets, key=lambda some: tried[some])[:_BEAM]
    longer = {
      tuple(one for one in words if one in some or one == word)
      for some in going_on
      for word in words
      if word not in some and _is_one((*some, word))
    }
    sets = sorted(longer)
  return _best(tried, off)


def _best(
  tried: dict[tuple[str, ...], float], off: _Off
) -> dict[tuple[str, ...], float]:
  """Returns the sets that no smaller one does nearly as well as."""
  least = min(tried.values())
  for count in range(1, _MOST_WORDS + 1):
    of_count = {some: v for some, v in tried.items() if len(some) == count}
    value = min(of_count.values(), default=off.right)
    if value <= max(least / _MORE, least + off.least):
      enough = _ENOUGH * off.right
      near = max(_ALIKE * value, value + off.least)
      return {s: v for s, v in of_count.items() if v <= min(near, enough)}
  return {}


def _is_one(words: Sequence[str]) -> bool:
  """Says whether no point is told twice."""
  names = [word.partition('=')[0] for word in words]
  return len({*names}) == len(names)


def _words(stage: Stage) -> Iterator[str]:
  """Yields the words that differ from the policy in one point."""
  policy = stage.policy
  narrow = policy.storage if policy.storage != policy.accumulate else 'bfloat16'
  for point in precision.INSIDE:
    if not {*point.stages} & {*stage.chain}:
      continue
    now = policy.rounding(point.name)
    if now is not None:
      yield f'{point.name}=accumulate'
    for dtype in dict.fromkeys((narrow, *_MORE_DTYPES.get(point.name, ()))):
      wide = (
        storage.ROUNDED[dtype].digits
        >= storage.ROUNDED[policy.accumulate].digits
      )
      # Operands are stored so already, but for weights of codes.
      stored = point.name == 'operands' and dtype == policy.storage
      stored = stored and not policy.quantised
      if dtype != now and not wide and not stored:
        yield f'{point.name}={dtype}'
  for name in stage.chain[:-1]:
    if name in precision.POINTS and tensors.SPECS[name].role == 'compute':
      kept = policy.dtype(name) == policy.accumulate
      yield f'{name}={narrow if kept else "accumulate"}'
  for field, made in precision.SUM_ORDERS.items():
    for order in precision.ROW_ORDERS if made in stage.chain else ():
      if order != getattr(policy, field):
        yield f'{field}={order}'
  weighs = {*tensors.WEIGHTED.values()} & {*stage.chain}
  for placement, at in tensors.WEIGHTED.items():
    both = {at, tensors.WEIGHTED[policy.placement]} <= weighs
    if placement != policy.placement and both:
      yield f'placement={placement}'


_ORDERS = {'expert_back': 'expert, from the last one back'}
# Dtypes beside the storage that points are rounded to.
_MORE_DTYPES: Mapping[str, tuple[str, ...]] = {
  'operands': ('tf32', 'bfloat16'),
  'accumulator': ('float16',),
  'routing_weight': ('bfloat16', 'float16'),
}


def _with(
  policy: precision.PrecisionPolicy, words: Sequence[str]
) -> precision.PrecisionPolicy:
  """Returns a policy with some words beside, or instead of, its own."""
  own = [word for word in policy.points if not _told_by(word, words)]
  fields = policies.fields((*own, *words))
  return dataclasses.replace(policy, **{'points': (), **fields})


def _told_by(word: str, words: Sequence[str]) -> bool:
  name = word.partition('=')[0]
  return any(one.partition('=')[0] == name for one in words)


def _told(stage: Stage, words: Sequence[str]) -> str:
  """Returns 'as if' and what was done."""
  return 'as if ' + ' and '.join(_one(stage, word) for word in words)


def _one(stage: Stage, word: str) -> str:
  name, _, value = word.partition('=')
  if name == 'placement':
    return f'the routing weight multiplied at {value}'
  if name in precision.SUM_ORDERS:
    return f"a token's rows were added by {_ORDERS.get(value, value)}"
  point = precision.POINTS[name]
  says = '' if point in precision.TENSORS else f' ({point.says})'
  if value == 'accumulate':
    return f'{name} was not rounded{says}'
  return f'{name} was rounded to {value}{says}'


def _how_well(stage: Stage, off: _Off, words: Sequence[str]) -> str:
  made = stage.under(_with(stage.policy, words))
  wide = made[stage.real].astype(np.float64)
  expected = stage.expected[stage.real].astype(np.float64)
  alike = 100 * float((wide == off.got).mean())
  before = 100 * float((expected == off.got).mean())
  if stage.got.dtype == np.float32:
    left = off.left(stage, made)
    times = 'nothing' if not left else f'1/{off.right / left:.3g}'
    return f': {times} of what is off is left'
  return f': {alike:.4g} % of bits equal, {before:.3g} % without'


def _ask(stage: Stage, alike: Sequence[Sequence[str]]) -> str:
  """Returns the flag that allows it, and whose policy it is."""
  own = (w for w in policies.words(stage.policy) if not _told_by(w, alike[0]))
  words = (*own, *alike[0])
  of_name = [
    name
    for name in policies.POLICIES
    if any(_is_named(stage, name, some) for some in alike)
  ]
  named = f', as does {", ".join(of_name[:3])}' if of_name else ''
  return f'{ASKS}{",".join(words)} allows it{named}'


def _is_named(stage: Stage, name: str, words: Sequence[str]) -> bool:
  """Says whether a named policy does in the stage what some words do."""
  plain = dict.fromkeys(precision.SUM_ORDERS, 'slot')
  fields = dict(points=(), **plain) | policies.fields((name,))
  named = dataclasses.replace(stage.policy, **fields)
  mine = _with(stage.policy, words)

  def does(policy: precision.PrecisionPolicy):
    rounds = {
      point.name: policy.rounding(point.name)
      for point in precision.INSIDE
      if {*point.stages} & {*stage.chain}
    }
    kept = {one: policy.dtype(one) for one in stage.chain}
    orders = [precision.order_of(one, policy) for one in stage.chain]
    return rounds, kept, policy.placement, orders

  return does(named) == does(mine)
