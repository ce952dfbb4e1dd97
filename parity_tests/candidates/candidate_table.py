"""Every kind of candidate, and its flags."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpmoe.parity_tests.candidates import backends
from hpmoe.parity_tests.candidates import candidate_kind as row_lib
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.candidates import external_program
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.candidates import tiling_fields
from hpmoe.reference.contract import option_fields

Row = row_lib.Row


def _names(kind: type) -> tuple[str, ...]:
  return tuple(row.name for row in option_fields.list_options(kind))


_BACKEND = backends.load_backend()
# All flags of candidates but those of tiles and tasks.
FLAGS: tuple[option_fields.Option, ...] = (
  *(checking.FLAGS if _BACKEND is None else _BACKEND.flags),
  *option_fields.list_options(
    function_candidate.Subprocess,
    external_program.Program,
    external_program.Interpreter,
    outputs.Outputs,
  ),
)
DEFAULT = backends.default_row()
_USER_ROWS = (
  Row(
    external_program.Interpreter,
    'python',
    None,
    (*tiling_fields.TILES, 'python', 'candidate', 'names', 'layout', 'timeout'),
    'another Python calls the function',
    'INTERPRETER',
  ),
  Row(
    external_program.Program,
    'command',
    None,
    (*tiling_fields.TILES, 'command', 'per_rank', 'names', 'layout', 'timeout'),
    'a program computes the layer',
    "'./moe {case} {out}'",
  ),
  Row(
    function_candidate.Subprocess,
    'candidate',
    None,
    (
      *tiling_fields.TILES,
      *_names(function_candidate.Subprocess),
      *function_candidate.Subprocess.capabilities.modes,
    ),
    'tasks, workers and faults are of our own backend',
  ),
  Row(
    outputs.Outputs,
    'outputs',
    None,
    (*tiling_fields.TILES, *_names(outputs.Outputs), 'timeout'),
    'it ran elsewhere',
    'FOLDER',
  ),
)
# The first row whose flag is set is the kind.
ROWS = (
  *(_BACKEND.rows if _BACKEND else ()),
  *_USER_ROWS,
  *(_BACKEND.last_rows if _BACKEND else ()),
  DEFAULT,
)


def find(flag_values: Mapping[str, Any], rows: Sequence[Row] = ROWS) -> Row:
  """Returns the kind that flags ask for.

  Args:
    flag_values: flags whose value is not the default, by name.
    rows: kinds to choose from.

  Raises:
    ValueError: a flag belongs to other kinds; names it.
  """
  row = next(kind for kind in rows if kind.is_asked(flag_values))
  for name, value in flag_values.items():
    accepting_rows = [kind for kind in rows if name in kind.flags]
    if name in row.flags or not accepting_rows:
      continue
    raise ValueError(_refuse(name, value, row, accepting_rows, flag_values))
  return row


def _refuse(
  name: str,
  value: Any,
  row: Row,
  accepting_rows: Sequence[Row],
  flag_values: Mapping[str, Any],
) -> str:
  """Returns why a kind of candidate does not have a flag of others."""
  typed = row.format_flag(flag_values)
  if any(kind.flag == name for kind in accepting_rows):
    words = 'a check has one candidate' if row in _USER_ROWS else ''
    words = words or row.description
    return f'{name}: expected none with {typed}, got {value}: {words}'
  user_rows = [kind for kind in accepting_rows if kind in _USER_ROWS]
  if not typed or user_rows:
    options = ' or '.join(kind.option for kind in user_rows or accepting_rows)
    beside = f' with {typed}' if typed else ''
    return f'{name}: expected {options} with it, got {value}{beside}'
  return f'{name}: expected none with {typed}, got {value}: {row.description}'
