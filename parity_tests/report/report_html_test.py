"""The page: whole, safe, small, the same each time."""

import dataclasses
import html.parser
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import data_tables
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.report import markup
from hpmoe.parity_tests.report import report_html
from hpmoe.parity_tests.report import report_text
from hpmoe.parity_tests.report import reports_testing
from hpmoe.parity_tests.report import tile_map
from hpmoe.reference.contract import tensors

VOID = ('meta',)
HOSTILE = '"><script>alert(1)</script><img src=x onerror=a&b;>\x1b\u202e\udcff'


@pytest.fixture(scope='module')
def faulty():
  """A real check of a planted fault in both passes."""
  return check.run(
    check.Request(
      case_lib.Case(preset='tiny', ranks=2, tokens=13, direction='both'),
      host.Megakernel(fault='weight_grad_twice'),
      command=('check', '--fault=weight_grad_twice'),
    )
  )


class _Balanced(html.parser.HTMLParser):
  """Fails where an element ends that is not open."""

  def __init__(self):
    super().__init__()
    self.open, self.tags = [], []

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    # HTML takes it for a start, but for void elements and inside of an SVG.
    assert tag in VOID or 'svg' in self.open, tag
    self.tags.append((tag, dict(attrs)))

  def handle_endtag(self, tag):
    assert self.open.pop() == tag


def _parsed(page):
  """Returns the tree, after a look at it as HTML and as XML."""
  reader = _Balanced()
  reader.feed(page)
  assert not reader.open
  tree = ET.fromstring(page)
  assert [name for name, _ in reader.tags] == [e.tag for e in tree.iter()]
  return tree


def _text(element):
  return ''.join(element.itertext())


def _stage(tree, name):
  (element,) = (
    d for d in tree.iter('details') if d.get('id') == f'stage-{name}'
  )
  return element


def _maps(stage):
  """Returns the cells of each map."""
  maps = [d for d in stage.iter('div') if d.get('class') == 'maps']
  return [[cell.text for cell in tile_map.iter('td')] for tile_map in maps]


def test_the_page_has_all_parts_and_needs_nothing_beside_it(faulty):
  page = report_html.to_html(faulty)
  tree = _parsed(page)

  body_text = _text(tree.find('body'))
  for text in (
    'FAIL',
    'backend_ascend against the oracle: R=2 T=13',
    'hpmoe check --fault=weight_grad_twice --lane=exact,bitwise,bounded',
    f'numpy {np.__version__}',
    'First failure: d_w_gate_up (exact',
    faulty.first_failure.replay,
  ):
    assert text in body_text
  assert not {'script', 'link', 'img', 'iframe'} & {e.tag for e in tree.iter()}
  links = [v for e in tree.iter() for k, v in e.items() if k in ('href', 'src')]
  ids = {e.get('id') for e in tree.iter()}
  assert links and all(link[0] == '#' and link[1:] in ids for link in links)
  assert 'url(' not in page and '@import' not in page


def test_the_tile_of_a_planted_fault_is_the_one_marked(faulty):
  tree = _parsed(report_html.to_html(faulty))

  first = faulty.first_failure
  stage = _stage(tree, first.stage)
  rings = [c for c in tree.iter('td') if c.get('class') == 'bad first']
  (mark,) = rings
  assert mark in list(stage.iter('td'))
  assert mark.get('title') == (
    f'rank {first.rank}, expert {first.expert}, weight row block '
    f'{first.row_block}, column block {first.col_block}, '
    f'{first.bad_rows * first.bad_cols} wrong elements, the first failure'
  )
  assert stage.get('open') == 'open'
  open_details = {d.get('id') for d in tree.iter('details') if d.get('open')}
  failing = {r.stage for r in faulty.results if r.verdict == verdicts.FAIL}
  assert open_details == {f'stage-{s.replace(" ", "-")}' for s in failing}


def test_every_failing_tile_of_every_stage_is_in_its_maps(faulty):
  tree = _parsed(report_html.to_html(faulty))
  for stage in {r.stage for r in faulty.results}:
    element = _stage(tree, stage.replace(' ', '-'))
    failing = [
      r
      for r in faulty.results
      if r.stage == stage and r.verdict == verdicts.FAIL
    ]
    grids = {
      tuple((g > 0).tobytes() for g in r.grids): r.grids for r in failing
    }
    bad = sum(np.count_nonzero(g) for gs in grids.values() for g in gs)
    limit_cells = {c for part in _limit_maps(element) for c in part.iter('td')}
    marked = [c for c in element.iter('td') if 'bad' in c.get('class', '')]
    assert len([c for c in marked if c not in limit_cells]) == bad


def _limit_maps(stage):
  """Returns the maps of errors over limits that no failing tile is in."""
  return [d for d in stage.iter('div') if d.get('class') == 'of-limit']


def test_each_tile_has_the_colour_of_its_error_and_each_stage_a_histogram(
  faulty,
):
  tree = _parsed(report_html.to_html(faulty))

  limited = [r for r in faulty.results if r.histogram is not None]
  assert {r.stage for r in limited} > {'gate_up', 'y', 'layer', 'd_w_gate_up'}
  for result in limited:
    stage = _stage(tree, result.stage.replace(' ', '-'))
    levels = [
      tile_map.find_level(float(share))
      for shares in result.shares
      for share in shares.reshape(-1)
    ]
    cells = [c.get('class').split()[-1] for c in stage.iter('td') if _level(c)]
    assert sorted(cells) == sorted(levels)
    (picture,) = stage.iter('svg')
    counts = [int(_text(t).split(': ')[1]) for t in picture.iter('title')]
    assert counts == [*result.histogram.counts]
    elements = sum(counts)
    assert f'{elements} elements by their error over its limit' in _text(stage)


def _level(cell) -> bool:
  return bool(re.search(r' s\d$', cell.get('class', '')))


def test_stages_that_were_not_returned_are_one_folded_line():
  unseen = [
    verdicts.not_captured(name, lane, 'rule', name)
    for name, lane in (
      *(('gate_up', 'exact'), ('gate_up', 'bounded')),
      ('activation', 'exact'),
    )
  ]

  # Of lanes that are not shown, too.
  report = reports_testing.report(*unseen, Y, lanes=['bounded', 'standard'])
  tree = _parsed(report_html.to_html(report))

  folds = [
    d
    for d in tree.iter('details')
    if '2 not returned: gate_up, activation' in _text(d.find('summary'))
  ]
  assert len(folds) == 2 and not any(d.get('open') for d in folds)
  (table,) = folds[0].iter('table')
  outer = [t for t in tree.iter('table') if t.get('class') == 'cells'][0]
  assert 'gate_up' in _text(table) and 'gate_up' not in _text(outer)


def test_every_comparison_has_a_coloured_cell_with_a_mark(faulty):
  tree = _parsed(report_html.to_html(faulty))

  marks = dict(zip(('pass', 'fail'), '✓✕'))
  table = next(t for t in tree.iter('table') if t.get('class') == 'cells')
  cells = [c for c in table.iter('td') if c.get('class') != 'none']
  assert len(cells) == len({(r.stage, r.lane) for r in faulty.results})
  for cell in cells:
    assert cell.text.startswith(marks[cell.get('class')])
    assert 'worst ulp: ' in cell.get('title')
  failing = {
    (r.stage, r.lane) for r in faulty.results if r.verdict == verdicts.FAIL
  }
  assert sum(c.get('class') == 'fail' for c in cells) == len(failing)


def _grid(tile_rows=2, columns=1, bad=False):
  return dict(
    tiles=tile_rows * columns,
    failed_tiles=tile_rows * columns * bad,
    verdict=verdicts.FAIL if bad else verdicts.PASS,
    grids=(np.full((tile_rows, columns), 5 * bad),),
    experts=(np.full(tile_rows, tiles.NO_EXPERT),),
  )


Y = verdicts.Result('y', 'bounded', verdicts.BOUND_RULE, **_grid())


def test_names_that_look_like_markup_stay_text():
  bad = verdicts.Result(
    'y', 'exact', HOSTILE, reason=HOSTILE, **_grid(bad=True)
  )
  unseen = verdicts.not_captured('gate_up', 'exact', HOSTILE, HOSTILE)

  page = report_html.to_html(
    reports_testing.report(
      bad, unseen, Y, candidate=HOSTILE, command=f'x {"y<b>"}', routing=HOSTILE
    )
  )
  tree = _parsed(page)

  page.encode('utf-8')
  assert not {'script', 'img', 'b'} & {e.tag for e in tree.iter()}
  names = {name for e in tree.iter() for name in e.attrib}
  assert not any(name.startswith('on') for name in names)
  assert markup.escape_text(HOSTILE) in _text(tree.find('body/p'))
  assert not re.search('[\x1b\u202e\udcff]', page)


def test_what_is_not_judged_is_hatched_and_says_why():
  unseen = verdicts.not_captured('gate_up', 'bounded', 'rule', 'gate_up')

  tree = _parsed(report_html.to_html(reports_testing.report(unseen, Y)))

  cell = next(c for c in tree.iter('td') if c.get('class') == 'unseen')
  assert cell.text == '– not judged'
  assert _text(cell[0]) == 'gate_up not returned'
  assert cell.get('title') == 'rule: not judged: gate_up not returned'
  assert _maps(_stage(tree, 'gate_up')) == []


def test_lanes_that_fail_elsewhere_have_a_map_each():
  grid, other_grid = (_grid(bad=True) for _ in range(2))
  other_grid |= dict(grids=(np.array([[3], [0]]),), failed_tiles=1)
  wide = grid | dict(grids=(np.array([[4], [1]]),))
  results = [
    verdicts.Result('y', 'exact', 'equal', **grid),
    verdicts.Result('y', 'exact', 'wide', **wide),
    verdicts.Result('y', 'bounded', 'bound', **other_grid),
    verdicts.Result('y', 'standard', 'torch', **grid),
  ]

  stage = _stage(
    _parsed(report_html.to_html(reports_testing.report(*results))), 'y'
  )

  assert [_text(h) for h in stage.iter('h3')] == [
    '2 of 2 tiles fail: exact (equal: 10 wrong, wide: 5 wrong) · standard '
    '(torch: 10 wrong)',
    '1 of 2 tiles fail: bounded (bound: 3 wrong)',
  ]
  assert _maps(stage) == [['5', '5'], ['3', '\n']]
  assert 'Numbers are of exact, equal' in _text(stage)


def test_what_fails_outside_of_the_tiles_is_told():
  padding = dataclasses.replace(Y, verdict=verdicts.FAIL, failed_tiles=1)
  rule = dataclasses.replace(Y, lane='standard', verdict=verdicts.FAIL)

  texts = [
    _text(_stage(_parsed(report_html.to_html(reports_testing.report(r))), 'y'))
    for r in (padding, rule)
  ]

  assert 'past the last valid row' in texts[0]
  assert 'No single tile breaks the rule.' in texts[1]


@pytest.mark.parametrize('bad, tile_rows', [(False, 40), (True, 1000)])
@pytest.mark.few(1)
def test_a_page_stays_small_and_says_what_is_missing(bad, tile_rows):
  # Given far more tiles than a page can hold, each map another one,
  rng = np.random.default_rng(tile_rows)
  results = []
  for stage in verdicts.order(tensors.Parts(bias=True)):
    for lane in verdicts.LANES:
      grids = [
        rng.integers(0, 16_384, (tile_rows, 8))
        * (rng.random((tile_rows, 8)) < bad * 0.5)
        for _ in range(8)
      ]
      experts = [np.arange(tile_rows) // 10] * 8
      results.append(
        verdicts.Result(
          stage,
          lane,
          'rule',
          grids=tuple(grids),
          experts=tuple(experts),
          verdict=verdicts.FAIL if bad else verdicts.PASS,
          reason=9_000 * '&',
        )
      )

  # when it is written, with a long command on top of it,
  page = report_html.to_html(
    reports_testing.report(*results, command=10**6 * 'x', candidate=10**6 * '<')
  )

  # then it is small, and says that it does not show all.
  assert len(page.encode('utf-8')) < 2_000_000
  left_out = 'not drawn, to keep the file small' in page
  assert left_out == bad


def test_a_fragment_keeps_its_style_to_itself(faulty):
  fragment = ET.fromstring(report_html.to_fragment(faulty))

  assert fragment.get('class') == 'hpmoe-report'
  css = _text(fragment.find('style'))
  assert css.startswith('.hpmoe-report {') and css.count('{') == css.count('}')
  assert not re.search(r'^\s*(:root|body|@page)\b', css, re.MULTILINE)
  # A browser reads what is in style as it stands.
  assert not re.search('[&<>]', css)
  assert fragment[1].get('class') == 'page' and '\n.page {' in css
  assert not [e for e in fragment.iter() if e.get('id') or e.get('href')]
  assert faulty.first_failure.replay in _text(fragment)


def test_a_line_of_python_has_no_flag():
  report = reports_testing.report(Y, command="hpmoe.check(a, lanes=('exact',))")

  lines = [_text(p) for p in _parsed(report_html.to_html(report)).iter('pre')]

  assert lines[0] == "hpmoe.check(a, lanes=('exact',))"


def test_every_word_of_a_table_is_explained():
  words = data_tables.read('words')
  columns = {name.replace('_', ' ') for name in report_text.HEADING}

  assert columns - {'stage', 'lane', 'rule', 'verdict'} == {*words['columns']}
  assert {*standards.METRICS} == {*words['metrics']}
  assert {verdicts.BOUND_RULE, verdicts.SPREAD_RULE, verdicts.EDGES_RULE} <= {
    *words['rules']
  }


def test_a_page_explains_the_words_that_it_has():
  # given
  values = {'mare[normal]': 0.25}
  result = verdicts.Result('y', 'standard', 'a rule', values=values)

  # when
  tree = _parsed(report_html.to_html(reports_testing.report(result)))

  # then: the columns have hints, and the metric that it has a line
  (legend,) = (
    d for d in tree.iter('details') if 'What the words mean' in _text(d)
  )
  assert 'mare: maximum relative error' in _text(legend)
  assert 'mere' not in _text(legend) and 'sees: ' in _text(legend)
  titles = {_text(th): th.get('title') for th in tree.iter('th')}
  assert titles['sees'].startswith('the smallest relative error')
