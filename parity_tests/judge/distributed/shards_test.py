"""Several processes, each of which judges some ranks, say what one says."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.distributed import mpi_shard
from hpmoe.parity_tests.judge.distributed import shards
from hpmoe.parity_tests.report import report_json

CASE = case_lib.Case(
  'both',
  'tiny',
  ranks=4,
  dtype='bfloat16',
  routing='dropped',
  d_shared=12,
)
# What is wrong, by tensor: where, and by how much.
BUGS = {
  'gate_up': ((1, 0, 5), 4.0),
  'y': ((2, 3), 1.0),
  'd_w_down': ((2, 0, 3, 3), 1.0),
  'd_w_shared_down': ((2, 3, 3), 1.0),
}


@functools.cache
def _read_inputs(data: str):
  return bench_lib.Bench(CASE, keep=True).read_by(CASE.passes, data)


@functools.cache
def _tensors(data: str) -> dict[str, np.ndarray]:
  layer_inputs = _read_inputs(data)
  arguments = layer_inputs.config, layer_inputs.policy
  forward = trial.Kernel().forward(*arguments, layer_inputs.arrays)
  backward = trial.Kernel().backward(
    *arguments, {**layer_inputs.arrays, **forward}
  )
  return forward | backward


def _case(top: pathlib.Path) -> folder.Folder:
  inputs_of_data = {data: _read_inputs(data) for data in inputs_lib.DATA}
  return folder_writer.write(
    top / 'case', 'both', inputs_of_data, per_rank=True
  )


def _outputs(top, case, bugs, names=None, ranks=range(4)) -> None:
  loaded_case = read_case.load(case.path)
  for data in inputs_lib.DATA:
    tensors_by_name = {n: a.copy() for n, a in _tensors(data).items()}
    for name in bugs:
      index, difference = BUGS[name]
      tensors_by_name[name][index] += difference
    for rank in ranks:
      own_rows = {
        n: a[rank]
        for n, a in tensors_by_name.items()
        if not names or n in names
      }
      read_case.write(str(top / 'out'), loaded_case, data, own_rows, rank)


def _request(top, direction='both', **judgement_fields) -> check.Request:
  return check.Request(
    case_lib.Case.from_folder(str(top / 'case'), direction),
    outputs.Outputs(str(top / 'out')),
    judgement.Judgement(**judgement_fields),
  )


def _figures(report: check.Report) -> dict:
  """Returns all that a report says, but for times and patterns.

  What a tensor that is wrong looks like, who has those of all ranks says.
  """
  results = []
  for result in report.results:
    failure = result.failure and dataclasses.replace(result.failure, pattern='')
    results.append(dataclasses.replace(result, failure=failure))
  report = dataclasses.replace(report, results=tuple(results))
  maps = [
    [(rank, grid.tolist()) for rank, grid in enumerate(result.grids)]
    for result in report.results
  ]
  report_fields = report_json.to_json(dataclasses.replace(report, seconds=0))
  return report_fields | dict(
    maps=maps, failures=[r.failure for r in report.results]
  )


def _by_shards(request, top, count) -> check.Report:
  for index in range(count):
    shard = shards.Shard(index, count)
    content = shards.judge(request, shard)
    shards.write(shards.place(top / 'parts', shard), content)
  return shards.merge(request, top / 'parts')


@pytest.mark.slow
@pytest.mark.parametrize('direction', ('backward', 'both'))
def test_reports_are_those_of_one_process(tmp_path, direction):
  # given: outputs of four ranks, two of them wrong.
  _outputs(tmp_path, _case(tmp_path), tuple(BUGS))
  request = _request(tmp_path, direction)
  whole = check.run(request)

  report = _by_shards(request, tmp_path, 4)

  assert _figures(report) == _figures(whole)
  assert report.verdict == verdicts.FAIL
  failures = [r.failure for r in report.results if r.failure]
  # The row of gate_up is of a token of rank 0, whose dx it reaches.
  wrong = {'backward': {2}, 'both': {0, 1, 2}}[direction]
  assert {failure.rank for failure in failures} == wrong
  assert all(
    failure.bad_rows for failure in failures if failure.lane == 'exact'
  )


@pytest.mark.parametrize(
  ('count', 'names'),
  ((2, ('y', 'dx')), (3, ('expert_out', 'd_activation'))),
)
@pytest.mark.slow
def test_fewer_shards_than_ranks_and_tensors_than_all(tmp_path, names, count):
  bugs = [name for name in BUGS if name in names]
  _outputs(tmp_path, _case(tmp_path), bugs, names)
  request = _request(tmp_path)
  whole = check.run(request)
  assert _figures(_by_shards(request, tmp_path, count)) == _figures(whole)
  assert (whole.verdict == verdicts.FAIL) == bool(bugs)


def test_missing_ranks(tmp_path):
  _outputs(tmp_path, _case(tmp_path), ('y',), ranks=(0, 2))
  request = _request(tmp_path, 'forward')
  report = _by_shards(request, tmp_path, 4)
  assert _figures(report) == _figures(check.run(request))
  assert report.first_failure.rank == 2


@pytest.mark.parametrize('bugs', ((), ('gate_up', 'y')))
@pytest.mark.few(1)
def test_a_sample_of_tiles(tmp_path, bugs):
  _outputs(tmp_path, _case(tmp_path), bugs)
  request = _request(tmp_path, 'forward', tiles=2, lanes=judgement.OF_SAMPLE)
  report = _by_shards(request, tmp_path, 4)
  assert _figures(report) == _figures(check.run(request))
  assert report.verdict == (verdicts.FAIL if bugs else verdicts.PASS)


class TestRefused:
  @pytest.fixture
  def judged_folder(self, tmp_path):
    _outputs(tmp_path, _case(tmp_path), (), ('y',))
    request = _request(tmp_path, 'forward')
    _by_shards(request, tmp_path, 2)
    return request, tmp_path

  def test_what_is_no_whole_check_is_named(self, judged_folder):
    request, top = judged_folder
    parts = top / 'parts'
    first, second = (shards.Shard(i, 2).file(parts) for i in (0, 1))
    third = shards.Shard(0, 3).file(parts)
    whole = {path: path.read_text() for path in (first, second)}

    def change_request(name):
      content = json.loads(whole[second])
      content['asked'][name] = 'another'
      shards.write(second, content)

    def early():
      for path, text in ((first, 'e0'), (second, 'e1')):
        shards.write(path, dict(error=text))

    for spoil, message in (
      (second.unlink, r'shard 1 of 2 \(rank 2, 3\): .*got no file'),
      (early, r'0 of 2 \(rank 0, 1\): e0; shard 1 of 2 \(rank 2, 3\): e1'),
      (lambda: shards.write(third, {}), 'those of 2 and of 3'),
      (lambda: shutil.copy(first, second), 'got that of shard 0 of 2'),
      (lambda: change_request('case'), 'shard 1 of 2 .*case: exp'),
      (lambda: change_request('command'), 'shard 1 of 2 .*command: exp'),
      (lambda: change_request('versions'), 'shard 1 of 2 .*versions: exp'),
      (
        lambda: first.write_text(whole[first][:-9]),
        'shard 0 of 2 .*: .*readable',
      ),
    ):
      spoil()
      with pytest.raises(shards.ShardError, match=message):
        shards.merge(request, parts)
      third.unlink(missing_ok=True)
      for path, text in whole.items():
        path.write_text(text)
    with pytest.raises(shards.ShardError, match='expected the files of.*none'):
      shards.merge(request, top / 'nowhere')

  def test_a_candidate_that_runs_here(self, tmp_path):
    request = check.Request(CASE)
    with pytest.raises(ValueError, match='shard: expected --outputs with'):
      shards.judge(request, shards.Shard(0, 4))

  @pytest.mark.parametrize('text', ('4/4', '1', '-1/2', 'a/b'))
  def test_no_shard(self, text):
    with pytest.raises(ValueError, match=r'shard: expected r/R'):
      shards.Shard.parse(text)

  def test_more_shards_than_ranks(self):
    with pytest.raises(ValueError, match='expected at most 4 of them'):
      shards.Shard(0, 5).ranks(4)


@pytest.mark.parametrize(
  ('judge', 'message'),
  [
    (lambda: os.kill(os.getpid(), signal.SIGKILL), 'an answer, got signal 9'),
    (lambda: os._exit(0), 'an answer, got exit code 0'),
    (lambda: 1 // 0, 'an answer, got exit code 1'),
    (lambda: json.loads('{'), 'Expecting property name'),
    (lambda: time.sleep(600), 'an answer within 0.2 s, got none'),
  ],
)
def test_a_rank_that_dies_or_hangs_is_named(tmp_path, judge, message):
  job = mpi_shard.Job(shards.Shard(2, 3), tmp_path)
  for index in (0, 1):
    shards.write(shards.Shard(index, 3).file(tmp_path), {})
  timeout_s = 0.2 if 'within 0.2 s' in message else 60.0
  mpi_shard.run_in_fork(job, judge, timeout_s)
  mpi_shard.wait(job, timeout_s)
  with pytest.raises(shards.ShardError, match=message):
    shards.read(job.shard, tmp_path)


def test_of_a_rank_that_hangs_nothing_is_left(tmp_path):
  # Given: a rank that started another process and wrote half a file.
  job = mpi_shard.Job(shards.Shard(0, 2), tmp_path)
  pids = tmp_path / 'pids'

  def judge():
    other = subprocess.Popen(['sleep', '600'])
    pids.write_text(f'{os.getpid()} {other.pid}')
    half = job.file.with_name(shards.half_written(job.file, os.getpid()))
    half.write_text('{"shard": "shard 0 of 2", "found"')
    time.sleep(600)

  # When.
  mpi_shard.run_in_fork(job, judge, 1.0)
  # Then.
  assert {*tmp_path.iterdir()} == {pids, job.file}
  for pid in map(int, pids.read_text().split()):
    with contextlib.suppress(ProcessLookupError):
      assert select.select([os.pidfd_open(pid)], [], [], 5)[0]


def test_a_rank_that_does_not_start_is_named(tmp_path, monkeypatch):
  job = mpi_shard.Job(shards.Shard(0, 3), tmp_path)
  shards.write(job.file, {})
  monkeypatch.setattr(mpi_shard, '_GRACE_S', 0.0)
  mpi_shard.wait(job, 0.1)
  for index in (1, 2):
    with pytest.raises(shards.ShardError, match='within 0.1 s, got none'):
      shards.read(shards.Shard(index, 3), tmp_path)


def test_ranks_are_known_from_mpiexec():
  assert mpi_shard.find_job({}) is None
  assert mpi_shard.find_job(dict(PMI_RANK='0', PMI_SIZE='1')) is None
  with pytest.raises(ValueError, match='mpiexec: expected its 4 processes'):
    mpi_shard.find_job(dict(PMI_RANK='1', PMI_SIZE='4', MPI_LOCALNRANKS='2'))


@pytest.mark.slow
def test_mpiexec_has_the_report_of_one_process(tmp_path):
  beside = str(pathlib.Path(sys.executable).parent)
  mpiexec = shutil.which('mpiexec', path=beside) or shutil.which('mpiexec')
  if mpiexec is None:
    pytest.skip('needs the extra `mpi`')
  _outputs(tmp_path, _case(tmp_path), ('gate_up', 'y'))
  command = [sys.executable, '-m', 'hpmoe.parity_tests.commands.main', 'check']
  command += ['--case=case', '--outputs=out', '--direction=forward']

  def run(*before: str, name: str) -> dict:
    run_command = [*before, *command, f'--json={name}']
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    process = subprocess.run(
      run_command,
      cwd=tmp_path,
      env=environment,
      capture_output=True,
      check=False,
    )
    assert process.returncode == 1, process.stderr.decode()
    assert process.stdout.decode().count('first failure: gate_up') == 1
    return json.loads((tmp_path / name).read_text()) | dict(seconds=0)

  report = run(name='one.json')
  assert run(mpiexec, '-n', '4', name='four.json') == report
