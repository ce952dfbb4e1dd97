"""Which checkout a benchmark measures."""

import pathlib
import subprocess
import sys


def check_tree(tree: str, environment: dict[str, str]) -> None:
  """Checks that a process of an environment imports the hpmoe of a checkout.

  Raises:
    RuntimeError: it imports another one, as an editable installation has it.
  """
  command = [sys.executable, '-c', 'import hpmoe; print(hpmoe.__file__)']
  process = subprocess.run(
    command, env=environment, capture_output=True, text=True, check=True
  )
  path = pathlib.Path(process.stdout.strip()).resolve()
  if not path.is_relative_to(pathlib.Path(tree).resolve()):
    raise RuntimeError(
      f'--tree: expected an interpreter that imports hpmoe from {tree}, got '
      f'{path}: an editable installation comes before PYTHONPATH'
    )
