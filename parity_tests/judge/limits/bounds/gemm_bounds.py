"""Bounds of a GEMM, of its gradient of weights, and of an inner product."""

import dataclasses
from typing import NamedTuple

import numpy as np

from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.parity_tests.judge.limits.bounds import weight_sizes
from hpmoe.parity_tests.judge.limits.bounds import weighting_bounds
from hpmoe.parity_tests.judge.limits.weights import products
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised as quantised_lib
from hpmoe.reference.contract import recipes

# The parts of two operands exceed them by at most this share.
_TWO_PARTS = 2.0**-6
# The number of prefixes of a long sum, and the terms between two of them.
_PREFIXES, _PREFIX_TERMS = 8, 256


def gemm(
  policy: precision.PrecisionPolicy,
  rows: bounded_values.Bounded,
  weights: 'np.ndarray | bounded_values.Bounded | Weights',
  dtype: str | None = None,
  weight: np.ndarray | None = None,
) -> bounded_values.Bounded:
  """Returns `[n, y]`, rows `[n, x]` times weights `[x, y]`.

  The sums are multiplied by `weight` `[n]`, if any, and stored in `dtype`;
  None: in the policy's storage.

  |c - g| <= sum e|w| + gamma_x sum (|x| + e)|w| + 2 x tiny, in any order: each
  of the x products passes its own rounding and at most x - 1 roundings of sums;
  x products and x - 1 sums may be flushed, and so may each operand.  Weights
  with an error f add (1 + gamma_x) sum (|x| + e) f.  Emulated products are
  several products per pair of operands, without the smallest.  For codes, a
  scale multiplies each weight, whose product may be rounded, or sums of terms:
  this adds two roundings, and the scales of rows add two more.
  """
  if not isinstance(weights, Weights):
    weights = Weights.prepare(policy, weights)
  rows = rounding.round_at(policy, 'operands', rows)
  depth = len(weights.value)
  block = max(_PREFIX_TERMS, -(-depth // _PREFIXES))
  value, prefixes = weights.add_prefixes(rows.value, block)
  model = _model_gemm(policy, depth, block)
  size = rounding.finite_magnitudes(rows.value)
  sums = _GemmSums.compute(policy, rows, weights, size, model.of_terms)
  flush = rounding.TINY * (2 * depth + size.sum(1, keepdims=True) + sums.total)
  flush = model.products * flush
  of_sum = model.of_total * np.square(value) + np.square(flush)
  if prefixes is not None:
    of_sum += rounding.kernels(policy) * rounding.VARIANCE * block * prefixes
  scale, reach = model.relative_error(depth), sums.reach
  error = scale * reach + flush
  if sums.error is not None:
    error += (1 + scale) * sums.error
  if weights.source.error is not None:
    # Weights that are no float32: `sizes` rounded them.
    magnitudes = np.abs(rows.value) + rows.bound()
    weight_term = magnitudes @ weights.source.error
    error = (error + (1 + scale) * weight_term) * (1 + rounding.gamma(2))
  rounding_error, of_blocks, (crossings, unlike) = rounding.round_partial_sums(
    policy,
    'accumulator',
    -(-depth // precision.BLOCK_INNER),
    reach,
    lambda: np.sqrt(of_sum + sums.own_variance),
  )
  error, of_sum = error + (1 + scale) * rounding_error, of_sum + of_blocks
  variance, apart = _propagate_gemm(policy, rows, weights, sums, of_sum)
  crossings = _sum_crossings(policy, rows, weights, dtype, crossings)
  bounded = bounded_values.Bounded(
    value, error, variance, apart, crossings, unlike
  )
  return _stored_sums(policy, weight, bounded, reach, dtype)


@dataclasses.dataclass(frozen=True)
class _GemmSums:
  """Rows times magnitudes of weights, or times their squares, each `[n, y]`.

  Attributes:
    reach: of magnitudes of rows, at least; it limits all partial sums.
    total: `[1, y]`, magnitudes of weights alone, at least.
    error: of the errors of rows, at least; None: rows are exact.
    own_variance: that of the terms' own roundings.
    variance: `own_variance` and that of rows; None: rows have none.
    distance: of the distances of rows; None where `variance` is, or unused.
  """

  reach: np.ndarray
  total: np.ndarray
  error: np.ndarray | None
  own_variance: np.ndarray
  variance: np.ndarray | None
  distance: np.ndarray | None

  @classmethod
  def compute(
    cls,
    policy: precision.PrecisionPolicy,
    rows: bounded_values.Bounded,
    weights: 'Weights',
    size: np.ndarray,
    of_terms: float,
  ) -> '_GemmSums':
    """Returns the sums of rows `[n, x]` of magnitudes `size`.

    `of_terms` is the variance of a term over its square.  Each matrix of
    weights is read once for all its sums.
    """
    squares = np.square(rows.value)
    variance = distance = None
    if rows.variance is not None:
      variance = of_terms * squares + rows.variance
      if rounding.is_narrow(policy):
        distance = rows.distance()
    unit_row = np.ones((1, size.shape[1]))
    reach, total, error, distance_sums = weights.sizes.multiply(
      size, unit_row, rows.error, distance
    )
    own_squares, variances = weights.squares.multiply(squares, variance)
    assert reach is not None and total is not None and own_squares is not None
    return cls(
      reach.at_most(),
      total.at_most(),
      None if error is None else error.at_most(),
      of_terms * own_squares.roughly(),
      None if variances is None else variances.roughly(),
      None if distance_sums is None else distance_sums.roughly(),
    )


class _GemmModel(NamedTuple):
  """The roundings of a GEMM.

  Attributes:
    scalings: roundings of a product or sum by scales.
    products: products of each pair of operands.
    left_out: relative error of the products left out.
    of_total, of_terms: the variance of a sum, see `sum_variance`.
  """

  scalings: int
  products: int
  left_out: float
  of_total: float
  of_terms: float

  def relative_error(self, depth: int) -> float:
    """Returns the error of a sum of `depth` terms, over its magnitudes."""
    scale = rounding.gamma(self.products * depth + 2 * self.scalings)
    scale += rounding.gamma(depth, rounding.U64)
    # Parts may have either sign: products left out count, and all others.
    return scale * (1 + _TWO_PARTS * (self.products > 1)) + self.left_out


def _model_gemm(
  policy: precision.PrecisionPolicy, depth: int, block: int
) -> _GemmModel:
  """Returns the roundings of a GEMM with prefixes every `block` terms."""
  of_total, of_terms = rounding.sum_variance(policy, depth, min(block, depth))
  scalings = int(bool(policy.rows or policy.x_form))
  scalings += recipes.count_operands(policy.operand_forms)
  if policy.quantised:
    # The scale of the group, and the scale of the matrix if the form has one.
    form = quantised_lib.FORMS[policy.quantised]
    scalings += 1 + ('tensor_scales' in form.parts)
  of_total, of_terms = (
    factor + scalings * rounding.kernels(policy) * rounding.VARIANCE
    for factor in (of_total, of_terms)
  )
  products, left_out = 1, 0.0
  if policy.emulated is not None:
    products, left_out = len(policy.emulated.pairs), policy.emulated.error
    # Small products may be added after all others.
    of_total += (
      (products - 1) * depth * rounding.kernels(policy) * rounding.VARIANCE
    )
    of_terms += rounding.kernels(policy) * left_out**2
  return _GemmModel(scalings, products, left_out, of_total, of_terms)


def _propagate_gemm(
  policy: precision.PrecisionPolicy,
  rows: bounded_values.Bounded,
  weights: 'Weights',
  sums: _GemmSums,
  of_sum: np.ndarray,
) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns variance and mean distance `[n, y]` of a GEMM's sums.

  `of_sum` `[n, y]` is the variance of the partial sums.
  """
  source = weights.source
  if rows.variance is None and source.variance is None:
    return of_sum + sums.own_variance, None
  terms = sums.own_variance if sums.variance is None else sums.variance
  variance = of_sum + terms
  if source.variance is not None:
    variance += np.square(rows.value) @ source.variance
  if not rounding.is_narrow(policy):
    return variance, None
  # Many errors add up as variances do, a few as distances.
  few = np.sqrt(of_sum + sums.own_variance)
  if sums.distance is not None:
    few += sums.distance
  if source.variance is not None:
    few += np.abs(rows.value) @ source.distance()
  return variance, np.minimum(np.sqrt(variance), few)


def _sum_crossings(
  policy: precision.PrecisionPolicy,
  rows: bounded_values.Bounded,
  weights: 'Weights',
  dtype: str | None,
  crossings: np.ndarray | None,
) -> np.ndarray | None:
  """Returns `crossings` with those of rows and weights, `[n, y]` or None."""
  if rows.variance is None and weights.source.variance is None:
    return crossings
  shape = len(rows.value), weights.value.shape[1]
  by_row = rounding.count_crossings_into(policy, rows, dtype)
  if by_row is not None:
    sums = by_row.sum(-1, keepdims=True)
    crossings = rounding.add_counts(crossings, np.broadcast_to(sums, shape))
  by_column = weights.source.crossings
  if by_column is None:
    by_column = rounding.count_crossings_into(policy, weights.source, dtype)
  if by_column is not None:
    sums = by_column.sum(0)
    crossings = rounding.add_counts(crossings, np.broadcast_to(sums, shape))
  return crossings


def _stored_sums(
  policy: precision.PrecisionPolicy,
  weight: np.ndarray | None,
  sums: bounded_values.Bounded,
  reach: np.ndarray,
  dtype: str | None,
) -> bounded_values.Bounded:
  """Returns sums `[n, y]` after weighting by `weight` `[n]` and storing."""
  if weight is not None:
    size = np.abs(weighting_bounds.factors(policy, weight))[:, None]
    sums, reach = (
      weighting_bounds.scale_rows(policy, sums, weight),
      reach * size,
    )
  return rounding.store(policy, sums, dtype, reach)


def _prefix_sums(
  rows: np.ndarray, weights: np.ndarray, block: int
) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns rows times weights, and the sum of squares of its prefixes.

  Prefixes end every `block` terms; the second is None if there is one block.
  Narrow weights are widened block by block.
  """
  if products.suits(weights):
    sums, of_prefixes = products.add_up(rows, weights, block)
    return sums, of_prefixes if block < len(weights) else None

  def multiply(first: int) -> np.ndarray:
    terms = slice(first, first + block)
    return rows[:, terms] @ weights[terms].astype(np.float64, copy=False)

  total, squares = multiply(0), None
  for first in range(block, weights.shape[0], block):
    squares = np.square(total) if squares is None else squares + total * total
    total += multiply(first)
  return total, squares


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights `[x, y]`, prepared for several multiplications.

  Attributes:
    source: the weights, as stored if they have no error.
    value: float64, or as stored if there are many.
    sizes: their magnitudes.
    squares: their squares.
    last_sums: rows and result of the last `add_prefixes`: two goldens often
      multiply equal rows one after the other.
  """

  source: bounded_values.Bounded
  value: np.ndarray
  sizes: weight_sizes.Sizes
  squares: weight_sizes.Sizes
  last_sums: list[tuple[np.ndarray, tuple[np.ndarray, np.ndarray | None]]] = (
    dataclasses.field(default_factory=list, repr=False, compare=False)
  )

  @classmethod
  def prepare(
    cls,
    policy: precision.PrecisionPolicy,
    weights: np.ndarray | bounded_values.Bounded,
  ) -> 'Weights':
    """Returns weights `[x, y]`, as a GEMM of the policy multiplies them."""
    weights = (
      weights
      if isinstance(weights, bounded_values.Bounded)
      else bounded_values.Bounded(weights)
    )
    if policy.rounding('operands') is not None:
      wide = weights.value.astype(np.float64)
      weights = rounding.round_at(
        policy, 'operands', dataclasses.replace(weights, value=wide)
      )
    sizes, squares = weight_sizes.Sizes.with_squares(weights.value)
    value = weights.value
    if value.size < weight_sizes.LARGE:
      value = value.astype(np.float64)
    return cls(weights, value, sizes, squares)

  def add_prefixes(
    self, rows: np.ndarray, block: int
  ) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns `_prefix_sums` of rows `[n, x]`; equal rows are summed once.

    `block` depends on the depth of the weights alone.
    """
    sums = weight_sizes.find_product(self.last_sums, rows)
    if sums is None:
      sums = _prefix_sums(rows, self.value, block)
      self.last_sums[:] = [(rows, sums)]
    return sums


def weight_grad(
  policy: precision.PrecisionPolicy,
  rows: bounded_values.Bounded,
  d_out: bounded_values.Bounded,
  dtype: str | None = None,
) -> bounded_values.Bounded:
  """Returns `[x, y]`, rows `[n, x]`, transposed, times `[n, y]`.

  A GEMM of depth n.  A chain of float32 sums is one of its orders, and zeros
  that pad the last block add no error.
  """
  return gemm(policy, d_out.T, rows, dtype).T


def inner_product(
  policy: precision.PrecisionPolicy,
  a: bounded_values.Bounded,
  b: bounded_values.Bounded,
  point: str = '',
) -> bounded_values.Bounded:
  """Returns `[...]`, sum of a `[..., x]` times b, in float32, as a GEMM.

  Products are rounded at a `point` of the policy, if it has one.
  """
  if point and policy.rounding(point) is not None:
    product = rounding.round_at(policy, point, rounding.multiply(policy, a, b))
    unit = bounded_values.exact(np.ones_like(product.value))
    return inner_product(policy, product, unit)
  depth = a.value.shape[-1]
  scale = rounding.gamma(depth) + rounding.gamma(depth, rounding.U64)
  size_a, size_b = np.abs(a.value), np.abs(b.value)
  # |a' b' - a b| <= |a| eb + ea (|b| + eb)
  input_error = size_a * b.bound() + a.bound() * (size_b + b.bound())
  error = (input_error + scale * (size_a * size_b + input_error)).sum(-1)
  value = (a.value * b.value).sum(-1)
  of_total, of_terms = rounding.sum_variance(policy, depth)
  variance = of_terms * np.square(a.value * b.value)
  crossings = rounding.add_counts(*map(rounding.count_crossings, (a, b)))
  crossings = None if crossings is None else crossings.sum(-1)
  if rounding.is_narrow(policy) and a.variance is not None:
    # Crossings in storage are too rare to count as a variance in float32.
    a = bounded_values.exact(a.value)
  for operand, other in ((a, b), (b, a)):
    if operand.variance is not None:
      variance = variance + operand.variance * np.square(other.value)
  variance = variance.sum(-1) + of_total * np.square(value)
  flush = 2 * depth * rounding.TINY
  value, error = rounding.overflow('float32', value, error + flush)
  return bounded_values.Bounded(
    value, error, variance + flush**2, crossings=crossings
  )


def share_of_operands(policy: precision.PrecisionPolicy, depth: int) -> float:
  """Returns the largest share of a sum's variance from rounding its operands.

  The rest comes from the sum itself, of `depth` terms.
  """
  block = min(depth, max(_PREFIX_TERMS, -(-depth // _PREFIXES)))
  _, of_terms = rounding.sum_variance(policy, depth, block)
  return 1 / (1 + of_terms / (rounding.kernels(policy) * rounding.VARIANCE))
