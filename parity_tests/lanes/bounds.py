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

Where a value is certain to overflow, it is an infinity with a finite bound: so
is everybody's.  Where it may, or a partial sum of it may in some order, the
bound is infinite: nothing is known of it.
"""

import dataclasses

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.lanes import ulp
from hpmoe.reference.contract import precision

_U = ulp.unit_roundoff('float32')
_U64 = ulp.unit_roundoff('float64')
_TINY = ulp.smallest_normal('float32')
_LARGEST = float(np.finfo(np.float32).max)

# exp within 2 units in the last place.  A unit is at most 2u of the value.
_EXP_ROUNDINGS = 4
# 1 / (1 + exp(-z)), or z / (1 + exp(-z)): sum, and quotient (or reciprocal and
# product).  The error of exp counts in full in the sum, which is at least as
# large.
_SIGMOID_ROUNDINGS = _EXP_ROUNDINGS + 3
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
  reach: np.ndarray | None = None,
) -> Bounded:
  """Returns what is stored of a value; `reach` is the sum of magnitudes."""
  # Sums are float32 already: only a narrower storage rounds once more.
  if policy.storage != policy.accumulate:
    error = error + ulp.half_spacing(np.abs(value) + error, policy.storage)
  stored, error = _overflowed(policy.storage, value, error)
  if reach is not None and not reach.max(initial=0.0) < _LARGEST:
    # Terms of the other sign may overflow too, and then the sum is NaN.
    against = (reach - np.abs(value)) / 2
    sure = (reach < _LARGEST) | (np.isinf(stored) & (against < _LARGEST))
    error = np.where(sure, error, np.inf)
  return Bounded(stored, error)


def _overflowed(
  dtype: str, value: np.ndarray, error: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a value and its bound, infinite where `dtype` cannot hold them."""
  largest = float(ml_dtypes.finfo(ulp.storage_dtype(dtype)).max)
  size = np.abs(value)
  if (size + error).max(initial=0.0) < largest:
    return value, error
  certain = size - error > largest * (1 + ulp.unit_roundoff(dtype))
  unsure = ~(size + error < largest) & ~certain & np.isfinite(value)
  value = np.where(certain, np.copysign(np.inf, value), value)
  return value, np.where(certain, 0.0, np.where(unsure, np.inf, error))


def _finite(value: np.ndarray) -> np.ndarray:
  """Returns magnitudes `[...]`, 0 of what is not finite and errs by nothing."""
  return np.where(np.isfinite(value), np.abs(value), 0.0)


def gemm(
  policy: precision.PrecisionPolicy, rows: Bounded, weights: np.ndarray
) -> Bounded:
  """Returns `[n, y]`, rows `[n, x]` times weights `[x, y]` (stored, exact).

  |c - g| <= sum e|w| + gamma_x sum (|x| + e)|w| + 2 x tiny, in any order: each
  of the x products passes one rounding of its own and at most x - 1 of sums,
  and x products and x - 1 sums may be flushed.
  """
  depth = weights.shape[0]
  w = weights.astype(np.float64)
  value = rows.value @ w
  w = _finite(w)
  scale = gamma(depth) + gamma(depth, _U64)
  reach = _finite(rows.value) @ w
  error = scale * reach + 2 * depth * _TINY
  if rows.error is not None:
    error += (1 + scale) * (rows.error @ w)
  return _stored(policy, value, error, reach)


def activation(
  policy: precision.PrecisionPolicy,
  gate_up: Bounded,
  row_weight: np.ndarray | None,
) -> Bounded:
  """Returns `[n, F]` of gate and up `[n, 2F]`, weighted `[n]` if asked.

  'absolute': |gate| * up, 1 rounding.  'swiglu': gate / (1 + exp(-gate)) * up:
  silu and product with up.  exp(-gate) may overflow and 1 / (1 + exp(-gate))
  may be flushed: both lose at most tiny * |gate|.
  """
  return _stored(policy, *_activation(policy, gate_up, row_weight))


def _activation(policy, gate_up, row_weight) -> tuple[np.ndarray, np.ndarray]:
  """Returns value and error `[n, F]` before they are rounded to storage."""
  half = gate_up.value.shape[-1] // 2
  gate, up = gate_up[..., :half], gate_up[..., half:]
  if policy.activation == 'swiglu':
    left = gate.value * _sigmoid(gate.value)
    slope, roundings = _SILU_SLOPE, _SIGMOID_ROUNDINGS + 1
    left_tiny = _TINY * (np.abs(gate.value) + gate.bound() + 1)
  else:
    left, slope, roundings, left_tiny = np.abs(gate.value), 1.0, 1, 0.0
  value = left * up.value
  left_error = slope * gate.bound() + left_tiny
  error = np.abs(left) * up.bound() + left_error * (
    np.abs(up.value) + up.bound()
  )
  if row_weight is not None:
    weight = row_weight.astype(np.float64)[:, None]
    value, error, roundings = (
      value * weight,
      error * np.abs(weight),
      (roundings + 1),
    )
  scale = gamma(roundings) + gamma(roundings, _U64)
  error = error + scale * (np.abs(value) + error) + 2 * _TINY
  return value, error


def _sigmoid(z: np.ndarray) -> np.ndarray:
  with np.errstate(over='ignore'):
    return 1 / (1 + np.exp(-z))


def weighted(
  policy: precision.PrecisionPolicy, rows: np.ndarray, weight: np.ndarray
) -> Bounded:
  """Returns `[n, D]`, stored rows `[n, D]` times weights `[n]`: 1 rounding."""
  value = rows.astype(np.float64) * weight.astype(np.float64)[:, None]
  scale = gamma(1) + gamma(1, _U64)
  return _stored(policy, value, scale * np.abs(value) + _TINY)


def weight_grad(
  policy: precision.PrecisionPolicy, rows: np.ndarray, d_out: Bounded
) -> Bounded:
  """Returns `[x, y]`, stored rows `[n, x]`, transposed, times `[n, y]`.

  A GEMM of depth n.  A chain of float32 sums is one of its orders, and the
  zeros that fill a last block up add nothing.
  """
  error = None if d_out.error is None else d_out.error.T
  turned = gemm(policy, Bounded(d_out.value.T, error), rows)
  return Bounded(turned.value.T, turned.bound().T)


def inner_product(a: Bounded, b: Bounded) -> Bounded:
  """Returns `[...]`, sum of a `[..., x]` times b, in float32, as a GEMM."""
  depth = a.value.shape[-1]
  scale = gamma(depth) + gamma(depth, _U64)
  size_a, size_b = np.abs(a.value), np.abs(b.value)
  # |a' b' - a b| <= |a| eb + ea (|b| + eb)
  carried = size_a * b.bound() + a.bound() * (size_b + b.bound())
  error = (carried + scale * (size_a * size_b + carried)).sum(-1)
  error += 2 * depth * _TINY
  return Bounded(*_overflowed('float32', (a.value * b.value).sum(-1), error))


def row_weight_grad(
  policy: precision.PrecisionPolicy,
  gate_up: np.ndarray,
  d_activation: Bounded,
) -> Bounded:
  """Returns `[n]`, d_activation `[n, F]` times the unweighted activation.

  gate and up are stored `[n, 2F]`; the activation is never rounded to storage.
  """
  unweighted = Bounded(*_activation(policy, exact(gate_up), None))
  return inner_product(d_activation, unweighted)


def activation_grad(
  policy: precision.PrecisionPolicy,
  gate_up: np.ndarray,
  d_activation: Bounded,
  row_weight: np.ndarray | None,
) -> Bounded:
  """Returns `[n, 2F]` of d_activation `[n, F]`, weighted `[n]` if asked.

  gate and up are stored `[n, 2F]`.  With g the weighted d_activation, d_gate is
  g * up * act'(gate) and d_up is g * act(gate): two products, in any order.
  """
  half = gate_up.shape[-1] // 2
  gate, up = np.split(gate_up.astype(np.float64), [half], axis=-1)
  weight = np.ones((len(gate), 1))
  if row_weight is not None:
    weight = row_weight.astype(np.float64)[:, None]
  slope, act = _slope(policy, gate), _act(policy, gate)
  d_gate = _times(weight, d_activation, slope, up)
  d_up = _times(weight, d_activation, act, np.ones((1, 1)))
  value, error = (np.concatenate(p, axis=-1) for p in zip(d_gate, d_up))
  return _stored(policy, value, error)


def _times(weight, grad: Bounded, act: Bounded, up):
  """Returns value and error `[n, F]` of weight * grad * act * up.

  3 roundings in any order.  Each result may be flushed, and is multiplied by
  the factors that are left: 3 tiny times the product of 1 + |factor|.
  """
  before, before_error = weight * grad.value, np.abs(weight) * grad.bound()
  right, right_error = act.value * up, act.bound() * np.abs(up)
  value = before * right
  carried = np.abs(before) * right_error + before_error * (
    np.abs(right) + right_error
  )
  scale = gamma(3) + gamma(3, _U64)
  flushed = 3 * _TINY * (1 + np.abs(weight)) * (1 + np.abs(up))
  for factor in (grad, act):
    flushed = flushed * (1 + np.abs(factor.value) + factor.bound())
  return value, carried + scale * (np.abs(value) + carried) + flushed


def _act(policy, gate: np.ndarray) -> Bounded:
  """Returns act(gate) as computed in float32."""
  if policy.activation == 'absolute':
    return Bounded(np.abs(gate))
  value = gate * _sigmoid(gate)
  scale = gamma(_SIGMOID_ROUNDINGS) + gamma(_SIGMOID_ROUNDINGS, _U64)
  error = scale * np.abs(value) + _TINY * (np.abs(gate) + 1)
  return Bounded(value, error)


def _slope(policy, gate: np.ndarray) -> Bounded:
  """Returns act'(gate) as computed in float32.

  silu'(z) = s (1 + z c) with s = sigmoid(z), c = 1 - s, so it has a zero and a
  relative bound cannot hold.  Formulas in use, and their terms before the last
  sum cancels them:

  * s (1 + z c): s (1 + |z|), even where c was computed as 1 - s and errs by
    roundings of 1;
  * s + silu(z) c: the same;
  * silu(z) + s (1 - silu(z)): s (1 + 2 |z|).

  No term passes more roundings than silu(z) c with c = exp(-z) s: two sigmoids,
  an exp, two products and the sum.  s, silu and c may each be flushed, and are
  multiplied by no more than 1 + 2 |z|; so may the result.
  """
  if policy.activation == 'absolute':
    return Bounded(np.sign(gate))
  s, c = _sigmoid(gate), _sigmoid(-gate)
  roundings = 2 * _SIGMOID_ROUNDINGS + _EXP_ROUNDINGS + 3
  scale = gamma(roundings) + gamma(roundings, _U64)
  terms = 1 + 2 * np.abs(gate)
  return Bounded(s * (1 + gate * c), (scale * s + 4 * _TINY) * terms)


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
    self.magnitude[token] += _finite(row.value * weight)
    if row.error is not None:
      self.error[token] += row.error * np.abs(weight)

  def total(self, policy: precision.PrecisionPolicy, slots: int) -> Bounded:
    scale = gamma(slots) + gamma(slots, _U64)
    error = self.error + scale * (self.magnitude + self.error) + slots * _TINY
    return _stored(policy, self.value, error, self.magnitude)
