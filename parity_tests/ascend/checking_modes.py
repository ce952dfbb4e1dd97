"""The modes of a launch that a check asks for."""

import re

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.parity_tests.candidates import checking as checking_lib

Action = modes_lib.Action
_FIELDS = ('rank', 'expert', 'row_block', 'col_block')
_FORM = "its number, or such as 'gate_up rank=1 expert=3 row_block=0'"


def build_modes(
  checking: checking_lib.Checking, image: image_lib.Image, oracle_tensors=None
) -> modes_lib.Modes:
  """Returns the modes of a launch.

  Args:
    checking: what the check asks for.
    image: what is launched.
    oracle_tensors: by name, for tasks that read them instead of their inputs;
      needed if `checking` replays.

  Raises:
    ValueError: start_at or stop_after names no task of the image, or several.
  """
  names = runtime.list_written_tensors(image) if checking.replays else ()
  # Where a kernel writes does not depend on the data: real data show it too.
  guards = image.policy.activation != 'absolute'
  return modes_lib.Modes(
    poison=checking.poison,
    permute=checking.permute,
    late_puts=checking.late_puts,
    # In isolation a task that runs too early would pass for a wrong value.
    races=checking.races is not False or checking.isolate,
    guards=guards if checking.races is None else checking.races,
    actions=_build_actions(checking, image) if checking.replays else None,
    heal_with={n: oracle_tensors[n] for n in names}
    if checking.replays
    else None,
  )


def _build_actions(
  checking: checking_lib.Checking, image: image_lib.Image
) -> np.ndarray:
  num_tasks = len(image.tables['tasks'])
  runs = np.ones(num_tasks, bool)
  if checking.is_part:
    clocks = happens_before.compute_clocks(image)
    everyone = np.arange(num_tasks)
  if checking.start_at is not None:
    first = find_task(image, 'start_at', checking.start_at)
    runs &= ~clocks.before(everyone, first)
  if checking.stop_after is not None:
    last = find_task(image, 'stop_after', checking.stop_after)
    runs &= clocks.before(everyone, last) | (everyone == last)
    if not runs[last]:
      raise ValueError(
        f'stop_after: expected a task that is not done before start_at '
        f'starts, got {runtime.task_name(image, last)}'
      )
  run_action = modes_lib.ISOLATED if checking.isolate else Action.RUN
  return np.where(runs, run_action, Action.HEAL).astype(np.uint8)


def find_task(image: image_lib.Image, argument: str, text: str) -> int:
  """Returns the index of the only task that a text names.

  Raises:
    ValueError: the text names no task, or several; starts with `argument`.
  """
  tasks = image.tables['tasks']
  if text.isdecimal():
    matches = np.arange(len(tasks)) == int(text)
  else:
    matches = _match_tasks(tasks, argument, text)
  indices = np.flatnonzero(matches)
  if len(indices) == 1:
    return int(indices[0])
  examples = '; '.join(
    str(runtime.task_name(image, int(i))) for i in indices[:3]
  )
  raise ValueError(
    f'{argument}: expected one task of {len(tasks)}, got {len(indices)} for '
    f'{text!r}{": " if examples else ""}{examples}'
  )


def _match_tasks(tasks: np.ndarray, argument: str, text: str) -> np.ndarray:
  kind, *fields = re.split(r'[\s,]+', text.strip())
  if kind.upper() not in layout.Kind.__members__:
    kinds = [layout.Kind(k).name.lower() for k in np.unique(tasks['kind'])]
    raise ValueError(
      f'{argument}: expected a task, {_FORM}, got {text!r}; kinds are '
      f'{", ".join(kinds)}'
    )
  matches = tasks['kind'] == layout.Kind[kind.upper()]
  for field in fields:
    name, _, value = field.partition('=')
    if name not in _FIELDS or not value.lstrip('-').isdecimal():
      raise ValueError(
        f'{argument}: expected {", ".join(_FIELDS)} and their numbers after '
        f'a kind, got {field!r}'
      )
    matches &= tasks[name] == int(value)
  return matches
