"""Wrong kernels under the rules of public repositories, and under ours.

    python -m benchmarks.public_rules [--only=RECORD,...]

Each row of `TESTS` is a test of a fused MoE layer, or of a part of one, as its
repository has it: how inputs are drawn, the shapes, and a record of lane
standard, as printed.  A wrong kernel that stays within it on every shape passes
there.  Ours is `hpmoe.check` of y alone on the same inputs.  Counts are kept in
benchmarks/figures/public_rules.json, of which docs/measured.md has a table.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import zlib

from absl import app
from absl import flags
import numpy as np

import hpmoe
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.judge import trial
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.tools.docs import figures

_ONLY = flags.DEFINE_list('only', [], 'Records to try again; none: all.')
_DTYPE = 'bfloat16'
_NAME = 'public_rules'


@dataclasses.dataclass(frozen=True)
class Test:
  """A test of a public repository.

  Attributes:
    name: of the repository.
    record: its rule, of `standards`.
    x, weights: standard deviations of inputs; all are normal.
    scores: of router scores, for softmax and top_k; None: experts and their
      weights are uniform.
    shapes: (tokens, ffn, hidden, experts, top_k).
    of_actual: whether they take rtol of the kernel's value.
    note: where this table is not their test.
  """

  name: str
  record: str
  x: float
  weights: float
  scores: float | None
  shapes: tuple[tuple[int, int, int, int, int], ...]
  of_actual: bool = False
  note: str = ''


TESTS = (
  Test(
    'vLLM',
    'vllm',
    0.1,
    0.1,
    1.0,
    ((1, 128, 128, 8, 2), (1, 128, 128, 64, 6), (33, 2048, 128, 8, 2)),
  ),
  Test(
    'SGLang',
    'sglang',
    0.01,
    0.01,
    0.01,
    ((1, 128, 128, 8, 2), (33, 128, 128, 8, 2), (222, 1024, 128, 64, 6)),
  ),
  Test(
    'Megatron-LM',
    'megatron',
    1.0,
    0.01,
    None,
    ((4, 64, 64, 4, 2), (32, 128, 128, 8, 6), (64, 256, 128, 8, 4)),
    note='SwiGLU here, squared ReLU there',
  ),
  Test(
    'FlashInfer',
    'flashinfer',
    2.0,
    1.0,
    1.0,
    ((8, 384, 1024, 8, 2), (8, 512, 1024, 8, 4), (8, 768, 1024, 8, 2)),
    of_actual=True,
    note='8 experts here, 16 to 512 there',
  ),
  Test(
    'TransformerEngine',
    'transformer_engine',
    1.0,
    0.023,
    1.0,
    ((16, 3072, 768, 3, 1), (16, 3072, 768, 6, 2), (16, 3072, 768, 8, 5)),
    of_actual=True,
    note='the numbers of their combine, on y; inputs of their grouped GEMM',
  ),
  Test(
    'Triton-distributed',
    'triton_distributed',
    0.5,
    0.06,
    1.0,
    ((16, 256, 256, 8, 2), (16, 256, 256, 16, 4), (16, 256, 256, 16, 8)),
    of_actual=True,
    note="the numbers of their combine, on y; experts of their x's size",
  ),
  Test(
    'DeepGEMM',
    'deepgemm_mega_moe',
    1.0,
    1.0,
    1.0,
    ((8, 1024, 1024, 8, 2), (8, 1024, 1024, 8, 4), (8, 1024, 1024, 8, 6)),
    note='smaller here; bits of a chain without the bug',
  ),
  Test(
    'catlass',
    'catlass',
    2.9,
    2.9,
    1.0,
    ((8, 1024, 1024, 8, 2), (8, 1024, 1024, 8, 4), (8, 1024, 1024, 8, 6)),
    note='the rule of their matmul, on y',
  ),
)

Spoil = Callable[[inputs_lib.LayerInputs, trial.Kernel], np.ndarray]


def _y(made: inputs_lib.LayerInputs, kernel: trial.Kernel) -> np.ndarray:
  return kernel.forward(made.config, made.policy, made.arrays)['y']


def _changed(**arrays: Callable[[np.ndarray], np.ndarray]) -> Spoil:
  """Returns a kernel that computes with other inputs than it was given."""

  def spoil(made, kernel):
    other = {n: change(made.arrays[n]) for n, change in arrays.items()}
    held = dataclasses.replace(made, arrays={**made.arrays, **other})
    return _y(held, kernel)

  return spoil


def _first_slot_lost(weights: np.ndarray) -> np.ndarray:
  lost = weights.copy()
  lost[..., 0] = 0
  return lost


WRONG: dict[str, Spoil] = {
  'nothing: the kernel is right': _y,
  'nothing: its sums have another order': lambda made, _: _y(
    made, trial.Kernel(gemm=trial.descending)
  ),
  'y is zero': lambda made, kernel: 0 * _y(made, kernel),
  'y has the other sign': lambda made, kernel: -_y(made, kernel),
  'every token goes to expert 0': _changed(topk_ids=np.zeros_like),
  'an expert of each token is lost': _changed(topk_weights=_first_slot_lost),
  'routing weights are not applied': _changed(topk_weights=np.ones_like),
  'gate and up are swapped': _changed(
    w_gate_up=lambda w: np.roll(w, w.shape[-1] // 2, -1)
  ),
  'silu is 10 % off': lambda made, _: _y(made, trial.Kernel(silu=1.1)),
  'silu is 1 % off': lambda made, _: _y(made, trial.Kernel(silu=1.01)),
  'routing weights are rounded to bfloat16': lambda made, _: _y(
    made, trial.Kernel(round_weights=True)
  ),
}


def drawn(test: Test, shape: tuple[int, ...]) -> inputs_lib.LayerInputs:
  """Returns inputs as a test draws them."""
  tokens, ffn, hidden, experts, top_k = shape
  rng = np.random.default_rng(zlib.crc32(f'{test.record} {shape}'.encode()))

  def normal(*dims: int, by: float) -> np.ndarray:
    values = rng.standard_normal(dims, np.float32) * np.float32(by)
    return values.astype(ulp.storage_dtype(_DTYPE))

  scores = rng.standard_normal((1, tokens, experts)) * (test.scores or 1.0)
  ids = np.argsort(-scores, axis=-1)[..., :top_k]
  odds = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
  weights = np.take_along_axis(odds, ids, -1)
  if test.scores is None:
    weights = rng.random(ids.shape)
  return inputs_lib.of_arrays(
    dict(
      x=normal(1, tokens, hidden, by=test.x),
      topk_ids=ids.astype(np.int32),
      topk_weights=weights.astype(np.float32),
      w_gate_up=normal(1, experts, hidden, 2 * ffn, by=test.weights),
      w_down=normal(1, experts, ffn, hidden, by=test.weights),
    )
  )


def accepts(test: Test, got: np.ndarray, right: np.ndarray) -> bool:
  """Says whether a test's rule, as printed, passes a y."""
  record = standards.get(test.record, _DTYPE).letter('As printed.')
  a, g = (values.astype(np.float64) for values in (got, right))
  if test.of_actual:
    a, g = g, a
  judge = standards.Judge(record, _DTYPE)
  judge.add(standards.Elements(a, g, np.zeros_like(g), g))
  return not judge.broken()


def verdict(made: inputs_lib.LayerInputs, y: np.ndarray) -> bool:
  """Says whether `hpmoe.check` passes a y."""

  def kernel(inputs, config, policy):
    return {'y': y}

  kernel.activations = ('swiglu',)  # type: ignore[attr-defined]
  return hpmoe.check(
    kernel,
    hpmoe.Case(input=made.arrays),
    lanes=('bounded',),
  ).passed


def counts(test: Test) -> dict[str, list[int]]:
  """Returns of how many shapes a rule and ours pass each wrong kernel."""
  cases = [drawn(test, shape) for shape in test.shapes]
  right = [_y(made, trial.Kernel()) for made in cases]
  found = {}
  for name, spoil in WRONG.items():
    got = [spoil(made, trial.Kernel()) for made in cases]
    theirs = sum(accepts(test, *pair) for pair in zip(got, right))
    ours = sum(verdict(made, y) for made, y in zip(cases, got))
    found[name] = [theirs, ours]
    print(f'{test.name}: {name}: {theirs}, {ours} of {len(cases)}', flush=True)
  return found


def table(
  counted: Mapping[str, Mapping[str, Sequence[int]]],
) -> tuple[list[str], list[list[str]]]:
  """Returns the columns and rows of docs/measured.md."""
  tests = [test for test in TESTS if test.record in counted]
  columns = ['wrong', *(test.name for test in tests), 'hpmoe, on all of these']
  rows = []
  shapes = sum(len(test.shapes) for test in tests)
  for name in WRONG:
    each = [counted[test.record][name] for test in tests]
    ours = sum(pair[1] for pair in each)
    theirs = [f'{n}/{len(t.shapes)}' for (n, _), t in zip(each, tests)]
    rows.append([name, *theirs, f'{ours}/{shapes}'])
  return columns, rows


def main(argv):
  del argv
  kept = figures.load(_NAME)['counts']
  for test in TESTS:
    if not _ONLY.value or test.record in _ONLY.value:
      kept[test.record] = counts(test)
  run = figures.run('python -m benchmarks.public_rules')
  figures.write(_NAME, *table(kept), [run], counts=kept)


if __name__ == '__main__':
  app.run(main)
