"""Races as the native part reports them, with names and words."""

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import modes
from hpmoe.backend_ascend.host.load import task_names

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


def race(image: image_lib.Image, native_race: _native.Race) -> modes.Race:
  """Returns a race in words."""
  first, second = (
    task_names.task_name(image, task)
    for task in (native_race.first, native_race.second)
  )
  return modes.Race(
    first=first,
    second=second,
    tensor=layout.Buffer(native_race.buffer).name.lower(),
    rank=native_race.rank,
    rows=(native_race.row_begin, native_race.row_end),
    cols=(native_race.col_begin, native_race.col_end),
    kind=_KINDS[native_race.kind],
    missing=_MISSING[native_race.missing].format(
      first=first,
      second=second,
      event=native_race.event,
      threshold=native_race.threshold,
      total=native_race.total,
    ),
    blame=first if native_race.missing in _BLAMES_FIRST else second,
  )
