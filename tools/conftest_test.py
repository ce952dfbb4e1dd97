"""What the root conftest adds to pytest."""

import pathlib

pytest_plugins = ['pytester']

_CONFTEST = pathlib.Path(__file__).resolve().parents[1] / 'conftest.py'
_TESTS = """
import pytest

SLOW = pytest.param(0, marks=pytest.mark.slow)

@pytest.mark.parametrize('a', [SLOW, 1, 2, 3])
@pytest.mark.parametrize('b', 'xy')
def test_many(a, b): pass

def test_one(): pass
"""


def test_ends_keeps_first_and_last_parameters_that_are_not_slow(pytester):
  pytester.makeconftest(_CONFTEST.read_text())
  pytester.makepyfile(test_it=_TESTS)
  pytester.makeini('[pytest]\nmarkers = slow')

  done = pytester.runpytest('--ends', '-m', 'not slow', '-v', '-p', 'no:xdist')

  done.assert_outcomes(passed=3, deselected=6)
  done.stdout.fnmatch_lines(['*test_many?x-1? PASSED*', '*test_many?y-3? PAS*'])
