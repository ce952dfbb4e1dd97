"""Codes and scales of rows that a kernel quantised and returned.

They are judged against the values that the kernel quantised: the tensor itself
if it was returned, else its golden rows with their bound.  Scales come first.
A code is judged at the kernel's own scale if that is right, else at the
oracle's, so that a wrong scale is not reported again for every code of its
group.
"""

from collections.abc import Iterator
import dataclasses
import functools

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.explain import code_patterns
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tally as tally_lib
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.limits import coded_rows
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference.contract import quantised
from hpmoe.reference.quantised import quantise

_LANE = 'bounded'
_X = 'x'
_SIZES_OF_4_BITS = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


@dataclasses.dataclass(frozen=True)
class QuantisedRows:
  """Rows of one tensor, with a kernel's codes and scales of them.

  Attributes:
    name: of the tensor.
    form: of its codes.
    golden: golden rows of the tensor, before quantisation.
    codes: `[R, N, X]`, the kernel's, or `[R, T, D]` of x.
    scales: `[R, N, g]`, the kernel's; None: they are an input.
  """

  name: str
  form: quantised.Form
  golden: golden_lib.Rows
  codes: np.ndarray
  scales: np.ndarray | None

  @property
  def tiling(self) -> tiles.Tiling:
    return self.golden.tiling

  @property
  def stages(self) -> tuple[str, str]:
    """The names of scales and codes."""
    return f'{self.name}_scales', f'{self.name}_codes'

  def edges(self, rank: int) -> np.ndarray:
    """Returns where each expert's rows begin, and the end; x has no experts."""
    config = self.tiling.config
    if self.name == _X:
      return np.array([0, config.num_tokens])
    return tiles.expert_rows(config, self.tiling.counts, rank)

  def _bound_values(
    self, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns rows before quantisation.

    In narrow storage the variance is not of an error, so it is dropped: a
    golden value is not rounded.
    """
    if self.name == _X:
      return bounded_values.exact(self.golden.inputs[_X][rank, lo:hi])
    rows = self.golden.read_source(self.name, rank, lo, hi)
    if self.golden.dtype(self.name) == self.golden.policy.accumulate:
      return rows
    return bounded_values.Bounded(rows.value, rows.error)

  def compare(self, rank: int, lo: int, hi: int) -> 'Comparison':
    """Compares some rows of a rank."""
    rows = self._bound_values(rank, lo, hi)
    form, (scales_stage, codes_stage) = self.form, self.stages
    codes = self.tiling.rows(codes_stage, self.codes, rank)[lo:hi]
    codes = coded_rows.unpack(form, codes)
    scales = self.golden.static_scales(self.name, rank, lo, hi)
    if scales is not None and self.scales is not None:
      rows = coded_rows.scale_rows(rows, 1 / scales)
    if self.scales is None:
      assert scales is not None  # what else is not returned
      right_scales = coded_rows.Range(scales, scales, scales)
    else:
      scales = self.tiling.rows(scales_stage, self.scales, rank)[lo:hi]
      right_scales = coded_rows.bound_scales(form, rows)
    own = coded_rows.widen_scales(form, scales)
    bad_scales = right_scales.refuses(own)
    divisors = np.where(bad_scales, right_scales.expected, own)
    right_codes = coded_rows.bound_codes(form, rows, divisors)
    wide = codes.astype(np.float64)
    return Comparison(
      rows.value,
      (own, wide),
      (right_scales.expected, right_codes.expected),
      (bad_scales, right_codes.refuses(wide)),
      divisors,
      (scales, codes),
    )


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Some rows; each pair is of scales `[n, g]` and of codes `[n, X]`.

  Attributes:
    values: `[n, X]` float64, before quantisation.
    actual: float64, the kernel's.
    expected: float64, the oracle's.
    bad: bool, where the kernel's are wrong.
    divisors: `[n, g]` float64, the scales at which codes are judged.
    raw: as the kernel stored them.
  """

  values: np.ndarray
  actual: tuple[np.ndarray, np.ndarray]
  expected: tuple[np.ndarray, np.ndarray]
  bad: tuple[np.ndarray, np.ndarray]
  divisors: np.ndarray
  raw: tuple[np.ndarray, np.ndarray]

  def make_chunk(
    self, part: int, rank: int, cut: tiles.Cut, first: int
  ) -> tally_lib.Chunk:
    """Returns scales (0) or codes (1) for a tally."""
    actual, expected = self.actual[part], self.expected[part]
    with np.errstate(over='ignore', invalid='ignore'):
      error = np.abs(actual - expected)
      raw = self.raw[part]
      if raw.dtype == ml_dtypes.float4_e2m1fn:
        apart = np.abs(_count_steps(raw) - _count_steps(expected))
      else:
        apart = ulp.distance(raw, _store_like(raw, expected))
    return tally_lib.Chunk(
      rank,
      cut,
      first,
      actual.astype(np.float32),
      expected.astype(np.float32),
      self.bad[part],
      error,
      apart,
    )


def _count_steps(codes: np.ndarray) -> np.ndarray:
  """Returns `[...]` int64, the signed position of 4-bit codes, 0 for zero."""
  values = codes.astype(np.float64)
  steps = np.searchsorted(_SIZES_OF_4_BITS, np.abs(values))
  return np.where(values < 0, -steps, steps)


def _store_like(raw: np.ndarray, values: np.ndarray) -> np.ndarray:
  """Returns float64 codes or scales in the dtype of others."""
  if raw.dtype != np.uint8:
    return values.astype(raw.dtype)
  exponents = np.frexp(values)[1] - 1 + coded_rows.EXPONENT_BIAS
  return exponents.astype(np.uint8)


def judge_codes(
  case: pass_case.PassCase,
  answer: pass_case.Answer,
  tiling: tiles.Tiling | None = None,
) -> pass_case.Results:
  """Judges the codes and scales that a kernel returned.

  Args:
    case: the pass.
    answer: the kernel's outputs.
    tiling: the tiles to judge; None: all of the case.
  """
  results = _report_missing(case, answer)
  tiling = tiling or case.tiling
  is_forward = case.layer_pass.name == passes.FORWARD.name
  # Sampled tiles hold no whole tensor of tokens to send.
  copies = (
    case.send_codes(answer.outputs)
    if is_forward and tiling.sample is None
    else {}
  )
  for rows in _list_rows(case, answer, tiling, has_copies=bool(copies)):
    results += _judge_rows(rows)
  return results + _compare_copies(answer, copies, tiling)


def _compare_copies(
  answer: pass_case.Answer,
  copies: dict[str, np.ndarray],
  tiling: tiles.Tiling,
) -> pass_case.Results:
  """Compares codes of expert_in with those of x that the kernel returned."""
  return [
    tile_lanes.compare(
      name,
      'bitwise',
      f'equals its own x_{name.rpartition("_")[2]}, sent',
      answer.outputs[name],
      right,
      tiling,
    )
    for name, right in copies.items()
    if name in answer.outputs
  ]


def _report_missing(
  case: pass_case.PassCase, answer: pass_case.Answer
) -> pass_case.Results:
  """Returns a row of each part of codes that a kernel could have returned."""
  is_forward = case.layer_pass.name == passes.FORWARD.name
  names = (
    quantised_inputs.list_row_names(case.inputs.policy) if is_forward else ()
  )
  return [
    verdicts.not_captured(name, _LANE, verdicts.CODES_RULE, name)
    for name in names
    if name not in answer.outputs
  ]


def _list_rows(
  case: pass_case.PassCase,
  answer: pass_case.Answer,
  tiling: tiles.Tiling,
  has_copies: bool,
) -> Iterator[QuantisedRows]:
  """Returns what is judged against values; copies of x's codes are not."""
  outputs = answer.outputs
  names = quantised_inputs.list_row_names(case.inputs.policy)
  for name, form in quantised.output_forms(case.inputs.policy.rows).items():
    parts = quantised.parts(form, name)
    if not {*parts} <= {*outputs} & {*names}:
      continue
    if name == quantised.ROWS[0] and has_copies:
      continue
    own_codes, scales = (
      outputs.get(f'{name}_{p}') for p in ('codes', 'scales')
    )
    sources = dict(case.select_usable(name, answer.sources))
    # The values of its own codes are no source of these codes.
    for own in parts:
      sources.pop(own, None)
    sources.pop(name, None)
    if name in outputs:
      sources[name] = outputs[name]
    golden = dataclasses.replace(case.golden(sources), tiling=tiling)
    yield QuantisedRows(name, quantised.FORMS[form], golden, own_codes, scales)


def _judge_rows(rows: QuantisedRows) -> pass_case.Results:
  tallies = [
    tally_lib.Tally(stage, _LANE, verdicts.CODES_RULE, rows.tiling)
    for stage in rows.stages
  ]
  codes_stage = rows.stages[1]
  for rank in rows.tiling.judged_ranks:
    for cut, first, span in tile_lanes.ranges_of(
      rows.tiling, codes_stage, rank
    ):
      comparison = rows.compare(rank, span.start, span.stop)
      for part, tally in enumerate(tallies):
        tally.add(comparison.make_chunk(part, rank, cut, first))
      tallies[1].add_codes(*_count_moved(rows.form, comparison))
    padding = rows.tiling.padding(codes_stage, rows.codes, rank)
    tallies[1].add_padding(rank, padding)
  results = []
  for part, tally in enumerate(tallies):
    if part == 0 and rows.scales is None:
      continue
    explain = functools.partial(_explain, rows, part)
    results.append(tally.part().but(explain))
  return results


def _count_moved(
  form: quantised.Form, comparison: Comparison
) -> tuple[int, int]:
  """Returns the number of codes that differ from the oracle's, and of all."""
  with np.errstate(over='ignore', invalid='ignore'):
    values = comparison.values.astype(np.float32)
  values = np.where(np.isfinite(values), values, np.float32(0))
  scales = comparison.divisors[:, 0] if form.is_static else None
  coded = quantise.quantise(form, values, scales=scales)
  right = np.asarray(coded.codes).astype(np.float64)
  return int((right != comparison.actual[1]).sum()), right.size


def _explain(
  rows: QuantisedRows, part: int, failure: verdicts.Failure
) -> verdicts.Failure:
  """Returns a failure with the value, the scale, the group and a pattern."""
  if failure.row_block is None or failure.bad_rows == 0:
    return failure
  rank, row, column = failure.index
  edges = rows.edges(rank)
  num_rows = int(edges[-1])
  comparison = rows.compare(rank, 0, num_rows)
  width = rows.form.group[1] or comparison.values.shape[1]
  group = column if part == 0 else column // width
  value = comparison.values[row, column]
  if part == 0:
    members = comparison.values[row, group * width : (group + 1) * width]
    value = np.abs(members).max()
  pattern = code_patterns.describe(
    code_patterns.WrongCodes(
      rows.form,
      comparison.values,
      comparison.actual[part],
      comparison.expected[part],
      comparison.bad[part],
      comparison.divisors,
      np.repeat(np.arange(len(edges) - 1), np.diff(edges)),
    ),
    rows.stages[part],
  )
  return dataclasses.replace(
    failure,
    before=float(value),
    scale=float(comparison.divisors[row, group]),
    group=int(group),
    pattern=pattern,
  )
