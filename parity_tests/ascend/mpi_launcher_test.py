"""Ranks in processes of their own: the same bits, and no way to hang."""

from concurrent import futures
import contextlib
from importlib import metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.host.ranks import mpi_transport
from hpmoe.backend_ascend.host.ranks import rank_runtime
from hpmoe.parity_tests.ascend import mpi_job
from hpmoe.parity_tests.ascend import mpi_launcher
from hpmoe.parity_tests.ascend import mpi_worker
from hpmoe.parity_tests.ascend import operator_testing
from hpmoe.parity_tests.candidates import processes
from hpmoe.parity_tests.candidates import tensor_transfer
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision


def _missing() -> str:
  # With the extra, as `make test` has it, nothing is skipped: what lacks fails.
  if importlib.util.find_spec('mpi4py') is None:
    return 'mpi4py is not installed'
  if _has_no_library():
    return 'mpi4py finds no libmpi, which the extra mpi brings'
  try:
    mpi_launcher.find_mpiexec()
  except RuntimeError as error:
    return str(error)
  return ''


def _has_no_library() -> bool:
  with contextlib.suppress(metadata.PackageNotFoundError):
    return not metadata.version('mpich')
  # Another process: loading the library begins MPI.
  load = [sys.executable, '-c', 'from mpi4py import MPI']
  return subprocess.run(load, capture_output=True).returncode != 0


needs_mpi = pytest.mark.skipif(bool(_missing()), reason=_missing() or 'none')

DEADLINE_S = 3.0
# No launch here may take this long: one that does has hung.
HUNG_S = 90.0
SIZES = dict(row_block=16, col_block=16, num_aic=2, num_aiv=3)
LAYERS = {
  2: config_testing.make_config(r=2, t=23, e=6, k=3, d=24, f=20),
  4: config_testing.make_config(r=4, t=19, e=8, k=3, d=20, f=12),
}


def _layer(num_ranks, placement='combine'):
  """Returns a layer, its policy, and its inputs of both directions."""
  config = LAYERS[num_ranks]
  policy = precision.PrecisionPolicy(placement=placement)
  forward = testing.make_inputs(config, policy)
  backward = testing.make_grad_inputs(config, policy)
  return config, policy, forward | backward


@needs_mpi
@pytest.mark.few(1)
class TestOperator(operator_testing.OperatorTests):
  candidate = mpi_launcher.MpiMegakernel(operator_testing.OPTIONS)


@needs_mpi
class TestSameBits:
  def test_where_experts_are_placed(self, tmp_path):
    # Given loads, when experts lie by them, each rank in a process of its own,
    # then every tensor has the bits of one process that leaves experts.
    config, policy, inputs = _layer(2)
    path = tmp_path / 'loads.json'
    path.write_text(str([5, 9, 1, 7, 2, 3]))
    options = granularity.Options(**SIZES)
    image = compiler.compile_forward(config, policy, options).image
    names = arrays.INPUTS[layout.Direction.FORWARD]
    expected = runtime.launch(image, {n: inputs[n] for n in names}, threads=1)
    candidate = mpi_launcher.MpiMegakernel(
      options, expert_placement=f'loads:{path}'
    )
    actual = candidate.run(config, policy, inputs, passes.FORWARD)
    assert not testing.differing(actual, expected)

  @pytest.mark.parametrize(
    ('direction', 'num_ranks', 'use_shared_memory'),
    [('backward', 2, True), ('forward', 4, False), ('backward', 4, False)],
  )
  @pytest.mark.few(1)
  def test_weights_before_down_travel_home(
    self, direction, num_ranks, use_shared_memory
  ):
    # Without shared memory, as between machines, puts are MPI calls.
    config, policy, inputs = _layer(num_ranks, 'before_down')
    options = granularity.Options(event_grain='expert', **SIZES)
    layer_pass = passes.from_direction(direction)[0]
    compile_pass = compiler.COMPILE[layer_pass.direction]
    image = compile_pass(config, policy, options).image
    pass_inputs = {n: inputs[n] for n in arrays.INPUTS[layer_pass.direction]}
    expected = runtime.launch(image, pass_inputs, threads=1)
    if use_shared_memory:
      candidate = mpi_launcher.MpiMegakernel(options)
      actual = candidate.run(config, policy, inputs, layer_pass)
    else:
      actual = mpi_launcher.launch(image, pass_inputs, use_shared_memory=False)
    assert not testing.differing(actual, expected)


def _orphans() -> set[str]:
  """Returns the segments that no live process maps."""
  mapped_segments: set[str] = set()
  for entry in pathlib.Path('/proc').iterdir():
    if entry.name.isdigit():
      mapped_segments |= mpi_job.list_segments(int(entry.name))
  return {path.name for path in mpi_job.SHM.iterdir()} - mapped_segments


def _write(job, deadline_s, config=LAYERS[4], **options) -> None:
  image = testing.compile_layer(config, **SIZES)
  inputs = testing.make_inputs(LAYERS[4], precision.PrecisionPolicy())
  mpi_launcher.write_job(job, image, inputs, deadline_s, **options)


class Failing:
  """One launch of four ranks that must fail, and what it leaves behind."""

  def __init__(self, job: pathlib.Path):
    self.job = job

  def run(self, edit=lambda job: None, **options) -> mpi_launcher.RanksError:
    """Returns how it failed, having checked that nothing is left."""
    _write(self.job, DEADLINE_S, **options)
    edit(self.job)
    before = _orphans()
    with futures.ThreadPoolExecutor(1) as pool:
      run = pool.submit(mpi_launcher.run_job, self.job)
      with pytest.raises(mpi_launcher.RanksError) as error:
        run.result(timeout=HUNG_S)
    self.check_nothing_left(before)
    return error.value

  def check_nothing_left(self, before: set[str]) -> None:
    # A killed supervisor's keepers take their time, and others' segments may be
    # without a process for a moment.
    for _ in range(150):
      left = processes.find_pids(self.job), _orphans() - before
      if left == ([], set()):
        break
      time.sleep(0.1)
    marks = [mpi_job.read_mark(self.job, r, 'segments') for r in range(4)]
    own = {name for mark in marks if mark for name in mark['names']}
    assert not own & {path.name for path in mpi_job.SHM.iterdir()}
    assert left == ([], set())


@pytest.fixture(name='failing')
def fixture_failing(tmp_path):
  return Failing(tmp_path)


def _says(error: mpi_launcher.RanksError, rank: int, text: str) -> None:
  """Checks that the error and every other rank that started name the rank."""
  assert error.ranks == (rank,)
  assert text in str(error)
  other_endings = [ending for ending in error.endings if ending.rank != rank]
  assert len(other_endings) == 3
  for ending in other_endings:
    assert ending.outcome in ('error', 'stopped')
    assert ending.ranks == (rank,)
    assert f'rank {rank}' in ending.text


def _other_version(job: pathlib.Path) -> None:
  path = mpi_job.find_rank_folder(job, 2) / 'image.bin'
  image = bytearray(path.read_bytes())
  np.frombuffer(image, layout.HEADER, 1)['version'] += 1
  path.write_bytes(image_lib.seal(image))


def _other_image(job: pathlib.Path) -> None:
  path = mpi_job.find_rank_folder(job, 1) / 'image.bin'
  path.write_bytes(testing.compile_layer(LAYERS[4], row_block=8))


def _bad_input(job: pathlib.Path) -> None:
  path = mpi_job.find_rank_folder(job, 3) / 'inputs'
  inputs = tensor_transfer.load(path)
  x = inputs['x'].copy()
  x[5, 1] = np.nan
  tensor_transfer.save(path, inputs | dict(x=x))


_KILLED = 'was killed by signal 9'
_VERSION = f'expected the image version {layout.VERSION} of ranks 0, 1, 3'


@needs_mpi
class TestFailures:
  @pytest.mark.parametrize(
    ('rank', 'drill', 'edit', 'text'),
    [
      # At a put, when the others wait for it.
      (2, ('killed_at_put', 0), None, f'{_KILLED} while putting to rank'),
      (2, ('killed_at_put', 7), None, f'{_KILLED} while putting to rank'),
      # When the others are in MPI_Init, which waits for it without end: their
      # keepers end them.
      (1, ('killed_before_mpi', 0), None, _KILLED),
      (2, None, _other_version, _VERSION),
      (1, None, _other_image, 'expected the image crc32'),
      (3, None, _bad_input, 'x: expected finite values, got nan at (5, 1)'),
    ],
  )
  @pytest.mark.few(1)
  def test_each_rank_ends_with_an_error_that_names_it(
    self, failing, rank, drill, edit, text
  ):
    drills = {rank: drill} if drill else {}
    error = failing.run(edit or (lambda job: None), drills=drills)

    between = ' ' if drill else ': '
    _says(error, rank, f'rank {rank}{between}{text}')

  def test_never_starts(self, failing):
    error = failing.run(drills={3: ('never_starts', 0)})

    _says(error, 3, 'rank 3 did not start')
    assert all(
      f'within {DEADLINE_S:g} s' in ending.text for ending in error.endings
    )

  def test_shared_memory_too_small(self, failing):
    # Given room for MPI and the windows of two ranks, when four start, then
    # every one says who did not fit, before anything is allocated.
    room = int(2.5 * mpi_worker.MPI_BYTES)

    error = failing.run(shared_memory=room)

    _says(error, 2, 'rank 2: shared memory: expected ')
    assert f'bytes free in {mpi_job.SHM}' in str(error)
    assert not any(
      mpi_job.read_mark(failing.job, rank, 'segments')['names']
      for rank in range(4)
      if mpi_job.read_mark(failing.job, rank, 'segments')
    )

  @pytest.mark.parametrize(
    ('rank', 'drill'),
    [
      (1, ('stopped_at_put', 2)),
      (2, ('stopped_in_mpi', 10)),
      *(
        pytest.param(rank, ('stopped_in_mpi', wait), marks=pytest.mark.slow)
        for rank, wait in ((0, 0), (0, 10), (0, 30), (2, 0), (2, 30))
      ),
    ],
  )
  def test_stops_without_ending(self, failing, rank, drill):
    # Given a rank that is alive and does nothing, in a put or in MPI_Init, a
    # call that takes every rank, when the deadline is over, then its keeper
    # says so, and after a put the others name tasks of it.
    error = failing.run(drills={rank: drill})

    assert error.ranks == (rank,)
    assert f'rank {rank} did not go on' in str(error)
    if drill[0] == 'stopped_in_mpi':
      assert 'it was stopped while' in str(error)
      return
    for ending in error.endings:
      assert rank in ending.ranks
      assert ending.rank == rank or f'rank {rank}' in ending.text

  def test_a_keeper_is_killed(self, failing):
    # Given that mpiexec sees a process die and so ends all, when the supervisor
    # collects, then it still ends and sweeps up.
    error = failing.run(drills={1: ('keeper_killed_at_put', 2)})

    assert 1 in error.ranks
    assert 'without a word' in str(error) or 'rank 1' in str(error)

  def test_the_supervisor_is_killed(self, tmp_path):
    # Given a rank that stops and a supervisor that is killed, when nobody
    # waits any more, then the keepers end everything on their own.
    job = tmp_path
    _write(job, 1.0, drills={0: ('stopped_at_put', 2)})
    before = _orphans()
    text = (
      'import pathlib, sys; '
      'from hpmoe.parity_tests.ascend import mpi_launcher as m; '
      'm.run_job(pathlib.Path(sys.argv[1]))'
    )
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = subprocess.Popen(
      [sys.executable, '-c', text, str(job)],
      env=dict(os.environ, PYTHONPATH=path),
    )
    while not (job / 'rank0' / 'segments.json').exists():
      assert process.poll() is None
      time.sleep(0.01)
    process.kill()
    process.wait()

    Failing(job).check_nothing_left(before)


class TestWithoutMpi:
  def test_what_is_not_there_names_the_extra(self, monkeypatch):
    monkeypatch.setitem(sys.modules, 'mpi4py', None)
    monkeypatch.setattr(shutil, 'which', lambda *_, **__: None)
    for find in (mpi_transport.load_mpi, mpi_launcher.find_mpiexec):
      with pytest.raises(RuntimeError, match=r"'hyperparallel-moe\[mpi\]'"):
        find()

  def test_one_rank_too_many(self, tmp_path):
    with pytest.raises(ValueError, match='x: expected 2 slabs'):
      _write(tmp_path, DEADLINE_S, LAYERS[2])

  def test_memory_is_counted_by_machine(self):
    # Given two machines, when one of them is short, then its last rank is the
    # one that does not fit.
    def mark(host, free):
      return dict(host=host, need=10, free=free)

    marks = [mark('a', 20), mark('b', 19), mark('a', 25), mark('b', 30)]

    with pytest.raises(
      rank_runtime.RankError, match='rank 3: .* 10 bytes .* of b, got 9'
    ):
      mpi_worker.check_shared_memory(marks)
    mpi_worker.check_shared_memory(marks[:3])
