"""Judges the spread of a tensor's errors, tile by tile; see `limits.spread`."""

from collections.abc import Mapping
import dataclasses
from typing import Self

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import rank_parts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import tally as tally_lib
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import power
from hpmoe.parity_tests.judge.limits import spread
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


class SpreadTally:
  """Judges chunks of one tensor by the spread of their errors.

  A tensor without rounding has no spread and no row.
  """

  def __init__(
    self, stage: str, golden: golden_lib.Rows, stored_oracle: np.ndarray | None
  ):
    self._tensor = verdicts.tensor_of(stage)
    self._tiling, self._stored_oracle = golden.tiling, stored_oracle
    self._is_fused = stage in verdicts.TENSOR_OF
    dtype = golden.dtype(self._tensor)
    cuts = [
      self._tiling.cut(self._tensor, rank)
      for rank in range(self._tiling.config.num_ranks)
    ]
    self._judge = spread.Judge(
      golden.policy,
      dtype,
      independent(stage, golden, fused=stored_oracle is not None),
      # For all ranks, even if some are missing: limits are then slightly wider
      # than necessary, but a shard has the limits of a single process.
      sum(int(np.prod(cut.shape)) for cut in cuts),
      comparisons=verdicts.comparisons(self._tiling.config),
      rounds_last=_rounds_last(golden.policy, self._tensor),
    )
    self._tally = tally_lib.Tally(
      stage, 'bounded', verdicts.SPREAD_RULE, self._tiling
    )
    self._keys: list[np.ndarray] = []
    self._sums: spread.Sums | None = None
    self._worst: dict[str, float] = {}
    self._power = power.Power()

  def add(
    self,
    chunk: tally_lib.Chunk,
    e: standards.Elements,
    value: bounded_values.Bounded,
    rows,
  ) -> np.ndarray:
    """Returns `[rows, columns]` bool, elements that stand out in bad tiles."""
    counts, stored_oracle = self._judge.counts(value), self._stored_oracle
    # Differences are from the oracle's own tensor, which a golden that rounded
    # no intermediate does not equal.
    is_unknown = stored_oracle is None and (
      value.crossings is not None or (counts and self._is_fused)
    )
    if value.variance is None or is_unknown or not chunk.bad.size:
      return np.zeros_like(chunk.bad)
    expected = chunk.expected
    if stored_oracle is not None and counts:
      expected = self._tiling.rows(self._tensor, stored_oracle, chunk.rank)[
        rows
      ]
    expected = np.where(e.defined, expected, np.zeros_like(expected))
    actual = e.actual.astype(expected.dtype)
    model = dataclasses.replace(
      value,
      value=e.golden,
      variance=np.where(e.defined, value.variance, 1.0),
    )
    # A value that overflows is equal in all kernels, or not judged.
    if value.crossings is not None:
      crossings = np.where(e.defined, value.crossings, 0.0)
      model = dataclasses.replace(model, crossings=crossings)
    elif counts or self._judge.stores_narrower(value):
      apart = np.where(e.defined, value.distance(), 0.0)
      model = dataclasses.replace(model, apart=apart)
    errors = e.actual, expected.astype(np.float64), model
    sums = self._judge.sums(chunk.cut, chunk.first, *errors)
    shares = self._judge.shares(sums)
    if not counts:
      lines = spread.Rows.measure(chunk.cut, self._judge.before_storing(model))
      self._power += self._judge.power(sums, chunk.cut, chunk.first, lines)
    self._add_up(sums, e.golden.sum(axis=1), shares)
    bad = ~np.all([share <= 1 for share in shares.values()], axis=0)
    refused_elements = chunk.cut.fill(bad, chunk.first)
    if bad.any():
      # A whole tile is marked if no element stands out.
      marked = refused_elements & self._judge.marked(*errors)
      nothing_marked = chunk.cut.count(marked, chunk.first) == 0
      refused_elements &= marked | chunk.cut.fill(nothing_marked, chunk.first)
    apart = chunk.apart
    if counts:
      apart = ulp.distance(actual, expected)
    self._tally.add(
      dataclasses.replace(chunk, expected=expected, apart=apart),
      refused_elements,
    )
    return refused_elements

  def counts(self, value: bounded_values.Bounded) -> bool:
    """Says whether it needs every element, not only sums of errors."""
    return self._judge.counts(value) or self._judge.stores_narrower(value)

  def add_right(
    self,
    rank: int,
    cut: tiles.Cut,
    tile_rows: range,
    right: tally_lib.CleanRows,
    value: bounded_values.Bounded,
  ) -> bool:
    """Adds tile rows; False: a tile is refused, nothing was added."""
    if value.variance is None:
      return True
    chunk_sums = right.sums.native_sums
    sums = self._judge.sums_of(cut, tile_rows, chunk_sums)
    shares = self._judge.shares(sums)
    if not all(np.all(share <= 1) for share in shares.values()):
      return False
    self._power += self._judge.power(sums, cut, tile_rows.start, chunk_sums)
    self._add_up(sums, chunk_sums.by_row.sum(axis=1), shares)
    self._tally.add_right(rank, cut, tile_rows, right)
    return True

  def _add_up(self, sums: spread.Sums, keys: np.ndarray, shares) -> None:
    total = sums.total(0)
    self._sums = total if self._sums is None else self._sums + total
    self._keys.append(keys)
    for name, share in shares.items():
      worst = rank_parts.largest(self._worst.get(name, 0.0), np.max(share))
      self._worst[name] = worst

  def part(self, num_bounded: int, elements: int) -> rank_parts.Part:
    """Returns the part; `num_bounded` of `elements` have a finite bound."""
    return self._tally.part(
      SpreadFigures(
        self._judge,
        self._tiling.columns(self._tensor),
        self._sums,
        np.concatenate([*self._keys, np.zeros(0)]),
        self._worst,
        self._power,
        num_bounded,
        elements,
      )
    )


@dataclasses.dataclass(frozen=True)
class SpreadFigures:
  """The sums of a tensor's errors, see `rank_parts.Figures`.

  Attributes:
    judge: of the tensor.
    columns: of it.
    sums: over its tiles, None if there are none.
    keys: `[rows]` float64; rows with correlated errors have the same key.
    worst: by number, the largest ratio of a tile's error to its limit.
    sees: the errors that the limits of tiles would have detected.
    num_bounded: elements with a finite rounding bound.
    elements: all of them.
  """

  judge: spread.Judge
  columns: int
  sums: spread.Sums | None
  keys: np.ndarray
  worst: Mapping[str, float]
  sees: power.Power
  num_bounded: int
  elements: int

  def __add__(self, other: Self) -> Self:
    sums = self.sums
    if sums is None or other.sums is None:
      sums = sums or other.sums
    else:
      sums = sums + other.sums
    names = {**self.worst, **other.worst}
    return dataclasses.replace(
      self,
      sums=sums,
      keys=np.concatenate([self.keys, other.keys]),
      worst={
        name: rank_parts.largest(
          self.worst.get(name, 0), other.worst.get(name, 0)
        )
        for name in names
      },
      sees=self.sees + other.sees,
      num_bounded=self.num_bounded + other.num_bounded,
      elements=self.elements + other.elements,
    )

  def settle(self) -> rank_parts.FiguresVerdict | None:
    """See `rank_parts.Figures`."""
    if not self.worst:
      return None
    shares, whole = self._of_tensor()
    shares = {**self.worst, **shares}
    violations = [
      f'{spread.words(name)}: {share:.3g} times the limit'
      for name, share in shares.items()
      if not share <= 1
    ]
    worst = float(np.max(list(shares.values())))
    values = shares | {'error_of_bound': worst}
    if not self.num_bounded and self.elements:
      return rank_parts.FiguresVerdict(violations, values, {}, self.elements, 0)
    sees = {} if np.isinf(whole.whole) else whole.sizes()
    return rank_parts.FiguresVerdict(violations, values, sees)

  def _of_tensor(self) -> tuple[dict[str, float], power.Power]:
    """Returns the tensor's shares of its limits, and their power."""
    if self.sums is None or not self.judge.independent.rows:
      return {}, self.sees
    alike = np.asarray(tiles.most_equal(self.keys) * self.columns)
    sums = dataclasses.replace(self.sums, alike=alike)
    shares = self.judge.shares(sums)
    return {
      f'tensor_{name}': rank_parts.largest(0.0, np.max(share))
      for name, share in shares.items()
    }, self.sees + self.judge.power(sums)


def _rounds_last(policy: precision.PrecisionPolicy, tensor: str) -> bool:
  """Says whether this is the only tensor that is stored narrower."""
  is_wide = policy.storage == policy.accumulate
  return is_wide and {*policy.roundings} <= {tensor}


def independent(
  stage: str, golden: golden_lib.Rows, fused: bool
) -> spread.Independent:
  """Returns which elements have independent errors.

  Errors of earlier results are common to all elements that read them.

  Args:
    stage: the stage.
    golden: its golden rows.
    fused: whether its sources were not returned.
  """
  if not fused and stage not in verdicts.TENSOR_OF:
    return spread.Independent()
  tensor, policy = verdicts.tensor_of(stage), golden.policy
  # Both halves of d_gate_up come from one d_activation.
  pairs = tensor in ('d_gate_up', 'd_w_gate_up', 'd_b_gate_up')
  if tensors.SPECS[tensor].shape.split()[1:2] != ['L']:
    return spread.Independent(columns=False, pairs=pairs)
  common = 0.0
  of_gate_up = tensor in ('d_w_gate_up', 'd_b_gate_up')
  if of_gate_up and policy.placement == 'combine':
    # All columns of d_activation read the same weighted rows of dy.
    depth = golden.tiling.config.d_model
    common = gemm_bounds.share_of_operands(policy, depth)
  return spread.Independent(rows=False, pairs=pairs, common=common)
