"""The candidates of the Ascend backend, for the judge.

The distribution offers `BACKEND` as an entry point of `hpmoe.backends`.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

from hpmoe.backend_ascend.compiler.orders import schedule_file
from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.parity_tests.ascend import front_end
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import mpi_launcher
from hpmoe.parity_tests.ascend import npus_candidate
from hpmoe.parity_tests.ascend import twin_candidate
from hpmoe.parity_tests.candidates import candidate_kind as row_lib
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.candidates import tiling_fields
from hpmoe.parity_tests.commands import cli
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
  """The backend, and whether its ranks share a process."""

  backend: str = option_fields.option(
    'host',
    "What runs the image: `host`: the host's kernels; `ascend_twin`: the "
    'device source on the twin (docs/twin.md); `ascend_npus`: a process '
    'for each rank, on NPUs or on the twin (docs/on_an_npu.md).',
    choices=('host', twin_candidate.NAME, npus_candidate.NAME),
  )
  launcher: str = option_fields.option(
    'threads',
    '`mpi` runs each rank of the megakernel in its own process, with MPI-3 '
    'one-sided communication; see docs/frontends.md.',
    choices=('threads', 'mpi'),
  )


# For commands that plant faults or launch very often.
IN_PROCESS = option_fields.list_options(LaunchOptions)[0].replace(
  choices=('host', twin_candidate.NAME)
)


def _names(flags: Sequence[option_fields.Option]) -> tuple[str, ...]:
  return tuple(flag.name for flag in flags)


def _read_twin_modes(f: Any) -> dict[str, Any]:
  """Returns the modes of the twin, from all flags.

  Raises:
    cli.UsageError: a flag is set that would have no effect.
  """
  if 'twin_mode' not in f:
    return {}
  if f['twin_seed'].present and f.twin_mode != 'seeded':
    raise cli.UsageError(
      f'twin_seed: expected --twin_mode=seeded with it, got {f.twin_mode}'
    )
  modes = twin_runtime.Modes(**cli.fields(f, twin_candidate.FLAGS))
  return dict(twin=modes)


_TASKS = _names(tiling_fields.FLAGS)
# Flags of launches that no framework makes.
_IMAGE = (*_TASKS, *_names(host.PLACEMENT))

_ROWS = (
  row_lib.Row(
    twin_candidate.Twin,
    'backend',
    twin_candidate.NAME,
    (*_IMAGE, *_names(twin_candidate.FLAGS), 'backend', 'deadline', 'fault'),
    "the twin runs the device's source, all ranks in one process and thread",
    read_fields=_read_twin_modes,
  ),
  row_lib.Row(
    npus_candidate.Npus,
    'backend',
    npus_candidate.NAME,
    (
      *_IMAGE,
      *_names(twin_candidate.FLAGS),
      'npus',
      'backend',
      'deadline',
    ),
    'each rank is a process with an NPU, or its twin',
    read_fields=_read_twin_modes,
  ),
  *(
    row_lib.Row(
      front_end.FrontEnd,
      'frontend',
      name,
      (*_TASKS, 'frontend', 'threads', 'deadline', *extra_flags),
      "it calls the megakernel as a framework's users do",
    )
    for name, extra_flags in (('jax', ()), ('mindspore', ('device',)))
  ),
)
_MPI = row_lib.Row(
  mpi_launcher.MpiMegakernel,
  'launcher',
  'mpi',
  (*_IMAGE, 'launcher', 'deadline'),
  'there each rank is a process with one thread',
)
HOST = row_lib.Row(
  host.Megakernel,
  None,
  None,
  (*_IMAGE, *_names(checking.FLAGS), *_names(host.FLAGS)),
  'all ranks are in one process of the host',
)

BACKEND = row_lib.Backend(
  rows=_ROWS,
  last_rows=(_MPI,),
  default=HOST,
  flags=option_fields.list_options(
    LaunchOptions,
    host.Megakernel,
    checking.Checking,
    twin_runtime.Modes,
    npus_candidate.Npus,
    front_end.FrontEnd,
  ),
  failures=(proofs.ProofError, runtime.BrokenError, runtime.WaitError),
  find_launch_error=layer_call.launch_error,
  find_fault_names=lambda direction: tuple(faults.specs(direction)),
  read_schedule=schedule_file.load_options,
)
