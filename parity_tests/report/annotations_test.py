"""Annotations and JUnit's XML say where a check fails, each in its form."""

import dataclasses
import pathlib
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import annotations
from hpmoe.parity_tests.report import junit
from hpmoe.parity_tests.report import reports_testing


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> str:
  """A candidate in a file of a repository, whose folder is current."""
  monkeypatch.delenv('GITHUB_WORKSPACE', raising=False)
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'kernel.py').write_text('import os\n\n\ndef moe(*a): pass\n')
  return 'kernel.py:moe'


def _judge(stage: str, lane: str, fails: bool = True) -> verdicts.Result:
  failure = reports_testing.failure(
    stage=stage, lane=lane, pattern='100 % wrong', replay='hpmoe check a:b'
  )
  return verdicts.Result(
    stage,
    lane,
    'rule',
    tiles=1,
    failed_tiles=int(fails),
    verdict=verdicts.FAIL if fails else verdicts.PASS,
    failure=failure if fails else None,
    grids=(np.array([[int(fails)]]),),
    experts=(np.full(1, tiles.NO_EXPERT),),
  )


UNSEEN = verdicts.not_captured('gate_up', 'exact', 'rule', 'gate_up')
RESULTS = (
  *(UNSEEN, _judge('expert_out', 'exact', fails=False)),
  *(_judge('y', 'exact'), _judge('y', 'bounded'), _judge('layer', 'bounded')),
)


class TestAnnotations:
  def test_failures_are_lines_at_the_candidate(self, kernel):
    report = reports_testing.report(*RESULTS, candidate=kernel)

    first, other = annotations.format_annotations(report).splitlines()

    place = 'file=kernel.py,line=4,title=hpmoe check%3A'
    assert first.startswith(
      f'::error {place} y fails::first failure: y (exact: rule)%0A'
    )
    assert 'pattern   100 %25 wrong%0A' in first
    assert other == f'::error {place} layer fails too::in bounded'

  def test_a_path_is_that_of_the_repository(self, kernel, monkeypatch):
    report = reports_testing.report(*RESULTS, candidate=kernel)
    workspace = str(pathlib.Path.cwd().parent)
    monkeypatch.setenv('GITHUB_WORKSPACE', workspace)
    line = annotations.format_annotations(report)
    monkeypatch.setenv('GITHUB_WORKSPACE', f'{workspace}/elsewhere')
    outside = annotations.format_annotations(report)

    assert '/kernel.py,line=4,' in line and 'file=/' not in line
    assert outside.startswith('::error title=hpmoe check%3A y fails::')

  def test_a_pass_is_a_notice_and_what_is_no_file_has_no_place(self):
    right = reports_testing.report(_judge('y', 'exact', fails=False))

    line = annotations.format_annotations(right)

    assert line.startswith('::notice title=hpmoe check%3A parity holds::PASS')

  def test_a_candidate_without_an_answer_is_an_error(self, kernel):
    line = annotations.format_error(kernel, RuntimeError('signal 11\nlate'))

    assert line == (
      '::error file=kernel.py,line=4,title=hpmoe check%3A no answer::'
      'signal 11%0Alate'
    )


class TestJunit:
  def test_each_stage_and_lane_is_a_test(self):
    report = reports_testing.report(*RESULTS)

    root = ET.fromstring(junit.to_junit(report).encode())

    (suite,) = root
    tests = {(c.get('name'), c.get('classname')): c for c in suite[:-1]}
    assert suite.attrib == dict(
      name='hpmoe check mine:forward',
      time='1.500',
      failures='3',
      errors='0',
      skipped='1',
      tests='6',
    )
    failure = tests['y', 'hpmoe.exact'].find('failure')
    assert failure.get('message') == '✕ 0 ulp, 1 of 1 tiles'
    assert failure.text.startswith('first failure: y (exact')
    skipped = tests['gate_up', 'hpmoe.exact'].find('skipped')
    assert skipped.get('message') == 'gate_up not returned'
    assert tests['expert_out', 'hpmoe.exact'].find('failure') is None
    assert suite[-1].tag == 'system-out' and 'FAIL' in suite[-1].text

  def test_other_bits_in_a_later_run_fail_a_test_of_their_own(self):
    change = verdicts.Change('forward', 2, 'y', 1, 4, 3, (0,), 1.0, 2.0)
    report = dataclasses.replace(
      reports_testing.report(
        _judge('y', 'exact', fails=False), allow_nondeterministic=False
      ),
      changes=(change,),
    )

    root = ET.fromstring(junit.to_junit(report).encode())

    (failure,) = root.iter('failure')
    assert '1 of 4 elements differ in run 2' in failure.text
    assert root.get('failures') == '1'

  def test_a_candidate_without_an_answer_is_an_error(self):
    error = candidates.CandidateError('got signal 11', seconds=2.0)

    root = ET.fromstring(junit.error_junit('a:b', error).encode())

    (case,) = root.iter('testcase')
    assert case.find('error').text == 'got signal 11'
    assert (root.get('errors'), root.get('time')) == ('1', '2.000')
