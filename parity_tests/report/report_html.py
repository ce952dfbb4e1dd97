"""A report for people who would rather look: one file without scripts."""

from collections.abc import Iterator, Sequence
import pathlib
import re
import xml.etree.ElementTree as ET

import numpy as np

from hpmoe.parity_tests.cache import versions
from hpmoe.parity_tests.case import data_tables
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import failure_text
from hpmoe.parity_tests.report import histogram
from hpmoe.parity_tests.report import lane_table
from hpmoe.parity_tests.report import markup
from hpmoe.parity_tests.report import report_text
from hpmoe.parity_tests.report import tile_map

_CSS = pathlib.Path(__file__).parents[1] / 'data/report.css'
# Tiles of all maps; one takes up to 150 characters.
_MOST_TILES = 7_000
_ASIDE = 400  # Characters that a hover or a cell tells at most.

_MARKS = lane_table.MARKS
CLASSES = {
  verdicts.PASS: 'pass',
  verdicts.FAIL: 'fail',
  verdicts.NOT_JUDGED: 'unseen',
}

_tag = markup.make_tag


def to_html(report: check.Report) -> str:
  """Returns a page that needs nothing beside it.

  It is HTML and well-formed XML, shows in light and dark, and depends on
  nothing but the report: the same report gives the same bytes.  It stays under
  2 MB: where there are too many tiles, some share a cell, or are left out, and
  the page says so.
  """
  mark = _MARKS[report.verdict]
  return markup.format_page(
    _tag(
      'html',
      make_head(f'{mark} {report.verdict} {report.config["candidate"]}'),
      _tag(
        'body',
        *_heading(report),
        *_first_failure(report),
        *_modes(report),
        *_comparisons(report),
        *_tiles(report),
      ),
      lang='en',
    )
  )


def to_fragment(report: check.Report) -> str:
  """Returns what a notebook shows: the verdict, the failure, the table.

  Its rules of style say nothing of the page around it.
  """
  return markup.format_element(
    _tag(
      'div',
      _tag('style', _scope_css(_CSS.read_text(encoding='utf-8'))),
      _tag(
        'div',
        *_heading(report),
        *_first_failure(report, has_links=False),
        *_comparisons(report, has_links=False),
        class_='page',
      ),
      class_='hpmoe-report',
    )
  )


def _scope_css(text: str) -> str:
  """Returns rules of a page as those of an element of it.

  Without an ampersand, which would be an entity, where style knows none.
  """
  rules = re.sub(r'^@page .*$', '', text, flags=re.MULTILINE)
  rules = re.sub(r'(?<![-\w])(:root|body)(?= {)', '.page', rules)
  return f'.hpmoe-report {{\n{rules}}}\n'


def make_head(title: str) -> ET.Element:
  """Returns the head of a page, with all of its style."""
  # Whatever got in nevertheless, a browser neither runs nor fetches.
  policy = "default-src 'none'; style-src 'unsafe-inline'"
  return _tag(
    'head',
    _tag('meta', charset='utf-8'),
    _tag('meta', http_equiv='Content-Security-Policy', content=policy),
    _tag('meta', name='viewport', content='width=device-width'),
    _tag('meta', name='color-scheme', content='light dark'),
    _tag('title', markup.escape_text(title, _ASIDE)),
    _tag('style', _CSS.read_text(encoding='utf-8')),
  )


def _heading(report: check.Report) -> Iterator[ET.Element]:
  config = report.config
  mark, verdict = _MARKS[report.verdict], report.verdict
  yield _tag(
    'h1',
    _tag('span', f'{mark} {verdict.upper()}', class_=f'badge {verdict}'),
    ' hpmoe check',
  )
  yield _tag('p', report_text.format_heading(report), class_='facts')
  yield _tag('p', report_text.format_summary(report))
  for line in report_text.format_blind_spot(report).splitlines():
    yield _tag('p', line, class_='small')
  yield _tag('p', 'Again:', class_='small')
  command = config['command']
  if command.startswith('hpmoe check'):  # and no line of Python
    command += f' --lane={",".join(config["lanes"])}'
  yield _tag('pre', command)
  made_with = versions.list_versions().items()
  versions_text = ', '.join(f'{n} {v}' for n, v in made_with)
  yield _tag(
    'p', f'{report.seconds:.1f} s with {versions_text}', class_='small'
  )


def _first_failure(
  report: check.Report, has_links: bool = True
) -> Iterator[ET.Element]:
  words, first = failure_text.format_location(report), report.first_failure
  if first is not None:
    title, _, rest = words.partition('\n')
    yield _tag('h2', title[0].upper() + title[1:])
    yield _tag('pre', rest, class_='fail')
  if first is not None and has_links:
    link = _tag('a', 'Its tile map', href=f'#{_anchor(first.stage)}')
    yield _tag('p', link, class_='small')


def _modes(report: check.Report) -> Iterator[ET.Element]:
  words = report_text.format_modes(report)
  if words:
    yield _tag('h2', 'Checking modes')
    yield _tag('pre', words)


def _comparisons(
  report: check.Report, has_links: bool = True
) -> Iterator[ET.Element]:
  rows = [*lane_table.iterate_rows(report)]
  missing_stages = {
    stage
    for stage, results in lane_table.group_by_stage(report).items()
    if any(r.missing for r in results)
  }
  present_rows = [
    row for row in rows if row[0] not in missing_stages or _is_judged(row[1])
  ]
  missing = [row for row in rows if row not in present_rows]
  yield _tag('h2', 'Comparisons')
  yield _draw_legend(report)
  yield _table_of_lanes(report, present_rows, has_links)
  if missing:
    yield _fold_missing(
      [stage for stage, _ in missing],
      _table_of_lanes(report, missing, has_links),
    )
  notes = report_text.format_notes(report)
  if notes:
    yield _tag('pre', notes, class_='small')


def _draw_legend(report: check.Report) -> ET.Element:
  """Returns one folded line for each word that this report has."""
  metrics = (f'{r.reason} {" ".join(r.values)}' for r in report.results)
  present = {r.rule for r in report.results}
  present |= {*re.findall(r'\w+', ' '.join(metrics))}
  tables = data_tables.read('words')
  words = tables['columns'] | {
    word: text
    for name in ('metrics', 'rules')
    for word, text in tables[name].items()
    if word in present
  }
  lines = [
    _tag('p', _tag('strong', word), f': {text}', class_='small')
    for word, text in words.items()
  ]
  return _tag('details', _tag('summary', 'What the words mean'), *lines)


def _is_judged(cells: Sequence[lane_table.Cell]) -> bool:
  """Says whether any lane that is shown judged something."""
  return bool({c.verdict for c in cells} - {'', verdicts.NOT_JUDGED})


def _fold_missing(stages: Sequence[str], *children: ET.Element) -> ET.Element:
  """Returns one line for all stages that were not returned."""
  mark = _tag('span', _MARKS[verdicts.NOT_JUDGED], class_='mark unseen')
  text = f' {len(stages)} not returned: {", ".join(stages)}'
  return _tag('details', _tag('summary', mark, _tag('small', text)), *children)


def _table_of_lanes(report, stages, has_links: bool) -> ET.Element:
  lanes = lane_table.list_lanes(report)
  names = [_tag('th', name) for name in ['stage', *lanes]]
  rows = [_tag('tr', *names, class_='heading')]
  before = None
  for stage, cells in stages:
    direction = verdicts.pass_of(stage)
    if direction is not before:
      title = _tag('th', f'{direction.name} pass', colspan=len(lanes) + 1)
      rows.append(_tag('tr', title, class_='pass-name'))
      before = direction
    link = _tag('a', stage, href=f'#{_anchor(stage)}')
    name = _tag('th', link if has_links else stage)
    fails = any(cell.verdict == verdicts.FAIL for cell in cells)
    kind = 'fails' if fails else None
    rows.append(_tag('tr', name, *map(_cell, lanes, cells), class_=kind))
  return _tag('div', _tag('table', *rows, class_='cells'), class_='wide')


def _cell(lane: str, cell: lane_table.Cell) -> ET.Element:
  """Returns what a lane says of a stage, with all figures in its title."""
  if not cell.verdict:
    return _tag('td', '', class_='none', title='this lane has no rule for it')
  about = '\n\n'.join(
    markup.escape_text(_about(r), _ASIDE) for r in cell.results
  )
  aside = (
    [_tag('small', markup.escape_text(cell.aside, 80))] if cell.aside else []
  )
  return _tag(
    'td',
    f'{_MARKS[cell.verdict]} {cell.figure}',
    *aside,
    class_=CLASSES[cell.verdict],
    title=about,
    data_label=lane,
  )


def _about(result: verdicts.Result) -> str:
  """Returns all figures of a comparison."""
  if result.verdict == verdicts.NOT_JUDGED:
    return f'{result.rule}: {result.verdict}: {result.reason}'
  fields = dict(zip(report_text.HEADING, report_text.format_cells(result)))
  for name in ('stage', 'lane', 'rule', 'verdict'):
    del fields[name]
  lines = [f'{result.rule}: {result.verdict}']
  lines += [
    f'{n.replace("_", " ")}: {v}' for n, v in fields.items() if v != '-'
  ]
  lines += [result.reason] if result.reason else []
  lines += [f'{name}: {v:.3g}' for name, v in result.values.items()]
  return '\n'.join(lines)


def _anchor(stage: str) -> str:
  return f'stage-{stage.replace(" ", "-")}'


def _tiles(report: check.Report) -> Iterator[ET.Element]:
  stages = lane_table.group_by_stage(report)
  groups = {stage: _groups(results) for stage, results in stages.items()}
  failing = sum(
    _has_failing_tile(g[0])
    for stage_groups in groups.values()
    for g in stage_groups
  )
  colours = {stage: _find_limited(results) for stage, results in stages.items()}
  yield _tag('h2', 'Tiles')
  yield tile_map.draw_legend()
  yield _tag(
    'p',
    'A failing tile has the number of its wrong elements; the first failure '
    'has a ring. Hover for its name. e3: expert 3. Where there are many tiles, '
    'rows in which nothing is wrong are drawn as one.',
    class_='small',
  )
  num_maps = failing + sum(result is not None for result in colours.values())
  max_tiles = _MOST_TILES // max(1, num_maps)
  missing = []
  for stage, results in stages.items():
    section = _stage(
      report, stage, results, groups[stage], colours[stage], max_tiles
    )
    if all(r.missing for r in results):
      missing.append((stage, section))
    else:
      yield section
  if missing:
    names, sections = zip(*missing)
    yield _fold_missing(names, *sections)


def _find_limited(
  results: Sequence[verdicts.Result],
) -> verdicts.Result | None:
  """Returns the comparison that has a limit of each element."""
  return next((r for r in results if tile_map.has_shares(r)), None)


def _groups(results: Sequence[verdicts.Result]) -> list[list[verdicts.Result]]:
  """Returns comparisons of the same bad tiles: those that fail, or all."""
  judged_results = [r for r in results if r.verdict != verdicts.NOT_JUDGED]
  failing = [r for r in judged_results if r.verdict == verdicts.FAIL]
  groups: dict[tuple, list[verdicts.Result]] = {}
  for result in failing or judged_results:
    bad = tuple((grid > 0).tobytes() for grid in result.grids)
    groups.setdefault(bad, []).append(result)
  return list(groups.values())


def _stage(report, stage, results, groups, limited, max_tiles) -> ET.Element:
  verdict = lane_table.find_worst_verdict(results)
  failing = {r.lane for r in results if r.verdict == verdicts.FAIL}
  lanes_text = f' in {", ".join(l for l in verdicts.LANES if l in failing)}'
  tensor = verdicts.tensor_of(stage)
  return _tag(
    'details',
    _tag(
      'summary',
      _tag('span', _MARKS[verdict], class_=f'mark {CLASSES[verdict]}'),
      f' {stage}' + (f' ({tensor})' if stage == verdicts.LAYER else ''),
      _tag(
        'small', f' {verdict}{lanes_text if failing else ""}{_codes(results)}'
      ),
    ),
    *(() if limited is None else _draw_shares(groups, limited, max_tiles)),
    *(part for group in groups for part in _group(report, group, max_tiles)),
    _figures(results),
    id=_anchor(stage),
    class_=CLASSES[verdict],
    open='open' if failing else None,
  )


def _codes(results: Sequence[verdicts.Result]) -> str:
  words = filter(None, map(histogram.describe_codes, results))
  return ''.join(f', {text}' for text in dict.fromkeys(words))


def _draw_shares(
  groups, limited: verdicts.Result, max_tiles: int
) -> Iterator[ET.Element]:
  """Yields how near errors come to their limits; a group may have the map."""
  yield from histogram.draw_histogram(limited)
  is_drawn = any(_has_failing_tile(g[0]) and limited in g[:1] for g in groups)
  if not is_drawn:
    parts = tile_map.draw_map(limited, max_tiles)
    yield _tag('div', *parts, class_='of-limit')


def _group(report, group, max_tiles) -> Iterator[ET.Element]:
  """Returns one map with what is said about it."""
  example = group[0]
  if example.verdict == verdicts.FAIL:
    failing_tiles = f'{example.failed_tiles} of {example.tiles} tiles fail'
    yield _tag('h3', f'{failing_tiles}: {_name_rules(group)}')
    yield from (_tag('p', text) for text in _beside(example))
  if _has_failing_tile(example):
    first = report.first_failure
    holder = next((r for r in group if r.failure is first), example)
    yield from tile_map.draw_map(holder, max_tiles, first)
    if len(group) > 1:
      note = f'Numbers are of {holder.lane}, {holder.rule}.'
      yield _tag('p', note, class_='small')


def _name_rules(group: Sequence[verdicts.Result]) -> str:
  by_lane = {
    lane: ', '.join(_count_wrong(r) for r in group if r.lane == lane)
    for lane in verdicts.LANES
  }
  return ' · '.join(f'{n} ({rules})' for n, rules in by_lane.items() if rules)


def _count_wrong(result: verdicts.Result) -> str:
  wrong = sum(int(grid.sum()) for grid in result.grids)
  return f'{result.rule}: {wrong} wrong' if wrong else result.rule


def _has_failing_tile(result: verdicts.Result) -> bool:
  return any(bool(grid.any()) for grid in result.grids)


def _beside(result: verdicts.Result) -> Iterator[str]:
  """Yields what a map does not show."""
  num_failing = sum(np.count_nonzero(g) for g in result.grids)
  if not result.failed_tiles:
    yield 'No single tile breaks the rule.'
  if result.failed_tiles > num_failing:
    yield (
      f'✕ Written past the last valid row, where there are no tiles, on '
      f'{result.failed_tiles - num_failing} ranks.'
    )


def _figures(results: Sequence[verdicts.Result]) -> ET.Element:
  names = [n.replace('_', ' ') for n in report_text.HEADING[1:]]
  titles = data_tables.read('words')['columns']
  heads = (_tag('th', name, title=titles.get(name)) for name in names)
  rows = [_tag('tr', *heads, class_='heading')]
  for result in results:
    cells = report_text.format_cells(result)[1:]
    rows.append(
      _tag(
        'tr',
        *(
          _tag('td', markup.escape_text(text, _ASIDE), data_label=name)
          for name, text in zip(names, cells)
        ),
        class_=CLASSES[result.verdict],
      )
    )
    if result.reason:
      reason = markup.escape_text(result.reason, _ASIDE)
      cell = _tag('td', reason, colspan=len(names), data_label='why')
      rows.append(_tag('tr', cell, class_='why'))
  return _tag('div', _tag('table', *rows, class_='figures'), class_='wide')
