"""A candidate that ran elsewhere: what it left in files.

`--case` names what it was given, a folder of `hpmoe export`, or `--input`, a
file of `hpmoe.capture`, and `--outputs` what it computed, under names and
layouts of `--names`, see `case.theirs.names`.
"""

import dataclasses
from typing import ClassVar, Self

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import answers
from hpmoe.parity_tests.case import dumps
from hpmoe.parity_tests.case import flag_tables
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case.layouts import names as names_lib
from hpmoe.reference.contract import granularity

FLAGS = flag_tables.read_flags('outputs')


@dataclasses.dataclass(frozen=True)
class Outputs(candidates.Candidate):
  """Tensors in files.

  Attributes:
    path: their folder.
    names: a file that says what they are called, or None.
    answer: the same, and what they were computed from.
    ranks: see `Candidate`.
    in_shares: whether tensors are read where they are used, see `case.slabs`.
    origins: where tensors of the last run are.
  """

  can: ClassVar[candidates.Can] = candidates.Can(
    orders=None, parts=True, rounds=True, saves=True
  )
  path: str
  names: str | None = None
  answer: answers.Answer | None = None
  ranks: tuple[int, ...] | None = None
  in_shares: bool = False
  origins: dict[str, answers.Origin] = candidates.noted(dict)
  notes: dict[str, bool | None] = candidates.noted(dict)
  options: granularity.Options = granularity.Options()

  @property
  def name(self) -> str:  # type: ignore[override]
    """What reports call it; a name of the user's has a colon."""
    return f'outputs:{self.path}'

  def ready(self, case, beside='') -> Self:
    """See `Candidate`."""
    super().ready(case, beside)
    if case.folder is not None:
      held = folder_lib.read(case.folder)
    elif isinstance(case.input, str):
      if case.direction == 'backward':
        raise ValueError(
          'direction: expected both or forward with --input, as a backward '
          'pass read what its own forward pass saved, got backward'
        )
      held = answers.File.from_inputs(case.input, case.direction, case.make())
    else:
      raise ValueError(
        'outputs: expected --case or --input beside it, what they were '
        'computed from, got none'
      )
    answer = answers.Answer(self.path, held, names_lib.read(self.names))
    ranks = answer.ranks('real')
    if ranks is not None and case.direction == 'both':
      raise ValueError(
        'direction: expected forward or backward where ranks are missing, as '
        f'a backward pass read what they saved, got both and ranks {ranks}'
      )
    return dataclasses.replace(self, answer=answer, ranks=ranks)

  @property
  def recomputes(self) -> bool | None:
    """See `Candidate`; None: they do not say what their backward pass read."""
    return self.notes.get('recomputes')

  def place(self, tensor, index) -> str:
    """See `Candidate`."""
    if self.in_shares and tensor not in self.origins:
      return ''  # who merges says so
    return self.origins[tensor].place(index)

  def locate(self, data: str, tensor: str) -> None:
    """Has `place` tell where a tensor of a kind of data is."""
    assert self.answer is not None  # `ready`
    self.origins[tensor] = self.answer.origin(data, tensor)

  def facts(self) -> dict[str, object]:
    """See `Candidate`."""
    return dict(outputs=self.path, names=self.names)

  def run(
    self, config, policy, inputs, which=passes.FORWARD, given=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`.

    Raises:
      CannotJudge: nothing was computed from this kind of data.
    """
    del given
    answer = self.answer
    assert answer is not None  # `ready`
    try:
      data = answer.case.data_of(inputs['x'])
      if answer.ranks(data) != self.ranks:
        raise ValueError(
          f'{self.path}: expected ranks {self.ranks or "all"} of {data} data, '
          f'as of real data, got {answer.ranks(data) or "all"}'
        )
      if self.in_shares:
        held = answer.share(data, policy)
      else:
        held, origins = answer.tensors(data, policy)
        self.origins.update(origins)
      if which.name == passes.BACKWARD.name:
        self.notes['recomputes'] = answer.recomputes(data)
    except dumps.Missing as error:
      raise candidates.CannotJudge(str(error)) from error
    names = which.list_outputs(policy)
    mine = {n: a for n, a in held.items() if n in names}
    return user_candidate.check_outputs(
      self.name, config, policy, mine, which, ()
    )
