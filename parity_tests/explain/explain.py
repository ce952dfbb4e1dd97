"""Why a stage is wrong, in words: a hint, never part of a verdict.

A stage that fails is computed again as a kernel with a known bug would: with a
tensor that it reads changed, or with what it writes changed.  The change that
gives what the candidate has is named, and where in the tensor it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import math

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.case.layouts import alternative_layouts
from hpmoe.reference.contract import tensors

Arrays = Mapping[str, np.ndarray]
# Returns a tensor `[R, ...]` as a bug would have it, None where it cannot.
Bug = Callable[[np.ndarray], np.ndarray | None]
# Stage -> tensor that it reads -> what becomes of that.
Bugs = Mapping[str, Mapping[str, Bug]]

# Of what is wrong: a change that explains less is not named, and what explains
# fewer elements may do so by chance, but for zeros.
_ENOUGH, _FEWEST = 0.9, 6
# Of two bugs in one stage, each explains as much of it, if neither nearly all.
_SOME = 0.1
BESIDE = '; beside it '
_STALE = 'what of an earlier call is still held'
# A stage of more products is not computed again and again.
_MOST_PRODUCTS = 1 << 30
# Blocks of a sum's depth.
_BLOCKS = (1, 8, 16, 32, 64, 128)


@dataclasses.dataclass(frozen=True)
class Change:
  """What a kernel may do to a tensor by mistake.

  Attributes:
    says: what became of the tensor.
    axes: that it must have; '' for any.
    bug: does so.
    look: where to look in the kernel.
  """

  says: str
  axes: str
  bug: Bug
  look: str = ''


def _of_even(bug: Bug) -> Bug:
  return lambda a: None if a.shape[-1] % 2 else bug(a)


def _halves(a: np.ndarray) -> np.ndarray:
  return np.concatenate(np.split(a, 2, axis=-1)[::-1], axis=-1)


def _by_turns(a: np.ndarray) -> np.ndarray:
  return np.stack(np.split(a, 2, axis=-1), axis=-1).reshape(a.shape)


def _from_turns(a: np.ndarray) -> np.ndarray:
  return np.concatenate([a[..., ::2], a[..., 1::2]], axis=-1)


def _neighbours(a: np.ndarray) -> np.ndarray:
  return a.reshape(*a.shape[:-1], -1, 2)[..., ::-1].reshape(a.shape)


def _transposed(a: np.ndarray) -> np.ndarray:
  """Returns [K, N] of what is held as [N, K]."""
  *batch, rows, columns = a.shape
  return a.reshape(*batch, columns, rows).swapaxes(-1, -2)


def _shifted(axis: int, by: int) -> Bug:
  return lambda a: np.roll(a, by, axis) if a.shape[axis] > 1 else None


def _experts(by: int) -> Bug:
  def shifted(a: np.ndarray) -> np.ndarray:
    flat = a.reshape(-1, *a.shape[2:])
    return np.roll(flat, by, 0).reshape(a.shape)

  return shifted


def _depth(block: int, last: bool, factor: int) -> Bug:
  at = slice(-block, None) if last else slice(block)

  def cut(a: np.ndarray) -> np.ndarray | None:
    if a.shape[-1] <= block:
      return None
    made = a.copy()
    made[..., at] *= factor
    return made

  return cut


_GATE_UP = 'which columns are gate: a half of them, or every second one?'
_EXPERT = 'the expert of a tile'
_COLUMNS = (
  Change(
    'had its halves of columns exchanged', '2F', _of_even(_halves), _GATE_UP
  ),
  Change('had its columns by turns', '2F', _of_even(_by_turns), _GATE_UP),
  Change(
    'had its columns taken for such by turns', '2F', _from_turns, _GATE_UP
  ),
  Change('had neighbouring columns exchanged', '', _of_even(_neighbours)),
  Change('was shifted by one column', '', _shifted(-1, 1)),
  Change('was shifted back by one column', '', _shifted(-1, -1)),
)
_ROWS = (
  Change('was shifted by one row', '', _shifted(-2, 1)),
  Change('was shifted back by one row', '', _shifted(-2, -1)),
  Change('was that of the rank before', '', _shifted(0, 1)),
  Change('was that of the rank after', '', _shifted(0, -1)),
)
_WEIGHTS = (
  Change('was transposed', 'L', _transposed, 'its layout: [K, N] or [N, K]?'),
  Change('was that of the expert before', 'L', _experts(1), _EXPERT),
  Change('was that of the expert after', 'L', _experts(-1), _EXPERT),
)
_SCALES = 'how codes and scales are indexed'
_ADDED = (
  Change('was left out', '', np.zeros_like),
  Change('was added twice', '', lambda a: a + a),
)
_BIASES = (*_ADDED, *_WEIGHTS[1:])
_ROUTING = (
  Change('was left out', 'R T K', np.ones_like),
  Change('was applied twice', 'R T K', np.square),
  Change('had its slots backwards', 'R T K', lambda a: a[..., ::-1]),
  Change("was the next token's", 'R T K', _shifted(1, -1)),
)
_DEPTH = tuple(
  Change(
    f'{"lacked" if factor == 0 else "had"} its {"last" if last else "first"} '
    f'{block} of depth{"" if factor == 0 else " twice"}',
    '',
    _depth(block, last, factor),
    'the loop over blocks of depth',
  )
  for block in _BLOCKS
  for last in (True, False)
  for factor in (0, 2)
)
_SENT = 'the row that a slot is sent to'
# Fewer rows than this are not shifted: they are other rows.
_FEW_ROWS = 3
_ZERO = Change('was zero', '', np.zeros_like)
_GEMMS = {**tensors.GEMMS, **tensors.TRANSPOSED_GEMMS}
_GEMMS |= {
  name: (read[0], read[1])
  for name, read in tensors.reads(tensors.EVERY_PART, 'combine').items()
  if tensors.AS_ROUTED.get(name) in _GEMMS
}


@dataclasses.dataclass(frozen=True)
class Stage:
  """A stage that failed, on the rank of its first failure.

  Attributes:
    name: of the stage.
    rank: which.
    got: the candidate's `[R, ...]`.
    expected: what it should have, same shape.
    bad: `[R, ...]` bool, what a lane refuses of the rows that hold something.
    reads: what it is computed from, by name; and if nobody saw some of these,
      what they are, by stage, the last one first.
    recompute: computes the first of some stages from other tensors, then the
      rest up to this one.
    tiling: where its rows belong.
    exact: whether right values are equal, not near.
    misread: what else may be wrong of a tensor that is read, and what it then
      is.
    before: tensors of the same pass, as the call before read and wrote them.
  """

  name: str
  rank: int
  got: np.ndarray
  expected: np.ndarray
  bad: np.ndarray
  reads: Mapping[str, Arrays]
  recompute: Callable[[Bugs], np.ndarray]
  tiling: tiles.Tiling
  exact: bool
  misread: Mapping[str, Sequence[tuple[str, Bug]]]
  before: Arrays = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def ranks(self) -> tuple[int, ...]:
    """Those with anything wrong, that of the first failure first."""
    bad = (rank for rank, one in enumerate(self.bad) if one.any())
    return tuple(sorted(bad, key=lambda rank: rank != self.rank))


def explain(stage: Stage, seen: str) -> tuple[str, bool]:
  """Returns a likely cause and its place, or what was seen in one tile.

  And whether one bug, no zeros as small values are rounded to, gives all that
  is wrong, which is too much for chance.
  """
  bad = stage.bad[stage.rank]
  if not bad.any() or stage.got.dtype.kind == 'i':
    return seen, False
  place = where(stage)
  got, right = stage.got[stage.rank][bad], stage.expected[stage.rank][bad]
  if (np.isnan(got) & ~np.isnan(right)).any():
    return _joined(seen, where_nan(stage), place), False
  options, every = [*_options(stage)], np.ones(int(bad.sum()), bool)
  share, one = _best(options, stage.rank, every)
  rest = every & ~one.alike[stage.rank]
  other_share, other = _best(options, stage.rank, rest)
  two = min(share, other_share, rest.mean()) >= _SOME or share >= _ENOUGH
  two = two and rest.sum() >= _FEWEST and other_share >= _ENOUGH
  few = len(every) < _FEWEST and one is not options[0]
  named = two or share >= _ENOUGH and not few
  told = [_told(stage, one, every)] if named else [_joined(seen, place)]
  if two:
    told = [
      _told(_only(stage, mine), each, mine)
      for each, mine in ((one, every & ~rest), (other, rest & other.at(stage)))
    ]
  known = [one, other] if two else [one] if named else []
  told += _elsewhere(stage, options, known)
  whole = share == 1 and len(every) >= _FEWEST and one is not options[0]
  return BESIDE.join(told), whole


def _elsewhere(
  stage: Stage, options: Sequence['_Option'], known: Sequence['_Option']
) -> Iterator[str]:
  """Yields other bugs that explain ranks which those known do not."""
  said = [*known]
  for rank in stage.ranks[1:]:
    there = dataclasses.replace(stage, rank=rank)
    every = np.ones(int(stage.bad[rank].sum()), bool)
    share, one = _best(options, rank, every)
    few = len(every) < _FEWEST and one is not options[0]
    some = any(two.at(there).mean() >= _ENOUGH for two in said)
    if share >= _ENOUGH and not few and not some:
      said.append(one)
      yield _told(there, one, every, f'on rank {rank}')


def _told(
  stage: Stage, option: '_Option', mine: np.ndarray, on: str = ''
) -> str:
  """Returns a bug, where `mine` `[n]` of what is wrong lies, where to look."""
  share = (option.at(stage) & mine).mean()
  part = '' if share == 1 else f', {100 * share:.3g} % of what is wrong'
  look = f'look at {option.look}' if option.look else ''
  return _joined(option.says + part, on, where(stage), look)


def _only(stage: Stage, mine: np.ndarray) -> Stage:
  """Returns the stage with some of its rank's wrong elements alone."""
  bad = np.zeros_like(stage.bad)
  bad[stage.rank][stage.bad[stage.rank]] = mine
  return dataclasses.replace(stage, bad=bad)


def _joined(*parts: str) -> str:
  return '; '.join(part for part in parts if part)


@dataclasses.dataclass(frozen=True)
class _Option:
  """A bug: what it is called, where to look, `[n]` bool what it explains."""

  says: str
  look: str
  alike: Mapping[int, np.ndarray]

  def at(self, stage: Stage) -> np.ndarray:
    return self.alike[stage.rank]


def _options(stage: Stage) -> Iterator[_Option]:
  """Yields bugs that explain something, up to those that explain all."""
  zeros = np.zeros_like(stage.expected)
  zero = f'as if {stage.name} {_ZERO.says}'
  yield _Option(zero, '', _explained(stage, zeros))
  left = {*stage.ranks}
  for says, look, made in _changes(stage):
    alike = _explained(stage, made)
    if any(one.any() for one in alike.values()):
      yield _Option(says, look, alike)
    left -= {rank for rank, one in alike.items() if one.all()}
    if not left:
      return


def _best(
  options: Sequence[_Option], rank: int, among: np.ndarray
) -> tuple[float, _Option]:
  """Returns the share of some of what is wrong that a bug explains, and it."""
  # What zeros explain, many bugs do.
  share, best = 0.0, options[0]
  for one in options:
    mine = float(one.alike[rank][among].mean()) if among.any() else 0.0
    if one is options[0] or mine > share + 2.0**-10:
      share, best = mine, one
  return share, best


def _changes(stage: Stage) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields what a bug is called, where to look, and what it would write."""
  yield from _readings(stage)
  if stage.name in stage.before:
    says = f'as if {stage.name} was that of the call before'
    yield says, _STALE, stage.before[stage.name]
  sent = [_rows_of_others(stage, rank) for rank in stage.ranks]
  for others in sent:
    if others is not None and others[2] < _FEW_ROWS:
      yield others[0], _SENT, others[1]
  for change in _of(stage.name, (*_COLUMNS, *_ROWS, *_WEIGHTS)):
    made = change.bug(stage.expected)
    if made is not None:
      yield f'as if {stage.name} {change.says}', change.look, made
  for others in sent:
    if others is not None:
      yield others[0], _SENT, others[1]
  yield f'as if {stage.name} was twice that', '', 2 * stage.expected
  products = sum(
    reads[_GEMMS[one][0]].size * max(reads[_GEMMS[one][1]].shape[-2:])
    for one, reads in stage.reads.items()
    if one in _GEMMS
  )
  if products > _MOST_PRODUCTS:
    return
  for says, look, bugs in _bugs(stage):
    yield says, look, stage.recompute(bugs)


def _readings(stage: Stage) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields what was written, where it is right in another layout or rank."""
  sizes, ids = stage.tiling.config.dims(), stage.tiling.topk_ids
  bad = sorted(stage.ranks)
  for told, other in alternative_layouts.others(
    stage.name, stage.got, sizes, ids, bad
  ):
    right = [rank for rank in stage.ranks if _is_right(stage, other, rank)]
    if right:
      made = stage.expected.copy()
      made[right] = stage.got[right]
      yield f'right as with {told}', '', made


def _bugs(stage: Stage) -> Iterator[tuple[str, str, Bugs]]:
  """Yields what a bug is called, where to look, and what it changes."""
  for one, reads in stage.reads.items():
    for name, read in reads.items():
      if name in stage.before and read.dtype.kind != 'i':
        told = f'as if {name} was that of the call before where {one} reads it'
        yield told, _STALE, {one: {name: _as(stage.before[name])}}
      for says, bug in stage.misread.get(name, ()):
        told = f'as if {name} {says} where {one} reads it'
        yield told, _SCALES, {one: {name: bug}}
      for change in _of(name, _for_read(one, name)):
        if read.dtype.kind != 'i' and change.bug(read) is not None:
          says = f'as if {name} {change.says} where {one} reads it'
          yield says, change.look, {one: {name: change.bug}}
  gemms = [one for one in stage.reads if one in _GEMMS]
  told = ' and '.join(reversed(gemms))
  for change in _DEPTH if len(gemms) > 1 else ():
    left = {one: {_GEMMS[one][0]: change.bug} for one in gemms}
    yield f'as if {told} {change.says}', change.look, left


def _as(array: np.ndarray) -> Bug:
  return lambda a: array.astype(a.dtype).reshape(a.shape)


def _for_read(stage: str, name: str) -> tuple[Change, ...]:
  left, right = _GEMMS.get(stage, ('', ''))
  if name == 'topk_weights':
    return _ROUTING
  if tensors.SPECS[name].part == 'bias':
    return _BIASES
  if tensors.SPECS[name].part == 'shared' and stage in ('y', 'dx'):
    return _ADDED
  if name == left:
    return (*_COLUMNS, *_ROWS, *_DEPTH)
  if name == right:
    return (*_WEIGHTS, *_COLUMNS[:3])
  return (*_COLUMNS, *_ROWS)


def _of(name: str, changes: Sequence[Change]) -> Iterator[Change]:
  """Yields those that a tensor's axes allow."""
  shape = tensors.SPECS[name].shape.replace('2S', '2F')
  for change in changes:
    if not change.axes or f' {change.axes} ' in f' {shape} ':
      yield change


def _explained(stage: Stage, made: np.ndarray) -> dict[int, np.ndarray]:
  """Returns `[n]` bool by rank: of what is wrong, what a change gives."""
  found = {}
  for rank in stage.ranks:
    got, right, other = (
      a[rank][stage.bad[rank]].astype(np.float64)
      for a in (stage.got, stage.expected, made)
    )
    if stage.exact:
      found[rank] = (got == other) & (other != right)
      continue
    with np.errstate(invalid='ignore', over='ignore'):
      found[rank] = np.abs(got - other) <= np.abs(got - right) / 16
  return found


def _is_right(stage: Stage, tensor: np.ndarray, rank: int) -> bool:
  """Says whether all rows of a rank are near what they should be."""
  got, right = (
    stage.tiling.rows(stage.name, a, rank).astype(np.float64)
    for a in (tensor, stage.expected)
  )
  if stage.exact:
    return np.array_equal(got, right)
  # Coarser than any storage rounding, finer than two unrelated rows.
  largest = np.abs(right).max(axis=-1, keepdims=True, initial=0.0)
  with np.errstate(invalid='ignore'):
    return bool((np.abs(got - right) <= 2.0**-6 * largest).all())


def _rows_of_others(
  stage: Stage, rank: int
) -> tuple[str, np.ndarray, int] | None:
  """Returns rows that a rank has, where it should have others; how many."""
  tiling = stage.tiling
  got, right, wrong = (
    tiling.rows(stage.name, a, rank)
    for a in (stage.got, stage.expected, stage.bad)
  )
  bad = np.flatnonzero(wrong.any(axis=1))
  whose = functools.partial(tiling.expert_of, stage.name, rank)
  first: dict[object, int] = {}
  for row in range(len(right)):
    held = right[row].tobytes()
    # A token's row is the same in each of its experts.
    first.setdefault((whose(row), held), row)
    first.setdefault(held, row)
  source = np.full(len(bad), -1)
  for at, row in enumerate(bad):
    held = got[row].tobytes()
    source[at] = first.get((whose(int(row)), held), first.get(held, -1))
  bad, source = bad[source >= 0], source[source >= 0]
  if not len(bad):
    return None
  made = stage.expected.copy()
  tiling.rows(stage.name, made, rank)[bad] = right[source]
  of = ''
  if whose(int(bad[0])) != tiles.NO_EXPERT:
    same = all(whose(int(a)) == whose(int(b)) for a, b in zip(bad, source))
    of = ' of the same expert' if same else ' of other experts'
  return f'as if rows of {stage.name} were those of others{of}', made, len(bad)


def where_nan(stage: Stage) -> str:
  """Returns what is told of gates where a NaN is, or ''."""
  gate_up = stage.reads[stage.name].get('gate_up')
  if gate_up is None or stage.name != 'activation':
    return ''
  rows = stage.tiling.rows
  gate = rows('gate_up', gate_up, stage.rank)[:, : stage.got.shape[-1]]
  gate = gate.astype(np.float64)
  nan = np.isnan(rows(stage.name, stage.got, stage.rank).astype(np.float64))
  if nan.all() or not nan.any():
    return ''
  if gate[nan].max() < gate[~nan].min():
    return f'NaN where gate is {gate[nan].max():.4g} or less'
  if gate[nan].min() > gate[~nan].max():
    return f'NaN where gate is {gate[nan].min():.4g} or more'
  return ''


def where(stage: Stage) -> str:
  """Returns where in its rank a stage is wrong, if that is telling, or ''."""
  bad = stage.tiling.rows(stage.name, stage.bad, stage.rank)
  cut = stage.tiling.cut(stage.name, stage.rank)
  said = [
    _some_rows(cut, bad.any(axis=1)),
    _stretch('column', bad.any(axis=0)),
    _one_rank(stage),
  ]
  return ', '.join(one for one in said if one)


def _one_rank(stage: Stage) -> str:
  ranks = [
    rank
    for rank in range(len(stage.bad))
    if stage.tiling.rows(stage.name, stage.bad, rank).any()
  ]
  more = len(stage.bad) > len(ranks) == 1
  return f'on rank {stage.rank} alone' if more else ''


def _stretch(what: str, bad: np.ndarray) -> str:
  at = np.flatnonzero(bad)
  if len(at) in (0, len(bad)):
    return ''
  if len(at) == 1:
    return f'in {what} {at[0]} alone'
  if len(at) == at[-1] - at[0] + 1 and (bad[0] or bad[-1]):
    return f'in the {"first" if bad[0] else "last"} {len(at)} {what}s alone'
  return ''


def _some_rows(cut: tiles.Cut, bad: np.ndarray) -> str:
  """Returns which rows are wrong, where there is a word for them."""
  at = np.flatnonzero(bad)
  if len(at) in (0, len(bad)):
    return ''
  if len(at) == 1:
    return f'in row {at[0]} alone'
  expert = np.repeat(cut.expert, np.diff(cut.starts))
  tile_rows = {*(np.searchsorted(cut.starts, at, 'right') - 1)}
  if len(tile_rows) == 1 and (cut.expert == expert[at[0]]).sum() > 1:
    block = cut.block[tile_rows.pop()]
    return f'in row block {block}{_of_expert(expert[at[0]])} alone'
  if len({*expert}) > 1 and len({*expert[at]}) == 1:
    return f'in rows of expert {expert[at[0]]} alone'
  ends = _ends(expert, bad)
  if ends:
    return ends
  every_second = np.array_equal(at, np.arange(at[0] % 2, len(bad), 2))
  if every_second and len(at) > 2:
    return f'in {"odd" if at[0] else "even"} rows alone'
  return _stretch('row', bad)


def _of_expert(expert: int) -> str:
  return '' if expert == tiles.NO_EXPERT else f' of expert {expert}'


def _ends(expert: np.ndarray, bad: np.ndarray) -> str:
  """Says so where the last rows of experts are wrong, and none before."""
  starts, whole = [], 0
  for one in np.unique(expert):
    mine = bad[expert == one]
    first = int(np.argmax(mine))
    if not mine.any():
      continue
    if not mine[first:].all():
      return ''
    starts.append(first)
    whole += first == 0
  if whole == len(starts):
    return ''
  multiple = math.gcd(*starts)
  past = f', past a multiple of {multiple}' if multiple > 1 else ''
  return f'in the last rows of experts alone{past}'
