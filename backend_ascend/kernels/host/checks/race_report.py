"""Races as the native part reports them, with names and words."""

from hpmoe.backend_ascend.kernels.host.checks import modes
from hpmoe.backend_ascend.kernels.host.launch import task_names
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout

_KINDS = ('write-read', 'read-write', 'write-write')
# By the native part's number; {first}, {second}, {event}, {threshold}, {total}.
_MISSING = (
  'no event orders {first} and {second}',
  '{second} does not wait for event {event}, which {first} signals',
  '{first} signals event {event}, for which {second} waits, before it has '
  'done its work',
  '{second} runs before it waits for event {event}, which {first} signals',
  '{second} waits for event {event} only until {threshold} of {total}: it '
  'may start before {first} has signalled',
  '{first} does not signal event {event}, for which {second} waits',
)
_BLAMES_FIRST = (2, 5)


def race(
  image: image_lib.Image,
  first: int,
  second: int,
  kind: int,
  buffer: int,
  box: tuple[int, int, int, int, int],
  why: tuple[int, int, int, int],
) -> modes.Race:
  """Returns a race in words.

  Args:
    image: the parsed image.
    first: task index.
    second: task index.
    kind: index into `_KINDS`.
    buffer: of `layout.Buffer`.
    box: (rank, row begin, row end, column begin, column end).
    why: (index into `_MISSING`, event, threshold, total).
  """
  names = [task_names.task_name(image, task) for task in (first, second)]
  number, event, threshold, total = why
  rank, *rows_cols = box
  return modes.Race(
    first=names[0],
    second=names[1],
    tensor=layout.Buffer(buffer).name.lower(),
    rank=rank,
    rows=(rows_cols[0], rows_cols[1]),
    cols=(rows_cols[2], rows_cols[3]),
    kind=_KINDS[kind],
    missing=_MISSING[number].format(
      first=names[0],
      second=names[1],
      event=event,
      threshold=threshold,
      total=total,
    ),
    blame=names[0] if number in _BLAMES_FIRST else names[1],
  )
