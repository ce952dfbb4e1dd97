"""The processes of a job, found by a mark.

The mark is an environment variable, which children inherit.  So processes are
found too that left their parent's session or outlived it.
"""

from collections.abc import Mapping, Sequence
import contextlib
import os
import pathlib
import signal
import subprocess
import time

JOB_VARIABLE = 'HPMOE_JOB'

# Exit codes of processes by key, here a rank; None: the process did not end.
Codes = dict[int | None, int | None]

_PASSES = 100
_PASS_S = 0.01


def mark(job: pathlib.Path) -> dict[str, str]:
  return {JOB_VARIABLE: str(job)}


def find_pids(job: pathlib.Path) -> list[int]:
  """Returns the ids of this machine's live processes of the job."""
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
  """Ends a job's processes on this machine, and those they still start."""
  for _ in range(_PASSES):
    left = find_pids(job)
    if not left:
      return
    for pid in left:
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    time.sleep(_PASS_S)


def describe_ending(code: int | None, timeout_s: float) -> str:
  """Describes how a process ended that did not end with 0.

  Args:
    code: see `Codes`.
    timeout_s: seconds that it had.
  """
  if code is None:
    return f'expected an answer within {timeout_s:g} s, got none'
  ending = f'signal {-code}' if code < 0 else f'exit code {code}'
  if code == -signal.SIGKILL:
    ending = f'{ending}, perhaps because memory ran out'
  return f'expected an answer, got {ending}'


def make_foreign_environment() -> dict[str, str]:
  """Returns our environment without the module paths of our Python."""
  own_names = ('PYTHONPATH', 'PYTHONHOME')
  return {n: value for n, value in os.environ.items() if n not in own_names}


def call(
  job: pathlib.Path,
  commands: Mapping[int | None, Sequence[str]],
  env: Mapping[str, str],
  timeout_s: float,
  files: Sequence[int] = (),
) -> Codes:
  """Runs commands at the same time.

  Their output goes to our stderr.  When one fails, the others are ended.  No
  process that they started outlives the call.

  Args:
    job: the job's folder, which marks its processes.
    commands: by key.
    env: their environment.
    timeout_s: seconds for all of them.
    files: descriptors that they inherit.

  Returns:
    Exit codes by key: those of the failures alone if some failed.  After the
    timeout, None for each that did not end.
  """
  deadline = time.monotonic() + timeout_s
  processes: dict[int | None, subprocess.Popen] = {}
  try:
    for name, command in commands.items():
      processes[name] = subprocess.Popen(
        command,
        stdout=2,
        env={**env, **mark(job)},
        start_new_session=True,
        pass_fds=files,
      )
    while True:
      codes = {name: process.poll() for name, process in processes.items()}
      failures: Codes = {name: code for name, code in codes.items() if code}
      if failures or None not in codes.values():
        return failures or codes
      if time.monotonic() > deadline:
        return {n: code for n, code in codes.items() if code is None}
      time.sleep(_PASS_S)
  finally:
    for process in processes.values():
      process.kill()
    end(job)
    for process in processes.values():
      process.wait()
