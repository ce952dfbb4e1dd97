"""The main of several NPUs under mpiexec, on the twin: two processes."""

import os
import subprocess
import sys

import pytest

from hpmoe.parity_tests.ascend import mpi_launcher
from hpmoe.parity_tests.ascend import npus_main
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main


@pytest.fixture(scope='module')
def case(tmp_path_factory) -> str:
  """Returns a folder with a case of two ranks, a file for each."""
  path = str(tmp_path_factory.mktemp('npus_main') / 'case')
  flags = ('--preset=tiny', '--ranks=2', '--direction=both', '--per_rank')
  assert main.main(['export', *flags, f'--out={path}']) == cli.PARITY
  return path


def _run(case, out, processes=2, drill='', extra_flags=()):
  environment = dict(
    os.environ,
    PYTHONPATH=os.pathsep.join(path or os.getcwd() for path in sys.path),
    HPMOE_BOARD_DRILL=drill,
  )
  return subprocess.run(
    [
      mpi_launcher.find_mpiexec(),
      *('-launcher', 'fork', '-disable-auto-cleanup', '-n', str(processes)),
      *(sys.executable, '-m', npus_main.__name__, f'--case={case}'),
      *(f'--out={out}', '--aic=2', '--aiv=3', *extra_flags),
    ],
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )


@pytest.mark.slow
def test_writes_what_passes_in_every_lane(case, tmp_path):
  out = tmp_path / 'out'
  process = _run(case, out)
  assert process.returncode == 0, process.stderr
  assert len([*out.iterdir()]) == 6  # three kinds of data, two ranks
  verdict = main.main(['check', f'--case={case}', f'--outputs={out}'])
  assert verdict == cli.PARITY


@pytest.mark.slow
@pytest.mark.parametrize('call', ['aclshmem_putmem', 'aclshmemx_init_attr'])
def test_a_rank_that_hangs_is_named_and_nobody_waits_for_it(
  case, tmp_path, call
):
  # Given a rank that sleeps for longer than the test may take.  One that dies
  # is named by mpiexec, which ends all others.
  drill, extra_flags = f'1 {call} 1000', ('--deadline=1', '--start_s=1')
  process = _run(case, tmp_path / 'out', drill=drill, extra_flags=extra_flags)
  assert process.returncode == 3
  silent = 'npus_main: rank 0: rank 1: expected word within 1 s, got none'
  absent = 'not all of 2 ranks came within 1 s'
  assert (silent if 'put' in call else absent) in process.stderr


@pytest.mark.slow
def test_as_many_processes_as_the_case_has_ranks(case, tmp_path):
  process = _run(case, tmp_path / 'out', processes=1)
  assert process.returncode == 2
  assert process.stderr.startswith(
    'npus_main: rank 0: case: expected one of 1 ranks'
  )
