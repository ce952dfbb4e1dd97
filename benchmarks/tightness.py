r"""Measures how much of a limit of lane bounded a correct kernel uses.

Two tables.  By depth of a sum: the error of correct sums over each limit, and
the least error of sums with narrowed operands, which must be above 1.  By
stage of a layer of preset `small`: the error of correct kernels over each
limit.  All sums have several orders, and data of several seeds.

Example:
  python -m benchmarks.tightness --keep
  python -m benchmarks.tightness --depths=64 --dtypes= --seeds=1
"""

import operator

from absl import app
from absl import flags
import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import spread
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.tools.docs import figures

_DEPTHS = flags.DEFINE_list(
  'depths', ['64', '256', '1024', '4096', '16384'], 'Terms of a sum.'
)
_DTYPES = flags.DEFINE_list(
  'dtypes', ['float32', 'bfloat16', 'float16'], 'Storage of the layers.'
)
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Tiles, and layers, drawn.')

_ORDERS = (trial.blas, trial.ascending, trial.pairwise)
_ROWS, _COLUMNS = 64, 128
_TF32_DIGITS, _BF16_DIGITS = 10, 7
_POLICY = precision.PrecisionPolicy()
_PRESET, _RANKS, _TOKENS = 'small', 4, 64
_SHARES = ('bound: median', 'worst', 'spread: median', 'worst')
_SHORT = {'float32': 'f32', 'bfloat16': 'bf16', 'float16': 'f16'}


def share_of_limits(sums: np.ndarray, golden: bounded_values.Bounded):
  """Returns the error of a tile `[64, 128]` over its bound and its spread."""
  cut = tiles.cut_tokens(*(n for n in sums.shape for _ in range(2)))
  judge = spread.Judge(
    _POLICY,
    _POLICY.storage,
    spread.Independent(),
    num_tiles=1,
    comparisons=verdicts.COMPARISONS,
  )
  wide = sums.astype(np.float64)
  spreads = judge.shares(judge.sums(cut, 0, wide, golden.value, golden))
  of_bound = np.abs(wide - golden.value) / golden.bound()
  return float(of_bound.max()), max(float(s.max()) for s in spreads.values())


def measure_tile(depth: int, seed: int):
  """Returns shares of correct orders, and the worst of narrowed operands."""
  rng = np.random.default_rng((depth, seed))
  operands = (
    rng.standard_normal((_ROWS, depth), np.float32),
    rng.standard_normal((depth, _COLUMNS), np.float32),
  )
  golden = gemm_bounds.gemm(
    _POLICY, bounded_values.exact(operands[0]), operands[1]
  )
  correct = [share_of_limits(order(*operands), golden) for order in _ORDERS]
  narrowed = [
    max(
      share_of_limits(
        trial.blas(*(trial.cut_bits(a, digits) for a in operands)), golden
      )
    )
    for digits in (_TF32_DIGITS, _BF16_DIGITS)
  ]
  return correct, narrowed


def measure_depth(depth: int, seeds: int) -> list[float]:
  """Returns the figures of a row of the table by depth."""
  measured = [measure_tile(depth, seed) for seed in range(seeds)]
  correct = np.array([shares for tile in measured for shares in tile[0]])
  narrowed = np.array([tile[1] for tile in measured]).min(axis=0)
  middle, worst = np.median(correct, axis=0), correct.max(axis=0)
  return [middle[0], worst[0], middle[1], worst[1], *narrowed]


def measure_layer(storage: str, direction: str, seed: int):
  """Yields (stage, rule) and the share of it that a correct kernel uses."""
  policy = precision.PrecisionPolicy(storage)
  config = presets.config(presets.get(_PRESET), _RANKS, _TOKENS)
  inputs = trial_verdicts.with_saved(trial_verdicts.draw(config, policy, seed))
  run = operator.methodcaller(direction, config, policy, inputs.arrays)
  (layer_pass,) = passes.from_direction(direction)
  outputs = [run(trial.Kernel(order)) for order in _ORDERS]
  for own, other in zip(outputs, (*outputs[1:], outputs[0])):
    results = {name: own[name] for name in layer_pass.results}
    judged_results = trial_verdicts.judge_results(inputs, results, other)
    for result in (
      *trial_verdicts.judge_stages(inputs, own).values(),
      *judged_results.values(),
    ):
      yield (result.stage, result.rule), result.values['error_of_bound']


def measure_stages(storage: str, seeds: int) -> dict[str, list[float]]:
  """Returns the figures of each stage that rounds, for one storage dtype."""
  shares: dict[tuple[str, str], list[float]] = {}
  for direction in ('forward', 'backward'):
    for seed in range(seeds):
      for key, share in measure_layer(storage, direction, seed):
        shares.setdefault(key, []).append(share)
  rules = (verdicts.BOUND_RULE, verdicts.SPREAD_RULE)
  return {
    stage: [
      float(reduce(shares[stage, rule]))
      for rule in rules
      for reduce in (np.median, max)
    ]
    for stage in verdicts.ORDER
    if (stage, verdicts.SPREAD_RULE) in shares
  }


def _format(share: float) -> str:
  return f'{share:,.0f}' if share >= 100 else f'{share:.2g}'


def main(argv):
  del argv
  by_depth = [
    [f'{int(d):,}', *map(_format, measure_depth(int(d), _SEEDS.value))]
    for d in _DEPTHS.value
  ]
  for row in by_depth:
    print(*row, sep='\t')
  by_dtype = {d: measure_stages(d, _SEEDS.value) for d in _DTYPES.value}
  stages = next(iter(by_dtype.values()), {})
  by_stage = [
    [stage, *(_format(n) for rows in by_dtype.values() for n in rows[stage])]
    for stage in stages
  ]
  for row in by_stage:
    print(*row, sep='\t')
  if figures.KEEP.value:
    run = figures.run('python -m benchmarks.tightness')
    run |= dict(processor=figures.ANY, load=figures.ANY)
    columns = ['depth', *_SHARES, 'TF32 operands', 'bf16 operands']
    figures.write('tightness_depth', columns, by_depth, [run])
    heads = [
      f'{_SHORT[dtype]}, {head}' if column == 0 else head
      for dtype in by_dtype
      for column, head in enumerate(_SHARES)
    ]
    figures.write('tightness_stages', ['stage', *heads], by_stage, [run])


if __name__ == '__main__':
  app.run(main)
