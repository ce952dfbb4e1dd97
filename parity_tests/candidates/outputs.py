"""A candidate that ran elsewhere: files with its outputs.

`--case` names its inputs, a folder of `hpmoe export`, or `--input` does, a file
of `hpmoe.capture`; `--outputs` names its outputs, with the names and layouts of
`--names`, see `case.layouts.names`.
"""

import dataclasses
from typing import ClassVar, Self

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.case import answers
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.case.layouts import names as names_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class Outputs(candidates.Candidate):
  """Tensors in files.

  Attributes:
    path: their folder.
    names: a file that maps their names to ours, or None.
    answer: the same tensors, with the case that they were computed from.
    ranks: see `Candidate`.
    in_shares: whether each process reads only the tensors that it judges.
    origins: where the files hold tensors of the last run.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    orders=None, parts=True, rounds=True, saves=True
  )
  path: str = option_fields.option(
    dataclasses.MISSING,
    'Folder of tensors that were computed elsewhere from --case: '
    'real.safetensors, .npz, .pt or a folder of .npy; see '
    'docs/elsewhere.md.',
    flag='outputs',
  )
  names: str | None = option_fields.option(
    None,
    'A file, names.toml, with the names and layouts of the tensors of '
    '--outputs.',
  )
  answer: answers.Answer | None = None
  ranks: tuple[int, ...] | None = None
  in_shares: bool = False
  origins: dict[str, answers.Origin] = candidates.noted(dict)
  notes: dict[str, bool | None] = candidates.noted(dict)
  options: granularity.Options = granularity.Options()

  @property
  def name(self) -> str:  # type: ignore[override]
    """What reports call it; names of the user's candidates have a colon."""
    return f'outputs:{self.path}'

  def ready(self, case, beside='') -> Self:
    """See `Candidate`."""
    super().ready(case, beside)
    if case.folder is not None:
      case_data = folder_lib.read(case.folder)
    elif isinstance(case.input, str):
      if case.direction == 'backward':
        raise ValueError(
          'direction: expected both or forward with --input, as a backward '
          'pass read what its own forward pass saved, got backward'
        )
      case_data = answers.File.from_inputs(
        case.input, case.direction, case.make()
      )
    else:
      raise ValueError(
        'outputs: expected --case or --input with it, from which they were '
        'computed from, got none'
      )
    answer = answers.Answer(self.path, case_data, names_lib.read(self.names))
    ranks = answer.ranks('real')
    if ranks is not None and case.direction == 'both':
      raise ValueError(
        'direction: expected forward or backward where ranks are missing, as '
        f'a backward pass read what they saved, got both and ranks {ranks}'
      )
    return dataclasses.replace(self, answer=answer, ranks=ranks)

  @property
  def recomputes(self) -> bool | None:
    """See `Candidate`; None: the files do not say so."""
    return self.notes.get('recomputes')

  def place(self, tensor, index) -> str:
    """See `Candidate`."""
    if self.in_shares and tensor not in self.origins:
      return ''  # the process that merges the shares knows
    return self.origins[tensor].place(index)

  def locate(self, data: str, tensor: str) -> None:
    """Lets `place` find a tensor of a kind of data."""
    assert self.answer is not None  # `ready`
    self.origins[tensor] = self.answer.origin(data, tensor)

  def facts(self) -> dict[str, object]:
    """See `Candidate`."""
    return dict(outputs=self.path, names=self.names)

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`.

    Raises:
      CannotJudge: nothing was computed from this kind of data.
    """
    del oracle_tensors
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
        tensors = answer.share(data, policy)
      else:
        tensors, origins = answer.tensors(data, policy)
        self.origins.update(origins)
      if layer_pass.name == passes.BACKWARD.name:
        self.notes['recomputes'] = answer.recomputes(data)
    except tensor_files.Missing as error:
      raise candidates.CannotJudge(str(error)) from error
    names = layer_pass.list_outputs(policy)
    pass_outputs = {n: a for n, a in tensors.items() if n in names}
    return function_candidate.check_outputs(
      self.name, config, policy, pass_outputs, layer_pass, ()
    )
