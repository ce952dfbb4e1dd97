"""Plain data and text of a report."""

import dataclasses
import json
import re

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.explain import patterns
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.report import failure_text
from hpmoe.parity_tests.report import report_json
from hpmoe.parity_tests.report import report_text
from hpmoe.parity_tests.report import reports_testing


def test_floats_that_json_has_no_word_for_become_strings():
  value = dict(a=float('nan'), b=[np.float64('inf')], c=np.int64(3), d=(1.5,))

  text = json.dumps(report_json.to_plain_data(value), allow_nan=False)

  assert json.loads(text) == dict(a='nan', b=['inf'], c=3, d=[1.5])


def _tile(rng=np.random.default_rng(5)):
  return rng.normal(size=(6, 8)).astype(np.float32)


def _halved(got):
  return got * np.float32(0.5)


def _noisy(size):
  """Returns what moves each element by up to a share of it, either way."""
  noise = np.random.default_rng(3).uniform(-size, size, (6, 8))
  return lambda a: (a * (1 + noise)).astype(np.float32)


def _early(got):
  return got.astype(ulp.storage_dtype('bfloat16')).astype(np.float32)


@pytest.mark.parametrize(
  ('spoil', 'text'),
  [
    (np.zeros_like, 'all zero'),
    (lambda a: np.full_like(a, np.nan), 'NaN: made from'),
    (
      lambda a: np.full_like(a, np.uint32(0x7F7F7F7F).view(np.float32)),
      'the fill of --poison',
    ),
    (_halved, 'got = 0.5 * expected'),
    (lambda a: np.roll(a, -1, axis=1), 'shifted by one column'),
    (lambda a: np.roll(a, 1, axis=0), "holds another row's values"),
    (_early, 'bfloat16 could hold'),
    (lambda a: a * np.float32(1.001), 'got = 1.001 * expected'),
    (_noisy(2.0**-23), 'near what is expected: rounding, or'),
    (_noisy(2.0**-11), 'more than rounding to float32 leaves; an approx'),
    (lambda a: a * (1 + 0.01 * np.tanh(a)), 'off by '),
    (
      lambda a: a - np.outer(a[:, 3], a[2]),
      'off by one outer product: one term of every sum',
    ),
    (lambda a: _tile(), ''),
  ],
)
def test_patterns(spoil, text):
  right = _tile()
  got = spoil(right.copy()).astype(np.float32)

  said = patterns.describe(got, right, got != right, right)

  assert said.startswith(text) if text.startswith('got') else text in said
  assert text or not said


@pytest.mark.parametrize('dtype', ('float32', 'float16', 'bfloat16'))
def test_a_silu_one_percent_off_is_a_factor_and_no_rounding(dtype):
  gate, up = np.random.default_rng(9).normal(size=(2, 16, 24))
  silu = gate / (1 + np.exp(-gate)) * up
  right, got = (a.astype(ulp.storage_dtype(dtype)) for a in (silu, silu * 1.01))

  said = patterns.describe(got, right, got != right, right)

  assert re.fullmatch(r'got = 1\.(01\d*|009[5-9]\d*) \* expected', said)


def test_small_integers_are_not_called_rounded():
  # Given a fault that is not rounding, on values that bfloat16 holds anyway,
  right = np.random.default_rng(7).integers(-9, 9, (6, 8)).astype(np.float32)
  got = right + np.arange(1, 9, dtype=np.float32)

  said = patterns.describe(got, right, got != right, right)

  assert 'bfloat16' not in said


Y = verdicts.Result('y', 'bounded', verdicts.BOUND_RULE, tiles=4)


def test_what_was_not_returned_is_told_once_not_in_the_table():
  made = reports_testing.report(
    *(
      verdicts.not_captured(name, lane, 'rule', name)
      for name in ('returned', 'gate_up')
      for lane in ('exact', 'bounded')
    ),
    Y,
  )

  assert 'gate_up' not in report_text.format_table(made)
  assert report_text.format_notes(made) == (
    'not judged, because not returned: gate_up, returned'
  )
  assert report_text.format_summary(made) == (
    'PASS of a part (judged: y; not in lane exact): '
    '1 of 1 comparisons pass, 4 tiles, 1.5 s'
  )


def test_a_lane_that_cannot_judge_says_why():
  why = 'mine:forward declares activations'
  exact = verdicts.Result(
    'y', 'exact', 'rule', verdict=verdicts.NOT_JUDGED, why=why
  )

  made = reports_testing.report(exact, Y)

  assert report_text.format_notes(made) == f'not judged: lane exact: {why}'
  told = 'PASS of a part (not in lane exact): 1 of 1 '
  assert report_text.format_summary(made).startswith(told)


def test_a_lost_ratio_names_the_stages_that_lose_alone():
  # Given a layer that rounds more than its benchmark, and stages of it alone,
  # when it fails, then those that lose most are named, with how much.
  def judged(stage, ratio, **fields):
    values = {'rmse[normal]': 2e-6 * ratio, 'rmse[normal] benchmark': 2e-6}
    return verdicts.Result(
      stage, 'standard', 'commercial_l1', values=values, **fields
    )

  failure = reports_testing.failure(
    stage='layer', lane='standard', rule='commercial_l1'
  )
  for why, told in (
    ('rmse[normal] / max(benchmark, 2e-07) <= 1.5, got 2', True),
    ('max_abs[all] <= 1, got 2', False),
  ):
    layer = judged('layer', 3, verdict=verdicts.FAIL, failure=failure, why=why)
    stages = [judged('gate_up', 2.66), judged('y', 1), judged('expert_out', 2)]
    said = failure_text.format_location(reports_testing.report(*stages, layer))
    named = 'own: gate_up 2.66, expert_out 2.00; where lane bounded passes, by'
    assert (named in said) == told, said


class _SevenTasks(candidates.Launch):
  """A launch of seven tasks."""

  num_tasks = 7
  find_wrong_tasks = find_left_out = None


def test_a_verdict_on_some_tasks_or_single_stages_says_so():
  launch = _SevenTasks(passes.FORWARD, left_out=np.arange(7) > 2)

  whole, some = reports_testing.report(Y), reports_testing.report(Y)
  some = dataclasses.replace(some, launches=(launch,))
  isolated = reports_testing.report(Y)
  isolated.config['modes']['isolate'] = True

  assert report_text.format_summary(whole).startswith('PASS: ')
  told = 'PASS of a part (not all tasks ran): '
  assert report_text.format_summary(some).startswith(told)
  told = 'PASS of a part (each stage alone): '
  assert report_text.format_summary(isolated).startswith(told)


@pytest.mark.parametrize(
  ('lane', 'candidate', 'hints'),
  [
    ('exact', 'mine:forward', True),
    ('bounded', 'mine:forward', False),
    ('exact', 'backend_ascend', False),
  ],
)
def test_only_lane_exact_failing_gets_a_hint(lane, candidate, hints):
  bad = verdicts.Result('y', lane, 'rule', verdict=verdicts.FAIL)

  said = report_text.format_notes(
    reports_testing.report(bad, Y, candidate=candidate)
  )

  assert ("lane exact sets policy.activation='absolute'" in said) == hints


def test_no_distance_is_given_to_nan():
  bad = verdicts.Result('y', 'exact', 'r', 1, 1, 2**31, np.nan, verdict='fail')

  assert report_text.format_table(reports_testing.report(bad)).split()[
    -7:-5
  ] == [
    '-',
    'nan',
  ]


def _failing(stage, got=1.5):
  first = reports_testing.failure(
    **dict(stage=stage, lane='bounded', rank=1, row_block=2, got=got),
    **dict(token=9, source_rank=1, index=(1, 9, 3), ulp=77, bad_cols=234),
    **dict(rows=23, cols=256, hint='look there', replay='hpmoe check'),
  )
  return verdicts.Result(
    stage,
    'bounded',
    'rule',
    4,
    1,
    verdict=verdicts.FAIL,
    failure=first,
    grids=(np.zeros((2, 1), bool), np.array([[False], [True]])),
    experts=(np.full(2, -1),) * 2,
  )


def test_in_isolation_the_strictest_lane_is_named_first():
  # Given a small miss of an early stage, and a later one that is all wrong,
  small, gross = _failing('gate_up'), _failing('y')
  gross = dataclasses.replace(
    gross, failure=dataclasses.replace(gross.failure, lane='exact')
  )
  # when nothing can spread, then the gross one comes first,
  alone = reports_testing.report(small, gross)
  alone.config['modes']['isolate'] = True
  assert alone.first_failure is gross.failure
  # otherwise the one that may have caused the other.
  assert reports_testing.report(small, gross).first_failure is small.failure


@pytest.mark.parametrize(
  ('stage', 'got', 'told'),
  [
    (
      'y',
      1.5,
      (
        'bad in this tile: 1 of 23 rows, 234 of 256 columns',
        'rank 1, token block 2, column block 0',
        'tiles, by token block (# bad):',
        '  hint      look there',
      ),
    ),
    (
      'layer d_w_down',
      1.5,
      (
        'first failure: layer d_w_down (bounded: rule)',
        'rank 1, weight row block 2, column block 0',
        'tiles, by expert and weight row block (# bad):',
      ),
    ),
    ('y', float('nan'), ('  ulp       -\n',)),
  ],
)
def test_a_failure_speaks_of_the_tile_it_is_in(stage, got, told):
  said = failure_text.format_failure(
    reports_testing.report(_failing(stage, got))
  )

  assert all(one in said for one in told)
  assert said.splitlines()[-1] == '  rank 1 column block 0   .#'


def test_the_share_of_the_bound_is_in_the_table():
  held = dataclasses.replace(Y, values={'error_of_bound': 0.25})

  heading, _, row = report_text.format_table(
    reports_testing.report(held)
  ).splitlines()

  assert 'of bound' in heading and row.split()[-5:] == [
    '0.25',
    '0',
    '-',
    '-',
    'pass',
  ]


def test_the_last_line_says_what_could_hide():
  seen = dict(element=0.18, row=0.02, whole=0.004)
  bound = dataclasses.replace(Y, power=seen, not_judged=3)
  sharper = dataclasses.replace(bound, power=dict(whole=0.001), not_judged=0)
  away = verdicts.not_captured('returned', 'bounded', 'rule', 'returned')

  last = report_text.format_summary(
    reports_testing.report(bound, sharper, away)
  )

  assert last.endswith(
    "; from y alone, this could hide: one element off by 18 % of its row's "
    'root mean square, one row by 2 %, all by 0.1 %; returned would show '
    'smaller ones; 3 elements have no limit'
  )
