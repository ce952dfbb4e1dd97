"""A candidate that is a program: it reads a case and writes its outputs.

`--command='./moe {case} {out}'` runs any program; `--python=INTERPRETER` calls
the function of `--candidate` in another Python, through `read_case`, which
needs numpy alone.  With `--per_rank` each rank has its own files; if the
command has {rank}, each rank also has its own process.
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
from hpmoe.parity_tests.candidates import find_function
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.candidates import processes
from hpmoe.parity_tests.case import answers
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.case.layouts import names as names_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import option_fields

_REAL = 'real'
_CASE, _OUT, _RANK = '{case}', '{out}', '{rank}'


@dataclasses.dataclass(frozen=True)
class Program(candidates.Candidate):
  """A program of the user.

  Attributes:
    command: the command line, with {case} and {out}.
    per_rank: whether each rank has its own files.
    names: a file that maps its tensors' names to ours, or None.
    timeout_s: seconds after which it counts as hung.
    layout: the layout of tensors that `names` does not describe, see
      `project_layouts`.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    orders=None, parts=True, repeats=True, rounds=True
  )
  _flag: ClassVar[str] = 'command'
  command: str = option_fields.option(
    dataclasses.MISSING,
    "Your program in place of the megakernel: './moe {case} {out}'. It is "
    'started once for each pass and kind of data, with the folder to read '
    'and the folder to write; see docs/elsewhere.md.',
  )
  per_rank: bool = option_fields.option(
    False,
    'With --command: one file for each rank. If the command contains '
    '{rank}, one process for each rank.',
  )
  names: str | None = option_fields.share(outputs.Outputs, 'names')
  timeout_s: float = option_fields.share(
    function_candidate.Subprocess, 'timeout_s'
  )
  layout: str = option_fields.share(function_candidate.Subprocess, 'layout')
  options: granularity.Options = granularity.Options()
  seconds: list[float] = candidates.noted(list)
  notes: dict[str, bool] = candidates.noted(dict)
  origins: dict[str, answers.Origin] = candidates.noted(dict)

  @property
  def name(self) -> str:  # type: ignore[override]
    """What reports call it; names of the user's candidates have a colon."""
    return f'command:{self.command}'

  @property
  def recomputes(self) -> bool:
    """See `Candidate`; the outputs' files say so."""
    return self.notes.get('recomputes', False)

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
        f'command: expected --per_rank with {{rank}}, got {self.command!r}'
      )

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`."""
    del oracle_tensors
    names = names_lib.read(self.names, self.layout)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix='hpmoe-') as folder:
      job = pathlib.Path(folder)
      layer_inputs = inputs_lib.LayerInputs(
        config, policy, inputs, '', {}, _REAL
      )
      case = folder_writer.write(
        job / 'case',
        layer_pass.name,
        {_REAL: layer_inputs},
        self.per_rank,
        names.layouts,
      )
      out = job / 'out'
      out.mkdir()
      self._call(job, config.num_ranks)
      tensors = self._read_outputs(
        answers.Answer(str(out), case, names), config, policy
      )
    self.seconds.append(time.perf_counter() - start)
    return function_candidate.check_outputs(
      self.name, config, policy, tensors, layer_pass, ()
    )

  def place(self, tensor, index) -> str:
    """See `Candidate`."""
    return self.origins[tensor].place(index)

  def _read_outputs(
    self, answer: answers.Answer, config, policy
  ) -> dict[str, np.ndarray]:
    """Returns copies of the outputs; notes their origins in the files.

    Raises:
      CannotJudge: there are none, for an activation that the program may lack.
      CandidateError: there are none, or a file is wrong.
    """
    try:
      ranks = answer.ranks(_REAL)
      if ranks is not None:
        first = min({*range(config.num_ranks)} - {*ranks})
        raise ValueError(f'expected outputs of rank {first}, got none')
      tensors, origins = answer.tensors(_REAL, policy)
      self.notes['recomputes'] = bool(answer.recomputes(_REAL))
    except tensor_files.Missing as error:
      if policy.activation == 'swiglu':
        raise candidates.CandidateError(
          f'{self.name}: expected tensors in {_OUT}, got none'
        ) from error
      raise candidates.CannotJudge(
        f'{self.name} wrote nothing for policy.activation={policy.activation!r}'
      ) from error
    except ValueError as error:
      text = str(error).replace(answer.path, _OUT)
      raise candidates.CandidateError(f'{self.name}: {text}') from error
    for name, origin in origins.items():
      self.origins[name] = origin.in_folder(answer.path, _OUT)
    return {name: np.array(array) for name, array in tensors.items()}

  def _call(self, job: pathlib.Path, ranks: int) -> None:
    """Runs the program, or one process for each rank at the same time."""
    places = {_CASE: str(job / 'case'), _OUT: str(job / 'out')}
    ranks_to_run = range(ranks) if _RANK in self.command else (None,)
    commands = {
      rank: self._words(places | {_RANK: str(rank)}) for rank in ranks_to_run
    }
    try:
      exit_codes = processes.call(job, commands, self._env(), self.timeout_s)
    except OSError as error:
      raise ValueError(
        f'{self._flag}: expected a program that can be run, got {error}'
      ) from error
    for rank, code in exit_codes.items():
      process_name = self.name if rank is None else f'{self.name}: rank {rank}'
      if code != 0:
        ending = processes.describe_ending(code, self.timeout_s)
        raise candidates.CandidateError(f'{process_name}: {ending}')

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

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    orders=None, parts=True, repeats=True, rounds=True, declares=True
  )
  _flag: ClassVar[str] = 'python'
  command: str = option_fields.share(Program, 'command', default='')
  python: str = option_fields.option(
    '',
    'Python interpreter that calls the function of '
    '--candidate=FILE.py:function; it needs numpy only.',
    typed=None,
  )
  name: str = option_fields.share(
    function_candidate.Subprocess, 'name', default=''
  )

  def _refuse(self) -> None:
    path, _, name = self.name.rpartition(':')
    if not path.endswith('.py') or not name.isidentifier():
      raise ValueError(
        f'candidate: expected FILE.py:function with --python, got {self.name!r}'
      )
    find_function.find_source(self.name)

  def _words(self, places: dict[str, str]) -> Sequence[str]:
    case, out = places[_CASE], places[_OUT]
    reader = os.path.join(case, 'read_case.py')
    return [self.python, reader, case, self.name, out]

  def _env(self) -> dict[str, str]:
    return processes.make_foreign_environment()
