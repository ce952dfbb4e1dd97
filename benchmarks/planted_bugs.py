r"""Plants the bugs of planted_bugs.toml one by one, and says what finds them.

Each wrong kernel runs on its layer's case.  Lane bounded judges it twice, with
every stage returned and with y alone, and six public rules say what they would
have said of the same y.  Kernels of the contest's form return y alone.  A row
says the stage at which a bug was found, and of one that passes how large its
error is: the RMS of what it changes in y, over that of y.

Exit code 0: every bug was found at its stage; 1: one was not.

Example:
  python -m benchmarks.planted_bugs --keep
  python -m benchmarks.planted_bugs --layers=int4,contest --bugs=nibbles
"""

from collections.abc import Iterator
import dataclasses
import functools
import pathlib
import tempfile

from absl import app
from absl import flags
import numpy as np

from benchmarks import coded_kernel
from benchmarks import planted_changes
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.definitions import definition_check
from hpmoe.parity_tests.definitions import definition_testing
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.tools.docs import figures

_LAYERS = flags.DEFINE_list('layers', [], 'Tables of the file; none: all.')
_EXPLAIN = flags.DEFINE_bool('explain', False, 'Say what failures look like.')
_BUGS = flags.DEFINE_string('bugs', '', 'Text that is in the names of bugs.')

Bug, Layer = planted_changes.Bug, planted_changes.Layer
TOKENS = 21
PASSES = 'passes'
_WIDTH, _HIDDEN = 384, 256
_RULES = definition_check.RECORDS
_JUDGEMENT = judgement.Judgement(definition_check.LANES, _RULES, repeat=1)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The verdicts on a kernel.

  Attributes:
    bug: the bug; None: the kernel is right.
    stage: where the first failure is with every stage returned; `PASSES`.
    y_alone: likewise where y alone is.
    accepts: of each public rule, whether it takes y; None: it cannot say.
    error: RMS of what the bug changes in y, over that of y.
    pattern: what the report says of the failure.
  """

  bug: Bug | None
  stage: str
  y_alone: str
  accepts: dict[str, bool | None]
  error: float
  pattern: str

  @property
  def is_right(self) -> bool:
    """Whether the bug is found at its stage, and a right kernel passes."""
    return self.stage == (self.bug.stage if self.bug else PASSES)


def judge_case(layer: Layer, bug: Bug | None, explain: bool = False) -> Outcome:
  """Returns the verdicts on a kernel of the contract's form."""
  bench = _make_bench(layer)
  y: list[np.ndarray] = []

  def run(is_whole: bool) -> check.Report:
    def kernel(inputs, config, policy):
      del policy
      outputs = coded_kernel.compute_case(
        layer.make_kernel(bug), inputs, config.num_rows
      )
      y.append(outputs['y'])
      return outputs if is_whole else {'y': outputs['y']}

    candidate = in_process.Function(kernel)
    return _judge(bench, make_case(layer), candidate, explain)

  whole, alone = run(True), run(False)
  right_y = _compute_right_y(layer)
  return _make_outcome(bug, whole, alone, y[-1], right_y)


def judge_solution(
  layer: Layer, bug: Bug | None, explain: bool = False
) -> Outcome:
  """Returns the verdicts on a kernel of the contest's form."""
  number = None if bug is None else layer.bugs.index(bug)
  folder, definition, workload = _write_definition()
  path = folder / f'kernel_{number}.py'
  path.write_text(
    'from benchmarks import planted_changes\n\n'
    f'run = planted_changes.make_solution({number})\n'
  )
  case, candidate = definition_check.make_request(
    definition, f'{path}::run', workload=workload
  )
  report = _judge(bench_lib.Bench(case), case, candidate, explain)
  inputs = candidate.inputs.values()
  solution = planted_changes.make_solution(number)
  solution(*inputs)  # a second call shows state left by the first
  y, right_y = solution(*inputs), planted_changes.make_solution()(*inputs)
  return _make_outcome(bug, report, report, y, right_y)


def _judge(
  bench: bench_lib.Bench,
  case: case_lib.Case,
  candidate: candidates.Candidate,
  explain: bool,
) -> check.Report:
  request = request_lib.Request(case, candidate, _JUDGEMENT)
  findings = bench.examine(request, explain=explain)
  report = check.build_report(request, bench, findings, 0)
  return definition_check.separate_rules(report)


def judge_layer(name: str) -> Iterator[Outcome]:
  """Yields the verdicts on a layer's right kernel and on its wrong ones."""
  layer = planted_changes.LAYERS[name]
  judge = judge_case if layer.case else judge_solution
  yield judge(layer, None, _EXPLAIN.value)
  for bug in layer.bugs:
    if _BUGS.value in bug.bug:
      yield judge(layer, bug, _EXPLAIN.value)


@functools.cache
def _write_definition() -> tuple[pathlib.Path, str, str]:
  """Returns a folder that lives as long as this process, and two files."""
  folder = tempfile.TemporaryDirectory()
  _folders.append(folder)
  path = pathlib.Path(folder.name)
  return (
    path,
    definition_testing.write_definition(path, _WIDTH, _HIDDEN),
    definition_testing.write_workload(path, TOKENS),
  )


_folders: list[tempfile.TemporaryDirectory] = []
_benches: dict[str, bench_lib.Bench] = {}


def make_case(layer: Layer) -> case_lib.Case:
  """Returns the case of a layer of the contract's form."""
  fields = {'routing': 'zipf', **layer.case}
  return case_lib.Case('forward', ranks=1, tokens=TOKENS, **fields)


def _make_bench(layer: Layer) -> bench_lib.Bench:
  key = str(layer.case)
  if key not in _benches:
    _benches.clear()  # one at a time: they hold golden values
    _benches[key] = bench_lib.Bench(make_case(layer), keep=True)
  return _benches[key]


def _compute_right_y(layer: Layer) -> np.ndarray:
  inputs = _make_bench(layer).real_inputs
  return coded_kernel.compute_case(
    layer.make_kernel(), inputs.arrays, inputs.config.num_rows
  )['y']


def _make_outcome(
  bug: Bug | None,
  whole: check.Report,
  alone: check.Report,
  y: np.ndarray,
  right_y: np.ndarray,
) -> Outcome:
  failure = whole.first_failure
  rules = alone.config['public_rules']
  says = {verdicts.PASS: True, verdicts.FAIL: False}
  with np.errstate(over='ignore', invalid='ignore'):
    difference = y.astype(np.float64) - right_y.astype(np.float64)
    error = np.sqrt(
      np.mean(difference**2) / np.mean(right_y.astype(np.float64) ** 2)
    )
  return Outcome(
    bug,
    failure.stage if failure else PASSES,
    alone.first_failure.stage if alone.first_failure else PASSES,
    {name: says.get(rules[name]['verdict']) for name in _RULES},
    float(error),
    failure.pattern if failure else '',
  )


def describe(outcome: Outcome) -> str:
  """Returns a line of the report."""
  name = f'{outcome.bug.layer}: {outcome.bug.bug}' if outcome.bug else 'right'
  accepts = ''.join(
    '?' if value is None else '-A'[value] for value in outcome.accepts.values()
  )
  mark = ' ' if outcome.is_right else '!'
  return (
    f'{mark} {name:<72} {outcome.stage:<11} {outcome.y_alone:<8} '
    f'{accepts} {outcome.error:8.2g}  {outcome.pattern}'
  )


def count_layer(name: str, outcomes: list[Outcome]) -> list[str]:
  """Returns a row of the table."""
  wrong = [outcome for outcome in outcomes if outcome.bug]
  rows = [outcome.is_right for outcome in wrong]
  found_in_y = [outcome.y_alone != PASSES for outcome in wrong]
  return [
    name.replace('_', ' '),
    str(len(wrong)),
    str(sum(rows)),
    str(sum(found_in_y)),
    *(str(sum(bool(o.accepts[rule]) for o in wrong)) for rule in _RULES),
  ]


def main(argv):
  del argv
  rows, outcomes = [], []
  for name in _LAYERS.value or planted_changes.LAYERS:
    of_layer = []
    for outcome in judge_layer(name):
      print(describe(outcome), flush=True)
      of_layer.append(outcome)
    rows.append(count_layer(name, of_layer))
    outcomes += of_layer
  for row in rows:
    print(*row, sep='\t')
  if figures.KEEP.value:
    columns = ['layer', 'bugs', 'found at their stage', 'in y alone', *_RULES]
    total = ['all', *(str(sum(map(int, c))) for c in [*zip(*rows)][1:])]
    figures.write(
      'planted_bugs',
      columns,
      [*rows, total],
      [figures.run('python -m benchmarks.planted_bugs')],
      outcomes=[
        dict(
          layer=outcome.bug.layer,
          bug=outcome.bug.bug,
          stage=outcome.stage,
          y_alone=outcome.y_alone,
          error=float(f'{outcome.error:.2g}'),
          accepted_by=[n for n, value in outcome.accepts.items() if value],
        )
        for outcome in outcomes
        if outcome.bug
      ],
    )
  return int(not all(outcome.is_right for outcome in outcomes))


if __name__ == '__main__':
  app.run(main)
