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
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import report_text
from hpmoe.parity_tests.report import reports_testing


def test_floats_that_json_has_no_word_for_become_strings():
  value = dict(a=float('nan'), b=[np.float64('inf')], c=np.int64(3), d=(1.5,))

  text = json.dumps(json_fields.to_plain_data(value), allow_nan=False)

  assert json.loads(text) == dict(a='nan', b=['inf'], c=3, d=[1.5])


def _tile(rng=np.random.default_rng(5)):
  return rng.normal(size=(6, 8)).astype(np.float32)


def _halved(actual):
  return actual * np.float32(0.5)


def _noisy(size):
  """Returns what moves each element by up to a share of it, either way."""
  noise = np.random.default_rng(3).uniform(-size, size, (6, 8))
  return lambda a: (a * (1 + noise)).astype(np.float32)


def _early(actual):
  return actual.astype(ulp.storage_dtype('bfloat16')).astype(np.float32)


@pytest.mark.parametrize(
  ('spoil', 'text'),
  [
    (np.zeros_like, 'all zero'),
    (lambda a: np.full_like(a, np.nan), 'NaN: computed from'),
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
  actual = spoil(right.copy()).astype(np.float32)

  message = patterns.describe(actual, right, actual != right, right)

  assert message.startswith(text) if text.startswith('got') else text in message
  assert text or not message


@pytest.mark.parametrize('dtype', ('float32', 'float16', 'bfloat16'))
def test_a_silu_one_percent_off_is_a_factor_and_no_rounding(dtype):
  gate, up = np.random.default_rng(9).normal(size=(2, 16, 24))
  silu = gate / (1 + np.exp(-gate)) * up
  right, actual = (
    a.astype(ulp.storage_dtype(dtype)) for a in (silu, silu * 1.01)
  )

  message = patterns.describe(actual, right, actual != right, right)

  assert re.fullmatch(r'got = 1\.(01\d*|009[5-9]\d*) \* expected', message)


def test_small_integers_are_not_called_rounded():
  # Given a fault that is not rounding, on values that bfloat16 holds anyway,
  right = np.random.default_rng(7).integers(-9, 9, (6, 8)).astype(np.float32)
  actual = right + np.arange(1, 9, dtype=np.float32)

  message = patterns.describe(actual, right, actual != right, right)

  assert 'bfloat16' not in message


Y = verdicts.Result('y', 'bounded', verdicts.BOUND_RULE, tiles=4)


def test_what_was_not_returned_is_told_once_not_in_the_table():
  report = reports_testing.report(
    *(
      verdicts.not_captured(name, lane, 'rule', name)
      for name in ('returned', 'gate_up')
      for lane in ('exact', 'bounded')
    ),
    Y,
  )

  assert 'gate_up' not in report_text.format_table(report)
  assert report_text.format_notes(report) == (
    'not judged, because not returned: gate_up, returned'
  )
  assert report_text.format_summary(report) == (
    'PASS (partial check: y; not in lane exact): '
    '1 of 1 comparisons pass, 4 tiles, 1.5 s'
  )


def test_a_lane_that_cannot_judge_says_why():
  reason = 'mine:forward declares activations'
  exact = verdicts.Result(
    'y', 'exact', 'rule', verdict=verdicts.NOT_JUDGED, reason=reason
  )

  report = reports_testing.report(exact, Y)

  assert report_text.format_notes(report) == f'not judged: lane exact: {reason}'
  beginning = 'PASS (partial check: not in lane exact): 1 of 1 '
  assert report_text.format_summary(report).startswith(beginning)


def test_a_lost_ratio_names_the_stages_that_lose_alone():
  # Given a layer that rounds more than its benchmark, and stages of it alone,
  # when it fails, then those that lose most are named, with how much.
  def make_result(stage, ratio, **fields):
    values = {'rmse[normal]': 2e-6 * ratio, 'rmse[normal] benchmark': 2e-6}
    return verdicts.Result(
      stage, 'standard', 'commercial_l1', values=values, **fields
    )

  failure = reports_testing.failure(
    stage='layer', lane='standard', rule='commercial_l1'
  )
  for rule, is_listed in (
    ('rmse[normal] / max(benchmark, 2e-07) <= 1.5, got 2', True),
    ('max_abs[all] <= 1, got 2', False),
  ):
    layer = make_result(
      'layer', 3, verdict=verdicts.FAIL, failure=failure, reason=rule
    )
    stages = [
      make_result('gate_up', 2.66),
      make_result('y', 1),
      make_result('expert_out', 2),
    ]
    message = failure_text.format_location(
      reports_testing.report(*stages, layer)
    )
    stages_text = (
      'own: gate_up 2.66, expert_out 2.00; where lane bounded passes, by'
    )
    assert (stages_text in message) == is_listed, message


class _SevenTasks(candidates.Launch):
  """A launch of seven tasks."""

  num_tasks = 7
  find_wrong_tasks = find_left_out = None


def test_a_verdict_on_some_tasks_or_single_stages_says_so():
  launch = _SevenTasks(passes.FORWARD, left_out=np.arange(7) > 2)

  whole, partial = reports_testing.report(Y), reports_testing.report(Y)
  partial = dataclasses.replace(partial, launches=(launch,))
  isolated = reports_testing.report(Y)
  isolated.config['modes']['isolate'] = True

  assert report_text.format_summary(whole).startswith('PASS: ')
  beginning = 'PASS (partial check: not all tasks ran): '
  assert report_text.format_summary(partial).startswith(beginning)
  beginning = 'PASS (partial check: each stage alone): '
  assert report_text.format_summary(isolated).startswith(beginning)


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

  message = report_text.format_notes(
    reports_testing.report(bad, Y, candidate=candidate)
  )

  assert ("lane exact sets policy.activation='absolute'" in message) == hints


def test_no_distance_is_given_to_nan():
  bad = verdicts.Result('y', 'exact', 'r', 1, 1, 2**31, np.nan, verdict='fail')

  assert report_text.format_table(reports_testing.report(bad)).split()[
    -7:-5
  ] == [
    '-',
    'nan',
  ]


def _failing(stage, actual=1.5):
  first = reports_testing.failure(
    **dict(stage=stage, lane='bounded', rank=1, row_block=2, actual=actual),
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
  ('stage', 'actual', 'lines'),
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
def test_a_failure_speaks_of_the_tile_it_is_in(stage, actual, lines):
  message = failure_text.format_failure(
    reports_testing.report(_failing(stage, actual))
  )

  assert all(line in message for line in lines)
  assert message.splitlines()[-1] == '  rank 1 column block 0   .#'


def test_the_share_of_the_bound_is_in_the_table():
  result = dataclasses.replace(Y, values={'error_of_bound': 0.25})

  heading, _, row = report_text.format_table(
    reports_testing.report(result)
  ).splitlines()

  assert 'of bound' in heading and row.split()[-5:] == [
    '0.25',
    '0',
    '-',
    '-',
    'pass',
  ]


def test_lines_before_the_last_say_what_could_hide():
  power = dict(element=0.18, row=0.02, whole=0.004)
  bound = dataclasses.replace(Y, power=power, not_judged=3)
  sharper = dataclasses.replace(bound, power=dict(whole=0.001))
  away = verdicts.not_captured('returned', 'bounded', 'rule', 'returned')

  report = reports_testing.report(bound, sharper, away)

  assert report_text.format_blind_spot(report) == (
    "could hide from y alone: one element off by 18 % of its row's "
    'root mean square, one row by 2 %, all by 0.1 %; returned would show '
    'smaller ones; 3 of 3 elements have no limit'
  )


def test_the_comparison_that_limits_most_elements_says_what_could_hide():
  # Given bounds that limit a part of y sharply, and a rule that limits all,
  bounds = dict(element=0.01, row=0.5, whole=0.001)
  spread = dict(element=0.18, row=0.02, whole=0.004)
  bound = dataclasses.replace(Y, power=bounds, not_judged=3)
  rule = dataclasses.replace(Y, power=spread, not_judged=0)
  layer = dataclasses.replace(bound, stage='layer')

  # when what could hide is told,
  report = reports_testing.report(bound, rule, layer)
  message = report_text.format_blind_spot(report)

  # then it is what the rule would have let pass, and no element lacks a limit.
  assert message == (
    "could hide: one element off by 18 % of its row's root mean square, "
    'one row by 2 %, all by 0.4 %'
  )


def test_elements_of_a_tensor_without_any_limit_are_counted():
  # Given y, of which 3 elements lack a limit, and dx, of which all 5 do,
  power = dict(element=0.18, row=0.02, whole=0.004)
  y = dataclasses.replace(Y, power=power, not_judged=3)
  dx = dataclasses.replace(
    Y,
    stage='dx',
    verdict=verdicts.NOT_JUDGED,
    reason=verdicts.NO_LIMIT,
    not_judged=5,
  )

  # when what could hide is told,
  message = report_text.format_blind_spot(reports_testing.report(y, dx))

  # then those of both are.
  assert message.endswith('; 8 of 8 elements have no limit')


@pytest.mark.parametrize('results_alone', [True, False])
def test_what_a_candidate_cannot_return_is_not_asked_for(results_alone):
  # Given y alone, of a solution or of a function, with inputs of a file,
  away = verdicts.not_captured('returned', 'bounded', 'rule', 'returned')
  y = dataclasses.replace(Y, power=dict(element=0.18))
  config = dict(results_alone=True) if results_alone else {}
  report = reports_testing.report(y, away, shape='T 1, R 1', **config)
  # then only the function is asked to return more,
  blind_spot = report_text.format_blind_spot(report)
  words = report_text.format_notes(report) + blind_spot
  assert ('returned' in words) != results_alone
  # a part was judged of both, and neither has other shapes.
  summary = report_text.format_summary(report)
  assert summary.startswith('PASS (partial check: y')
  assert blind_spot.endswith('shapes other than T 1, R 1')


def test_a_scale_is_off_by_a_share_of_itself():
  failure = reports_testing.failure(
    stage='activation_scales', actual=0.015, expected=0.0125
  )
  wrong = dataclasses.replace(
    Y, stage='activation_scales', verdict='fail', failure=failure
  )
  text = failure_text.format_failure(reports_testing.report(wrong))
  assert '  off       +20 %' in text and 'ulp  ' not in text


def test_a_verdict_in_three_lines_of_a_pass_a_change_and_a_long_name():
  right = verdicts.Result('y', 'bounded', 'b', values={'error_of_bound': 0.25})
  worse = verdicts.Result('dx', 'bounded', 'b', values={'error_of_bound': 0.5})
  change = verdicts.Change('forward', 2, 'y', 1, 4, 3, (0,), 1.0, 2.0)
  passes_ = reports_testing.report(right, worse, candidate='a:\n' + 300 * 'b')
  unsteady = dataclasses.replace(
    reports_testing.report(right, allow_nondeterministic=False),
    changes=(change,),
  )

  first, second, third = report_text.format_brief(passes_).splitlines()
  assert first.startswith('PASS a: bbb') and first.endswith(' ...')
  assert second == 'largest error over its limit: 0.5, of dx'
  assert third == '0 of 2 comparisons fail, 1.5 s; print(report) shows all'
  assert 'first: y: 1 of 4 elements differ in run 2' in (
    report_text.format_brief(unsteady)
  )
