"""The most memory that a process has held for a while; Linux tells it."""

import ctypes
import gc
import pathlib


def held(field: str = 'VmRSS') -> int:
  """Returns bytes of this process: now, or at most (VmHWM).

  Raises:
    OSError: the system does not tell.
  """
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith(field):
      return int(line.split()[1]) * 1024
  raise OSError(f'{field}: expected it in /proc/self/status')


class Peak:
  """What was held at most while the context was open, beside what was before.

  Freed memory goes back to the system first: else it would be taken unseen.

  Attributes:
    bytes: so many more than before.
  """

  def __enter__(self):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    self._before = held()
    pathlib.Path('/proc/self/clear_refs').write_text('5')  # VmHWM starts anew
    return self

  def __exit__(self, *unused):
    self.bytes = held('VmHWM') - self._before
