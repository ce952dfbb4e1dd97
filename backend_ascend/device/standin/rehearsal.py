"""NPUs that are the twin: ranks in other processes launch on them.

A `Rehearsal` is a file that the ranks' processes map as their devices' memory,
and a thread of this process that runs what they launch.
"""

import pathlib
import tempfile
import threading
from typing import Self

from hpmoe.backend_ascend.device.twin_launch import _ascend_twin

# Seconds between two looks of the thread at whether it is to end.
_LOOK_S = 0.05


class Rehearsal:
  """Devices 0 to R - 1.

  Attributes:
    library: the host program, over stand-ins of ACL and SHMEM.
    kernel: the file that it loads as kernel: any, since the twin has its own.
    environment: variables by which the stand-ins find the devices.
    ran: the ranks of each launch.
    reports: the twin's report of each launch.
  """

  library = pathlib.Path(_ascend_twin.__file__).parent / 'libhpmoe_npus_twin.so'
  kernel = library

  def __init__(
    self, num_ranks: int, options: _ascend_twin.Options | None = None
  ):
    """Makes the devices.

    Args:
      num_ranks: R.
      options: the twin's.
    """
    self._folder = tempfile.TemporaryDirectory(prefix='hpmoe-npus-')
    path = pathlib.Path(self._folder.name, 'board')
    self._board = _ascend_twin.Board(str(path), num_ranks)
    self._options = options or _ascend_twin.Options()
    self.environment = {'HPMOE_BOARD': str(path)}
    self.ran: list[list[int]] = []
    self.reports: list[_ascend_twin.Report] = []
    self._ends = threading.Event()
    self._thread = threading.Thread(target=self._serve, daemon=True)
    self._thread.start()

  def _serve(self) -> None:
    while not self._ends.is_set():
      ran, report = self._board.serve(self._options, _LOOK_S)
      if ran:
        self.ran.append(ran)
        self.reports.append(report)

  def close(self) -> None:
    """Ends the devices, once no rank uses them."""
    self._ends.set()
    self._thread.join()
    del self._board
    self._folder.cleanup()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error) -> None:
    self.close()
