"""A-priori rounding bounds: the golden value and how far off is still right.

One mechanism.  A `Bounded` is a value in float64 and an absolute error bound;
each function below carries both through one stage.  Inputs that the candidate
itself captured come in with error 0, so that a fault does not spread; inputs
that it kept to itself come in with the bound they were computed with.

The model of the arithmetic (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., sections 2.2 and 3.1), with u = 2^-24:

* one float32 operation:  fl(a op b) = (a op b)(1 + d), |d| <= u;
* n of them in any order of summation: relative error gamma_n = n u / (1 - n u)
  of the sum of magnitudes;
* a result below the smallest normal number may be flushed to zero, which
  loses at most that number, 2^-126, for each operation;
* one rounding to storage moves a value by half the spacing of its binade.

The golden itself is computed in float64: its own error, gamma_n with
u = 2^-53, is added.  No number here is chosen by hand.
"""

import dataclasses

import numpy as np

from parity_tests import ulp
from reference import precision

_U = ulp.unit_roundoff('float32')
_U64 = ulp.unit_roundoff('float64')
_TINY = ulp.smallest_normal('float32')

# exp within 2 units in the last place.  A unit is at most 2u of the value.
_EXP_ROUNDINGS = 4
# |d silu(z) / dz| <= 1.0999 (its maximum, at z = 2.3994).
_SILU_SLOPE = 1.1


@dataclasses.dataclass(frozen=True)
class Bounded:
  """A value and a bound on the error of whoever computed it.

  Attributes:
    value: `[...]` float64.
    error: `[...]` float64, not negative; None is zero everywhere.
  """

  value: np.ndarray
  error: np.ndarray | None = None

  def __getitem__(self, index) -> 'Bounded':
    error = None if self.error is None else self.error[index]
    return Bounded(self.value[index], error)

  def bound(self) -> np.ndarray:
    return np.zeros_like(self.value) if self.error is None else self.error


def exact(stored: np.ndarray) -> Bounded:
  """Returns stored values `[...]` as they are, without error."""
  return Bounded(stored.astype(np.float64))


def gamma(roundings: int, u: float = _U) -> float:
  """Returns the relative error bound of that many roundings.

  Raises:
    ValueError: so many roundings that no digit is left.
  """
  if roundings * u >= 1:
    raise ValueError(
        f'roundings: expected fewer than {1 / u:.0f}, got {roundings}'
    )
  return roundings * u / (1 - roundings * u)


def _stored(
    policy: precision.PrecisionPolicy,
    value: np.ndarray,
    error: np.ndarray,
) -> Bounded:
  # Sums are float32 already: only a narrower storage rounds once more.
  if policy.storage != policy.accumulate:
    error = error + ulp.half_spacing(np.abs(value) + error, policy.storage)
  return Bounded(value, error)


def gemm(
    policy: precision.PrecisionPolicy, rows: Bounded, weights: np.ndarray
) -> Bounded:
  """Returns `[n, y]`, rows `[n, x]` times weights `[x, y]` (stored, exact).

  |c - g| <= sum e|w| + gamma_x sum (|x| + e)|w| + x tiny, in any order: each
  of the x products passes one rounding of its own and at most x - 1 of sums.
  """
  depth = weights.shape[0]
  w = weights.astype(np.float64)
  value = rows.value @ w
  np.abs(w, out=w)
  scale = gamma(depth) + gamma(depth, _U64)
  error = scale * (np.abs(rows.value) @ w) + depth * _TINY
  if rows.error is not None:
    error += (1 + scale) * (rows.error @ w)
  return _stored(policy, value, error)


def activation(
    policy: precision.PrecisionPolicy,
    gate_up: Bounded,
    row_weight: np.ndarray | None,
) -> Bounded:
  """Returns `[n, F]` of gate and up `[n, 2F]`, weighted `[n]` if asked.

  'product': gate * up, 1 rounding.  'swiglu': gate / (1 + exp(-gate)) * up:
  exp (2 ulp), sum, quotient (or reciprocal and product), product with up.
  The error of exp counts in full in the sum, which is at least as large.
  exp(-gate) may overflow and 1 / (1 + exp(-gate)) may be flushed: both lose
  at most tiny * |gate|.
  """
  half = gate_up.value.shape[-1] // 2
  gate, up = gate_up[..., :half], gate_up[..., half:]
  if policy.activation == 'swiglu':
    with np.errstate(over='ignore'):
      left = gate.value / (1 + np.exp(-gate.value))
    slope, roundings = _SILU_SLOPE, _EXP_ROUNDINGS + 4
    left_tiny = _TINY * (np.abs(gate.value) + gate.bound() + 1)
  else:
    left, slope, roundings, left_tiny = gate.value, 1.0, 1, 0.0
  value = left * up.value
  left_error = slope * gate.bound() + left_tiny
  error = (
      np.abs(left) * up.bound()
      + left_error * (np.abs(up.value) + up.bound())
  )
  if row_weight is not None:
    weight = row_weight.astype(np.float64)[:, None]
    value, error, roundings = value * weight, error * np.abs(weight), (
        roundings + 1
    )
  scale = gamma(roundings) + gamma(roundings, _U64)
  error = error + scale * (np.abs(value) + error) + 2 * _TINY
  return _stored(policy, value, error)


def combine(
    policy: precision.PrecisionPolicy,
    returned: Bounded,
    topk_weights: np.ndarray,
) -> Bounded:
  """Returns `[t, D]`, the weighted sum of `[t, K, D]` over its K slots.

  Weights are `[t, K]`; as a GEMM of depth K.
  """
  sums = CombineSums.zeros(len(returned.value), returned.value.shape[-1])
  everyone = np.arange(len(returned.value))
  for slot in range(returned.value.shape[1]):
    sums.add(everyone, returned[:, slot], topk_weights[:, slot])
  return sums.total(policy, returned.value.shape[1])


@dataclasses.dataclass(frozen=True)
class CombineSums:
  """A combine under way: rows may come in any order, as owners finish them.

  Attributes:
    value: `[t, D]` float64, sum of weight times value.
    error: `[t, D]` float64, sum of |weight| times error bound.
    magnitude: `[t, D]` float64, sum of |weight| times |value|.
  """

  value: np.ndarray
  error: np.ndarray
  magnitude: np.ndarray

  @classmethod
  def zeros(cls, tokens: int, columns: int) -> 'CombineSums':
    return cls(*(np.zeros((tokens, columns)) for _ in range(3)))

  def __getitem__(self, index) -> 'CombineSums':
    return CombineSums(
        self.value[index], self.error[index], self.magnitude[index]
    )

  def add(self, token: np.ndarray, row: Bounded, weight: np.ndarray) -> None:
    """Adds rows `[n, D]` times weights `[n]` to n different tokens `[n]`."""
    weight = weight.astype(np.float64)[:, None]
    self.value[token] += row.value * weight
    self.magnitude[token] += np.abs(row.value * weight)
    if row.error is not None:
      self.error[token] += row.error * np.abs(weight)

  def total(self, policy: precision.PrecisionPolicy, slots: int) -> Bounded:
    scale = gamma(slots) + gamma(slots, _U64)
    error = self.error + scale * (self.magnitude + self.error) + slots * _TINY
    return _stored(policy, self.value, error)
