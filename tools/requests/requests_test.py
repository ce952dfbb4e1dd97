"""The fixed requests: their outcomes are as recorded."""

import json
import pathlib

import pytest

from hpmoe.tools.requests import compare_environments
from hpmoe.tools.requests import run

_OUTCOMES = json.loads(
  (pathlib.Path(__file__).with_name('outcomes.json')).read_text()
)
# One of each kind of outcome; `make sweep` runs all.
_QUICK_REQUESTS = (0, 1, 14, 17, 22, 24, 26)


def test_forty_requests_are_recorded():
  assert [o['request'] for o in _OUTCOMES] == run.read_requests()
  assert len(_OUTCOMES) == 40


@pytest.mark.parametrize('number', _QUICK_REQUESTS)
@pytest.mark.few(1)
def test_an_outcome_is_as_recorded(number, tmp_path):
  outcome = run.run_request(_OUTCOMES[number]['request'], tmp_path)
  assert run.summarise(outcome) == _OUTCOMES[number]


@pytest.mark.slow
def test_every_outcome_is_as_recorded(tmp_path):
  # In order: some read what an earlier one wrote.
  outcomes = [run.run_request(o['request'], tmp_path) for o in _OUTCOMES]
  assert [run.summarise(o) for o in outcomes] == _OUTCOMES


def test_differences_are_named():
  left = [dict(code=0, report=dict(rms=1.0, verdict='pass'))]
  right = [dict(code=0, report=dict(rms=1.0 + 1e-12, verdict='fail'))]
  assert compare_environments.find_differences(left, right) == [
    "[0].report.verdict: 'pass' and 'fail'"
  ]
  right[0]['report'] = dict(rms=1.0 + 1e-6, verdict='pass')
  assert compare_environments.find_differences(left, right) == [
    '[0].report.rms: 1.0 and 1.000001'
  ]
