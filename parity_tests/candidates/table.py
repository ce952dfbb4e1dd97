"""Every kind of candidate: how it is asked for, and by which flags."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpmoe.parity_tests.candidates import backends
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.candidates import elsewhere
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.candidates import row as row_lib
from hpmoe.parity_tests.candidates import tasks
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import flag_tables

Row = row_lib.Row


def _names(flags: Sequence[flag_tables.Flag]) -> tuple[str, ...]:
  return tuple(flag.name for flag in flags)


_BACKEND = backends.load_backend()
# All that decide a candidate but how it is cut into tasks.
FLAGS: tuple[flag_tables.Flag, ...] = (
  *(checking.FLAGS if _BACKEND is None else _BACKEND.flags),
  *user_candidate.FLAGS,
  *elsewhere.FLAGS,
  *outputs.FLAGS,
)
DEFAULT = backends.default_row()
_USER_ROWS = (
  Row(
    elsewhere.Interpreter,
    'python',
    None,
    (*tasks.TILES, 'python', 'candidate', 'names', 'layout', 'timeout'),
    'another Python calls the function',
    'INTERPRETER',
  ),
  Row(
    elsewhere.Program,
    'command',
    None,
    (*tasks.TILES, 'command', 'per_rank', 'names', 'layout', 'timeout'),
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
)
# The first that is asked for is the kind.
ROWS = (
  *(_BACKEND.rows if _BACKEND else ()),
  *_USER_ROWS,
  *(_BACKEND.last_rows if _BACKEND else ()),
  DEFAULT,
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
