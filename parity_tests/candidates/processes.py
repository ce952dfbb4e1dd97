"""The processes of a job: who carries its mark, whoever started it.

The mark is a variable of the environment, which children inherit: so those that
left their parent's session or outlived it are found, too.
"""

from collections.abc import Mapping
import contextlib
import os
import pathlib
import signal
import subprocess
import time

JOB_VARIABLE = 'HPMOE_JOB'

_PASSES = 100
_PASS_S = 0.01


def mark(job: pathlib.Path) -> dict[str, str]:
  return {JOB_VARIABLE: str(job)}


def of(job: pathlib.Path) -> list[int]:
  """Returns the ids of this machine's live processes that work on the job."""
  word = os.fsencode(f'{JOB_VARIABLE}={job}')
  found = []
  for entry in pathlib.Path('/proc').iterdir():
    # Another user's processes, and those that just ended, cannot be read.
    with contextlib.suppress(OSError):
      if entry.name.isdigit():
        words = (entry / 'environ').read_bytes().split(b'\0')
        found += [int(entry.name)] if word in words else []
  return found


def end(job: pathlib.Path) -> None:
  """Ends what is left of a job on this machine, and what that starts yet."""
  for _ in range(_PASSES):
    left = of(job)
    if not left:
      return
    for pid in left:
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    time.sleep(_PASS_S)


def call(
  job: pathlib.Path,
  command: list[str],
  env: Mapping[str, str],
  timeout_s: float,
  stdout: int,
) -> int:
  """Returns how a command ended; nothing that it started outlives the call.

  Raises:
    subprocess.TimeoutExpired: it did not end.
  """
  # A session of its own: an interrupt of ours is not its to handle.
  process = subprocess.Popen(
    command, stdout=stdout, env={**env, **mark(job)}, start_new_session=True
  )
  try:
    return process.wait(timeout_s)
  finally:
    process.kill()
    end(job)
    process.wait()
