"""Devices of a rehearsal as a process of their own.

    python -m hpmoe.backend_ascend.kernels.ascendc.npus.standin.serve RANKS

Prints the board's path, serves until its input ends, then prints what the twin
found, a line each.
"""

import subprocess
import sys
from typing import Self

from hpmoe.backend_ascend.kernels.ascendc.npus.standin import rehearsal


class Served:
  """The process, as who started it sees it.

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
    """Ends it, once no rank uses it; returns what the twin found."""
    told, _ = self._process.communicate()
    return told.splitlines()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error) -> None:
    self._process.kill()
    self._process.wait()


def main(num_ranks: int) -> None:
  """Serves."""
  with rehearsal.Rehearsal(num_ranks) as twin:
    print(twin.environment['HPMOE_BOARD'], flush=True)
    sys.stdin.read()
    for report in twin.reports:
      for error in report.errors:
        print(error.text)


if __name__ == '__main__':
  main(int(sys.argv[1]))
