"""The table of processes: right bits are equal, a wrong one is counted."""

import json
import sys

import numpy as np
import pytest

from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.parity_tests.candidates import mpi_launcher
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.law import law
from hpmoe.parity_tests.law import law_ranks

PLAN = law.Plan(tokens=13)


def _flipped(image, inputs):
  """A launch whose last bit of one gradient is wrong, in bfloat16 only."""
  got = runtime.launch(image, inputs)
  if 'dx' in got and str(got['dx'].dtype) == 'bfloat16':
    got['dx'].view(np.uint16)[1, 2, 3] ^= 3
  return got


def test_ranks_that_give_the_same_bits_are_equal(monkeypatch):
  monkeypatch.setattr(mpi_launcher, 'launch', runtime.launch)
  monkeypatch.setattr(mpi_launcher, 'find_mpiexec', str)
  steps = []

  rows = law_ranks.run(PLAN, (2, 4), steps.append)

  assert [(r.processes, r.dtype, r.direction) for r in rows] == [
    (count, dtype, direction)
    for count in (2, 4)
    for dtype in PLAN.dtypes
    for direction in PLAN.directions
  ]
  assert len(steps) == len(rows)
  assert all(r.equal == r.tensors == 9 and not r.differing_bits for r in rows)


def test_a_wrong_bit_breaks_the_law(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(mpi_launcher, 'launch', _flipped)
  monkeypatch.setattr(mpi_launcher, 'find_mpiexec', str)
  path = tmp_path / 'law.json'

  code = main.main(
    [
      'law',
      '--tokens=13',
      '--interleavings=1',
      '--threads=1',
      '--layout=1x1',
      '--processes=2',
      f'--json={path}',
    ]
  )

  wrong = [
    row
    for row in json.loads(path.read_text())['processes']
    if row['differing_bits']
  ]
  assert code == cli.NO_PARITY
  assert [(w['direction'], w['dtype'], w['equal']) for w in wrong] == [
    ('backward', 'bfloat16', 8)
  ]
  assert wrong[0]['differing_bits'] == 2
  assert '8 of 9' in capsys.readouterr().out


@pytest.mark.parametrize('value', ['two', '3'])
def test_processes_that_cannot_be_are_refused(capsys, value):
  code = main.main(
    [
      'law',
      '--interleavings=1',
      '--threads=1',
      '--layout=1x1',
      f'--processes={value}',
    ]
  )
  assert code == cli.WRONG_REQUEST
  assert 'processes: expected' in capsys.readouterr().err


@pytest.mark.parametrize(
  'arguments',
  [
    ('check', '--preset=tiny', '--launcher=mpi', '--ranks=2'),
    ('law', '--processes=2'),
  ],
)
def test_without_the_extra_one_line_says_so(
  arguments, monkeypatch, tmp_path, capsys
):
  # Given an environment without an MPI library,
  monkeypatch.setattr(sys, 'executable', str(tmp_path / 'python'))
  monkeypatch.setenv('PATH', str(tmp_path))

  code = main.main(arguments)

  assert code == cli.CANDIDATE_FAILED
  (line,) = capsys.readouterr().err.splitlines()
  assert "'hyperparallel-moe[mpi]'" in line
