"""A kernel in numpy as a candidate, and what a check says of it."""

from collections.abc import Sequence
import dataclasses
import inspect
import pathlib
from typing import ClassVar

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import numpy_kernel_testing
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.judge import bench as bench_lib
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

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    orders=None, rounds=True, parts=True
  )
  kernel: trial.Kernel = trial.Kernel()
  everything: bool = True
  returns: tuple[str, ...] = ()
  words: tuple[str, ...] | None = None
  name: str = 'mine:layer'

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    del oracle_tensors
    own = policy
    if self.words is not None:
      fields = policies.fields(self.words)
      own = dataclasses.replace(policy, **{'points': (), **fields})
    kernel = self.kernel
    computed = getattr(kernel, layer_pass.name)(config, own, inputs)
    names = layer_pass.of_layer(config).results
    if not self.everything:
      computed = {name: computed[name] for name in (*names, *self.returns)}
    return function_candidate.check_outputs(
      self.name, config, policy, computed, layer_pass, names
    )


def check_rows(
  candidate: candidates.Candidate, lanes: Sequence[str], **case
) -> Sequence[verdicts.Result]:
  """Returns the rows of a check, on `tiny` if no case says otherwise."""
  return check.run(_request(candidate, lanes, case)).results


def _request(candidate, lanes, case) -> request_lib.Request:
  layer_case = case_lib.Case(**{'preset': 'tiny', 'ranks': 2, **case})
  return request_lib.Request(
    layer_case, candidate, judgement.Judgement((*lanes,))
  )


def list_failed_stages(
  candidate: candidates.Candidate,
  lanes: Sequence[str] = ('exact', 'bounded', 'standard'),
  **case,
) -> set[str]:
  """Returns the stages that fail, and asserts that something passes."""
  request = _request(candidate, lanes, case)
  results = bench_lib.Bench(request.case).judge(request)
  assert 'pass' in {r.verdict for r in results}
  return {r.stage for r in results if r.verdict == 'fail'}


def list_refused(
  bench: bench_lib.Bench,
  case: case_lib.Case,
  candidate: candidates.Candidate,
  *lanes: str,
) -> set[tuple[str, str]]:
  """Returns (lane, stage) of what some lanes refuse."""
  judging = judgement.Judgement(lanes=lanes, repeat=1)
  results = bench.judge(request_lib.Request(case, candidate, judging))
  failed_results = (r for r in results if r.verdict == verdicts.FAIL)
  return {(r.lane, r.stage) for r in failed_results if r.lane in lanes}


def check_elsewhere(
  bench: bench_lib.Bench,
  top: pathlib.Path,
  change: tuple[str, str],
  appended_text: str = '',
  per_rank: bool = False,
) -> check.Report:
  """Returns what a check says of a run of `numpy_kernel_testing` elsewhere.

  What fails is not explained.

  Args:
    bench: of a forward case, which is written.
    top: folder for the case, the kernel and its outputs.
    change: text of the kernel, and what stands in its place; of '' nothing.
    appended_text: text after that of the kernel.
    per_rank: whether the case has a file for each rank.
  """
  inputs_of_data = {
    data: bench.read_by((passes.FORWARD,), data) for data in inputs_lib.DATA
  }
  folder_writer.write(top / 'case', 'forward', inputs_of_data, per_rank)
  text, path = (
    inspect.getsource(numpy_kernel_testing) + appended_text,
    top / 'kernel.py',
  )
  path.write_text(text.replace(*change) if change[0] else text)
  read_layer = read_case.load(top / 'case')
  read_case.run(read_layer, read_case.function(f'{path}:moe'), top / 'out')
  case = case_lib.Case.from_folder(str(top / 'case'), 'forward')
  return check_unexplained(
    check.Request(case, outputs.Outputs(str(top / 'out')))
  )


def check_unexplained(request: check.Request) -> check.Report:
  """Returns what a check says; what fails is not explained."""
  request = request.but(candidate=request.candidate.ready(request.case))
  bench = bench_lib.Bench(request.case)
  findings = bench.examine(request, explain=False)
  return check.build_report(request, bench, findings, 0.0)
