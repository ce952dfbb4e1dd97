"""A kernel that answers differently from call to call."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import pytest

from hpmoe.parity_tests import api
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge.lanes import repeat
from hpmoe.parity_tests.report import report_json
from hpmoe.parity_tests.report import report_text

CASE = case_lib.Case(preset='tiny', ranks=2, tokens=13)


@dataclasses.dataclass(frozen=True)
class Unsteady(candidates.Candidate):
  """Our backend, but every second run of a pass is off by some units."""

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    repeats=True
  )
  units: int
  name: str = 'unsteady'
  took: float = 0.0
  runs: list[str] = dataclasses.field(default_factory=list)

  @property
  def seconds(self):
    return [self.took]

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    y = host.Megakernel().run(config, policy, inputs, layer_pass)['y']
    if len(self.runs) % 2:
      y[0, 3, :2].view(np.int32)[:] += self.units
    self.runs.append(layer_pass.name)
    return dict(y=y)


def _run(units, took=0.0, **judgement_fields):
  candidate = Unsteady(units, took=took)
  how_judged = judgement.Judgement(lanes=('bounded',), **judgement_fields)
  return check.run(check.Request(CASE, candidate, how_judged)), candidate.runs


def test_a_right_kernel_that_is_not_repeatable_is_told_so():
  # Given a kernel whose second answer is another right one, when it is
  # checked, then it fails, and what changed is told.
  report, runs = _run(units=1)
  assert report.verdict == 'fail' and len(runs) == 2
  assert report.first_failure is None
  (change,) = report.changes
  assert (change.tensor, change.run, change.elements) == ('y', 2, 2)
  assert (change.ulp, change.index, change.tensor_size) == (
    1,
    (0, 3, 0),
    2 * 13 * 32,
  )
  assert report_text.format_summary(report).startswith('FAIL')
  assert 'not repeatable' in report_text.format_summary(report)
  assert str(change) in report_text.format_notes(report)
  assert report_json.to_json(report)['changes'][0]['index'] == [0, 3, 0]


def test_what_is_meant_passes_if_every_run_is_right():
  report, runs = _run(units=1, allow_nondeterministic=True)
  assert report.verdict == 'pass' and len(runs) == 2 and report.changes
  assert 'not repeatable' in report_text.format_summary(report)


def test_what_is_meant_fails_if_one_run_is_wrong():
  report, _ = _run(units=1 << 22, allow_nondeterministic=True)
  assert report.verdict == 'fail' and report.first_failure.stage == 'y'
  assert report.first_failure.index[:2] == (0, 3)


@pytest.mark.parametrize(
  ('took', 'repeat', 'runs'), [(0, None, 2), (9, None, 1), (9, 3, 3), (0, 1, 1)]
)
def test_who_is_cheap_is_run_again(took, repeat, runs):
  report, run_names = _run(0, took, repeat=repeat)
  assert len(run_names) == runs == report_json.to_json(report)['runs']
  is_told = f'the same bits in {runs} runs, ' in report_text.format_summary(
    report
  )
  assert is_told == (runs > 1)


def test_who_may_differ_is_run_again_however_long_it_takes():
  _, run_names = _run(0, 9, allow_nondeterministic=True)
  assert len(run_names) == 2


def test_our_own_is_run_again_where_asked():
  candidate, how_judged = (
    host.Megakernel(),
    judgement.Judgement(('bitwise',), repeat=2),
  )
  report = check.run(check.Request(CASE, candidate, how_judged))
  assert report.verdict == 'pass' and len(report.launches) == 2


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(repeat=0), 'at least 1, got 0'),
    (dict(repeat=2, checking=checking.Checking(stop_after='3')), '1 with'),
  ],
)
def test_repeats_without_sense_are_refused(fields, message):
  with pytest.raises(ValueError, match=f'^repeat: expected {message}'):
    check.run(check.Request(CASE).but(**fields))


KEEPING = """
import numpy as np
from hpmoe.parity_tests.judge import trial_testing as trial

KERNEL, kept, calls = trial.Kernel(), {}, []


def forward(inputs, config, policy):
  return dict(y=KERNEL.forward(config, policy, inputs)['y'])


def backward(inputs, config, policy):
  return KERNEL.backward(config, policy, inputs)


def answers_by_shape(inputs, config, policy):
  key = inputs['x'].shape
  if key not in kept:
    kept[key] = forward(inputs, config, policy)
  return kept[key]


def answers_by_address(inputs, config, policy):
  key = id(inputs['x'])
  if key not in kept:
    kept[key] = forward(inputs, config, policy)
  return kept[key]


def packs_weights_once(inputs, config, policy):
  w = kept.setdefault(id(inputs['w_down']), inputs['w_down'].copy())
  return forward({**inputs, 'w_down': w}, config, policy)


def plans_once(inputs, config, policy):
  ids = kept.setdefault('ids', inputs['topk_ids'].copy())
  return forward({**inputs, 'topk_ids': ids}, config, policy)


def wrong_from_the_third_call_on(inputs, config, policy):
  calls.append(1)
  answer = forward(inputs, config, policy)
  if len(calls) > 2:
    answer['y'][0, 0] += 1
  return answer


def right(inputs, config, policy):
  return forward(inputs, config, policy)


def keeps_gradients(inputs, config, policy):
  key = inputs['dy'].shape
  if key not in kept:
    kept[key] = backward(inputs, config, policy)
  return kept[key]


for function in list(globals().values()):
  if callable(function) and hasattr(function, '__code__'):
    function.activations = ('swiglu',)
    function.backward = backward
gradients_kept = lambda *layer: forward(*layer)
gradients_kept.activations = ('swiglu',)
gradients_kept.backward = keeps_gradients
"""
KEEPERS = (
  'answers_by_shape',
  'answers_by_address',
  'packs_weights_once',
  'plans_once',
  'wrong_from_the_third_call_on',
)


def _check_keeping(tmp_path, name, in_process, **case_fields):
  path = tmp_path / 'keeping.py'
  path.write_text(KEEPING)
  candidate = f'{path}:{name}'
  if in_process:
    names = {'__name__': 'keeping'}
    exec(KEEPING, names)
    candidate = names[name]
  case = dataclasses.replace(CASE, **case_fields)
  return api.check(candidate, case, lanes=('bounded',))


@pytest.fixture
def any_speed(monkeypatch):
  """Runs a kernel again however busy the machine is."""
  monkeypatch.setattr(repeat, 'CHEAP_S', math.inf)


@pytest.mark.parametrize('in_process', [True, False], ids=['here', 'process'])
@pytest.mark.parametrize('name', KEEPERS)
@pytest.mark.few(1)
@pytest.mark.usefixtures('any_speed')
def test_a_kernel_that_keeps_something_fails(tmp_path, name, in_process):
  report = _check_keeping(tmp_path, name, in_process)
  assert not report.is_pass
  # The third call in a process of its own is on the first data.
  words = 'wrong on other data'
  if 'third' in name and not in_process:
    words = 'not repeatable'
  assert words in str(report)


def test_a_slow_kernel_is_not_run_again_and_the_report_says_so(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(repeat, 'CHEAP_S', 0)
  report = _check_keeping(tmp_path, 'answers_by_shape', in_process=True)
  assert report.is_pass
  assert 'not tried: a second run' in str(report)


@pytest.mark.usefixtures('any_speed')
def test_gradients_that_are_kept_fail(tmp_path):
  report = _check_keeping(tmp_path, 'gradients_kept', True, direction='both')
  assert not report.is_pass
  assert 'wrong on other data: dx' in str(report)


@pytest.mark.parametrize('in_process', [True, False], ids=['here', 'process'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.few(1)
def test_a_kernel_that_keeps_nothing_passes(tmp_path, dtype, in_process):
  report = _check_keeping(
    tmp_path, 'right', in_process, dtype=dtype, direction='both'
  )
  assert report.is_pass
