"""How far real data reach: powers of two on columns, and what takes them back.

A column of x is 2^24 times as large where the rows of w_gate_up that meet it
are as much smaller, and so on for each axis that a GEMM sums over.  Every sum
is then of order one and no term outweighs the others, while a kernel that
clamps x, gate, up, the activation, dy, a weight or a routing weight, or reads
it from a table, fails.  Scaling by powers of two rounds nothing.
"""

from collections.abc import Mapping
import dataclasses
import hashlib

import numpy as np

from hpmoe.reference.contract.array_typing import Float
from hpmoe.reference.contract.config import MoEConfig

# Columns and features take turns; most are as drawn.
PERIOD = 16
# exp(-gate) overflows, vanishes and is 1 within rounding, all in one layer.
# Of a larger gate right kernels lose the slope: they subtract numbers like it.
# By feature: exponents of gate and of up.
_FEATURES = {
  2: (-20, 33),
  6: (-10, 0),
  9: (9, 24),
  10: (4, 4),
  14: (7, -7),
}
# Of columns of x, and of dy: dx and y are as much smaller there, not larger,
# for a norm of all columns would be that of a few.
_X = {3: 24, 11: 4}
_DY = {5: 20, 13: 4}
# Of experts, in turns of 8: of their routing weights.
_EXPERTS, _EXPERT_PERIOD = {3: 10}, 8
# float16 holds no more, gradients of weights included.
_FLOAT16 = dict(
  features={2: (-20, 3), 6: (-10, 0), 9: (6, 1), 10: (2, 4), 14: (7, -7)},
  x={3: 3, 11: 2},
  dy={5: 3, 13: 2},
  experts={3: 2},
)
# Codes of a group share a scale, so little of a group may be large.
_OF_CODES = dict(
  features={2: (-20, 0), 6: (-10, 0), 10: (4, -4), 11: (-3, 3), 14: (7, -7)},
  x={},
  dy={},
  experts={},
)
# Of the up columns, in turn: these are times the limit, where there is one, so
# that some are beyond it and some are not.
_TO_LIMIT = [4, 12]


@dataclasses.dataclass(frozen=True)
class Magnitudes:
  """Factors of a layer's values.

  Attributes:
    x: of columns of x.
    gate, up: of columns of gate and up.
    down: of rows of w_down.
    dy: of columns of dy.
    experts: of routing weights, by expert.
  """

  x: Float[np.ndarray, 'D']
  gate: Float[np.ndarray, 'F']
  up: Float[np.ndarray, 'F']
  down: Float[np.ndarray, 'F']
  dy: Float[np.ndarray, 'D']
  experts: Float[np.ndarray, 'E']

  @property
  def gate_up(self) -> Float[np.ndarray, '2*F']:
    """Of columns of gate_up, and of their bias."""
    return np.concatenate([self.gate, self.up])

  @property
  def digest(self) -> str:
    """A hash of all factors."""
    bits = b''.join(factor.tobytes() for factor in vars(self).values())
    return hashlib.sha256(bits).hexdigest()


def plan_magnitudes(
  config: MoEConfig,
  storage: np.dtype,
  limit: float = 0.0,
  coded: bool = False,
  weighted: bool = True,
) -> Magnitudes:
  """Returns the factors of a layer.

  Args:
    config: sizes.
    storage: dtype of what is stored.
    limit: of the activation, which some values of up are to exceed; 0: none.
    coded: whether weights or rows become codes.
    weighted: whether routing weights may be scaled.
  """
  exponents: dict[str, Mapping] = dict(
    features=_FEATURES, x=_X, dy=_DY, experts=_EXPERTS
  )
  if coded:
    exponents = dict(_OF_CODES)
  elif np.dtype(storage) == np.float16:
    exponents = dict(_FLOAT16)
  features = exponents['features']
  gate = _repeat({n: e[0] for n, e in features.items()}, config.d_ff)
  up = _repeat({n: e[1] for n, e in features.items()}, config.d_ff)
  largest = np.minimum(gate, limit or np.inf) * np.minimum(up, limit or np.inf)
  # float16 has no room for gradients of gates that are tiny and count.
  narrow = coded or np.dtype(storage) == np.float16
  down = 1 / (np.maximum(largest, 1) if narrow else largest)
  if limit:
    up[np.isin(np.arange(len(up)) % PERIOD, _TO_LIMIT)] = limit
  return Magnitudes(
    _repeat(exponents['x'], config.d_model),
    gate,
    up,
    down,
    _repeat(exponents['dy'], config.d_model),
    _repeat(
      exponents['experts'] if weighted else {},
      config.num_experts,
      _EXPERT_PERIOD,
    ),
  )


def _repeat(
  exponents: Mapping[int, int], count: int, period: int = PERIOD
) -> np.ndarray:
  factors = np.ones(period)
  for place, exponent in exponents.items():
    factors[place] = 2.0**exponent
  return np.resize(factors, count)
