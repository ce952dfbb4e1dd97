"""Records of FlashInfer-Bench's rules say what its own package says.

`make test-torch` runs it; HPMOE_TORCH_PYTHON names a Python that has torch and
flashinfer-bench.
"""

import hashlib
import json
import os
import pathlib
import subprocess

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.definitions import definition as definition_lib
from hpmoe.parity_tests.definitions import definition_check
from hpmoe.parity_tests.definitions import definition_testing as testing
from hpmoe.parity_tests.definitions import trace_set
from hpmoe.parity_tests.judge.limits import standards

_SCRIPT = pathlib.Path(__file__).with_name('evaluator_torch_testing.py')
_KERNEL = 'examples/contest/fused_moe.py'
_TOKENS, _WIDTH, _OUTPUTS = 5, 40, 50
_RULES = (
  'flashinfer_bench',
  'flashinfer_bench_lowbit',
  'flashinfer_contest',
)


def _draw_outputs() -> tuple[np.ndarray, np.ndarray]:
  """Returns a golden output `[T, D]` bfloat16, and outputs around thresholds.

  Errors are just within or just beyond the tolerance of a record, in so many
  elements as it allows, one fewer or one more; some outputs are zeros, or have
  an infinity or a NaN.
  """
  rng = np.random.default_rng(0)
  # Both terms of a tolerance count where a value is near 1.
  exponents = rng.choice([-4, -1, 0, 0, 0, 1, 4], (_TOKENS, _WIDTH))
  size = np.float32(10.0) ** exponents
  golden = rng.standard_normal((_TOKENS, _WIDTH)) * size
  golden[0, :4] = 0
  golden = golden.astype(ml_dtypes.bfloat16)
  outputs = [golden.copy(), np.zeros_like(golden), -golden]
  for value in (np.nan, np.inf, -np.inf):
    outputs.append(golden.copy())
    outputs[-1][1, 2] = value
  for number in range(_OUTPUTS - len(outputs)):
    record = standards.get(_RULES[number % 3], 'bfloat16')
    share = record.rules[0][0].limit['bfloat16']
    count = int(share * golden.size) + (number // 3) % 4 - 1
    outputs.append(_spoil(golden, record, max(count, 0), number, rng))
  return golden, np.stack(outputs)


def _spoil(golden, record, count: int, number: int, rng) -> np.ndarray:
  """Returns values at the edge of a tolerance, `count` of them beyond it."""
  tolerance = record.tolerance['bfloat16']
  exact = golden.astype(np.float64)
  room = np.maximum(tolerance.atol, tolerance.rtol * np.abs(exact))
  signs = rng.choice([-1, 1], golden.shape)
  edges = (exact + signs * room).astype(ml_dtypes.bfloat16)
  step = np.nextafter(edges, (signs * np.inf).astype(ml_dtypes.bfloat16))
  back = np.nextafter(edges, golden)
  is_beyond = np.abs(edges.astype(np.float64) - exact) > room
  outside = np.where(is_beyond, edges, step)
  inside = np.where(is_beyond, back, edges)
  if number % 2:  # far beyond
    outside = (exact + 3 * signs * room).astype(ml_dtypes.bfloat16)
  order = rng.permutation(golden.size).reshape(golden.shape)
  return np.where(order < count, outside, inside)


def _judge(name: str, output: np.ndarray, golden: np.ndarray) -> bool:
  """Says whether a record accepts an output."""
  exact = golden.astype(np.float64)
  judge = standards.Judge(standards.get(name, 'bfloat16'), 'bfloat16')
  judge.add(
    standards.Elements(
      output.astype(np.float64), exact, np.zeros_like(exact), exact
    )
  )
  return not judge.list_broken()


def _write_solution(folder: pathlib.Path) -> str:
  """Writes the kernel in torch of the examples; returns its text."""
  root = pathlib.Path(__file__).resolve().parents[2]
  text = (root / _KERNEL).read_text('utf-8')
  text = text.replace(
    '_TOP_K, _GROUPS, _TOP_GROUPS = 8, 8, 4',
    '_TOP_K, _GROUPS, _TOP_GROUPS = 4, 4, 2',
  )
  table = json.loads((folder / 'definition.json').read_text())
  solution = dict(
    name='ours',
    definition=table['name'],
    author='us',
    spec=dict(
      language='python',
      target_hardware=['cpu'],
      entry_point='kernel.py::run',
      destination_passing_style=False,
    ),
    sources=[dict(path='kernel.py', content=text)],
  )
  (folder / 'solution.json').write_text(json.dumps(solution))
  return text


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Returns what the package says, and what it was asked."""
  folder = tmp_path_factory.mktemp('flashinfer_bench')
  path = testing.write_definition(folder)
  testing.write_workload(folder, 9)
  # Its reference gets tensors of torch.
  table = json.loads(pathlib.Path(path).read_text())
  table['reference'] = _write_solution(folder)
  pathlib.Path(path).write_text(json.dumps(table))
  trace_set.write_trace_set(str(folder / 'traces'), path, _TOKENS)
  golden, outputs = _draw_outputs()
  np.savez(
    folder / 'outputs.npz',
    golden=golden.view(np.uint16),
    outputs=outputs.view(np.uint16),
  )
  subprocess.run(
    [os.environ['HPMOE_TORCH_PYTHON'], '-I', _SCRIPT, folder],
    check=True,
    env={**os.environ, 'FIB_CACHE_PATH': str(folder / 'cache')},
  )
  verdicts = json.loads((folder / 'verdicts.json').read_text())
  return folder, golden, outputs, verdicts


def test_its_package_reads_our_files(run):
  folder, _, _, verdicts = run
  definition = definition_lib.read_definition(str(folder / 'definition.json'))
  work = definition_lib.read_workload(str(folder / 'workloads.jsonl'))
  shapes = [definition.shape(spec, work) for spec in definition.inputs]
  assert verdicts['shapes'] == [s and [*s] for s in shapes]
  assert verdicts['evaluator'] == 'LowBitEvaluator'
  # A solution of the kernel that is the reference has its output.
  assert verdicts['solution']


def test_its_package_reads_the_inputs_that_we_export(run):
  folder, _, _, verdicts = run
  _, candidate = definition_check.make_request(
    str(folder / 'definition.json'), 'reference', tokens=_TOKENS
  )
  expected = {
    name: hashlib.sha256(value.tobytes()).hexdigest()
    if isinstance(value, np.ndarray)
    else value
    for name, value in candidate.inputs.items()
  }
  assert verdicts['inputs'] == expected


@pytest.mark.parametrize('name', _RULES)
def test_a_record_says_what_its_evaluator_says(run, name):
  _, golden, outputs, verdicts = run
  says = [_judge(name, output, golden) for output in outputs]
  assert len(says) == _OUTPUTS
  # Both verdicts are among them, or equality would say nothing.
  assert 5 < sum(says) < _OUTPUTS - 5
  assert says == verdicts['rules'][name]
