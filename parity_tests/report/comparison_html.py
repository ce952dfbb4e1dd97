"""Two reports side by side as a page: one file without scripts."""

from collections.abc import Iterator
import xml.etree.ElementTree as ET

from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import comparison as comparison_lib
from hpmoe.parity_tests.report import markup
from hpmoe.parity_tests.report import report_html

_tag = markup.make_tag
_BADGES = {
  comparison_lib.BETTER: verdicts.PASS,
  comparison_lib.UNCHANGED: verdicts.PASS,
  comparison_lib.MIXED: verdicts.FAIL,
  comparison_lib.WORSE: verdicts.FAIL,
}


def to_html(comparison: comparison_lib.Comparison) -> str:
  """Returns a page that needs nothing beside it, as `report_html.to_html`."""
  outcome = comparison.outcome
  return markup.format_page(
    _tag(
      'html',
      report_html.make_head(f'{outcome} hpmoe report'),
      _tag('body', *_list_parts(comparison)),
      lang='en',
    )
  )


def _list_parts(
  comparison: comparison_lib.Comparison,
) -> Iterator[ET.Element]:
  outcome = comparison.outcome
  badge = _tag('span', outcome, class_=f'badge {_BADGES[outcome]}')
  yield _tag('h1', badge, ' hpmoe report')
  yield _tag('p', comparison_lib.format_summary(comparison), class_='facts')
  differences = comparison_lib.describe_differences(comparison)
  if differences:
    yield _tag('p', f'Differs: {differences}', class_='small')
  heading = _tag(
    'tr',
    *(_tag('th', name) for name in ('', 'before', 'after')),
    class_='heading',
  )
  facts = [
    _tag('tr', _tag('th', name), *_label_cells(before, after))
    for name, before, after in comparison_lib.list_facts(comparison)
  ]
  yield _tag('table', heading, *facts, class_='sides')
  if comparison.rows:
    names = ('stage', 'lane', 'before', 'after', 'change')
    rows = [_tag('tr', *(_tag('th', name) for name in names), class_='heading')]
    rows += map(_make_row, comparison.rows)
    yield _tag('h2', 'Comparisons')
    yield _tag('table', *rows, class_='cells sides')


def _label_cells(*texts: str) -> list[ET.Element]:
  labels = ('before', 'after')
  return [
    _tag('td', markup.escape_text(text), data_label=label)
    for text, label in zip(texts, labels)
  ]


def _make_row(row: comparison_lib.Row) -> ET.Element:
  cells = [
    _tag(
      'td',
      str(cell) or '-',
      class_=report_html.CLASSES.get(cell.verdict, 'none'),
      data_label=label,
    )
    for cell, label in ((row.before, 'before'), (row.after, 'after'))
  ]
  return _tag(
    'tr',
    _tag('th', row.stage),
    _tag('td', row.lane, data_label='lane'),
    *cells,
    _tag('td', row.change or '-', data_label='change'),
  )
