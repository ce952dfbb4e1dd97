"""A kernel that answers differently from call to call."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.report import report_json
from hpmoe.parity_tests.report import report_text

CASE = case_lib.Case(preset='tiny', ranks=2, tokens=13)


@dataclasses.dataclass(frozen=True)
class Unsteady(candidates.Candidate):
  """Our backend, but every second run of a pass is off by some units."""

  can: ClassVar[candidates.Can] = candidates.Can(repeats=True)
  units: int
  name: str = 'unsteady'
  took: float = 0.0
  runs: list[str] = dataclasses.field(default_factory=list)

  @property
  def seconds(self):
    return [self.took]

  def run(self, config, policy, inputs, which=passes.FORWARD, given=None):
    y = host.Megakernel().run(config, policy, inputs, which)['y']
    if len(self.runs) % 2:
      y[0, 3, :2].view(np.int32)[:] += self.units
    self.runs.append(which.name)
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
  assert (change.ulp, change.index, change.of) == (1, (0, 3, 0), 2 * 13 * 32)
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
    (dict(repeat=2, checking=checking.Checking(stop_after='3')), '1 beside'),
  ],
)
def test_repeats_without_sense_are_refused(fields, message):
  with pytest.raises(ValueError, match=f'^repeat: expected {message}'):
    check.run(check.Request(CASE).but(**fields))
