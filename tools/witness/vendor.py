"""Runs the vendor's compiler, of PyPI's ascendnpu-ir."""

from collections.abc import Sequence
import pathlib
import subprocess

from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import programs

# Its two passes that put synchronisation into a function.
SOLVERS = ('hivm-inject-sync', 'hivm-graph-sync-solver')


class VendorError(RuntimeError):
  """The vendor's compiler refused a module."""


def run(tool: pathlib.Path, text: str, *passes: str) -> str:
  """Returns a module after some passes of bishengir-opt.

  Raises:
    VendorError: it refused, in its words.
  """
  process = subprocess.run(
    [tool, *(f'-{name}' for name in passes)],
    input=text,
    capture_output=True,
    text=True,
  )
  if process.returncode:
    raise VendorError(process.stderr.strip()[:2000])
  return process.stdout


def synchronise(
  tool: pathlib.Path, batch: Sequence[programs.Program], solver: str
) -> list[tuple[programs.Program, hivm.Body]]:
  """Returns programs with the synchronisation of one of `SOLVERS`.

  Raises:
    VendorError: the compiler refused.
    hivm.Unread: it wrote what is not known.
  """
  answer = dict(hivm.functions(run(tool, hivm.write(batch), solver)))
  return [
    (program, hivm.read(program, answer[program.seed])) for program in batch
  ]
