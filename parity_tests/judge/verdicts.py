"""The rows of a check: results and failures, their names and order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import re
from typing import Any

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import tensors

LANES = ('exact', 'bitwise', 'bounded', 'standard')
LAYER = 'layer'  # the fused layer, x to y, as one operator
# Rows of a whole pass as one operator, one for each result.
LAYERS = {'y': LAYER} | {
  name: f'{LAYER} {name}'
  for name in passes.BACKWARD.of_layer(tensors.EVERY_PART).results
}
# The same of a sub-layer.
ROWS = LAYERS | {
  name: LAYERS.get(name, f'{LAYER} {name}')
  for layer_pass in (passes.FORWARD, passes.BACKWARD)
  for name in layer_pass.of_layer(passes.SUBLAYER).results
}
TENSOR_OF = {row: tensor for tensor, row in ROWS.items()}


def order(layer: tensors.Layer) -> tuple[str, ...]:
  """Returns the rows of a layer, in dependency order."""
  layer_passes = (
    layer_pass.of_layer(layer)
    for layer_pass in (passes.FORWARD, passes.BACKWARD)
  )
  return tuple(
    name
    for layer_pass in layer_passes
    for name in (
      *layer_pass.plan,
      layer_pass.relayed,
      *layer_pass.stages,
      *(ROWS[result] for result in layer_pass.results),
    )
  )


@functools.cache
def comparisons(layer: tensors.Layer) -> int:
  """Returns how many rows share the probability of a false alarm."""
  return len(order(layer)) - len(tensors.RELAYED)


def _place_codes(row_order: Iterable[str]) -> Iterator[str]:
  """Yields rows, each before its codes and scales."""
  for name in row_order:
    yield name
    for spec in tensors.ROW_CODES:
      if spec.name == f'{name}_{spec.kind}':
        yield spec.name


# The routing of a kernel that routes by itself comes first.
_LOGITS = tensors.ROUTER_GEMM[0].name


def _place_router_rows(row_order: Iterable[str]) -> Iterator[str]:
  """Yields rows, those of a router's gradients before dx."""
  for name in row_order:
    if name == 'dx':
      yield from passes.ROUTER_ROWS
    yield name


# The gradients of its weights and of its bias come last.
ORDER = (
  _LOGITS,
  *tensors.ROUTING,
  *(spec.name for spec in tensors.TOKEN_CODES),
  *_place_router_rows(_place_codes(order(tensors.EVERY_PART))),
  tensors.ROUTER_GRADS[-1].name,
  tensors.ROUTER_BIAS_GRAD.name,
)
_OF_SUBLAYER = order(passes.SUBLAYER)


def ordered(names: Iterable[str]) -> list[str]:
  """Returns rows of one layer in dependency order, those of a sub-layer too."""
  names = {*names}
  row_order = _OF_SUBLAYER if is_of_sublayer(names) else ORDER
  return [name for name in row_order if name in names]


def is_of_sublayer(names: Iterable[str]) -> bool:
  """Says whether some rows exist in a sub-layer only."""
  return not {*names} <= {*ORDER}


# The rows of a layer without further parts.
COMPARISONS = comparisons(tensors.Parts())
BOUND_RULE = 'a-priori rounding bound'
SPREAD_RULE = 'spread of rounding errors'
EDGES_RULE = 'rounding edges'
CODES_RULE = 'codes and scales that rounding allows'

PASS, FAIL, NOT_JUDGED = 'pass', 'fail', 'not judged'
GUILTY_TOKENS = 'all bad tokens, and no others, went to expert'
NO_LIMIT = 'no element has a limit that is less than its size'

# The name of a tile row, by the tensor's axis after the rank.
_BLOCK_NAMES = {'N': 'row block', 'T': 'token block'} | dict.fromkeys(
  'LDS', 'weight row block'
)


_OLD_NAMES = dict(got='actual', there='location')


@dataclasses.dataclass(frozen=True)
class Failure:
  """The first bad tile of one comparison, and the worst element in it.

  Attributes:
    stage, lane, rule: which comparison.
    rank: rank that holds the tile.
    expert: global expert, or None if the tile has none.
    row_block, col_block: of the tile; row_block is None past the last valid
      row.
    token: token of the element's row on `source_rank`, or None.
    source_rank, slot: the source of the row, or None.
    index: coordinates in the tensor.
    actual, expected: values of the element.
    ulp: units in the last place between them.
    bad_rows, bad_cols: rows and columns of the tile with a bad element.
    rows, cols: of the tile.
    hint: advice on how to find the cause, or ''.
    pattern: a description of the tile's errors, or ''.
    replay: the command that reproduces the failure.
    before: for a code, the value that was quantised; for a scale, the largest
      value of its group; None for other tensors.
    scale: the scale that divided it, the kernel's own if that is right; None
      for other tensors.
    group: index of the quantisation group in its row; None for other tensors.
    location: where the element and tile are in the candidate's files, or ''.
  """

  stage: str
  lane: str
  rule: str
  rank: int
  expert: int | None
  row_block: int | None
  col_block: int | None
  token: int | None
  source_rank: int | None
  slot: int | None
  index: tuple[int, ...]
  actual: float
  expected: float
  ulp: int
  bad_rows: int
  bad_cols: int
  rows: int = 0
  cols: int = 0
  hint: str = ''
  pattern: str = ''
  replay: str = ''
  location: str = ''
  before: float | None = None
  scale: float | None = None
  group: int | None = None

  def __getattr__(self, name: str) -> Any:
    """Returns a field under its name of 0.3, which works until 1.0."""
    if name not in _OLD_NAMES:
      raise AttributeError(name)
    return getattr(self, _OLD_NAMES[name])

  def with_hint(self, hint: str) -> 'Failure':
    """Returns it with another hint, unless that is said already."""
    words = re.compile(rf'{re.escape(hint)}(?!\w)')
    if not hint or words.search(self.hint) or words.search(self.pattern):
      return self
    return dataclasses.replace(
      self, hint='; '.join(filter(None, (self.hint, hint)))
    )

  def order(self, sublayer: bool = False) -> tuple:
    """Sort key: dependency order of tasks, then lane.

    Within a stage, wrong elements come before a tensor that is wrong as a
    whole.
    """
    padding = self.row_block is None
    whole = not sublayer and self.stage in ORDER
    rows = ORDER if whole else _OF_SUBLAYER
    return (
      rows.index(self.stage),
      self.bad_rows == 0,
      self.rank,
      padding,
      self.expert or 0,
      self.row_block or 0,
      self.col_block or 0,
      LANES.index(self.lane),
    )

  def severity(self, sublayer: bool = False) -> tuple:
    """Sort key: the strictest lane, then dependency order."""
    return LANES.index(self.lane), *self.order(sublayer)


@dataclasses.dataclass(frozen=True)
class Result:
  """One comparison of one stage tensor.

  Attributes:
    stage, lane, rule: which comparison.
    tiles: tiles compared.
    failed_tiles: tiles with a bad element.
    worst_abs: largest |actual - expected|; NaN if an element is not finite.
    worst_ulp: units in the last place between these two, as of `Failure.ulp`.
    worst_element: coordinates of that element, None if all are equal.
    verdict: PASS, FAIL or NOT_JUDGED.
    reason: the limit that the tensor exceeds, or why nothing was judged.
    missing: the tensor that the candidate did not return, or ''.
    values: the rule's metrics by name.
    power: the smallest relative errors that the comparison would have
      detected, of an 'element', a 'row' or the 'whole', see `limits.power`.
    not_judged: elements that have no useful limit.
    failure: the first bad tile, None if it passes.
    grids: per rank `[B, C]` int64, bad elements of each tile.
    experts: per rank `[B]`, expert of a tile row or `tiles.NO_EXPERT`.
    shares: per rank `[B, C]` float32, largest ratio of error to limit in each
      tile; (): the rule has no limit per element.
    histogram: `shares.Histogram`, the distribution of that ratio, and the
      number of codes that differ; None: the rule has no limit per element.
    part: the `parts.Part` that it was merged from; None in a report, and if
      nothing was compared.
  """

  stage: str
  lane: str
  rule: str
  tiles: int = 0
  failed_tiles: int = 0
  worst_ulp: int = 0
  worst_abs: float = 0.0
  worst_element: tuple[int, ...] | None = None
  verdict: str = PASS
  reason: str = ''
  missing: str = ''
  values: Mapping[str, float] = dataclasses.field(default_factory=dict)
  power: Mapping[str, float] = dataclasses.field(default_factory=dict)
  not_judged: int = 0
  failure: Failure | None = None
  grids: tuple[np.ndarray, ...] = ()
  experts: tuple[np.ndarray, ...] = ()
  shares: tuple[np.ndarray, ...] = ()
  histogram: Any = None
  part: Any = None


@dataclasses.dataclass(frozen=True)
class Change:
  """A tensor whose bits differ between two runs.

  Attributes:
    direction: the pass.
    run: the first run that differs from run 1.
    tensor: its name.
    elements: number of elements that differ.
    tensor_size: elements of the tensor.
    ulp: the largest distance.
    index: coordinates of the first element that differs.
    first, later: its values in run 1 and in that run.
    is_other: whether that run had other data of the same shape, so that its
      elements are wrong; `first` is then the right value.
  """

  direction: str
  run: int
  tensor: str
  elements: int
  tensor_size: int
  ulp: int
  index: tuple[int, ...]
  first: float
  later: float
  is_other: bool = False

  def __str__(self) -> str:
    if self.is_other:
      return (
        f'{self.tensor}: {self.elements} of {self.tensor_size} elements are '
        'wrong in a call on other data of the same shape, between two on the '
        'same: does the kernel keep something of an earlier call, by shape '
        f'or address? first {self.tensor}{list(self.index)}: expected '
        f'{self.first!r}, got {self.later!r}'
      )
    return (
      f'{self.tensor}: {self.elements} of {self.tensor_size} elements differ '
      f'in run {self.run}, by {self.ulp} ulp at most; first '
      f'{self.tensor}{list(self.index)}: {self.first!r}, then {self.later!r}'
    )


def tensor_of(stage: str) -> str:
  """Returns the tensor that is compared in a stage's row."""
  return TENSOR_OF.get(stage, stage)


def pass_of(stage: str) -> passes.Pass:
  """Returns the pass that a row belongs to."""
  whole = passes.FORWARD.of_layer(tensors.EVERY_PART)
  own = passes.FORWARD.of_layer(passes.SUBLAYER).stages
  coded = [spec.name for spec in tensors.ROW_CODES + tensors.TOKEN_CODES]
  forward = (
    _LOGITS,
    *tensors.ROUTING,
    *whole.outputs,
    whole.relayed,
    *own,
    *coded,
  )
  return passes.FORWARD if tensor_of(stage) in forward else passes.BACKWARD


def block_name(stage: str) -> str:
  """Returns the name of a tile row of a stage."""
  axis = tensors.SPECS[tensor_of(stage)].shape.removeprefix('R ')[0]
  return _BLOCK_NAMES.get(axis, 'row block')


def is_of_tokens(stage: str) -> bool:
  """Says whether a row is a token's sum over experts."""
  spec = tensors.SPECS[tensor_of(stage)]
  axes = spec.shape.split()
  return axes[:2] == ['R', 'T'] and len(axes) == 3 and spec.part != 'shared'


def not_captured(stage: str, lane: str, rule: str, tensor: str) -> Result:
  return Result(
    stage,
    lane,
    rule,
    verdict=NOT_JUDGED,
    reason=f'{tensor} not returned',
    missing=tensor,
  )


def check_each_once(results: Sequence[Result]) -> None:
  """Checks that no tensor is judged twice by its spread.

  The limits divide the probability of a false alarm among all rows.

  Raises:
    AssertionError: a tensor is judged twice.
  """
  rows = [result.stage for result in results if result.rule == SPREAD_RULE]
  twice = sorted({row for row in rows if rows.count(row) > 1})
  if twice:
    raise AssertionError(
      f'results: expected each tensor once under {SPREAD_RULE!r}, got twice: '
      f'{", ".join(twice)}'
    )
