"""The page in a real browser: nothing is cut, and the console is silent."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import shares as shares_lib
from hpmoe.parity_tests.report import comparison as comparison_lib
from hpmoe.parity_tests.report import comparison_html
from hpmoe.parity_tests.report import report_html
from hpmoe.parity_tests.report import report_json
from hpmoe.parity_tests.report import reports_testing
from hpmoe.reference.contract import tensors

_NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)
pytestmark = pytest.mark.skipif(
  BROWSER is None,
  reason=f'expected one of {", ".join(_NAMES)} on PATH, got none',
)
# Opens all that is folded in a frame of a width, and lists what is wider than
# what holds it; a frame's page is measured from outside, as it has no scripts.
_MEASURE = """<!DOCTYPE html><meta charset="utf-8"><body>
<iframe id="f" src="page.html" style="width:WIDTHpx;height:900px;border:0">
</iframe><script>
const frame = document.getElementById('f');
frame.onload = () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  for (const part of page.querySelectorAll('details')) part.open = true;
  const wide = [];
  const width = page.documentElement.clientWidth;
  for (const part of page.body.querySelectorAll('*')) {
    if (view.getComputedStyle(part).display === 'none') continue;
    const box = part.getBoundingClientRect();
    const name = part.tagName + '.' + part.getAttribute('class') + ': ' +
        part.textContent.trim().slice(0, 40);
    if (box.right > width + 1 || box.left < -1) wide.push('beyond ' + name);
    const hides = view.getComputedStyle(part).overflowX !== 'visible';
    if (hides && part.scrollWidth > part.clientWidth + 1) {
      wide.push('scrolls ' + name);
    }
  }
  const rows = [...page.querySelectorAll('.cells tr')]
      .filter(row => row.getBoundingClientRect().height > 0)
      .sort((a, b) => a.getBoundingClientRect().top -
            b.getBoundingClientRect().top)
      .map(row =>
      [...row.children].filter(c => c.getBoundingClientRect().height > 0)
      .sort((a, b) => a.getBoundingClientRect().top -
            b.getBoundingClientRect().top ||
            a.getBoundingClientRect().left - b.getBoundingClientRect().left)
      .map(c => c.getAttribute('data-label') || c.textContent.trim()));
  const colours = [...page.querySelectorAll('.cells td')].map(cell =>
      view.getComputedStyle(cell).backgroundColor);
  const result = {wide, rows, colours};
  document.body.innerHTML = '<pre id="told"></pre>';
  document.getElementById('told').textContent =
      'BEGIN' + encodeURIComponent(JSON.stringify(result)) + 'END';
};
</script></body>
"""


def _measure(folder: pathlib.Path, page: str, width: int) -> dict:
  """Returns what a browser shows of a page.

  Raises:
    AssertionError: its console says something.
  """
  (folder / 'page.html').write_text(page, encoding='utf-8')
  outer = folder / 'outer.html'
  outer.write_text(_MEASURE.replace('WIDTH', str(width)), encoding='utf-8')
  flags = (
    *('--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'),
    *('--allow-file-access-from-files', '--enable-logging=stderr', '--v=0'),
    f'--user-data-dir={folder / "profile"}',
    '--window-size=1400,1000',
    '--virtual-time-budget=20000',
    '--dump-dom',
  )
  process = subprocess.run(
    [str(BROWSER), *flags, outer.as_uri()],
    capture_output=True,
    text=True,
    timeout=300,
    env=os.environ | dict(HOME=str(folder)),
  )
  console = [line for line in process.stderr.splitlines() if 'CONSOLE' in line]
  assert not console
  match = re.search('BEGIN(.*?)END', process.stdout)
  assert match, (process.stdout[-500:], process.stderr[-500:])
  return json.loads(
    re.sub('%(..)', lambda code: chr(int(code[1], 16)), match[1])
  )


def _judge(stage: str, lane: str, bad: bool, **fields) -> verdicts.Result:
  """A comparison of 40 rows of 48 tiles, with long reasons."""
  rng = np.random.default_rng(len(stage))
  shares = rng.random((40, 48)).astype(np.float32) ** 4
  grid = np.zeros((40, 48), np.int64)
  if bad:
    grid[3, 5:9] = 123_456
    shares[3, 5:9] = 1e5
  measured = dict(
    shares=(shares,),
    histogram=shares_lib.Histogram(tuple(10**n for n in range(15)), 12, 4096),
  )
  return verdicts.Result(
    stage,
    lane,
    'a-priori rounding bound',
    tiles=1920,
    failed_tiles=4 * bad,
    worst_abs=1.234e-5,
    worst_element=(0, 123, 4567),
    verdict=verdicts.FAIL if bad else verdicts.PASS,
    reason='mare[normal] / max(benchmark, 6.1e-05) <= 5, got 328; ' * 4 * bad,
    power=dict(element=0.0625, row=0.0197, whole=0.0196),
    grids=(grid,),
    experts=(np.full(40, tiles.NO_EXPERT),),
    failure=reports_testing.failure(stage=stage) if bad else None,
    values={'error_of_bound': 1e5 if bad else 0.5},
    **(measured if lane == 'bounded' else {}),
    **fields,
  )


@pytest.fixture(scope='module')
def report():
  """A report with all that a page can show."""
  stages = verdicts.order(tensors.Parts(bias=True))
  results = [verdicts.not_captured(s, 'exact', 'rule', s) for s in stages[:6]]
  results += [_judge('y', lane, bad=lane != 'exact') for lane in verdicts.LANES]
  results += [_judge('layer', 'bounded', False), _judge('dx', 'bounded', True)]
  return reports_testing.report(
    *results, candidate='my_package.kernels.fused:' + 30 * 'long_name_'
  )


@pytest.mark.parametrize('width', [1280, 390])
def test_nothing_of_a_report_is_cut(report, tmp_path, width):
  layout = _measure(tmp_path, report_html.to_html(report), width)

  assert not layout['wide']


def test_on_a_phone_lanes_that_fail_come_first(report, tmp_path):
  rows = _measure(tmp_path, report_html.to_html(report), 390)['rows']
  wide_rows = _measure(tmp_path, report_html.to_html(report), 1280)['rows']

  assert rows[0] == ['y', 'bitwise', 'bounded', 'standard', 'exact']
  assert [row[0] for row in rows[:4]] == ['y', 'dx', 'forward pass', 'layer']
  (of_y,) = (row for row in wide_rows if row[:1] == ['y'])
  assert of_y == ['y', *verdicts.LANES]


@pytest.mark.parametrize('width', [1280, 390])
def test_nothing_of_two_reports_is_cut(report, tmp_path, width):
  path = tmp_path / 'a.json'
  path.write_text(json.dumps(report_json.to_json(report)))
  side = comparison_lib.read_side(str(path))
  comparison = comparison_lib.compare_sides(side, side)

  page = comparison_html.to_html(comparison)

  assert not _measure(tmp_path, page, width)['wide']


def test_a_notebook_keeps_its_style_and_the_report_has_its_own(
  report, tmp_path
):
  fragment = report_html.to_fragment(report)
  page = f'<!DOCTYPE html><meta charset="utf-8"><table></table>{fragment}'

  layout = _measure(tmp_path, page, 1280)

  assert not layout['wide']
  # Colours are there where variables are.
  assert len({*layout['colours']}) > 2
