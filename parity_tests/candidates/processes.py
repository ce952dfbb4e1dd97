"""The processes of a job: who carries its mark, whoever started it.

The mark is a variable of the environment, which children inherit: so those that
left their parent's session or outlived it are found, too.
"""

from collections.abc import Mapping, Sequence
import contextlib
import os
import pathlib
import signal
import subprocess
import time

JOB_VARIABLE = 'HPMOE_JOB'

# How processes ended, by what each is called; None: they did not.
Codes = dict[int | None, int | None]

_PASSES = 100
_PASS_S = 0.01


def mark(job: pathlib.Path) -> dict[str, str]:
  return {JOB_VARIABLE: str(job)}


def of(job: pathlib.Path) -> list[int]:
  """Returns the ids of this machine's live processes that work on the job."""
  word = os.fsencode(f'{JOB_VARIABLE}={job}')
  pids = []
  for entry in pathlib.Path('/proc').iterdir():
    # Another user's processes, and those that just ended, cannot be read.
    with contextlib.suppress(OSError):
      if entry.name.isdigit():
        words = (entry / 'environ').read_bytes().split(b'\0')
        pids += [int(entry.name)] if word in words else []
  return pids


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


def unlike_an_answer(code: int | None, timeout_s: float) -> str:
  """Says what was expected of a process, and how it ended: not with 0.

  Args:
    code: see `Codes`.
    timeout_s: seconds that it had.
  """
  if code is None:
    return f'expected an answer within {timeout_s:g} s, got none'
  ending = f'signal {-code}' if code < 0 else f'exit code {code}'
  return f'expected an answer, got {ending}'


def make_foreign_environment() -> dict[str, str]:
  """Returns our environment without the paths of our Python's modules."""
  own_names = ('PYTHONPATH', 'PYTHONHOME')
  return {n: value for n, value in os.environ.items() if n not in own_names}


def call(
  job: pathlib.Path,
  commands: Mapping[int | None, Sequence[str]],
  env: Mapping[str, str],
  timeout_s: float,
  files: Sequence[int] = (),
) -> Codes:
  """Runs commands at once; returns how each that ended first did.

  What they print goes to our error output.  Once one fails the others are
  ended, and not told of; nothing that they started outlives the call.

  Args:
    job: its folder, the mark of its processes.
    commands: by what one is called.
    env: their environment.
    timeout_s: of all.
    files: descriptors that they inherit.

  Returns:
    Exit codes by name, of the one that failed alone if one did; None: it did
    not end in time.
  """
  deadline = time.monotonic() + timeout_s
  started: dict[int | None, subprocess.Popen] = {}
  try:
    for name, command in commands.items():
      started[name] = subprocess.Popen(
        command,
        stdout=2,
        env={**env, **mark(job)},
        start_new_session=True,
        pass_fds=files,
      )
    while True:
      codes = {name: process.poll() for name, process in started.items()}
      failed: Codes = {name: code for name, code in codes.items() if code}
      if failed or None not in codes.values():
        return failed or codes
      if time.monotonic() > deadline:
        return {n: code for n, code in codes.items() if code is None}
      time.sleep(_PASS_S)
  finally:
    for process in started.values():
      process.kill()
    end(job)
    for process in started.values():
      process.wait()
