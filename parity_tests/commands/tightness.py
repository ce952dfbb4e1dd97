"""How much of a limit a right kernel uses, and which wrong ones it catches.

One tile of a sum per depth and order, and whole layers; the figures are kept in
docs/tightness.md.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.lanes import bounds
from hpmoe.parity_tests.lanes import lanes
from hpmoe.parity_tests.lanes import spread
from hpmoe.parity_tests.lanes import tiles
from hpmoe.parity_tests.lanes import trial
from hpmoe.reference.contract import precision

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
    comparisons=len(lanes.ORDER),
  )
  wide = got.astype(np.float64)
  shares = judge.shares(judge.sums(cut, 0, wide, golden.value, golden))
  of_bound = np.abs(wide - golden.value) / golden.bound()
  return float(of_bound.max()), max(float(s.max()) for s in shares.values())
