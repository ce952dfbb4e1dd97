r"""Judges wrong kernels by the rules of public repositories, and by ours.

Cases, kernels and rules are data, in public_rules.toml.  A rule is a record of
lane standard, as it is printed: rounding is not excused, and the right kernel's
y is what a kernel is compared with.  Ours is lane bounded of y alone, on the
same inputs.  Two tables: tests as their repositories have them, in bfloat16,
and layers in codes under the rules of FlashInfer-Bench and others for these.

Example:
  python -m benchmarks.public_rules --keep
  python -m benchmarks.public_rules --columns=vllm,int4
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
import tomllib
import zlib

from absl import app
from absl import flags
import numpy as np

from benchmarks import coded_kernel
from benchmarks import planted_bugs
from benchmarks import planted_changes
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.definitions import definition_check
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.tools.docs import figures

_COLUMNS = flags.DEFINE_list(
  'columns', [], 'Records of tests, and layers in codes; none: all.'
)
_DTYPE = 'bfloat16'
_JUDGEMENT = judgement.Judgement(('bounded',), repeat=1)
_DATA = tomllib.loads(
  pathlib.Path(__file__).with_suffix('.toml').read_text('utf-8')
)
KERNELS: Mapping[str, Mapping[str, str]] = {
  row.pop('wrong'): row for row in _DATA['kernels']
}
QUANTISED: Sequence[str] = _DATA['quantised']


@dataclasses.dataclass(frozen=True)
class Test:
  """A test of a public repository, see public_rules.toml."""

  name: str
  record: str
  x: float
  weights: float
  shapes: Sequence[Sequence[int]]
  scores: float | None = None
  of_actual: bool = False


TESTS = tuple(Test(**row) for row in _DATA['tests'])


@dataclasses.dataclass(frozen=True)
class Sample:
  """A layer that kernels run on, and the rules that judge them.

  Attributes:
    case: its inputs.
    form: of its tensors.
    rules: records by name, and whether rtol is of the kernel's value.
  """

  case: case_lib.Case
  form: coded_kernel.Form
  rules: Mapping[str, bool]


def draw_arrays(test: Test, shape: Sequence[int]) -> dict[str, np.ndarray]:
  """Returns inputs as a test draws them."""
  tokens, hidden, width, experts, top_k = shape
  name = f'{test.record} {(*shape,)}'
  rng = np.random.default_rng(zlib.crc32(name.encode()))

  def normal(*dims: int, scale: float) -> np.ndarray:
    values = rng.standard_normal(dims, np.float32) * np.float32(scale)
    return values.astype(ulp.storage_dtype(_DTYPE))

  scores = rng.standard_normal((1, tokens, experts)) * (test.scores or 1.0)
  ids = np.argsort(-scores, axis=-1)[..., :top_k]
  odds = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
  weights = np.take_along_axis(odds, ids, -1)
  if test.scores is None:
    weights = rng.random(ids.shape)
  return dict(
    x=normal(1, tokens, width, scale=test.x),
    topk_ids=ids.astype(np.int32),
    topk_weights=weights.astype(np.float32),
    w_gate_up=normal(1, experts, width, 2 * hidden, scale=test.weights),
    w_down=normal(1, experts, hidden, width, scale=test.weights),
  )


def make_samples(test: Test) -> list[Sample]:
  """Returns the layers of a test."""
  return [
    Sample(
      case_lib.Case('forward', input=draw_arrays(test, shape)),
      coded_kernel.FORMS['values'],
      {test.record: test.of_actual},
    )
    for shape in test.shapes
  ]


def make_coded_sample(name: str) -> Sample:
  """Returns a layer in codes."""
  layer = planted_changes.LAYERS[name]
  rules = dict.fromkeys(definition_check.RECORDS, False)
  form = coded_kernel.FORMS[layer.form]
  return Sample(planted_bugs.make_case(layer), form, rules)


def accepts(
  record: str, of_actual: bool, dtype: str, y: np.ndarray, right_y: np.ndarray
) -> bool:
  """Returns whether a rule, as printed, accepts a y beside the right one."""
  actual, golden = (a.astype(np.float64) for a in (y, right_y))
  if of_actual:
    actual, golden = golden, actual
  judge = standards.Judge(standards.get(record, dtype), dtype)
  no_bound = np.zeros_like(golden)
  judge.add(standards.Elements(actual, golden, no_bound, golden))
  return not judge.list_broken()


def make_kernel(wrong: str, form: coded_kernel.Form) -> coded_kernel.Kernel:
  """Returns a kernel of `KERNELS`."""
  row = KERNELS[wrong]
  if not row:
    return coded_kernel.Kernel(form)
  change = planted_changes.CHANGES[row['change']]
  return coded_kernel.Kernel(form, row['point'], change)


def judge_sample(sample: Sample) -> Iterator[tuple[str, dict[str, bool]]]:
  """Yields each kernel's name, and whether each rule accepts it; ours is ''."""
  bench = bench_lib.Bench(sample.case, keep=True)
  arrays = bench.real_inputs.arrays
  right_y = coded_kernel.compute_y(coded_kernel.Kernel(sample.form), arrays)
  for wrong in KERNELS:
    kernel = make_kernel(wrong, sample.form)
    y = coded_kernel.compute_y(kernel, arrays)
    accepted = {
      record: accepts(record, of_actual, sample.form.y, y, right_y)
      for record, of_actual in sample.rules.items()
    }

    def run(inputs, config, policy, kernel=kernel):
      del config, policy
      return {'y': coded_kernel.compute_y(kernel, inputs)}

    run.activations = ('swiglu',)  # type: ignore[attr-defined]
    request = request_lib.Request(
      sample.case, in_process.Function(run), _JUDGEMENT
    )
    results = bench.judge(request)
    passes = all(result.verdict != verdicts.FAIL for result in results)
    yield wrong, accepted | {'': passes}


Outcomes = Mapping[str, Mapping[str, bool]]


def count(outcomes: Sequence[Outcomes]) -> dict[str, dict[str, int]]:
  """Returns of each kernel how many layers each rule accepts it on."""
  counts: dict[str, dict[str, int]] = {wrong: {} for wrong in KERNELS}
  for of_layer in outcomes:
    for wrong, accepted in of_layer.items():
      for record, value in accepted.items():
        counts[wrong][record] = counts[wrong].get(record, 0) + value
  return counts


def list_accepting(outcomes: Outcomes) -> dict[str, list[str]]:
  """Returns the rules that accept each kernel, by name; ours is 'hpmoe'."""
  return {
    wrong: [record or 'hpmoe' for record, value in row.items() if value]
    for wrong, row in outcomes.items()
  }


def count_test(test: Test) -> dict[str, list[str]]:
  """Returns two cells for each kernel: of a test's rule, and ours."""
  total = len(test.shapes)
  outcomes = [dict(judge_sample(sample)) for sample in make_samples(test)]
  return {
    wrong: [f'{row[test.record]}/{total}', f'{row[""]}/{total}']
    for wrong, row in count(outcomes).items()
  }


def add_up(cells: Sequence[str]) -> str:
  """Returns a cell of several, '3/3' and so on."""
  pairs = [[*map(int, cell.split('/'))] for cell in cells]
  return '/'.join(str(sum(column)) for column in zip(*pairs))


def tabulate_tests() -> list[list[str]]:
  """Returns the rows of the table of repositories."""
  tests = [
    test
    for test in TESTS
    if not _COLUMNS.value or test.record in _COLUMNS.value
  ]
  columns = []
  for test in tests:
    columns.append(count_test(test))
    print(test.name, columns[-1], flush=True)
  return [
    [
      wrong,
      *(column[wrong][0] for column in columns),
      add_up([column[wrong][1] for column in columns]),
    ]
    for wrong in KERNELS
    if columns
  ]


def tabulate_codes(outcomes: Sequence[Outcomes]) -> list[list[str]]:
  """Returns the rows of the table of layers in codes."""
  rules, total = (*definition_check.RECORDS, ''), len(outcomes)
  return [
    [wrong, *(f'{row[rule]}/{total}' for rule in rules)]
    for wrong, row in count(outcomes).items()
    if outcomes
  ]


def main(argv):
  del argv
  rows = tabulate_tests()
  layers = [n for n in QUANTISED if not _COLUMNS.value or n in _COLUMNS.value]
  outcomes = {n: dict(judge_sample(make_coded_sample(n))) for n in layers}
  coded_rows = tabulate_codes([*outcomes.values()])
  for row in (*rows, *coded_rows):
    print(*row, sep='\t')
  if figures.KEEP.value and not _COLUMNS.value:
    last = 'hpmoe, on all of these'
    run = [figures.run('python -m benchmarks.public_rules')]
    names = [test.name for test in TESTS]
    figures.write('public_rules', ['wrong', *names, last], rows, run)
    rules = definition_check.RECORDS
    figures.write(
      'public_rules_in_codes',
      ['wrong', *rules, last],
      coded_rows,
      run,
      accepted_by={n: list_accepting(table) for n, table in outcomes.items()},
    )


if __name__ == '__main__':
  app.run(main)
