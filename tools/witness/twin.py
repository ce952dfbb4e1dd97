"""Runs programs on the twin: compiles a batch, then asks for launches."""

from collections.abc import Collection, Sequence
import dataclasses
import json
import pathlib
import subprocess

from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.tools.witness import ascend_c
from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import programs

MODES = ('in_order', 'seeded', 'late')
# Kernels are run once, on few elements: compiling is what takes time.
_FLAGS = ('-O0', '-g0')


@dataclasses.dataclass(frozen=True)
class Report:
  """The error that ended a launch.

  Attributes:
    kind: of the twin's.
    call: number in the text of the call that it names, -1 at the kernel's end.
    calls: numbers of the calls whose order to it is missing.
    missing: what would order them.
    text: its line.
  """

  kind: str
  call: int
  calls: tuple[int, ...]
  missing: str
  text: str


class Twin:
  """The twin with a batch of programs.

  Used as a context; numbers of calls are those of `order.Trace`.
  """

  def __init__(
    self,
    batch: Sequence[tuple[programs.Program, hivm.Body]],
    folder: pathlib.Path,
  ):
    source = folder / 'batch.cc'
    source.write_text(ascend_c.write(batch))
    self._binary = folder / 'batch'
    twin_testing.compile_program(source, self._binary, flags=_FLAGS)

  def __enter__(self) -> 'Twin':
    self._process = subprocess.Popen(
      [self._binary],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    return self

  def __exit__(self, *_) -> None:
    self._process.communicate()

  def launch(
    self,
    seed: int,
    absent: Collection[int] = (),
    *,
    mode: str = 'late',
    order: int = 0,
    counts: bool = False,
    files: Sequence[pathlib.Path] = (),
  ) -> Report | None:
    """Launches a kernel without some of its calls that synchronise.

    Args:
      seed: of the program.
      absent: numbers of the calls.
      mode: one of `MODES`.
      order: seed of mode 'seeded'.
      counts: the twin's option flags_count.
      files: of the arrays' bytes, before and after.

    Returns:
      What the twin reports.

    Raises:
      ChildProcessError: the program ended.
    """
    numbers = ','.join(map(str, sorted(absent))) or '-'
    words = (seed, MODES.index(mode), order, int(counts), numbers, *files)
    requests, answers = self._process.stdin, self._process.stdout
    assert requests is not None and answers is not None
    requests.write(' '.join(map(str, words)) + '\n')
    requests.flush()
    line = answers.readline()
    if not line:
      raise ChildProcessError(f'p{seed}: expected an answer, got the end')
    errors = json.loads(line)
    return _report(errors[0]) if errors else None


def _report(error: dict) -> Report:
  return Report(
    error['kind'],
    error['at'][0],
    tuple(number for number, _ in error['others']),
    error['missing'],
    error['text'],
  )
