"""Devices of a rehearsal as a process of their own.

    python -m hpmoe.backend_ascend.device.standin.serve RANKS

Prints the board's path, serves until its input ends, then prints the twin's
findings, a line each.
"""

import signal
import subprocess
import sys
from typing import Self

from hpmoe.backend_ascend.device.standin import rehearsal

_PATIENCE_S = 10.0


class DeviceServer:
  """A process that serves devices, for the process that starts it.

  Attributes:
    board: path of the board.
  """

  def __init__(self, num_ranks: int):
    self._process = subprocess.Popen(
      [sys.executable, '-m', __name__, str(num_ranks)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    assert self._process.stdout is not None
    self.board = self._process.stdout.readline().strip()

  def findings(self) -> list[str]:
    """Ends the process, once no rank uses it; returns the twin's findings."""
    output, _ = self._process.communicate()
    return output.splitlines()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error) -> None:
    # When its input ends, it removes its files.
    if self._process.stdin and not self._process.stdin.closed:
      self._process.stdin.close()
    try:
      self._process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()


def main(num_ranks: int) -> None:
  """Serves until its input ends; signals do not end it before."""
  for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signal_number, signal.SIG_IGN)
  with rehearsal.Rehearsal(num_ranks) as twin:
    print(twin.environment['HPMOE_BOARD'], flush=True)
    sys.stdin.read()
    for report in twin.reports:
      for error in report.errors:
        print(error.text)


if __name__ == '__main__':
  main(int(sys.argv[1]))
