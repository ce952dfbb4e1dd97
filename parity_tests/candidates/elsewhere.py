"""A candidate that is a program: it reads a case, and writes what it computes.

`--command='./moe {case} {out}'` is any program; `--python=INTERPRETER` calls
the function of `--candidate` there, by `read_case`, which needs numpy alone.
With `--per_rank` each rank has files of its own; where the command has {rank},
a process of its own, too.
"""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
import shlex
import tempfile
import time
from typing import ClassVar, Self

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import locate
from hpmoe.parity_tests.candidates import processes
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import answers
from hpmoe.parity_tests.case import dumps
from hpmoe.parity_tests.case import flag_tables
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case.layouts import names as names_lib
from hpmoe.reference.contract import granularity

_REAL = 'real'
_CASE, _OUT, _RANK = '{case}', '{out}', '{rank}'

FLAGS = flag_tables.read_flags('program')


@dataclasses.dataclass(frozen=True)
class Program(candidates.Candidate):
  """A program of the user.

  Attributes:
    command: its words, with {case} and {out}.
    per_rank: whether each rank has files of its own.
    names: a file that says what its tensors are called, or None.
    timeout_s: seconds after which it counts as hung.
    layout: how tensors are laid out that it does not say, see `projects`.
  """

  can: ClassVar[candidates.Can] = candidates.Can(
    orders=None, parts=True, repeats=True, rounds=True
  )
  _flag: ClassVar[str] = 'command'
  command: str
  per_rank: bool = False
  names: str | None = None
  timeout_s: float = 600.0
  layout: str = ''
  options: granularity.Options = granularity.Options()
  seconds: list[float] = candidates.noted(list)
  said: dict[str, bool] = candidates.noted(dict)
  origins: dict[str, answers.Origin] = candidates.noted(dict)

  @property
  def name(self) -> str:  # type: ignore[override]
    """What reports call it; a name of the user's has a colon."""
    return f'command:{self.command}'

  @property
  def recomputes(self) -> bool:
    """See `Candidate`; a note of what it wrote."""
    return self.said.get('recomputes', False)

  def ready(self, case, beside='') -> Self:
    """See `Candidate`."""
    super().ready(case, beside)
    self._refuse()
    names_lib.read(self.names, self.layout)
    return dataclasses.replace(self)

  def _refuse(self) -> None:
    for word in (_CASE, _OUT):
      if word not in self.command:
        raise ValueError(
          f'command: expected a program with {{case}} and {{out}}, such as '
          f"'./moe {{case}} {{out}}', got {self.command!r}"
        )
    if _RANK in self.command and not self.per_rank:
      raise ValueError(
        f'command: expected --per_rank beside {{rank}}, got {self.command!r}'
      )

  def run(
    self, config, policy, inputs, which=passes.FORWARD, given=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`."""
    del given
    names = names_lib.read(self.names, self.layout)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix='hpmoe-') as folder:
      job = pathlib.Path(folder)
      made = inputs_lib.LayerInputs(config, policy, inputs, '', {}, _REAL)
      case = folder_writer.write(
        job / 'case', which.name, {_REAL: made}, self.per_rank, names.layouts
      )
      out = job / 'out'
      out.mkdir()
      self._call(job, config.num_ranks)
      answer = answers.Answer(str(out), case, names)
      try:
        some = answer.ranks(_REAL)
        if some is not None:
          first = min({*range(config.num_ranks)} - {*some})
          raise ValueError(f'expected outputs of rank {first}, got none')
        held, origins = answer.tensors(_REAL, policy)
        self.said['recomputes'] = bool(answer.recomputes(_REAL))
      except dumps.Missing as error:
        if policy.activation == 'swiglu':
          raise candidates.CandidateError(
            f'{self.name}: expected tensors in {_OUT}, got none'
          ) from error
        raise candidates.CannotJudge(
          f'{self.name} wrote nothing for policy.activation='
          f'{policy.activation!r}'
        ) from error
      except ValueError as error:
        told = str(error).replace(str(out), _OUT)
        raise candidates.CandidateError(f'{self.name}: {told}') from error
      held = {name: np.array(array) for name, array in held.items()}
    self.origins.update(
      {
        name: origin.in_folder(str(out), _OUT)
        for name, origin in origins.items()
      }
    )
    self.seconds.append(time.perf_counter() - start)
    return user_candidate.check_outputs(
      self.name, config, policy, held, which, ()
    )

  def place(self, tensor, index) -> str:
    """See `Candidate`."""
    return self.origins[tensor].place(index)

  def _call(self, job: pathlib.Path, ranks: int) -> None:
    """Runs the program, each rank of it at once where it has ranks."""
    places = {_CASE: str(job / 'case'), _OUT: str(job / 'out')}
    each = range(ranks) if _RANK in self.command else (None,)
    commands = {rank: self._words(places | {_RANK: str(rank)}) for rank in each}
    try:
      ended = processes.call(job, commands, self._env(), self.timeout_s)
    except OSError as error:
      raise ValueError(
        f'{self._flag}: expected a program that can be run, got {error}'
      ) from error
    for rank, code in ended.items():
      of = self.name if rank is None else f'{self.name}: rank {rank}'
      if code != 0:
        told = processes.unlike_an_answer(code, self.timeout_s)
        raise candidates.CandidateError(f'{of}: {told}')

  def _env(self) -> dict[str, str]:
    return dict(os.environ)

  def _words(self, places: dict[str, str]) -> Sequence[str]:
    words = shlex.split(self.command)
    for place, value in places.items():
      words = [word.replace(place, value) for word in words]
    return words


@dataclasses.dataclass(frozen=True)
class Interpreter(Program):
  """A function in another Python.

  Attributes:
    python: the interpreter.
    name: `FILE.py:function`.
  """

  can: ClassVar[candidates.Can] = candidates.Can(
    orders=None, parts=True, repeats=True, rounds=True, declares=True
  )
  _flag: ClassVar[str] = 'python'
  command: str = ''
  python: str = ''
  name: str = ''

  def _refuse(self) -> None:
    path, _, name = self.name.rpartition(':')
    if not path.endswith('.py') or not name.isidentifier():
      raise ValueError(
        f'candidate: expected FILE.py:function beside --python, got '
        f'{self.name!r}'
      )
    locate.find_source(self.name)

  def _words(self, places: dict[str, str]) -> Sequence[str]:
    case, out = places[_CASE], places[_OUT]
    reader = os.path.join(case, 'read_case.py')
    return [self.python, reader, case, self.name, out]

  def _env(self) -> dict[str, str]:
    return processes.make_foreign_environment()
