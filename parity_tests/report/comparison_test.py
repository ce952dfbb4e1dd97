"""Two reports say what a change did, and nothing that neither says."""

import dataclasses
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import comparison as comparison_lib
from hpmoe.parity_tests.report import comparison_html
from hpmoe.parity_tests.report import report_json
from hpmoe.parity_tests.report import reports_testing


def _judge(share: float, stage='y', lane='bounded') -> verdicts.Result:
  """A comparison of two tiles whose error is a share of its limit."""
  fails = share > 1
  failure = reports_testing.failure(stage=stage, lane=lane, pattern='a <b>')
  return verdicts.Result(
    stage,
    lane,
    verdicts.BOUND_RULE,
    tiles=2,
    failed_tiles=int(fails),
    verdict=verdicts.FAIL if fails else verdicts.PASS,
    values={'error_of_bound': share},
    failure=failure if fails else None,
    grids=(np.array([[int(fails)], [0]]),),
    experts=(np.full(2, tiles.NO_EXPERT),),
  )


@pytest.fixture
def compare(tmp_path):
  """Returns a function of two lists of comparisons to what it compares."""

  def make(before, after, **config):
    sides = []
    for number, results in enumerate((before, after)):
      report = reports_testing.report(*results, **config if number else {})
      path = tmp_path / f'{number}.json'
      path.write_text(json.dumps(report_json.to_json(report)))
      sides.append(comparison_lib.read_side(str(path)))
    return comparison_lib.compare_sides(*sides)

  return make


@pytest.mark.parametrize(
  ('before', 'after', 'outcome', 'change'),
  [
    (0.5, 0.25, 'UNCHANGED', 'error x 0.5'),
    (0.5, 0.5, 'UNCHANGED', ''),
    (4.0, 2.0, 'UNCHANGED', 'error x 0.5'),
    (4.0, 0.5, 'BETTER', 'mended, error x 0.125'),
    (0.5, 4.0, 'WORSE', 'broken, error x 8'),
    (0.0, float('inf'), 'WORSE', 'broken'),
  ],
)
def test_a_stage_says_what_became_of_it(
  compare, before, after, outcome, change
):
  comparison = compare([_judge(before)], [_judge(after)])

  (row,) = comparison.rows
  assert comparison.outcome == outcome and row.change == change
  assert comparison.is_no_worse == (outcome != 'WORSE')
  assert comparison_lib.format_summary(comparison).startswith(f'{outcome}: ')


def test_one_mended_and_one_broken_is_mixed_and_no_pass(compare):
  comparison = compare(
    [_judge(3.0), _judge(0.1, 'gate_up')], [_judge(0.3), _judge(9, 'gate_up')]
  )

  assert comparison.outcome == 'MIXED' and not comparison.is_no_worse
  assert [row.stage for row in comparison.rows] == ['gate_up', 'y']
  assert comparison_lib.format_summary(comparison) == (
    'MIXED: 1 mended (y); 1 broken (gate_up); largest change of an error: '
    'x 90, gate_up; 1.5 s, now 1.5 s'
  )


def test_what_is_judged_no_more_is_told(compare):
  unseen = verdicts.not_captured('gate_up', 'bounded', 'rule', 'gate_up')
  comparison = compare(
    [_judge(0.2), _judge(0.1, 'gate_up')], [_judge(0.2), unseen]
  )

  assert [row.change for row in comparison.rows] == ['no more judged', '']
  assert '1 no more judged (gate_up)' in (
    comparison_lib.format_summary(comparison)
  )


def test_text_has_failures_differences_and_times(compare):
  comparison = compare([_judge(3.0)], [_judge(0.3)], candidate='mine:other')

  text = comparison_lib.format_text(comparison)

  for words in (
    'verdict        before  FAIL mine:forward, 1.5 s',
    'after   PASS mine:other, 1.5 s',
    'first failure  before  y (bounded), rank 0, row block 0, col block 0: a',
    'differs: candidate mine:forward, now mine:other',
    '✕ 3 of bound, 1 of 2 tiles  ✓ 0.3 of bound  mended, error x 0.1',
  ):
    assert words in text


def test_a_candidate_without_an_answer_is_worse_than_one_that_passes(compare):
  comparison = compare([_judge(0.2)], [])
  crashed = dataclasses.replace(
    comparison.after, verdict='fail', error='signal 11', results=()
  )
  comparison = comparison_lib.compare_sides(comparison.before, crashed)

  assert comparison.outcome == 'WORSE'
  assert 'no answer: signal 11' in comparison_lib.format_text(comparison)


def test_the_page_and_the_data_say_the_same(compare):
  comparison = compare([_judge(3.0)], [_judge(0.3)], candidate='<script>')

  page = comparison_html.to_html(comparison)
  content = json.loads(json.dumps(comparison_lib.to_json(comparison)))

  tree = ET.fromstring(page.partition('\n')[2])
  text = ''.join(tree.itertext())
  assert 'mended, error x 0.1' in text and '<script>' in text
  assert not {'script', 'b', 'link', 'img'} & {e.tag for e in tree.iter()}
  assert content['outcome'] == 'BETTER'
  assert content['stages'] == [
    dict(
      stage='y',
      lane='bounded',
      before='fail',
      after='pass',
      error_before=3.0,
      error_after=0.3,
      change='mended, error x 0.1',
    )
  ]


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (None, 'got No such file'),
    ('no json', 'got JSONDecodeError'),
    ('{"verdict": "pass"}', "got a file without 'stages'"),
    ('[]', 'got TypeError'),
  ],
)
def test_what_is_no_report_is_refused(tmp_path, text, message):
  path = tmp_path / 'a.json'
  if text is not None:
    path.write_text(text)

  with pytest.raises(ValueError, match=f'expected a report of .*{message}'):
    comparison_lib.read_side(str(path))
