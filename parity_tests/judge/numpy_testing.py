"""A kernel in numpy as a candidate, and what a check says of it."""

from collections.abc import Sequence
import dataclasses
from typing import ClassVar

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import policies


@dataclasses.dataclass(frozen=True)
class Numpy(candidates.Candidate):
  """A kernel in numpy that rounds where it likes.

  Attributes:
    kernel: computes it.
    everything: whether it returns every tensor, or results alone.
    returns: names beside the results, if not everything.
    words: of its policy, whatever was asked for; None: as that.
  """

  can: ClassVar[candidates.Can] = candidates.Can(orders=None, rounds=True)
  kernel: trial.Kernel = trial.Kernel()
  everything: bool = True
  returns: tuple[str, ...] = ()
  words: tuple[str, ...] | None = None
  name: str = 'mine:layer'

  def run(self, config, policy, inputs, which=passes.FORWARD, given=None):
    del given
    own = policy
    if self.words is not None:
      fields = policies.fields(self.words)
      own = dataclasses.replace(policy, **{'points': (), **fields})
    kernel = self.kernel
    run = kernel.forward if which is passes.FORWARD else kernel.backward
    made = run(config, own, inputs)
    names = which.of_layer(config).results
    if not self.everything:
      made = {name: made[name] for name in (*names, *self.returns)}
    return user_candidate.check_outputs(
      self.name, config, policy, made, which, names
    )


def judged(
  candidate: candidates.Candidate, lanes: Sequence[str], **case
) -> Sequence[verdicts.Result]:
  """Returns the rows of a check, on `tiny` if no case says otherwise."""
  request = request_lib.Request(
    case_lib.Case(**{'preset': 'tiny', 'ranks': 2, **case}),
    candidate,
    judgement.Judgement(tuple(lanes)),
  )
  return check.run(request).results


def failed(
  candidate: candidates.Candidate,
  lanes: Sequence[str] = ('exact', 'bounded', 'standard'),
  **case,
) -> set[str]:
  """Returns the stages that fail, and asserts that something passes."""
  results = judged(candidate, lanes, **case)
  assert 'pass' in {r.verdict for r in results}
  return {r.stage for r in results if r.verdict == 'fail'}
