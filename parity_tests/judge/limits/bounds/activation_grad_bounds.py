"""Bounds of the gradients of an activation and of its routing weights."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits.bounds import activation_bounds
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.parity_tests.judge.limits.bounds import weighting_bounds
from hpmoe.reference.contract import precision


def row_weight_grad(
  policy: precision.PrecisionPolicy,
  gate_up: bounded_values.Bounded,
  d_activation: bounded_values.Bounded,
  of_bias: tuple[bounded_values.Bounded, np.ndarray] | None = None,
) -> bounded_values.Bounded:
  """Returns `[n]`, d_activation `[n, F]` times the unweighted activation.

  gate and up are `[n, 2F]`; the activation is never rounded to storage.  At
  placement 'epilogue', `gate_up` is the stored activation `[n, F]` instead.
  `of_bias` are d_expert_out `[n, D]` and each row's b_down `[n, D]`, whose
  products are terms of the same sum; None: there is no bias.
  """
  unweighted = gate_up
  if policy.placement != 'epilogue':
    unweighted = activation_bounds.activate(policy, gate_up, None)
  if of_bias is not None:
    d_expert_out, bias = of_bias
    d_activation = bounded_values.beside(d_activation, d_expert_out)
    unweighted = bounded_values.beside(unweighted, bounded_values.exact(bias))
  dots = gemm_bounds.inner_product(
    policy, d_activation, unweighted, 'd_weighted'
  )
  if dots.crossings is None or not activation_bounds.drift(policy):
    return dots
  # Each element is judged alone: its variance includes a common error of exp.
  scale = rounding.kernels(policy) * activation_bounds.exp_variance(policy)
  of_exp = scale * np.square(dots.value)
  return dataclasses.replace(dots, variance=dots.variance + of_exp)


def activation_grad(
  policy: precision.PrecisionPolicy,
  gate_up: bounded_values.Bounded,
  d_activation: bounded_values.Bounded,
  row_weight: np.ndarray | None,
  dtype: str | None = None,
) -> bounded_values.Bounded:
  """Returns `[n, 2F]` of d_activation `[n, F]`, times `row_weight` `[n]`.

  gate and up are `[n, 2F]`.  With g the weighted d_activation, d_gate is
  g * up * act'(gate) and d_up is g * act(gate): two products, in any order.
  The result is stored in `dtype`; None: in the policy's storage.
  """
  gate, up, clamps = activation_bounds.split_gate_up(policy, gate_up)
  weight = np.ones((len(gate.value), 1))
  if row_weight is not None:
    weight = weighting_bounds.factors(policy, row_weight)[:, None]
  slope, act = (
    activation_bounds.bound_slope(policy, gate),
    rounding.round_at(
      policy, 'silu', activation_bounds.bound_act(policy, gate)
    ),
  )
  unit = bounded_values.Bounded(np.ones((1, 1)))
  if policy.rounding('d_silu') is None:
    d_gate = _times(policy, weight, d_activation, slope, up)
  else:
    d_silu = _times(policy, weight, d_activation, unit, up)
    d_gate = activation_bounds.multiply_up(
      policy, rounding.round_at(policy, 'd_silu', d_silu), slope
    )
  d_up = _times(policy, weight, d_activation, act, unit)
  return rounding.store(
    policy, _through(bounded_values.beside(d_gate, d_up), clamps), dtype
  )


def _through(
  grad: bounded_values.Bounded, clamps: tuple[np.ndarray, ...] | None
) -> bounded_values.Bounded:
  """Returns a gradient `[n, 2F]` after clamps, see `split_gate_up`.

  The slope of a clamped element is 0, at the limit itself 1.  If it is unsure
  whether an element is clamped, both are right.
  """
  if clamps is None:
    return grad
  passes, unsure = clamps
  grad = grad.map_arrays(lambda array: np.where(passes, array, 0.0))
  if not unsure.any():
    return grad
  ambiguity = np.where(unsure, np.abs(grad.value), 0.0)
  assert grad.variance is not None
  return dataclasses.replace(
    grad,
    error=grad.bound() + ambiguity,
    variance=grad.variance + np.square(ambiguity),
    apart=None,
  )


def _times(
  policy,
  weight,
  grad: bounded_values.Bounded,
  act: bounded_values.Bounded,
  up: bounded_values.Bounded,
) -> bounded_values.Bounded:
  """Returns `[n, F]`, weight * grad * act * up, before it is stored.

  3 roundings in any order, and one of up + offset.  Each result may be flushed,
  and is multiplied by the remaining factors: 3 tiny times the product of
  1 + |factor|.
  """
  before, before_error = weight * grad.value, np.abs(weight) * grad.bound()
  up_size = np.abs(up.value) + up.bound()
  right = act.value * up.value
  right_error = act.bound() * up_size + np.abs(act.value) * up.bound()
  value = before * right
  input_error = np.abs(before) * right_error + before_error * (
    np.abs(right) + right_error
  )
  roundings = 3 + (policy.offset != 0)
  scale = rounding.gamma(roundings) + rounding.gamma(roundings, rounding.U64)
  flush = 3 * rounding.TINY * (1 + np.abs(weight)) * (1 + up_size)
  for factor in (grad, act):
    flush = flush * (1 + np.abs(factor.value) + factor.bound())
  error = input_error + scale * (np.abs(value) + input_error) + flush
  own = rounding.rounding_variance(policy, value, roundings, flush)
  sources = (grad, weight * right), (act, before * up.value)
  statistics = rounding.propagate(own, *sources, (up, before * act.value))
  return bounded_values.Bounded(value, error, *statistics)
