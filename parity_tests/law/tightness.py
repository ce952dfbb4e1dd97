"""How much of a limit a right kernel uses, and which wrong ones it catches.

One tile of a sum per depth and order, and the stages of whole layers; the
figures are kept in docs/measured.md.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import operator

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import spread
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import storage as storage_lib

DEPTHS = (64, 256, 1024, 4096, 16384)
_ROWS, _COLUMNS = 64, 128
_POLICY = precision.PrecisionPolicy()


@dataclasses.dataclass(frozen=True)
class Row:
  """What tiles of one depth use of the limits of lane bounded, in float32.

  Attributes:
    depth: terms of a sum.
    bound: median and worst share of the worst-case bound, of right orders.
    spread: the same of the statistical limits.
    tf32, bf16: least share that tiles of so narrowed operands use.
  """

  depth: int
  bound: tuple[float, float]
  spread: tuple[float, float]
  tf32: float
  bf16: float

  @property
  def holds(self) -> bool:
    """Whether the limits are as tight as they should be."""
    tight = max(self.bound[0], self.spread[0]) >= 1 / 50
    right = max(self.bound[1], self.spread[1]) < 1
    return tight and right and min(self.tf32, self.bf16) > 1


def measure(
  depths: Sequence[int], seeds: int, progress: Callable[[str], None]
) -> list[Row]:
  """Returns a row per depth, over all orders of summation and some seeds."""
  rows = []
  for depth in depths:
    progress(f'depth {depth}')
    found = [_tile(depth, seed) for seed in range(seeds)]
    right = np.array([used for tile in found for used in tile[0]])
    middle, worst = np.median(right, axis=0), right.max(axis=0)
    wrong = np.array([tile[1] for tile in found]).min(axis=0)
    rows.append(
      Row(
        depth,
        (float(middle[0]), float(worst[0])),
        (float(middle[1]), float(worst[1])),
        *map(float, wrong),
      )
    )
  return rows


# The layer whose stages are measured, where a kernel is tried as well.
_PRESET, _RANKS, _TOKENS = 'small', 4, 64
LAYERS = tuple(
  (storage, which.name)
  for storage in storage_lib.STORED
  for which in (passes.FORWARD, passes.BACKWARD)
)


@dataclasses.dataclass(frozen=True)
class StageRow:
  """What right kernels use of the limits of lane bounded, in one stage.

  Attributes:
    storage: dtype.
    direction: name of the pass.
    stage: a tensor, judged from those before it; or a row of a fused layer.
    bound: median and worst share of the worst-case bound, over inputs and
      orders, each by the worst of its elements.
    spread: the same of the statistical limits.
  """

  storage: str
  direction: str
  stage: str
  bound: tuple[float, float]
  spread: tuple[float, float]

  @property
  def holds(self) -> bool:
    """Whether right kernels pass."""
    return max(self.bound[1], self.spread[1]) < 1


def measure_stages(
  seeds: int,
  progress: Callable[[str], None],
  layers: Sequence[tuple[str, str]] = LAYERS,
) -> list[StageRow]:
  """Returns a row per stage that rounds, over orders of summation and seeds."""
  rows = []
  for storage, direction in layers:
    progress(f'stages, {storage}, {direction}')
    used: dict[tuple[str, str], list[float]] = {}
    for seed in range(seeds):
      for name, share in _layers(storage, direction, seed):
        used.setdefault(name, []).append(share)
    rows += [
      StageRow(storage, direction, stage, *_both(used, stage))
      for stage in verdicts.ORDER
      # What moves alone has no rounding.
      if used.get((stage, verdicts.SPREAD_RULE))
    ]
  return rows


def _layers(
  storage: str, direction: str, seed: int
) -> Iterator[tuple[tuple[str, str], float]]:
  """Yields (stage, rule) and what a right layer uses of it."""
  policy = precision.PrecisionPolicy(storage)
  config = presets.config(presets.get(_PRESET), _RANKS, _TOKENS)
  made = trial.with_saved(trial.draw(config, policy, seed))
  run = operator.methodcaller(direction, config, policy, made.arrays)
  (which,) = passes.of(direction)
  got = [run(trial.Kernel(order)) for order in _orders()]
  for mine, other in zip(got, (*got[1:], got[0])):
    results = {name: mine[name] for name in which.results}
    layer = trial.judge(made, results, other).values()
    stages = trial.judge_stages(made, mine).values()
    for found in (*stages, *layer):
      yield (found.stage, found.rule), found.values['error_of_bound']


def _both(used, stage: str) -> Iterator[tuple[float, float]]:
  for rule in (verdicts.BOUND_RULE, verdicts.SPREAD_RULE):
    shares = used[stage, rule]
    yield float(np.median(shares)), max(shares)


def _tile(depth: int, seed: int):
  """Returns shares of right orders, and of narrowed operands, for one tile."""
  rng = np.random.default_rng((depth, seed))
  rows = rng.standard_normal((_ROWS, depth), np.float32)
  weights = rng.standard_normal((depth, _COLUMNS), np.float32)
  golden = bounds.gemm(_POLICY, bounds.exact(rows), weights)
  right = [_used(order(rows, weights), golden) for order in _orders()]
  wrong = [
    _used(trial.blas(*(trial.cut_bits(a, n) for a in (rows, weights))), golden)
    for n in (10, 7)
  ]
  return right, [max(used) for used in wrong]


def _orders():
  # One that a tree sums, and one term after another; the BLAS lies between.
  return trial.blas, trial.ascending, trial.pairwise


def _used(got: np.ndarray, golden: bounds.Bounded) -> tuple[float, float]:
  """Returns what a tile uses of the worst case, and of the spread."""
  cut = tiles.cut_tokens(*(n for n in got.shape for _ in range(2)))
  judge = spread.Judge(
    _POLICY,
    _POLICY.storage,
    spread.Independent(),
    num_tiles=1,
    comparisons=verdicts.COMPARISONS,
  )
  wide = got.astype(np.float64)
  shares = judge.shares(judge.sums(cut, 0, wide, golden.value, golden))
  of_bound = np.abs(wide - golden.value) / golden.bound()
  return float(of_bound.max()), max(float(s.max()) for s in shares.values())
