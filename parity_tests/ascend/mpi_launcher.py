"""Runs a layer with each rank in a process of its own, under mpiexec.

`MpiMegakernel` is a candidate like `host.Megakernel`: same images, same
bits.  `run_job` supervises one launch: whatever happens to a rank, it returns
in bounded time and leaves no process, no segment and no folder behind.
"""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import ClassVar, Self

import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.host.load import expert_placement as placement_lib
from hpmoe.backend_ascend.host.ranks import rank_runtime
from hpmoe.parity_tests.ascend import failures
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import mpi_job
from hpmoe.parity_tests.ascend import mpi_worker
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import processes
from hpmoe.parity_tests.candidates import tensor_transfer
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import option_fields

Tensors = Mapping[str, np.ndarray]

_POLL_S = 0.05
_STDERR_CHARS = 2000


class RanksError(candidates.CandidateError):
  """A launch in several processes ended early.

  Attributes:
    endings: how each rank that started ended.
    ranks: the ranks at fault, as far as known.
  """

  def __init__(self, text: str, endings=(), ranks=()):
    super().__init__(text)
    self.endings: tuple[mpi_job.Ending, ...] = tuple(endings)
    self.ranks: tuple[int, ...] = tuple(ranks)


def find_mpiexec() -> str:
  """Returns the path of MPICH's process manager.

  The one beside the interpreter wins: it comes from the same wheel as the
  library that mpi4py loads.  Open MPI's wheel brings another `mpiexec`.

  Raises:
    candidates.CandidateError: there is none.
  """
  beside = str(pathlib.Path(sys.executable).parent)
  for path in (beside, os.environ.get('PATH', '')):
    mpiexec = shutil.which('mpiexec.hydra', path=path)
    if mpiexec:
      return mpiexec
  raise candidates.CandidateError(
    'mpi: expected mpiexec.hydra, as the extra '
    "'hyperparallel-moe[mpi]' installs it, got none"
  )


def write_job(
  job: pathlib.Path,
  image,
  inputs: Tensors,
  deadline_s: float,
  shared_memory: int | None = None,
  drills: Mapping[int, tuple[str, int]] | None = None,
  use_shared_memory: bool = True,
) -> None:
  """Fills a job's folder.

  Args:
    job: an empty folder that every rank's machine sees.
    image: the blob.
    inputs: `[R, ...]` by name, as `runtime.launch` takes them.
    deadline_s: seconds without progress after which a rank gives up.
    shared_memory: bytes that the job may take on a machine, if less than there
      are; None means what is free.
    drills: how ranks are to fail; see `mpi_drills`.
    use_shared_memory: whether ranks of one machine write into each other's
      memory; otherwise, and between machines, each put is an MPI call.
  """
  num_ranks = image_lib.load(image).config.num_ranks
  for name, value in inputs.items():
    if np.ndim(value) < 1 or len(value) != num_ranks:
      raise ValueError(
        f'{name}: expected {num_ranks} slabs, one for each rank, got shape '
        f'{np.shape(value)}'
      )
  request = dict(
    num_ranks=num_ranks,
    deadline_s=deadline_s,
    shared_memory=shared_memory,
    drills={str(rank): drill for rank, drill in (drills or {}).items()},
    use_shared_memory=use_shared_memory,
  )
  (job / 'request.json').write_text(json.dumps(request))
  for rank in range(num_ranks):
    rank_folder = mpi_job.find_rank_folder(job, rank)
    rank_folder.mkdir()
    (rank_folder / 'image.bin').write_bytes(bytes(image))
    tensor_transfer.save(
      rank_folder / 'inputs',
      {n: np.ascontiguousarray(a[rank]) for n, a in inputs.items()},
    )


def _command(job: pathlib.Path, num_ranks: int) -> list[str]:
  # `fork` is for this machine: no name is resolved and no shell is run.
  return [
    find_mpiexec(),
    '-launcher',
    'fork',
    '-disable-auto-cleanup',
    '-n',
    str(num_ranks),
    sys.executable,
    '-m',
    'hpmoe.parity_tests.ascend.mpi_worker',
    str(job),
  ]


def _environment(job: pathlib.Path) -> dict[str, str]:
  return dict(
    os.environ,
    PYTHONPATH=os.pathsep.join(path or os.getcwd() for path in sys.path),
    **processes.mark(job),
  )


def _sweep_segments(job: pathlib.Path, num_ranks: int) -> None:
  """Removes the segments of ranks whose keepers were killed."""
  for rank in range(num_ranks):
    mark = mpi_job.read_mark(job, rank, 'segments') or {}
    mpi_job.remove_segments(set(mark.get('names', ())))


def _signs(job: pathlib.Path, num_ranks: int) -> list[int]:
  """Returns stamps that change while any keeper lives."""
  folders = [mpi_job.find_rank_folder(job, rank) for rank in range(num_ranks)]
  return [path.stat().st_mtime_ns for path in folders]


def _stop(process: subprocess.Popen) -> None:
  """Ends mpiexec, which ends its processes first, and then what is left."""
  for signal_number in (signal.SIGTERM, signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
      os.killpg(process.pid, signal_number)
      process.wait(mpi_worker.GRACE_S)


def _has_running_rank(job: pathlib.Path, num_ranks: int) -> bool:
  """Returns whether a rank has yet to end, or to start."""
  marks = [
    (mpi_job.read_mark(job, r, 'started'), mpi_job.read_mark(job, r, 'ended'))
    for r in range(num_ranks)
  ]
  end_marks = [end_mark for start_mark, end_mark in marks if start_mark]
  return not end_marks or None in end_marks


def _wait(process, job: pathlib.Path, num_ranks: int, deadline_s) -> None:
  """Waits until mpiexec ends, or no rank makes progress."""
  silence = mpi_job.Patience(deadline_s + 2 * mpi_worker.GRACE_S)
  # Keepers wait longer for a rank that never starts: they cannot know.
  rest = mpi_job.Patience(mpi_worker.GRACE_S)
  while True:
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_POLL_S)
      return
    mpi_job.touch_supervisor(job)
    signs = _signs(job, num_ranks)
    if silence.has_run_out(signs):
      return
    if rest.has_run_out(signs if _has_running_rank(job, num_ranks) else None):
      return


def run_job(job: pathlib.Path) -> dict[str, np.ndarray]:
  """Runs a job that `write_job` has written, on this machine.

  Returns:
    As `runtime.launch`: `[R, ...]` by name.

  Raises:
    RanksError: a rank was lost or could not take part; it names the rank.
    candidates.CandidateError: there is no mpiexec.
  """
  request = mpi_job.read_request(job)
  num_ranks = request['num_ranks']
  mpi_job.touch_supervisor(job)
  with open(job / 'output.txt', 'w+', encoding='utf-8') as output:
    process = subprocess.Popen(
      _command(job, num_ranks),
      env=_environment(job),
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=output,
      start_new_session=True,
    )
    try:
      _wait(process, job, num_ranks, request['deadline_s'])
    finally:
      _stop(process)
      processes.end(job)
      _sweep_segments(job, num_ranks)
  return read_job(job)


def read_job(job: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the outputs of a job that has ended, on this machine or others.

  Returns:
    As `run_job`.

  Raises:
    RanksError: a rank was lost or could not take part; it names the rank.
  """
  num_ranks = mpi_job.read_request(job)['num_ranks']
  endings = mpi_job.read_endings(job, num_ranks)
  if len(endings) < num_ranks or mpi_job.find_causes(endings):
    raise _error(job, num_ranks, endings)
  slabs = [
    tensor_transfer.load(mpi_job.find_rank_folder(job, rank) / 'outputs')
    for rank in range(num_ranks)
  ]
  return {name: np.stack([slab[name] for slab in slabs]) for name in slabs[0]}


def _error(job: pathlib.Path, num_ranks: int, endings) -> RanksError:
  """Says which rank is at fault; how the others ended is in `endings`."""
  silent = sorted(set(range(num_ranks)) - {ending.rank for ending in endings})
  if silent:
    start_marks = [mpi_job.read_mark(job, rank, 'started') for rank in silent]
    reason = 'ended without a word' if all(start_marks) else 'did not start'
    text = f'{rank_runtime.name_ranks(silent)} {reason}'
    ranks: tuple[int, ...] = tuple(silent)
  else:
    text, ranks, endings = mpi_job.explain_endings(endings)
  if len(silent) == num_ranks:
    text += ': ' + (job / 'output.txt').read_text()[-_STDERR_CHARS:]
  return RanksError(f'mpi: {text}', endings, ranks)


def launch(
  image, inputs: Tensors, *, deadline_s: float = 60.0, **options
) -> dict[str, np.ndarray]:
  """Executes the image with each rank in a process of its own.

  Args:
    image: as in `runtime.launch`; as many processes as it has ranks.
    inputs: as in `runtime.launch`.
    deadline_s: seconds without progress after which a rank gives up.
    **options: of `write_job`.

  Returns:
    What `runtime.launch` returns, bit for bit.

  Raises:
    ValueError: routing exceeds the image's capacity, or is none.
    RanksError: a rank was lost or could not take part.
  """
  image = image_lib.load(image)
  runtime.route(image, inputs['topk_ids'])
  with tempfile.TemporaryDirectory(prefix='hpmoe-ranks-') as folder:
    job = pathlib.Path(folder)
    write_job(job, image, inputs, deadline_s, **options)
    return run_job(job)


@dataclasses.dataclass(frozen=True)
class MpiMegakernel(candidates.Candidate):
  """Our own backend, each rank in a process of its own.

  Attributes:
    options: granularity and cores.
    deadline_s: seconds without progress that end a launch.
    name: its name in reports.
    expert_placement: as in `host.Megakernel`.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    relays=True, forms=layout.QUANTISED[1:]
  )
  options: granularity.Options = granularity.Options()
  deadline_s: float = option_fields.share(host.Megakernel, 'deadline_s')
  name: str = 'backend_ascend/mpi'
  expert_placement: str = option_fields.share(
    host.Megakernel, 'expert_placement'
  )

  def ready(self, case, beside='') -> Self:
    """See `candidates.Candidate`."""
    find_mpiexec()
    host.require_placeable(case, self.options, self.expert_placement)
    return super().ready(case, beside)

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    """See `candidates.Candidate`."""
    del oracle_tensors  # It does not replay.
    view = placement_lib.view_layer(
      self.expert_placement, config, inputs['topk_ids']
    )
    with failures.report_failures(self.name, view):
      image = compiler.COMPILE[layer_pass.direction](
        view.config, policy, self.options
      ).image
      names = arrays.inputs_of(image)
      pass_inputs = {n: np.asarray(inputs[n]) for n in names if n in inputs}
      layer = view.place(pass_inputs)
      outputs = launch(image, layer, deadline_s=self.deadline_s)
      plan = runtime.route(image, layer['topk_ids'])
      return view.restore(host.decode_sums(image, plan, layer, outputs))

  @property
  def serial(self) -> Callable[..., dict[str, np.ndarray]] | None:
    """As `host.Megakernel.serial`."""
    return host.Megakernel(
      self.options, expert_placement=self.expert_placement
    ).serial
