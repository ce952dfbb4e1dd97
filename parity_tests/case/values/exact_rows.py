"""Bounds of the sums of an expert's rows, of both passes, on exact data.

A row's stages are computed in float32 from the stored values, and so is the
sum of magnitudes behind each output element.  `update_bound` compares that sum
with `exact_limits.LIMIT`, below which float32 holds every integer.
"""

import dataclasses
from typing import Any

import numpy as np

from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.case.values import sparse
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.array_typing import Float

# Stages that may apply the routing weight: with an early placement
# (`tensors.EARLY`), and with another.
EARLY_STAGES, _LATE_STAGES = ('activation', 'expert_out'), ('y', 'returned')


def _sum_magnitudes(a, b) -> np.ndarray:
  """Returns sum |a| |b| of integers, exact below `exact_limits.LIMIT`."""
  if isinstance(b, sparse.SparseWeight):
    return b.absolute().multiply(np.abs(a))
  return np.abs(a) @ np.abs(b)


def _multiply(a, b) -> np.ndarray:
  """Returns a times a weight, exact where `_sum_magnitudes` is."""
  return b.multiply(a) if isinstance(b, sparse.SparseWeight) else a @ b


@dataclasses.dataclass(frozen=True)
class Gradient:
  """A weight's gradient: sum |a| |b|, and its value if storage may overflow.

  The sum over all rows of an expert may be far larger than the value.
  """

  magnitude: np.ndarray
  value: np.ndarray | None

  @classmethod
  def zeros(cls, policy, weight: np.ndarray) -> 'Gradient':
    overflows = exact_limits.largest_stored(policy) < exact_limits.LIMIT
    value = np.zeros_like(weight) if overflows else None
    return cls(np.zeros_like(weight), value)

  def add(self, rows: np.ndarray, d_out: np.ndarray) -> None:
    self.magnitude[...] += _sum_magnitudes(rows.T, d_out)
    if self.value is not None:
      self.value[...] += rows.T @ d_out


@dataclasses.dataclass(frozen=True)
class ExpertWeights:
  """One expert's weights in float32; of a forward pass alone their entries."""

  w_gate_up: Any  # Float[np.ndarray, 'D 2*F'] or a `SparseWeight`
  w_down: Any  # Float[np.ndarray, 'F D'] or a `SparseWeight`
  b_gate_up: Float[np.ndarray, '2*F'] | float = 0.0
  b_down: Float[np.ndarray, 'D'] | float = 0.0

  @classmethod
  def gather(cls, config, arrays, expert) -> 'ExpertWeights':
    place = divmod(expert, config.experts_per_rank)
    names = (f.name for f in dataclasses.fields(cls))

    def gather_one(name: str) -> np.ndarray | sparse.SparseWeight:
      entries = sparse.find(arrays[name])
      # Gradients of a weight are dense.
      if entries is not None and 'dy' not in arrays:
        return entries[expert]
      return as_float32(arrays[name][place])

    return cls(*(gather_one(name) for name in names if name in arrays))


@dataclasses.dataclass(frozen=True)
class RowChunk:
  """Some rows of one expert in float32, and their place for messages."""

  location: str
  x: Float[np.ndarray, 'n D']
  weight: Float[np.ndarray, 'n 1']

  @classmethod
  def gather(cls, arrays, expert, tokens, slots) -> 'RowChunk':
    weight = take_tokens(arrays, 'topk_weights', tokens)
    weight = weight[np.arange(len(tokens)), slots, None]
    return cls(
      f'expert {expert}, row', take_tokens(arrays, 'x', tokens), weight
    )


def take_tokens(arrays, name, tokens) -> Float[np.ndarray, 'n columns']:
  """Returns a few tokens of an input `[R, T, columns]` in float32."""
  values = arrays[name]
  return as_float32(values.reshape(-1, values.shape[-1])[tokens])


def as_float32(array: np.ndarray) -> Float[np.ndarray, '...']:
  return array.astype(np.float32, copy=False)


@dataclasses.dataclass(frozen=True)
class ForwardRows:
  """Tensors that the forward pass stores for some rows."""

  expert_in: Float[np.ndarray, 'n D']
  gate_up: Float[np.ndarray, 'n 2*F']
  activation: Float[np.ndarray, 'n F']
  expert_out: Float[np.ndarray, 'n D']


def bound_forward(
  policy, weights: ExpertWeights, rows: RowChunk, bounds
) -> ForwardRows:
  """Updates bounds with some rows of one expert; returns the stored tensors."""
  factor = routing_factor(policy, rows, 'expert_in')
  expert_in = rows.x * factor
  if policy.placement == 'input':
    exact_limits.update_bound(
      bounds, 'expert_in', np.abs(expert_in), rows.location
    )
  expert_in = _round_to_storage(policy, 'expert_in', expert_in)

  sums = _sum_magnitudes(expert_in, weights.w_gate_up)
  sums = sums + np.abs(weights.b_gate_up)
  exact_limits.update_bound(bounds, 'gate_up', sums, rows.location)
  gate_up = _multiply(expert_in, weights.w_gate_up) + weights.b_gate_up
  gate_up = _round_to_storage(policy, 'gate_up', gate_up)

  gate, up, _ = _clamp_halves(policy, gate_up)
  _check_gates(gate, (up != 0) | (factor != 0), rows.location)
  activation = np.abs(gate) * up * routing_factor(policy, rows, 'activation')
  exact_limits.update_bound(
    bounds, 'activation', np.abs(activation), rows.location
  )
  activation = _round_to_storage(policy, 'activation', activation)

  bias = weights.b_down * routing_factor(policy, rows, 'activation')
  sums = _sum_magnitudes(activation, weights.w_down) + np.abs(bias)
  exact_limits.update_bound(bounds, 'expert_out', sums, rows.location)
  expert_out = _multiply(activation, weights.w_down) + bias
  expert_out = expert_out * routing_factor(policy, rows, 'expert_out')
  exact_limits.update_bound(
    bounds, 'expert_out', np.abs(expert_out), rows.location
  )
  expert_out = _round_to_storage(policy, 'expert_out', expert_out)
  return ForwardRows(expert_in, gate_up, activation, expert_out)


def _clamp_halves(policy, gate_up: np.ndarray):
  """Returns clamped gate, clamped up + offset, and the in-range mask."""
  gate, up = np.split(gate_up, 2, axis=-1)
  limit = policy.limit or np.inf
  passes = np.concatenate([gate <= limit, np.abs(up) <= limit], axis=-1)
  up = np.clip(up, -limit, limit) + np.float32(policy.offset)
  return np.minimum(gate, limit).astype(np.float32), up, passes


def _check_gates(gate: np.ndarray, matters: np.ndarray, location: str) -> None:
  """Refuses gates of 0: frameworks differ on the slope of |gate| there.

  It does not matter in a row of zeros, of weight 0, which makes up 0 too.
  """
  is_refused = (gate == 0) & matters
  if is_refused.any():
    row, column = np.argwhere(is_refused)[0]
    raise exact_limits.ExactnessError(
      f'gate: expected no 0, where |gate| has no derivative, got 0 at '
      f'{location} {row}, column {column}'
    )


def routing_factor(policy, rows, *stages: str):
  """Returns the routing weights if one of `stages` applies them, else 1."""
  applied = tensors.WEIGHTED[policy.placement] in stages
  return rows.weight if applied else 1


def combined_magnitude(
  policy, rows: RowChunk, outputs: ForwardRows
) -> np.ndarray:
  """Returns |w| |expert_out|, the magnitude that a token adds."""
  return np.abs(
    outputs.expert_out * routing_factor(policy, rows, *_LATE_STAGES)
  )


@dataclasses.dataclass(frozen=True)
class BackwardRows:
  """Tensors that the backward pass stores for some rows."""

  d_expert_out: Float[np.ndarray, 'n D']
  d_gate_up: Float[np.ndarray, 'n 2*F']
  d_expert_in: Float[np.ndarray, 'n D']


def bound_backward(
  policy,
  weights: ExpertWeights,
  rows: RowChunk,
  outputs: ForwardRows,
  dy,
  bounds,
) -> BackwardRows:
  """Updates bounds with gradients of some rows; returns the stored tensors.

  A product of three factors is exact in any order: a product of two of them is
  no larger if the third is not zero, and does not matter if it is.
  """
  d_expert_out = dy * routing_factor(policy, rows, *_LATE_STAGES)
  exact_limits.update_bound(
    bounds, 'd_expert_out', np.abs(d_expert_out), rows.location
  )
  d_expert_out = _round_to_storage(policy, 'd_expert_out', d_expert_out)

  sums = _sum_magnitudes(d_expert_out, weights.w_down.T)
  exact_limits.update_bound(bounds, 'd_activation', sums, rows.location)
  d_activation = _round_to_storage(
    policy, 'd_activation', d_expert_out @ weights.w_down.T
  )

  gate, up, passes = _clamp_halves(policy, outputs.gate_up)
  sums = np.abs(dy * outputs.expert_out).sum(-1, keepdims=True)
  if policy.placement == 'before_down':
    sums = np.abs(d_activation * gate * up).sum(-1, keepdims=True)
  if policy.placement == 'epilogue':
    sums = np.abs(d_activation * outputs.activation).sum(-1, keepdims=True)
  if policy.placement in tensors.EARLY:
    sums = sums + np.abs(dy * weights.b_down).sum(-1, keepdims=True)
  if policy.placement != 'input':
    exact_limits.update_bound(bounds, 'd_topk_weights', sums, rows.location)

  g = d_activation * routing_factor(policy, rows, *EARLY_STAGES)
  d_gate_up = passes * np.concatenate(
    [g * np.sign(gate) * up, g * np.abs(gate)], axis=-1
  )
  exact_limits.update_bound(
    bounds, 'd_gate_up', np.abs(d_gate_up), rows.location
  )
  d_gate_up = _round_to_storage(policy, 'd_gate_up', d_gate_up)

  sums = _sum_magnitudes(d_gate_up, weights.w_gate_up.T)
  exact_limits.update_bound(bounds, 'd_expert_in', sums, rows.location)
  d_expert_in = _round_to_storage(
    policy, 'd_expert_in', d_gate_up @ weights.w_gate_up.T
  )
  if policy.placement == 'input':
    sums = np.abs(rows.x * d_expert_in).sum(-1, keepdims=True)
    exact_limits.update_bound(bounds, 'd_topk_weights', sums, rows.location)
  return BackwardRows(d_expert_out, d_gate_up, d_expert_in)


def _round_to_storage(policy, stage, value) -> Float[np.ndarray, '...']:
  """Returns a bounded sum as the next stage reads it."""
  exact_limits.check_stored(policy, stage, value)
  return as_float32(
    value.astype(exact_limits.STORAGE[policy.storage], copy=False)
  )
