"""Verdicts of operators, and, where vllm-ascend is at hand, those operators."""

import os
import pathlib

import numpy as np
import pytest

from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.backend_ascend.twin.intrinsics import run_kernel
from hpmoe.tools import twin_samples_operators as operators

# csrc of a checkout of vllm-ascend, where whoever runs the tests has it.
_CSRC = os.environ.get('HPMOE_VLLM_ASCEND', '')


def _case(*outcomes, error=None):
  def run(csrc, include, **options):
    if error:
      raise error
    yield from outcomes

  return operators.Case('one', run)


def _verdict(case):
  return operators.verdict(case, pathlib.Path(), '', mode='late')


def test_the_first_output_that_is_off_is_named():
  right = operators.Outcome('x', np.ones(3), np.ones(3))
  worse = operators.Outcome(
    'y', np.array([1.0, 2.5]), np.array([1.0, 2.0]), 0.1
  )
  assert _verdict(_case(right)) == 'right'
  text = 'wrong: y: 1 of 2 differ, by up to 0.5'
  assert _verdict(_case(right, worse)) == text


def test_what_the_twin_reports_or_refuses_is_the_verdict():
  report = run_kernel.FindingsError(['hazard: k reads UB', 'second'])
  assert _verdict(_case(error=report)) == 'hazard: k reads UB'
  error_ = ValueError('op: expected a folder\nmore')
  assert _verdict(_case(error=error_)) == 'refused: op: expected a folder'


@twin_testing.needs_asc_devkit
@pytest.mark.skipif(not _CSRC, reason='HPMOE_VLLM_ASCEND is not set')
@pytest.mark.parametrize('case', operators.CASES, ids=lambda case: case.name)
def test_operators_of_vllm_ascend(case, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  text = operators.verdict(
    case, pathlib.Path(_CSRC), twin_testing.ASC_DEVKIT, mode='late'
  )
  assert text == case.verdict
