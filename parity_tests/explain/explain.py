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
_NAMED_SHARE, _FEWEST = 0.9, 6
# Of two bugs in one stage, each explains as much of it, if neither nearly all.
_PAIR_SHARE = 0.1
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


def _require_even(bug: Bug) -> Bug:
  return lambda a: None if a.shape[-1] % 2 else bug(a)


def _swap_halves(a: np.ndarray) -> np.ndarray:
  return np.concatenate(np.split(a, 2, axis=-1)[::-1], axis=-1)


def _interleave(a: np.ndarray) -> np.ndarray:
  return np.stack(np.split(a, 2, axis=-1), axis=-1).reshape(a.shape)


def _deinterleave(a: np.ndarray) -> np.ndarray:
  return np.concatenate([a[..., ::2], a[..., 1::2]], axis=-1)


def _swap_neighbours(a: np.ndarray) -> np.ndarray:
  return a.reshape(*a.shape[:-1], -1, 2)[..., ::-1].reshape(a.shape)


def _transpose(a: np.ndarray) -> np.ndarray:
  """Returns [K, N] of what is held as [N, K]."""
  *batch, rows, columns = a.shape
  return a.reshape(*batch, columns, rows).swapaxes(-1, -2)


def _shift(axis: int, step: int) -> Bug:
  return lambda a: np.roll(a, step, axis) if a.shape[axis] > 1 else None


def _shift_experts(step: int) -> Bug:
  def shifted(a: np.ndarray) -> np.ndarray:
    flat = a.reshape(-1, *a.shape[2:])
    return np.roll(flat, step, 0).reshape(a.shape)

  return shifted


def _scale_depth(block: int, last: bool, factor: int) -> Bug:
  block_slice = slice(-block, None) if last else slice(block)

  def cut(a: np.ndarray) -> np.ndarray | None:
    if a.shape[-1] <= block:
      return None
    scaled = a.copy()
    scaled[..., block_slice] *= factor
    return scaled

  return cut


_GATE_UP = 'which columns are gate: a half of them, or every second one?'
_EXPERT = 'the expert of a tile'
_COLUMNS = (
  Change(
    'had its halves of columns exchanged',
    '2F',
    _require_even(_swap_halves),
    _GATE_UP,
  ),
  Change(
    'had its columns by turns', '2F', _require_even(_interleave), _GATE_UP
  ),
  Change(
    'had its columns taken for such by turns', '2F', _deinterleave, _GATE_UP
  ),
  Change(
    'had neighbouring columns exchanged', '', _require_even(_swap_neighbours)
  ),
  Change('was shifted by one column', '', _shift(-1, 1)),
  Change('was shifted back by one column', '', _shift(-1, -1)),
)
_ROWS = (
  Change('was shifted by one row', '', _shift(-2, 1)),
  Change('was shifted back by one row', '', _shift(-2, -1)),
  Change('was that of the rank before', '', _shift(0, 1)),
  Change('was that of the rank after', '', _shift(0, -1)),
)
_WEIGHTS = (
  Change('was transposed', 'L', _transpose, 'its layout: [K, N] or [N, K]?'),
  Change('was that of the expert before', 'L', _shift_experts(1), _EXPERT),
  Change('was that of the expert after', 'L', _shift_experts(-1), _EXPERT),
)
_SCALES = 'how codes and scales are indexed'
_ADDITIONS = (
  Change('was left out', '', np.zeros_like),
  Change('was added twice', '', lambda a: a + a),
)
_BIASES = (*_ADDITIONS, *_WEIGHTS[1:])
_ROUTING = (
  Change('was left out', 'R T K', np.ones_like),
  Change('was applied twice', 'R T K', np.square),
  Change('had its slots backwards', 'R T K', lambda a: a[..., ::-1]),
  Change("was the next token's", 'R T K', _shift(1, -1)),
)
_DEPTH = tuple(
  Change(
    f'{"lacked" if factor == 0 else "had"} its {"last" if last else "first"} '
    f'{block} of depth{"" if factor == 0 else " twice"}',
    '',
    _scale_depth(block, last, factor),
    'the loop over blocks of depth',
  )
  for block in _BLOCKS
  for last in (True, False)
  for factor in (0, 2)
)
_DESTINATION = 'the row that a slot is sent to'
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
    actual: the candidate's `[R, ...]`.
    expected: what it should have, same shape.
    bad: `[R, ...]` bool, what a lane refuses of the rows that hold something.
    reads: what it is computed from, by name; and if nobody saw some of these,
      what they are, by stage, the last one first.
    recompute: computes the first of some stages from other tensors, then the
      rest up to this one.
    tiling: where its rows belong.
    exact: whether right values are equal, not near.
    misreads: what else may be wrong of a tensor that is read, and what it then
      is.
    before: tensors of the same pass, as the call before read and wrote them.
  """

  name: str
  rank: int
  actual: np.ndarray
  expected: np.ndarray
  bad: np.ndarray
  reads: Mapping[str, Arrays]
  recompute: Callable[[Bugs], np.ndarray]
  tiling: tiles.Tiling
  exact: bool
  misreads: Mapping[str, Sequence[tuple[str, Bug]]]
  before: Arrays = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def ranks(self) -> tuple[int, ...]:
    """Those with anything wrong, that of the first failure first."""
    bad = (rank for rank, bad_rows in enumerate(self.bad) if bad_rows.any())
    return tuple(sorted(bad, key=lambda rank: rank != self.rank))


def explain(stage: Stage, pattern: str) -> tuple[str, bool]:
  """Returns a likely cause and its place, or what was seen in one tile.

  And whether one bug, no zeros as small values are rounded to, gives all that
  is wrong, which is too much for chance.
  """
  bad = stage.bad[stage.rank]
  if not bad.any() or stage.actual.dtype.kind == 'i':
    return pattern, False
  place = locate(stage)
  actual, expected = (
    stage.actual[stage.rank][bad],
    stage.expected[stage.rank][bad],
  )
  if (np.isnan(actual) & ~np.isnan(expected)).any():
    return _join_words(pattern, locate_nan_gates(stage), place), False
  options, all_wrong = [*_options(stage)], np.ones(int(bad.sum()), bool)
  share, best = _select_best(options, stage.rank, all_wrong)
  rest = all_wrong & ~best.alike[stage.rank]
  second_share, second = _select_best(options, stage.rank, rest)
  is_pair = (
    min(share, second_share, rest.mean()) >= _PAIR_SHARE
    or share >= _NAMED_SHARE
  )
  is_pair = is_pair and rest.sum() >= _FEWEST and second_share >= _NAMED_SHARE
  few = len(all_wrong) < _FEWEST and best is not options[0]
  is_named = is_pair or share >= _NAMED_SHARE and not few
  causes = (
    [_format_bug(stage, best, all_wrong)]
    if is_named
    else [_join_words(pattern, place)]
  )
  if is_pair:
    causes = [
      _format_bug(_restrict(stage, is_own), option, is_own)
      for option, is_own in (
        (best, all_wrong & ~rest),
        (second, rest & second.explained_on_rank(stage)),
      )
    ]
  known_options = [best, second] if is_pair else [best] if is_named else []
  causes += _explain_other_ranks(stage, options, known_options)
  whole = share == 1 and len(all_wrong) >= _FEWEST and best is not options[0]
  return BESIDE.join(causes), whole


def _explain_other_ranks(
  stage: Stage, options: Sequence['_Option'], known_options: Sequence['_Option']
) -> Iterator[str]:
  """Yields other bugs that explain ranks which those known do not."""
  named_options = [*known_options]
  for rank in stage.ranks[1:]:
    stage_there = dataclasses.replace(stage, rank=rank)
    all_wrong = np.ones(int(stage.bad[rank].sum()), bool)
    share, best = _select_best(options, rank, all_wrong)
    few = len(all_wrong) < _FEWEST and best is not options[0]
    is_known = any(
      option.explained_on_rank(stage_there).mean() >= _NAMED_SHARE
      for option in named_options
    )
    if share >= _NAMED_SHARE and not few and not is_known:
      named_options.append(best)
      yield _format_bug(stage_there, best, all_wrong, f'on rank {rank}')


def _format_bug(
  stage: Stage, option: '_Option', is_own: np.ndarray, location: str = ''
) -> str:
  """Returns a bug, where to look, and where `is_own` `[n]` of it lies."""
  share = (option.explained_on_rank(stage) & is_own).mean()
  part = '' if share == 1 else f', {100 * share:.3g} % of what is wrong'
  look = f'look at {option.look}' if option.look else ''
  return _join_words(option.says + part, location, locate(stage), look)


def _restrict(stage: Stage, is_own: np.ndarray) -> Stage:
  """Returns the stage with some of its rank's wrong elements alone."""
  bad = np.zeros_like(stage.bad)
  bad[stage.rank][stage.bad[stage.rank]] = is_own
  return dataclasses.replace(stage, bad=bad)


def _join_words(*parts: str) -> str:
  return '; '.join(part for part in parts if part)


@dataclasses.dataclass(frozen=True)
class _Option:
  """A bug: what it is called, where to look, `[n]` bool what it explains."""

  says: str
  look: str
  alike: Mapping[int, np.ndarray]

  def explained_on_rank(self, stage: Stage) -> np.ndarray:
    return self.alike[stage.rank]


def _options(stage: Stage) -> Iterator[_Option]:
  """Yields bugs that explain something, up to those that explain all."""
  zeros = np.zeros_like(stage.expected)
  zero = f'as if {stage.name} {_ZERO.says}'
  yield _Option(zero, '', _find_explained(stage, zeros))
  left = {*stage.ranks}
  for says, look, changed_tensor in _changes(stage):
    alike = _find_explained(stage, changed_tensor)
    if any(is_alike.any() for is_alike in alike.values()):
      yield _Option(says, look, alike)
    left -= {rank for rank, is_alike in alike.items() if is_alike.all()}
    if not left:
      return


def _select_best(
  options: Sequence[_Option], rank: int, is_counted: np.ndarray
) -> tuple[float, _Option]:
  """Returns the share of some of what is wrong that a bug explains, and it."""
  # What zeros explain, many bugs do.
  share, best = 0.0, options[0]
  for option in options:
    option_share = (
      float(option.alike[rank][is_counted].mean()) if is_counted.any() else 0.0
    )
    if option is options[0] or option_share > share + 2.0**-10:
      share, best = option_share, option
  return share, best


def _changes(stage: Stage) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields what a bug is called, where to look, and what it would write."""
  yield from _readings(stage)
  if stage.name in stage.before:
    says = f'as if {stage.name} was that of the call before'
    yield says, _STALE, stage.before[stage.name]
  exchanged_rows = [_find_exchanged_rows(stage, rank) for rank in stage.ranks]
  for exchange in exchanged_rows:
    if exchange is not None and exchange[2] < _FEW_ROWS:
      yield exchange[0], _DESTINATION, exchange[1]
  for change in _select_changes(stage.name, (*_COLUMNS, *_ROWS, *_WEIGHTS)):
    changed_tensor = change.bug(stage.expected)
    if changed_tensor is not None:
      yield f'as if {stage.name} {change.says}', change.look, changed_tensor
  for exchange in exchanged_rows:
    if exchange is not None:
      yield exchange[0], _DESTINATION, exchange[1]
  yield f'as if {stage.name} was twice that', '', 2 * stage.expected
  products = sum(
    reads[_GEMMS[gemm][0]].size * max(reads[_GEMMS[gemm][1]].shape[-2:])
    for gemm, reads in stage.reads.items()
    if gemm in _GEMMS
  )
  if products > _MOST_PRODUCTS:
    return
  for says, look, bugs in _bugs(stage):
    yield says, look, stage.recompute(bugs)


def _readings(stage: Stage) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields what was written, where it is right in another layout or rank."""
  sizes, ids = stage.tiling.config.dims(), stage.tiling.topk_ids
  bad = sorted(stage.ranks)
  for reading, other in alternative_layouts.list_alternatives(
    stage.name, stage.actual, sizes, ids, bad
  ):
    right_ranks = [
      rank for rank in stage.ranks if _is_right(stage, other, rank)
    ]
    if right_ranks:
      corrected = stage.expected.copy()
      corrected[right_ranks] = stage.actual[right_ranks]
      yield f'right as with {reading}', '', corrected


def _bugs(stage: Stage) -> Iterator[tuple[str, str, Bugs]]:
  """Yields what a bug is called, where to look, and what it changes."""
  for reading_stage, reads in stage.reads.items():
    for name, read in reads.items():
      if name in stage.before and read.dtype.kind != 'i':
        words = (
          f'as if {name} was that of the call before where {reading_stage} '
          'reads it'
        )
        yield (
          words,
          _STALE,
          {reading_stage: {name: _replace_by(stage.before[name])}},
        )
      for says, bug in stage.misreads.get(name, ()):
        words = f'as if {name} {says} where {reading_stage} reads it'
        yield words, _SCALES, {reading_stage: {name: bug}}
      for change in _select_changes(name, _for_read(reading_stage, name)):
        if read.dtype.kind != 'i' and change.bug(read) is not None:
          says = f'as if {name} {change.says} where {reading_stage} reads it'
          yield says, change.look, {reading_stage: {name: change.bug}}
  gemms = [
    reading_stage for reading_stage in stage.reads if reading_stage in _GEMMS
  ]
  words = ' and '.join(reversed(gemms))
  for change in _DEPTH if len(gemms) > 1 else ():
    cut_operands = {
      reading_stage: {_GEMMS[reading_stage][0]: change.bug}
      for reading_stage in gemms
    }
    yield f'as if {words} {change.says}', change.look, cut_operands


def _replace_by(array: np.ndarray) -> Bug:
  return lambda a: array.astype(a.dtype).reshape(a.shape)


def _for_read(stage: str, name: str) -> tuple[Change, ...]:
  left, right = _GEMMS.get(stage, ('', ''))
  if name == 'topk_weights':
    return _ROUTING
  if tensors.SPECS[name].part == 'bias':
    return _BIASES
  if tensors.SPECS[name].part == 'shared' and stage in ('y', 'dx'):
    return _ADDITIONS
  if name == left:
    return (*_COLUMNS, *_ROWS, *_DEPTH)
  if name == right:
    return (*_WEIGHTS, *_COLUMNS[:3])
  return (*_COLUMNS, *_ROWS)


def _select_changes(name: str, changes: Sequence[Change]) -> Iterator[Change]:
  """Yields those that a tensor's axes allow."""
  shape = tensors.SPECS[name].shape.replace('2S', '2F')
  for change in changes:
    if not change.axes or f' {change.axes} ' in f' {shape} ':
      yield change


def _find_explained(
  stage: Stage, changed_tensor: np.ndarray
) -> dict[int, np.ndarray]:
  """Returns `[n]` bool by rank: of what is wrong, what a change gives."""
  explained_by_rank = {}
  for rank in stage.ranks:
    actual, expected, other = (
      a[rank][stage.bad[rank]].astype(np.float64)
      for a in (stage.actual, stage.expected, changed_tensor)
    )
    if stage.exact:
      explained_by_rank[rank] = (actual == other) & (other != expected)
      continue
    with np.errstate(invalid='ignore', over='ignore'):
      explained_by_rank[rank] = (
        np.abs(actual - other) <= np.abs(actual - expected) / 16
      )
  return explained_by_rank


def _is_right(stage: Stage, tensor: np.ndarray, rank: int) -> bool:
  """Says whether all rows of a rank are near what they should be."""
  actual, expected = (
    stage.tiling.rows(stage.name, a, rank).astype(np.float64)
    for a in (tensor, stage.expected)
  )
  if stage.exact:
    return np.array_equal(actual, expected)
  # Coarser than any storage rounding, finer than two unrelated rows.
  largest = np.abs(expected).max(axis=-1, keepdims=True, initial=0.0)
  with np.errstate(invalid='ignore'):
    return bool((np.abs(actual - expected) <= 2.0**-6 * largest).all())


def _find_exchanged_rows(
  stage: Stage, rank: int
) -> tuple[str, np.ndarray, int] | None:
  """Returns rows that a rank has, where it should have others; how many."""
  tiling = stage.tiling
  actual, expected, wrong = (
    tiling.rows(stage.name, a, rank)
    for a in (stage.actual, stage.expected, stage.bad)
  )
  bad = np.flatnonzero(wrong.any(axis=1))
  expert_of_row = functools.partial(tiling.expert_of, stage.name, rank)
  first: dict[object, int] = {}
  for row in range(len(expected)):
    row_bytes = expected[row].tobytes()
    # A token's row is the same in each of its experts.
    first.setdefault((expert_of_row(row), row_bytes), row)
    first.setdefault(row_bytes, row)
  source = np.full(len(bad), -1)
  for position, row in enumerate(bad):
    row_bytes = actual[row].tobytes()
    source[position] = first.get(
      (expert_of_row(int(row)), row_bytes), first.get(row_bytes, -1)
    )
  bad, source = bad[source >= 0], source[source >= 0]
  if not len(bad):
    return None
  exchanged = stage.expected.copy()
  tiling.rows(stage.name, exchanged, rank)[bad] = expected[source]
  owner = ''
  if expert_of_row(int(bad[0])) != tiles.NO_EXPERT:
    is_same_expert = all(
      expert_of_row(int(a)) == expert_of_row(int(b))
      for a, b in zip(bad, source)
    )
    owner = ' of the same expert' if is_same_expert else ' of other experts'
  return (
    f'as if rows of {stage.name} were those of others{owner}',
    exchanged,
    len(bad),
  )


def locate_nan_gates(stage: Stage) -> str:
  """Returns what is told of gates where a NaN is, or ''."""
  gate_up = stage.reads[stage.name].get('gate_up')
  if gate_up is None or stage.name != 'activation':
    return ''
  rows = stage.tiling.rows
  gate = rows('gate_up', gate_up, stage.rank)[:, : stage.actual.shape[-1]]
  gate = gate.astype(np.float64)
  nan = np.isnan(rows(stage.name, stage.actual, stage.rank).astype(np.float64))
  if nan.all() or not nan.any():
    return ''
  if gate[nan].max() < gate[~nan].min():
    return f'NaN where gate is {gate[nan].max():.4g} or less'
  if gate[nan].min() > gate[~nan].max():
    return f'NaN where gate is {gate[nan].min():.4g} or more'
  return ''


def locate(stage: Stage) -> str:
  """Returns where in its rank a stage is wrong, if that is telling, or ''."""
  bad = stage.tiling.rows(stage.name, stage.bad, stage.rank)
  cut = stage.tiling.cut(stage.name, stage.rank)
  parts = [
    _describe_rows(cut, bad.any(axis=1)),
    _describe_stretch('column', bad.any(axis=0)),
    _describe_rank(stage),
  ]
  return ', '.join(part for part in parts if part)


def _describe_rank(stage: Stage) -> str:
  ranks = [
    rank
    for rank in range(len(stage.bad))
    if stage.tiling.rows(stage.name, stage.bad, rank).any()
  ]
  has_others = len(stage.bad) > len(ranks) == 1
  return f'on rank {stage.rank} alone' if has_others else ''


def _describe_stretch(noun: str, bad: np.ndarray) -> str:
  positions = np.flatnonzero(bad)
  if len(positions) in (0, len(bad)):
    return ''
  if len(positions) == 1:
    return f'in {noun} {positions[0]} alone'
  if len(positions) == positions[-1] - positions[0] + 1 and (bad[0] or bad[-1]):
    return (
      f'in the {"first" if bad[0] else "last"} {len(positions)} {noun}s alone'
    )
  return ''


def _describe_rows(cut: tiles.Cut, bad: np.ndarray) -> str:
  """Returns which rows are wrong, where there is a word for them."""
  positions = np.flatnonzero(bad)
  if len(positions) in (0, len(bad)):
    return ''
  if len(positions) == 1:
    return f'in row {positions[0]} alone'
  expert = np.repeat(cut.expert, np.diff(cut.starts))
  tile_rows = {*(np.searchsorted(cut.starts, positions, 'right') - 1)}
  if len(tile_rows) == 1 and (cut.expert == expert[positions[0]]).sum() > 1:
    block = cut.block[tile_rows.pop()]
    return f'in row block {block}{_of_expert(expert[positions[0]])} alone'
  if len({*expert}) > 1 and len({*expert[positions]}) == 1:
    return f'in rows of expert {expert[positions[0]]} alone'
  ends = _find_tails(expert, bad)
  if ends:
    return ends
  every_second = np.array_equal(
    positions, np.arange(positions[0] % 2, len(bad), 2)
  )
  if every_second and len(positions) > 2:
    return f'in {"odd" if positions[0] else "even"} rows alone'
  return _describe_stretch('row', bad)


def _of_expert(expert: int) -> str:
  return '' if expert == tiles.NO_EXPERT else f' of expert {expert}'


def _find_tails(expert: np.ndarray, bad: np.ndarray) -> str:
  """Says so where the last rows of experts are wrong, and none before."""
  starts, whole = [], 0
  for expert_id in np.unique(expert):
    expert_bad = bad[expert == expert_id]
    first = int(np.argmax(expert_bad))
    if not expert_bad.any():
      continue
    if not expert_bad[first:].all():
      return ''
    starts.append(first)
    whole += first == 0
  if whole == len(starts):
    return ''
  multiple = math.gcd(*starts)
  past = f', past a multiple of {multiple}' if multiple > 1 else ''
  return f'in the last rows of experts alone{past}'
