"""Wrong kernels under the rules of public repositories, and under ours.

    python -m benchmarks.public_rules [--json=FILE]

Each row of `TESTS` is a test of a fused MoE layer as its repository has it: how
inputs are drawn, the shapes, and the numbers of `torch.testing.assert_close`.
A wrong kernel that stays within them on every shape passes there.  Ours is
`hpmoe.check` of y alone on the same inputs, and the records of lane standard
that have their names.
"""

from collections.abc import Callable
import dataclasses
import json
import zlib

from absl import app
from absl import flags
import numpy as np

import hpmoe
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.judge import trial
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.report import text_table

_JSON = flags.DEFINE_string('json', None, 'Write the table here.')
_DTYPE = 'bfloat16'


@dataclasses.dataclass(frozen=True)
class Test:
  """A test of a public repository.

  Attributes:
    record: its rule, of `standards`.
    x, weights: standard deviations of inputs; all are normal.
    scores: of router scores, for softmax and top_k; None: experts and their
      weights are uniform.
    shapes: (tokens, ffn, hidden, experts, top_k), some of theirs.
    note: where this table is not their test.
  """

  record: str
  x: float
  weights: float
  scores: float | None
  shapes: tuple[tuple[int, int, int, int, int], ...]
  note: str = ''


TESTS = (
  Test(
    'vllm',
    0.1,
    0.1,
    1.0,
    ((1, 128, 128, 8, 2), (1, 128, 128, 64, 6), (33, 2048, 128, 8, 2)),
  ),
  Test(
    'sglang',
    0.01,
    0.01,
    0.01,
    ((1, 128, 128, 8, 2), (33, 128, 128, 8, 2), (222, 1024, 128, 64, 6)),
  ),
  Test(
    'megatron',
    1.0,
    0.01,
    None,
    ((4, 64, 64, 4, 2), (32, 128, 128, 8, 6), (64, 256, 128, 8, 4)),
    'SwiGLU here, squared ReLU there',
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
  'none: right': _y,
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


def accepts(test: Test, got: np.ndarray, expected: np.ndarray) -> bool:
  """Says whether `assert_close` with a test's numbers passes."""
  limit = standards.get(test.record, _DTYPE).tolerance[_DTYPE]
  got, expected = (a.astype(np.float64) for a in (got, expected))
  off = np.abs(got - expected)
  return bool((off <= limit.atol + limit.rtol * np.abs(expected)).all())


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


def table() -> list[dict[str, str]]:
  """Returns a row for each wrong kernel: of how many shapes it passes."""
  rows = [{'wrong': name} for name in WRONG]
  for test in TESTS:
    cases = [drawn(test, shape) for shape in test.shapes]
    right = [_y(made, trial.Kernel()) for made in cases]
    for row in rows:
      spoil = WRONG[row['wrong']]
      got = [spoil(made, trial.Kernel()) for made in cases]
      theirs = sum(accepts(test, *pair) for pair in zip(got, right))
      ours = sum(verdict(made, y) for made, y in zip(cases, got))
      row[test.record] = f'{theirs} of {len(cases)}'
      row[f'hpmoe on data of {test.record}'] = f'{ours} of {len(cases)}'
  return rows


def main(argv):
  del argv
  rows = table()
  print(text_table.text(tuple(rows[0]), [tuple(r.values()) for r in rows]))
  if _JSON.value:
    with open(_JSON.value, 'w', encoding='utf-8') as file:
      json.dump(rows, file, indent=2)


if __name__ == '__main__':
  app.run(main)
