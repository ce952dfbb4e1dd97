"""Bounds of rows times routing weights."""

import numpy as np

from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.reference.contract import precision


def factors(
  policy: precision.PrecisionPolicy, weights: np.ndarray
) -> np.ndarray:
  """Returns routing weights `[...]` float64, as they multiply."""
  return rounding.round_at(
    policy, 'routing_weight', bounded_values.exact(weights)
  ).value


def scale_rows(
  policy: precision.PrecisionPolicy,
  rows: bounded_values.Bounded,
  weight: np.ndarray,
) -> bounded_values.Bounded:
  """Returns `[n, D]`, rows `[n, D]` times routing weights `[n]`: 1 rounding."""
  weight = factors(policy, weight)[:, None]
  value, input_error = rows.value * weight, rows.bound() * np.abs(weight)
  scale = rounding.gamma(1 + policy.weight_ulp) + rounding.gamma(
    1, rounding.U64
  )
  flush = rounding.TINY * (1 + np.abs(weight))
  error = input_error + scale * (np.abs(value) + input_error) + flush
  own = (
    rounding.kernels(policy)
    * rounding.VARIANCE
    * np.square(rounding.finite_magnitudes(value))
  )
  own += np.square(flush)
  variance, apart = own, None
  if rows.variance is not None:
    variance = own + rows.variance * np.square(weight)
    apart = np.sqrt(own) + rows.distance() * np.abs(weight)
  return bounded_values.Bounded(
    value, error, variance, apart, rows.crossings, rows.unlike
  )


def weighted(
  policy: precision.PrecisionPolicy,
  rows: bounded_values.Bounded,
  weight: np.ndarray,
  dtype: str | None = None,
) -> bounded_values.Bounded:
  """Returns `[n, D]`, rows `[n, D]` times weights `[n]`: 1 rounding.

  The result is stored in `dtype`; None: in the policy's storage.  For rows that
  the stage itself reads again, see `weighted_operand`.
  """
  return rounding.store(policy, scale_rows(policy, rows, weight), dtype)


def weighted_operand(
  policy: precision.PrecisionPolicy,
  rows: bounded_values.Bounded,
  weight: np.ndarray,
  dtype: str,
) -> bounded_values.Bounded:
  """Returns `[n, D]`, rows `[n, D]` times weights `[n]`, rounded to `dtype`."""
  narrow = dtype if dtype != policy.accumulate else None
  return rounding.rounded(policy, narrow, scale_rows(policy, rows, weight))
