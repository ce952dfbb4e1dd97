"""The first failure of a report as text: where, what, and the tile map."""

import math

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts


def format_failure(report: check.Report) -> str:
  """Returns the first failure with its tile map, or ''."""
  result = find_failing_result(report)
  if result is None:
    return ''
  lines = [format_location(report)]
  if result.grids and sum(g.size for g in result.grids) > 1:
    block = verdicts.block_name(result.stage)
    owner = '' if block == 'token block' else 'expert and '
    lines.append(f'  tiles, by {owner}{block} (# bad):')
    map_text = tiles.ascii_map(result.grids, result.experts)
    lines += [f'  {line}' for line in map_text.splitlines()]
  return '\n'.join(lines)


def find_failing_result(report: check.Report) -> verdicts.Result | None:
  """Returns the comparison that holds the first failure."""
  first = report.first_failure
  if first is None:
    return None
  return next(r for r in report.results if r.failure is first)


def format_location(report: check.Report) -> str:
  """Returns the first failure without its tile map, or ''."""
  result = find_failing_result(report)
  if result is None or result.failure is None:
    return ''
  first = result.failure
  location = [f'rank {first.rank}']
  if first.expert is not None:
    location.append(f'expert {first.expert}')
  if first.row_block is None:
    location.append('past the last valid row')
  else:
    location += [
      f'{verdicts.block_name(first.stage)} {first.row_block}',
      f'column block {first.col_block}',
    ]
  lines = [
    f'first failure: {first.stage} ({first.lane}: {first.rule})',
    f'  where     {", ".join(location)}',
    f'  element   {first.stage}{list(first.index)}{_describe_token(first)}',
    f'  got       {first.actual!r}',
    f'  expected  {first.expected!r}',
    _describe_distance(first),
  ]
  if first.before is not None:
    lines.append(
      f'  before    {first.before!r}, group {first.group} of its row, scale '
      f'{first.scale!r}'
    )
  if first.location:
    lines.insert(3, f'  theirs    {first.location}')
  if first.bad_rows:
    lines.append(
      f'  bad in this tile: {first.bad_rows} of {first.rows} rows, '
      f'{first.bad_cols} of {first.cols} columns'
    )
  if result.reason:
    lines.append(f'  rule      {result.reason}')
    lines += _list_worst_stages(report, result)
  if first.pattern:
    lines.append(f'  pattern   {first.pattern}')
  if first.hint:
    lines.append(f'  hint      {first.hint}')
  lines.append(f'  replay    {first.replay}')
  return '\n'.join(lines)


def _list_worst_stages(
  report: check.Report, result: verdicts.Result
) -> list[str]:
  """Returns a line of the stages that lose most beside the benchmark.

  A ratio of a layer says neither where it comes from nor that an order of sums
  is enough: 1024 terms one after the other lose 2.7 times what 8 sums side by
  side do.  The stages are those that were given the oracle's inputs.
  """
  name, is_ratio, _ = result.reason.partition(' / max(benchmark, ')
  own = f'{name} benchmark'
  ratios = {
    r.stage: r.values[name] / r.values[own]
    for r in report.results
    if r.rule == result.rule and r.values.get(own)
    if verdicts.tensor_of(r.stage) == r.stage
  }
  if not is_ratio or not ratios:
    return []
  worst_stages = sorted(ratios, key=lambda stage: -ratios[stage])[:2]
  listed_ratios = ', '.join(
    f'{stage} {ratios[stage]:.2f}' for stage in worst_stages
  )
  return [
    f"  alone     {name} over the benchmark's own: {listed_ratios}; where lane "
    'bounded '
    'passes, by the order of sums'
  ]


def _describe_distance(first: verdicts.Failure) -> str:
  """Returns the line of how far an element is off; of scales, of itself."""
  if first.stage.endswith('_scales') and first.expected and not _is_nan(first):
    share = 100 * (first.actual / first.expected - 1)
    return f'  off       {share:+.3g} %'
  return f'  ulp       {"-" if _is_nan(first) else first.ulp}'


def _is_nan(first: verdicts.Failure) -> bool:
  return math.isnan(first.actual) or math.isnan(first.expected)


def _describe_token(first: verdicts.Failure) -> str:
  if first.token is None:
    return ''
  slot = '' if first.slot is None else f', slot {first.slot}'
  return f', token {first.token} of rank {first.source_rank}{slot}'
