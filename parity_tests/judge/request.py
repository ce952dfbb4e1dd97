"""A request: a case, its candidate, and how to judge it."""

from collections.abc import Callable, Iterator
import dataclasses
import os
import shlex
import shutil
import sys
from typing import Any, Self

from hpmoe.parity_tests.candidates import backends
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.explain import routing_mistakes
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.parity_tests.judge import verdicts

_CHECK = 'check'


@dataclasses.dataclass(frozen=True)
class Request:
  """The request of a check.

  Attributes:
    case: the layer, its inputs and the direction.
    candidate: the implementation to judge.
    judgement: how to judge it.
    command: the arguments of `hpmoe` that make this request, without lanes.
    beside, other_inputs, list_others: see `pass_case.LaneOptions`.
    through_router: what `pass_case.PassCase.with_router` takes, if the backward
      pass has the router's GEMM; (): it has none.
  """

  case: case_lib.Case = case_lib.Case()
  candidate: candidates.Candidate = dataclasses.field(
    default_factory=backends.default_candidate
  )
  judgement: judgement_lib.Judgement = judgement_lib.Judgement()
  command: tuple[str, ...] = (_CHECK,)
  beside: Callable[..., list[verdicts.Result]] | None = None
  other_inputs: tuple[routing_mistakes.OtherInputs, ...] = ()
  list_others: Callable[..., Iterator[Any]] = lambda *_: iter(())
  through_router: tuple[Any, ...] = ()

  def but(self, **fields: Any) -> Self:
    """Returns the request with changed parts, or changed fields of its parts.

    Raises:
      ValueError: no part has such a field.
    """
    parts = {n: fields.pop(n, part) for n, part in vars(self).items()}
    for name, part in parts.items():
      field_names = getattr(part, '__dataclass_fields__', {})
      own_fields = {n: fields.pop(n) for n in [*fields] if n in field_names}
      parts[name] = (
        dataclasses.replace(part, **own_fields) if own_fields else part
      )
    for name, value in fields.items():
      raise ValueError(
        f'{name}: expected a field of the case, of {self.candidate.name} or of '
        f'the judgement, got {value!r}'
      )
    return type(self)(**parts)

  def replay(self, *lanes: str) -> str:
    """Returns the command that repeats this, `hpmoe check` in some lanes."""
    words = [program(), *self.command]
    if self.command[0] == _CHECK and lanes:
      words.append(f'--lane={",".join(lanes)}')
    return shlex.join(words)


def program() -> str:
  """Returns the command that runs this `hpmoe` from a shell."""
  invoked = sys.argv[0]
  if os.path.basename(invoked) != 'hpmoe':
    return 'hpmoe'
  path = shutil.which('hpmoe')
  is_same = path and os.path.realpath(path) == os.path.realpath(invoked)
  return 'hpmoe' if is_same else invoked
