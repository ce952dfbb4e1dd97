r"""One rank of a case on several NPUs, under mpiexec, torchrun or msrun.

  mpiexec -n 16 python -m hpmoe.parity_tests.ascend.npus_main \
    --case=CASE --out=OUT --npus=out/ascend_npus

CASE is a folder of `hpmoe export`, or {case} of `hpmoe check --command`; each
rank reads its own part, launches it, and writes its own file to OUT, which
`hpmoe check --case=CASE --outputs=OUT` judges.  Without --npus the devices are
the twin, on one machine.

Exit codes: 0 done, 2 the request was wrong, 3 a rank failed, or the twin found
something; one line says what.
"""

import contextlib
import os
import pathlib
import sys

from absl import app
from absl import flags
import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.device.npus import comms
from hpmoe.backend_ascend.device.npus import npu_launch
from hpmoe.backend_ascend.device.standin import rehearsal
from hpmoe.backend_ascend.device.standin import serve
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.parity_tests.ascend import npus_candidate
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import tensors

_CASE = flags.DEFINE_string('case', None, 'Folder of the case.')
_OUT = flags.DEFINE_string('out', None, 'Folder to write to.')
_NPUS = flags.DEFINE_string(
  'npus', '', 'Folder that `make ascend-npus` filled; without, the twin.'
)
_AIC = flags.DEFINE_integer('aic', 24, 'Cube cores of an NPU.')
_AIV = flags.DEFINE_integer('aiv', 48, 'Vector cores of an NPU.')
_DEADLINE = flags.DEFINE_float('deadline', 60.0, 'Seconds of one wait.')
_START = flags.DEFINE_float('start_s', 120.0, 'Seconds for ranks to start.')

_FAILURE = 3


def _images(case: folder_lib.Folder, rank: int) -> dict:
  """Returns the images of each kind of data, by pass, and the rank's data."""
  options = granularity.Options(num_aic=_AIC.value, num_aiv=_AIV.value)
  parts = {}
  for data in case.data:
    share = case.share([rank], data)
    images = {
      layer_pass: compiler.COMPILE[layer_pass.direction](
        share.config, share.policy, options, target='ascend'
      ).image
      for layer_pass in passes.from_direction(case.direction)
    }
    parts[data] = (share.arrays, images)
  return parts


def _run(launch, share_arrays, images, rank: int) -> dict[str, np.ndarray]:
  """Returns the outputs of all passes; the backward reads the forward's."""
  outputs: dict[str, np.ndarray] = {}
  for image in images.values():
    unread = {'returned'} if image.policy.placement in tensors.EARLY else set()
    names = [n for n in arrays.INPUTS[image.direction] if n not in unread]
    inputs = {
      n: outputs[n]
      if n in outputs
      else np.ascontiguousarray(share_arrays[n][rank])
      for n in names
    }
    outputs |= launch.run(image, inputs)
  return outputs


def _devices(comm, stack: contextlib.ExitStack) -> tuple:
  """Returns the library, the kernel, and on rank 0 the twin's process."""
  if _NPUS.value:
    folder = pathlib.Path(_NPUS.value).absolute()
    return (
      folder / npus_candidate.LIBRARY,
      folder / npus_candidate.KERNEL,
      None,
    )
  twin = None
  if comm.rank == 0:
    twin = stack.enter_context(serve.DeviceServer(comm.num_ranks))
  board = comm.allgather(twin and twin.board)[0]
  os.environ['HPMOE_BOARD'] = board
  return rehearsal.Rehearsal.library, rehearsal.Rehearsal.kernel, twin


def run(case: folder_lib.Folder, comm) -> None:
  """Launches the rank's part of every kind of data, and writes it.

  Raises:
    ValueError, RuntimeError: as `npu_launch.Launch`.
  """
  if case.config.num_ranks != comm.num_ranks:
    raise ValueError(
      f'case: expected one of {comm.num_ranks} ranks, as many as there are '
      f'processes, got {case.config.num_ranks}'
    )
  parts = _images(case, comm.rank)
  case_tables = read_case.load(_CASE.value)
  with contextlib.ExitStack() as stack:
    library, kernel, twin = _devices(comm, stack)
    images = [
      image for _, by_pass in parts.values() for image in by_pass.values()
    ]
    with npu_launch.Launch(
      images,
      comm,
      library=library,
      kernel=kernel,
      device=comm.local_rank if _NPUS.value else None,
      deadline_s=_DEADLINE.value,
      start_s=_START.value,
      poison=True,
    ) as launch:
      for data, (share_arrays, by_pass) in parts.items():
        outputs = _run(launch, share_arrays, by_pass, comm.rank)
        read_case.write(_OUT.value, case_tables, data, outputs, comm.rank)
    comm.allgather(None)  # all have left the devices
    findings = twin.findings() if twin else []
  if findings:
    raise RuntimeError(findings[0])


def main(argv: list[str]) -> int:
  if len(argv) > 1 or not _CASE.value or not _OUT.value:
    print('npus_main: expected --case=CASE --out=OUT', file=sys.stderr)
    return 2
  comm = comms.find_comm()
  try:
    run(folder_lib.read(_CASE.value), comm)
  except (ValueError, RuntimeError) as error:
    print(f'npus_main: rank {comm.rank}: {error}', file=sys.stderr, flush=True)
    code = 2 if isinstance(error, ValueError) else _FAILURE
    if isinstance(comm, comms.MpiComm):
      comm.leave(code)
    return code
  return 0


if __name__ == '__main__':
  app.run(main)
