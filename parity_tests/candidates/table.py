"""Every kind of candidate: how it is asked for, and by which flags."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.candidates import elsewhere
from hpmoe.parity_tests.candidates import front_end
from hpmoe.parity_tests.candidates import host
from hpmoe.parity_tests.candidates import mpi_launcher
from hpmoe.parity_tests.candidates import npus_candidate
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.candidates import tasks
from hpmoe.parity_tests.candidates import twin_candidate
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import flag as flag_lib

# Which of our backends, and whether its ranks share a process.
CHOICES = flag_lib.table(
  'backends',
  backend=dict(choices=('host', twin_candidate.NAME, npus_candidate.NAME)),
)
# Of commands that plant faults or launch very often.
IN_PROCESS = dataclasses.replace(
  CHOICES[0], choices=('host', twin_candidate.NAME)
)
# All that decide a candidate but how it is cut into tasks.
FLAGS = (
  *CHOICES,
  *host.FLAGS,
  *checking.FLAGS,
  *twin_candidate.FLAGS,
  *npus_candidate.FLAGS,
  *front_end.FLAGS,
  *user_candidate.FLAGS,
  *elsewhere.FLAGS,
  *outputs.FLAGS,
)


def _names(flags: Sequence[flag_lib.Flag]) -> tuple[str, ...]:
  return tuple(flag.name for flag in flags)


_TASKS = _names(tasks.FLAGS)


@dataclasses.dataclass(frozen=True)
class Row:
  """One kind of candidate.

  Attributes:
    kind: its class.
    flag: that asks for it; None: nothing does, it is the one by default.
    value: of that flag; None: any.
    flags: that it understands; others are refused.
    why: what it is, for who gives it others.
    example: of a value, where any will do.
  """

  kind: type[candidates.Candidate]
  flag: str | None
  value: str | None
  flags: tuple[str, ...]
  why: str
  example: str = 'pkg.module:function'

  @property
  def head(self) -> str:
    """What a list of flags calls it."""
    return self.option if self.flag else 'our backend on the host'

  def typed(self, given: Mapping[str, Any]) -> str:
    """Returns how flags asked for it, '' where none did."""
    return f'--{self.flag}={given[self.flag]}' if self.flag else ''

  @property
  def option(self) -> str:
    """How one asks for it."""
    return f'--{self.flag}={self.value or self.example}'

  def is_asked(self, given: Mapping[str, Any]) -> bool:
    """Says whether flags ask for it."""
    if self.flag is None:
      return True
    return self.flag in given and self.value in (None, given[self.flag])

  def make(self, fields: Mapping[str, Any]) -> candidates.Candidate:
    """Returns the candidate of those fields that it has."""
    mine = {f.name for f in dataclasses.fields(self.kind) if f.init}
    return self.kind(**{n: v for n, v in fields.items() if n in mine})


HOST = Row(
  host.Megakernel,
  None,
  None,
  (*_TASKS, *_names(checking.FLAGS), *_names(host.FLAGS)),
  'all ranks are in one process of the host',
)
# The first that is asked for is it.
ROWS = (
  Row(
    twin_candidate.Twin,
    'backend',
    twin_candidate.NAME,
    (*_TASKS, *_names(twin_candidate.FLAGS), 'backend', 'deadline', 'fault'),
    "the twin runs the device's source, all ranks in one process and thread",
  ),
  Row(
    npus_candidate.Npus,
    'backend',
    npus_candidate.NAME,
    (
      *_TASKS,
      *_names(twin_candidate.FLAGS),
      *_names(npus_candidate.FLAGS),
      'backend',
      'deadline',
    ),
    'each rank is a process with an NPU, or its twin',
  ),
  *(
    Row(
      front_end.FrontEnd,
      'frontend',
      name,
      (*_TASKS, 'frontend', 'threads', 'deadline', *more),
      "it calls our backend as a framework's users do",
    )
    for name, more in (('jax', ()), ('mindspore', ('device',)))
  ),
  Row(
    elsewhere.Interpreter,
    'python',
    None,
    (*tasks.TILES, 'python', 'candidate', 'names', 'timeout'),
    'another Python calls the function',
    'INTERPRETER',
  ),
  Row(
    elsewhere.Program,
    'command',
    None,
    (*tasks.TILES, 'command', 'per_rank', 'names', 'timeout'),
    'a program computes the layer',
    "'./moe {case} {out}'",
  ),
  Row(
    user_candidate.Subprocess,
    'candidate',
    None,
    (
      *tasks.TILES,
      *_names(user_candidate.FLAGS),
      *user_candidate.Subprocess.can.modes,
    ),
    'tasks, workers and faults are of our own backend',
  ),
  Row(
    outputs.Outputs,
    'outputs',
    None,
    (*tasks.TILES, *_names(outputs.FLAGS), 'timeout'),
    'it ran elsewhere',
    'FOLDER',
  ),
  Row(
    mpi_launcher.MpiMegakernel,
    'launcher',
    'mpi',
    (*_TASKS, 'launcher', 'deadline'),
    'there each rank is a process with one thread',
  ),
  HOST,
)


def find(given: Mapping[str, Any], rows: Sequence[Row] = ROWS) -> Row:
  """Returns the kind that flags ask for.

  Args:
    given: flags that are not as by default, by name.
    rows: kinds to choose from.

  Raises:
    ValueError: a flag that was given is of other kinds; names it.
  """
  row = next(one for one in rows if one.is_asked(given))
  for name, value in given.items():
    others = [one for one in rows if name in one.flags]
    if name in row.flags or not others:
      continue
    if row.flag is None:
      needed = ' or '.join(one.option for one in others)
      raise ValueError(f'{name}: expected {needed} beside it, got {value}')
    raise ValueError(
      f'{name}: expected none with {row.typed(given)}, got {value}: {row.why}'
    )
  return row
