"""Why a stage is wrong, in words: a hint, never part of a verdict.

A failed stage is computed again as a kernel with a known bug would compute it:
with a changed input, or with its output changed.  The change that reproduces
what the candidate returned is named, with its place in the tensor.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.case.layouts import alternative_layouts
from hpmoe.parity_tests.explain import added_terms
from hpmoe.parity_tests.explain import element_sizes
from hpmoe.parity_tests.explain import exchanges
from hpmoe.parity_tests.explain import failed_stage
from hpmoe.parity_tests.explain import known_bugs
from hpmoe.parity_tests.explain import locations
from hpmoe.parity_tests.judge.limits import ulp

# A change is named if it explains at least this share of the wrong elements,
# and at least this many: fewer may agree by chance, except with zeros.
_NAMED_SHARE, _FEWEST = 0.9, 6
# Two bugs are named for one stage if each explains at least this share.
_PAIR_SHARE = 0.1
BESIDE = '; in addition '
_STALE = 'what the kernel keeps from an earlier call'
# A stage with more products is not computed again and again.
_MOST_PRODUCTS = 1 << 30
# Fewer rows than this are not shifted: they are other rows.
_FEW_ROWS = 3


def explain(stage: failed_stage.FailedStage, pattern: str) -> tuple[str, bool]:
  """Returns a likely cause and its place, or else the pattern of one tile.

  Args:
    stage: what failed.
    pattern: what its first bad tile looks like.

  Returns:
    The words, and whether one bug other than zeros explains every wrong
    element, of which there are too many for chance.
  """
  if stage.actual.dtype.kind != 'i':
    stage = _drop_right(stage)
  bad = stage.bad[stage.rank]
  if not bad.any() or stage.actual.dtype.kind == 'i':
    return pattern, False
  place = locations.locate(stage)
  actual, expected = (
    stage.actual[stage.rank][bad],
    stage.expected[stage.rank][bad],
  )
  if (np.isnan(actual) & ~np.isnan(expected)).any():
    return _join_words(pattern, locations.locate_nan_gates(stage), place), False
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
  # The search for roundings says more, where all tokens have it.
  whole = whole and known_bugs.ROUNDED not in best.says
  return BESIDE.join(causes), whole


def find_bug(stage: failed_stage.FailedStage) -> str:
  """Returns the known bug that explains nearly all that is wrong, or ''.

  Args:
    stage: y of one expert, which has a single rank and no layout of its own.
  """
  best_share, best_words = 0.0, ''
  for says, look, changed_tensor in _list_expert_changes(stage):
    share = float(_find_explained(stage, changed_tensor)[stage.rank].mean())
    if share > best_share + 2.0**-10:
      best_share = share
      best_words = _join_words(says, f'look at {look}' if look else '')
    if share == 1:
      break
  return best_words if best_share >= _NAMED_SHARE else ''


def _list_expert_changes(
  stage: failed_stage.FailedStage,
) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields the words of a bug, where to look, and the part of y with it."""
  part = 'its part of y'
  yield f'as if {part} was zero', '', np.zeros_like(stage.expected)
  for change in known_bugs.select_changes(stage.name, known_bugs.COLUMNS):
    changed_tensor = change.bug(stage.expected)
    if changed_tensor is not None:
      yield f'as if {part} {change.says}', change.look, changed_tensor
  yield f'as if {part} was twice that', '', 2 * stage.expected
  for says, look, compute in stage.variants:
    yield says, look, compute()
  for says, look, bugs in _bugs(stage):
    yield says, look, stage.recompute(bugs)


def _drop_right(stage: failed_stage.FailedStage) -> failed_stage.FailedStage:
  """Returns the stage without elements that are as expected.

  A limit from x to y may refuse them beside those that are wrong.
  """
  bad = stage.bad & (ulp.bits(stage.actual) != ulp.bits(stage.expected))
  # A stage whose wrong rank has no such element is left as it is.
  return dataclasses.replace(stage, bad=bad) if bad[stage.rank].any() else stage


def _explain_other_ranks(
  stage: failed_stage.FailedStage,
  options: Sequence['_Option'],
  known_options: Sequence['_Option'],
) -> Iterator[str]:
  """Yields bugs of other ranks, which the known options do not explain."""
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
  stage: failed_stage.FailedStage,
  option: '_Option',
  is_own: np.ndarray,
  location: str = '',
) -> str:
  """Returns a bug, where to look, and where `is_own` `[n]` of it lies."""
  share = (option.explained_on_rank(stage) & is_own).mean()
  part = '' if share == 1 else f', {100 * share:.3g} % of the wrong elements'
  look = f'look at {option.look}' if option.look else ''
  return _join_words(
    option.says + part, location, locations.locate(stage), look
  )


def _restrict(
  stage: failed_stage.FailedStage, is_own: np.ndarray
) -> failed_stage.FailedStage:
  """Returns the stage with only some of its rank's wrong elements."""
  bad = np.zeros_like(stage.bad)
  bad[stage.rank][stage.bad[stage.rank]] = is_own
  return dataclasses.replace(stage, bad=bad)


def _join_words(*parts: str) -> str:
  return '; '.join(part for part in parts if part)


@dataclasses.dataclass(frozen=True)
class _Option:
  """A bug: its words, where to look, `[n]` bool by rank what it explains."""

  says: str
  look: str
  alike: Mapping[int, np.ndarray]

  def explained_on_rank(self, stage: failed_stage.FailedStage) -> np.ndarray:
    return self.alike[stage.rank]


def _options(stage: failed_stage.FailedStage) -> Iterator[_Option]:
  """Yields bugs that explain something, until every rank is explained."""
  zeros = np.zeros_like(stage.expected)
  zero = f'as if {stage.name} {known_bugs.ZERO.says}'
  yield _Option(zero, '', _find_explained(stage, zeros))
  left = {*stage.ranks}
  for says, look, changed_tensor in _changes(stage):
    alike = _find_explained(stage, changed_tensor)
    if any(is_alike.any() for is_alike in alike.values()):
      yield _Option(says, look, alike)
    left -= {rank for rank, is_alike in alike.items() if is_alike.all()}
    if not left:
      return
  if _count_products(stage) > _MOST_PRODUCTS:
    return
  # A factor that was fitted gives no bits.
  near_stage = dataclasses.replace(stage, exact=False)
  for scaled in added_terms.list_scaled(stage):
    alike = _find_explained(near_stage, scaled.changed_sum)
    yield _Option(scaled.says, '', alike)


def _select_best(
  options: Sequence[_Option], rank: int, is_counted: np.ndarray
) -> tuple[float, _Option]:
  """Returns the largest share of counted elements explained, and by what."""
  # What zeros explain, many bugs do.
  share, best = 0.0, options[0]
  for option in options:
    option_share = (
      float(option.alike[rank][is_counted].mean()) if is_counted.any() else 0.0
    )
    if option is options[0] or option_share > share + 2.0**-10:
      share, best = option_share, option
  return share, best


def _changes(
  stage: failed_stage.FailedStage,
) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields the words of a bug, where to look, and what it would write."""
  yield from _readings(stage)
  if stage.name in stage.before:
    says = f'as if {stage.name} was that of the previous call'
    yield says, _STALE, stage.before[stage.name]
  exchanged_rows = [
    exchanges.find_exchanged_rows(stage, rank) for rank in stage.ranks
  ]
  for exchange in exchanged_rows:
    if exchange is not None and exchange[2] < _FEW_ROWS:
      yield exchange[0], known_bugs.DESTINATION, exchange[1]
  for change in known_bugs.select_changes(
    stage.name, (*known_bugs.COLUMNS, *known_bugs.ROWS, *known_bugs.WEIGHTS)
  ):
    changed_tensor = change.bug(stage.expected)
    if changed_tensor is not None:
      yield f'as if {stage.name} {change.says}', change.look, changed_tensor
  for exchange in exchanged_rows:
    if exchange is not None:
      yield exchange[0], known_bugs.DESTINATION, exchange[1]
  yield f'as if {stage.name} was twice that', '', 2 * stage.expected
  if _count_products(stage) > _MOST_PRODUCTS:
    return
  for says, look, compute in stage.variants:
    yield says, look, compute()
  yield from exchanges.list_exchanged_experts(stage)
  for says, look, bugs in _bugs(stage):
    yield says, look, stage.recompute(bugs)
  yield from added_terms.list_changes(stage)


def _count_products(stage: failed_stage.FailedStage) -> int:
  return sum(
    reads[known_bugs.GEMMS[gemm][0]].size
    * max(reads[known_bugs.GEMMS[gemm][1]].shape[-2:])
    for gemm, reads in stage.reads.items()
    if gemm in known_bugs.GEMMS
  )


def _readings(
  stage: failed_stage.FailedStage,
) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields the actual tensor where it is right if read in another layout."""
  dims, ids = stage.tiling.config.dims(), stage.tiling.topk_ids
  bad = sorted(stage.ranks)
  for reading, other in alternative_layouts.list_alternatives(
    stage.name, stage.actual, dims, ids, bad
  ):
    right_ranks = [
      rank for rank in stage.ranks if _is_right(stage, other, rank)
    ]
    if right_ranks:
      corrected = stage.expected.copy()
      corrected[right_ranks] = stage.actual[right_ranks]
      yield f'right if read with {reading}', '', corrected


def _bugs(
  stage: failed_stage.FailedStage,
) -> Iterator[tuple[str, str, known_bugs.Bugs]]:
  """Yields the words of a bug, where to look, and what it changes."""
  for reading_stage, reads in stage.reads.items():
    for name, read in reads.items():
      if name in stage.before and read.dtype.kind != 'i':
        words = (
          f'as if {name} was that of the previous call where {reading_stage} '
          'reads it'
        )
        yield (
          words,
          _STALE,
          {reading_stage: {name: _replace_by(stage.before[name])}},
        )
      for says, bug in stage.misreads.get(name, ()):
        words = f'as if {name} {says} where {reading_stage} reads it'
        yield words, known_bugs.SCALES, {reading_stage: {name: bug}}
      for change in known_bugs.select_changes(
        name, known_bugs.list_read_changes(reading_stage, name)
      ):
        if read.dtype.kind != 'i' and change.bug(read) is not None:
          says = f'as if {name} {change.says} where {reading_stage} reads it'
          yield says, change.look, {reading_stage: {name: change.bug}}
  gemms = [
    reading_stage
    for reading_stage in stage.reads
    if reading_stage in known_bugs.GEMMS
  ]
  words = ' and '.join(reversed(gemms))
  for change in known_bugs.DEPTH if len(gemms) > 1 else ():
    cut_operands = {
      reading_stage: {known_bugs.GEMMS[reading_stage][0]: change.bug}
      for reading_stage in gemms
    }
    yield f'as if {words} {change.says}', change.look, cut_operands


def _replace_by(array: np.ndarray) -> known_bugs.Bug:
  return lambda a: array.astype(a.dtype).reshape(a.shape)


def _find_explained(
  stage: failed_stage.FailedStage, changed_tensor: np.ndarray
) -> dict[int, np.ndarray]:
  """Returns `[n]` bool by rank: wrong elements that a change reproduces."""
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


def _is_right(
  stage: failed_stage.FailedStage, tensor: np.ndarray, rank: int
) -> bool:
  """Says whether all rows of a rank equal, or are near, the expected ones."""
  actual, expected = (
    stage.tiling.rows(stage.name, a, rank).astype(np.float64)
    for a in (tensor, stage.expected)
  )
  if stage.exact:
    return np.array_equal(actual, expected)
  # Coarser than any storage rounding, finer than two unrelated rows.
  largest = element_sizes.measure_sizes(expected)
  with np.errstate(invalid='ignore'):
    return bool((np.abs(actual - expected) <= 2.0**-6 * largest).all())
