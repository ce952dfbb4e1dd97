"""What the root conftest adds to pytest."""

import pathlib

pytest_plugins = ['pytester']

_CONFTEST = pathlib.Path(__file__).resolve().parents[1] / 'conftest.py'
# Of each file, those marked so.
SLOW = 2
_TESTS = """
import pytest

SLOW = pytest.param(0, marks=pytest.mark.slow)

@pytest.mark.%s
@pytest.mark.parametrize('a', [SLOW, 1, 2, 3])
@pytest.mark.parametrize('b', 'xy')
def test_many(a, b): pass
"""


_XLA = """
import os
import jax
from jax._src import compiler

def test_xla():
  level = compiler.get_compile_options(1, 1).executable_build_options
  print(
    'level', level.debug_options.xla_backend_optimization_level,
    os.environ.get('JAX_DISABLE_MOST_OPTIMIZATIONS'),
  )
"""


def test_ends_keeps_first_and_last_parameters_where_only_compared(pytester):
  pytester.makeconftest(_CONFTEST.read_text())
  for folder in 'here', 'there':
    tests = _TESTS % 'all' + '\ndef test_one(): pass\n'
    pytester.mkpydir(folder).joinpath('it_test.py').write_text(tests)
  pytester.makeini(
    '[pytest]\nmarkers =\n  slow\n  all\npython_files = *_test.py'
  )

  result = pytester.runpytest(
    '--ends', '--users_xla=there', '-m', 'not slow', '-v', '-p', 'no:xdist'
  )

  result.assert_outcomes(passed=3 + 7, deselected=4 + 2 * SLOW)
  result.stdout.fnmatch_lines(
    ['*test_many?x-1? PASSED*', '*test_many?y-3? PAS*']
  )


def test_few_are_from_first_to_last_and_all_others_slow(pytester):
  pytester.makeconftest(_CONFTEST.read_text())
  parameters = {1: ['x-1'], 2: ['x-1', 'y-3'], 3: ['x-1', 'x-3', 'y-3']}
  pytester.makepyfile(**{f'test_{n}': _TESTS % f'few({n})' for n in parameters})
  pytester.makeini('[pytest]\nmarkers =\n  slow\n  few(n)')

  quick_result = pytester.runpytest('-m', 'not slow', '-v', '-p', 'no:xdist')
  slow_result = pytester.runpytest('-m', 'slow', '-p', 'no:xdist')

  quick_result.assert_outcomes(passed=1 + 2 + 3, deselected=7 + 6 + 5)
  slow_result.assert_outcomes(passed=7 + 6 + 5, deselected=1 + 2 + 3)
  quick_result.stdout.fnmatch_lines(
    [
      f'test_{n}.py*test_many?{parameter}? PASS*'
      for n in parameters
      for parameter in parameters[n]
    ]
  )


def test_xla_optimises_little_but_where_users_are_asked_for(pytester):
  pytester.makeconftest(_CONFTEST.read_text())
  for folder in 'here', 'there':
    pytester.mkpydir(folder).joinpath('it_test.py').write_text(_XLA)
  pytester.makeini('[pytest]\npython_files = *_test.py')

  for options, levels in (
    (['--users_xla=here'], ['level 3 None', 'level 0 1']),
    (['--users_xla=none'], ['level 0 1', 'level 0 1']),
    ([], ['level 3 None', 'level 3 None']),
  ):
    result = pytester.runpytest(*options, '-s', '-p', 'no:xdist')
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f'*{level}*' for level in levels])


_BYTECODE = """
import os
import pathlib
import subprocess
import sys

def test_bytecode(tmp_path):
  (tmp_path / 'mine.py').touch()
  subprocess.run([sys.executable, '-c', 'import mine'], cwd=tmp_path)
  kept = pathlib.Path(os.environ['PYTHONPYCACHEPREFIX'])
  assert list(kept.rglob('mine.*')) and not list(tmp_path.rglob('*.pyc'))
"""


def test_bytecode_is_shared_in_a_shell_that_forbids_it(pytester, monkeypatch):
  for name, value in (('DONTWRITEBYTECODE', '1'), ('PYCACHEPREFIX', '')):
    monkeypatch.setenv(f'PYTHON{name}', value)
  monkeypatch.delenv('HPMOE_CACHE')
  pytester.makeconftest(_CONFTEST.read_text())
  pytester.makepyfile(_BYTECODE)

  pytester.runpytest('-p', 'no:xdist').assert_outcomes(passed=1)
