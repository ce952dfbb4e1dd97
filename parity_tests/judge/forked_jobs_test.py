"""What two processes do is what one does."""

import functools
import os
import subprocess
import sys
import time

import pytest

from hpmoe.parity_tests.judge import forked_jobs

OWN_PID = os.getpid()


def _return_pid(index: int):
  time.sleep(0.05)
  return index, os.getpid()


def _dies_elsewhere(index: int):
  time.sleep(0.05)
  if os.getpid() != OWN_PID:
    os._exit(1)
  return index


def _fails_elsewhere(index: int):
  time.sleep(0.05)
  if os.getpid() != OWN_PID:
    raise ValueError(index)
  return index


def _answer_is_no_data(index: int):
  return lambda: index


def jobs(function, count=8):
  return [functools.partial(function, index) for index in range(count)]


class TestTwoProcesses:
  def test_results_come_in_order_from_both(self):
    returned_values = list(forked_jobs.run_jobs(jobs(_return_pid), fork=True))
    assert [index for index, _ in returned_values] == list(range(8))
    assert len({pid for _, pid in returned_values}) == 2

  @pytest.mark.parametrize('function', [_dies_elsewhere, _fails_elsewhere])
  def test_what_the_other_does_not_bring_is_done_here(self, function):
    assert list(forked_jobs.run_jobs(jobs(function), fork=True)) == list(
      range(8)
    )

  def test_what_cannot_be_handed_back_is_done_here(self):
    returned_values = forked_jobs.run_jobs(jobs(_answer_is_no_data), fork=True)
    assert [value() for value in returned_values] == list(range(8))

  def test_an_error_is_the_callers(self):
    def refuse():
      raise ValueError('job: expected none')

    with pytest.raises(ValueError, match='job: expected none'):
      list(forked_jobs.run_jobs([refuse] * 4, fork=True))

  def test_large_answers_pass(self):
    returned_values = forked_jobs.run_jobs(
      [lambda: bytes(1 << 20)] * 9, fork=True
    )
    assert [len(value) for value in returned_values] == [1 << 20] * 9

  def test_nothing_is_left_behind(self):
    before = os.listdir('/proc/self/fd')
    returned_values = list(forked_jobs.run_jobs(jobs(_return_pid), fork=True))
    assert len(os.listdir('/proc/self/fd')) == len(before)
    (child,) = {pid for _, pid in returned_values} - {OWN_PID}
    with pytest.raises(ChildProcessError):
      os.waitpid(child, os.WNOHANG)


class TestOneProcess:
  def test_where_a_module_has_threads(self, monkeypatch):
    monkeypatch.setitem(sys.modules, 'jax', sys)
    assert not forked_jobs.can_fork()
    returned_values = list(forked_jobs.run_jobs(jobs(_return_pid, 2)))
    assert [pid for _, pid in returned_values] == [OWN_PID] * 2

  def test_of_one_core_or_of_one_job_or_too_many(self, monkeypatch):
    monkeypatch.setattr(os, 'cpu_count', lambda: 1)
    assert not forked_jobs.can_fork()
    for count in (1, 257):
      returned_values = forked_jobs.run_jobs([os.getpid] * count, fork=True)
      assert set(returned_values) == {OWN_PID}


_CHECK = """
import os, sys
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.judge import forked_jobs
os.cpu_count = lambda: 1 if sys.argv[2] == 'one' else 2
forked = []
plain = forked_jobs._run_by_two
forked_jobs._run_by_two = lambda jobs: forked.append(1) or plain(jobs)
code = main.main(
  ['check', '--preset=tiny', '--fault=stale_row', f'--json={sys.argv[1]}'])
assert code == 1 and bool(forked) == (sys.argv[2] == 'two'), (code, forked)
"""


@pytest.mark.slow
def test_a_report_is_the_same_by_one_and_by_two(tmp_path):
  """Without JAX, once all answers are kept: a first check fetches them."""
  reports = []
  for mode in ('first', 'one', 'two'):
    path = tmp_path / f'{mode}.json'
    if mode != 'first':
      command = [sys.executable, '-c', _CHECK, str(path), mode]
    else:
      line = 'hpmoe.parity_tests.commands.main check --preset=tiny'
      line += f' --fault=stale_row --json={path}'
      command = [sys.executable, '-m', *line.split()]
    process = subprocess.run(
      command,
      stdout=subprocess.DEVNULL,
    )
    assert process.returncode == (1 if mode == 'first' else 0)
    reports.append(path.read_text().splitlines())
  assert _drop_seconds(reports[1]) == _drop_seconds(reports[2])


def _drop_seconds(lines):
  return [line for line in lines if '"seconds"' not in line]
