"""Proof that data are exact: no sum of any stage can round, in any order.

`prove` bounds every sum by the values that are really stored, with dy for the
backward pass as well.  It computes in float32 itself: a sum of magnitudes that
reached 2^24 never falls below it again, however it is rounded, and a smaller
one is exact.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import itertools
from typing import Any
import zlib

import numpy as np

from hpmoe.parity_tests.cache import cached_results
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.case.values import exact_rows
from hpmoe.parity_tests.case.values import sparse
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.array_typing import Int
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy

CHUNK_ROWS = 256  # Rows in memory at a time in `prove`.
_PIECE_ELEMENTS = 1 << 15  # Elements of an input that are checked together.

# Overflow is detected and refused, so numpy need not warn.
_OVERFLOWS: np.errstate = np.errstate(over='ignore', invalid='ignore')

_FORWARD = ('gate_up', 'activation', 'expert_out', 'y')
_BACKWARD = (
  'd_expert_out',
  'd_topk_weights',
  'd_activation',
  'd_w_down',
  'd_gate_up',
  'd_expert_in',
  'd_w_gate_up',
  'dx',
)
_BACKWARD_OF_BIAS = ('d_b_down', 'd_b_gate_up')


def recall_proof(
  config: MoEConfig,
  policy: PrecisionPolicy,
  arrays: Mapping[str, np.ndarray],
  drawn_from: tuple,
) -> exact_limits.Bounds:
  """Returns the bounds of `prove` for drawn data, from the cache if possible.

  Args:
    config: sizes.
    policy: as for `prove`.
    arrays: the data.
    drawn_from: what determines the bits of the data, beside routing, sizes and
      policy.

  Raises:
    exact_limits.ExactnessError: as `prove`; failures are not cached.
  """
  bounds = cached_results.get_or_compute(
    __package__,
    ('dy' in arrays, config, policy, drawn_from),
    [arrays['topk_ids']],
    lambda: {
      stage: np.array(bound)
      for stage, bound in prove(config, policy, arrays).items()
    },
  )
  return {stage: int(bound) for stage, bound in bounds.items()}


@_OVERFLOWS
def prove(
  config: MoEConfig,
  policy: PrecisionPolicy,
  arrays: Mapping[str, np.ndarray],
) -> exact_limits.Bounds:
  """Proves that every sum is exact in float32 in any order.

  Works on `CHUNK_ROWS` rows of one expert at a time.  Beside them it holds one
  `[R T, D]` float32 tensor; for both passes two, and one expert's gradients.

  Args:
    config: sizes.
    policy: storage one of `exact_limits.STORAGE`, activation 'absolute'.
    arrays: tensors of `tensors.inputs`; if dy `[R, T, D]` is among them, the
      backward pass is proved too.

  Raises:
    exact_limits.ExactnessError: an input is not integer, a sum |a| |b| reaches
      `exact_limits.LIMIT`, or a gate is 0.
    ValueError: the policy cannot be exact.
  """
  exact_limits.check_policy(policy)
  backward = 'dy' in arrays
  for name in (*numeric_inputs(config), *['dy'] * backward):
    _check_integers(name, arrays[name])
  if config.sublayer:
    return prove_sublayer(config, policy, arrays)
  prove_layer = _prove_both if backward else _prove_forward
  bounds, *sums = _prove_with_shared(prove_layer, config, policy, arrays)
  for stage, magnitude in zip(('y', 'dx'), sums):
    exact_limits.update_bound(bounds, stage, magnitude, 'token')
    exact_limits.check_stored(policy, stage, magnitude)
  return {stage: int(bound) for stage, bound in bounds.items()}


def _prove_with_shared(prove_layer: Callable, config, policy, arrays):
  """Returns bounds of stages and sums of tokens, with those of shared experts.

  Shared experts whose weights are all 0, as in wide data, are skipped: their
  outputs are 0.
  """
  limit_use = _LimitUse(policy)
  bounds, *sums = prove_layer(config, policy, arrays, limit_use)
  limit_use.check()
  shared = [a for n, a in arrays.items() if n.startswith('w_shared_')]
  if any(array.any() for array in shared):
    policy = dataclasses.replace(policy, placement='combine')
    layer_arrays = passes.shared_layer(config, arrays)
    try:
      shared_bounds, *shared_sums = prove_layer(
        config.shared(), policy, layer_arrays, limit_use
      )
    except exact_limits.ExactnessError as error:
      raise type(error)(f'shared experts: {error}') from error
    for name, routed in tensors.AS_ROUTED.items():
      if tensors.SPECS[name].part and routed in shared_bounds:
        bounds[name] = shared_bounds[routed]
    sums = [
      routed_sum + shared_sum
      for routed_sum, shared_sum in zip(sums, shared_sums)
    ]
  return bounds, *sums


def _prove_forward(config, policy, arrays, limit_use: '_LimitUse'):
  """Returns bounds of stages, and `[R T, D]` magnitudes of y."""
  bounds, combined = dict.fromkeys(_FORWARD, 0), _token_zeros(config)
  for expert, chunks in _iterate_experts(config, arrays['topk_ids']):
    weights = exact_rows.ExpertWeights.gather(config, arrays, expert)
    for tokens, slots in chunks:
      rows = exact_rows.RowChunk.gather(arrays, expert, tokens, slots)
      outputs = exact_rows.bound_forward(policy, weights, rows, bounds)
      limit_use.record(outputs.gate_up)
      combined[tokens] += exact_rows.combined_magnitude(policy, rows, outputs)
  return bounds, combined


def _prove_both(config, policy, arrays, limit_use: '_LimitUse'):
  """Returns bounds of stages, and `[R T, D]` magnitudes of y and of dx."""
  bias_stages = _BACKWARD_OF_BIAS if config.bias else ()
  bounds = dict.fromkeys(_FORWARD + _BACKWARD + bias_stages, 0)
  combined, dx = _token_zeros(config), _token_zeros(config)
  for expert, chunks in _iterate_experts(config, arrays['topk_ids']):
    weights = exact_rows.ExpertWeights.gather(config, arrays, expert)
    weights_by_stage = dict(
      d_w_down=weights.w_down, d_w_gate_up=weights.w_gate_up
    )
    if config.bias:
      weights_by_stage |= dict(d_b_down=weights_by_stage['d_w_down'][:1])
      weights_by_stage |= dict(d_b_gate_up=weights_by_stage['d_w_gate_up'][:1])
    gradients = {
      n: exact_rows.Gradient.zeros(policy, like)
      for n, like in weights_by_stage.items()
    }
    for tokens, slots in chunks:
      rows = exact_rows.RowChunk.gather(arrays, expert, tokens, slots)
      outputs = exact_rows.bound_forward(policy, weights, rows, bounds)
      limit_use.record(outputs.gate_up)
      combined[tokens] += exact_rows.combined_magnitude(policy, rows, outputs)
      dy = exact_rows.take_tokens(arrays, 'dy', tokens)
      grads = exact_rows.bound_backward(
        policy, weights, rows, outputs, dy, bounds
      )
      dx[tokens] += np.abs(
        grads.d_expert_in * exact_rows.routing_factor(policy, rows, 'expert_in')
      )
      late_weight = exact_rows.routing_factor(policy, rows, 'expert_out')
      unit_weights = np.ones_like(rows.weight)
      early_weight = unit_weights * exact_rows.routing_factor(
        policy, rows, *exact_rows.EARLY_STAGES
      )
      factors = dict(
        d_w_down=(outputs.activation, grads.d_expert_out * late_weight),
        d_w_gate_up=(outputs.expert_in, grads.d_gate_up),
        d_b_down=(early_weight, grads.d_expert_out),
        d_b_gate_up=(unit_weights, grads.d_gate_up),
      )
      for stage, grad in gradients.items():
        grad.add(*factors[stage])
    for stage, grad in gradients.items():
      exact_limits.update_bound(
        bounds, stage, grad.magnitude, f'expert {expert}, row'
      )
      if grad.value is not None:
        exact_limits.check_stored(policy, stage, grad.value)
  return bounds, combined, dx


def prove_sublayer(config, policy, arrays) -> exact_limits.Bounds:
  """Bounds each sum by its largest factors times its number of terms."""
  sizes = {
    n: np.abs(exact_rows.as_float32(arrays[n]))
    for n in arrays
    if n != 'topk_ids'
  }
  largest = {name: float(size.max(initial=0)) for name, size in sizes.items()}
  down, up = sizes['w_down'], sizes['w_gate_up']
  rows = config.num_ranks * config.num_tokens
  k, gain, weight = config.top_k, largest['w_norm'], largest['topk_weights']
  bounds = dict(expert_out=largest['activation'] * down.sum(-2).max())
  bounds['y'] = k * weight * bounds['expert_out']
  bounds['x'] = bounds['y'] * gain
  bounds['gate_up'] = bounds['x'] * up.sum(-2).max()
  if 'd_gate_up' in largest:
    bounds['d_expert_in'] = largest['d_gate_up'] * up.sum(-1).max()
    bounds['dx'] = k * bounds['d_expert_in']
    bounds['dy'] = bounds['dx'] * gain
    bounds['d_w_norm'] = config.num_tokens * bounds['dx'] * bounds['y']
    bounds['d_expert_out'] = bounds['dy'] * weight
    bounds['d_activation'] = bounds['d_expert_out'] * down.sum(-1).max()
    bounds['d_w_down'] = rows * largest['activation'] * bounds['d_expert_out']
    bounds['d_w_gate_up'] = rows * bounds['x'] * largest['d_gate_up']
  for stage, size in bounds.items():
    # Rounding to narrow storage at most doubles a sum.
    if not 2 * size < exact_limits.LIMIT:
      raise exact_limits.ExactnessError(
        f'{stage}: expected sum |a| |b| < 2^23, got up to {size:.0f}'
      )
    if stage != 'd_w_norm':
      exact_limits.check_stored(policy, stage, np.float32(size))
  return {stage: int(size) for stage, size in bounds.items()}


def numeric_inputs(config) -> tuple[str, ...]:
  """Returns the names of the inputs other than ids."""
  return tuple(name for name in tensors.inputs(config) if name != 'topk_ids')


class _LimitUse:
  """Records on which sides of the activation's limit values lie.

  Without values beyond it on both sides, a wrong clamp would not be seen.
  """

  def __init__(self, policy):
    self._limit, self._sides = policy.limit, set()

  def record(self, gate_up: np.ndarray) -> None:
    if not self._limit or len(self._sides) == 6:
      return
    halves = np.split(gate_up, 2, axis=-1)
    for name, half in zip(('gate', 'up'), halves):
      sides = np.sign(half) * (np.abs(half) > self._limit)
      self._sides |= {(name, int(side)) for side in np.unique(sides)}

  def check(self) -> None:
    """Raises an ExactnessError if no value lies beyond one of the sides."""
    for name in ('gate', 'up') if self._limit else ():
      sides = sorted(side for half, side in self._sides if half == name)
      if {-1, 1} - {*sides}:
        raise exact_limits.ExactnessError(
          f'limit: expected one that exact data of this layer exceed, got '
          f'{self._limit:g}, which no {name} does in both directions'
        )


def _token_zeros(config) -> np.ndarray:
  tokens = config.num_ranks * config.num_tokens
  return np.zeros((tokens, config.d_model), np.float32)


def _iterate_experts(
  config: MoEConfig, topk_ids: Int[np.ndarray, 'R T K']
) -> Iterator[tuple[int, Iterator[tuple[np.ndarray, np.ndarray]]]]:
  """Yields each expert that has rows, and its chunks (tokens, slots)."""
  chunks = _iterate_chunks(config, topk_ids)
  for expert, group in itertools.groupby(chunks, lambda chunk: chunk[0]):
    yield expert, ((tokens, slots) for _, tokens, slots in group)


def _iterate_chunks(
  config: MoEConfig, topk_ids: Int[np.ndarray, 'R T K']
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields (expert, tokens of all ranks, slots) of `CHUNK_ROWS` rows each."""
  ids = topk_ids.reshape(-1)
  is_routed = ids >= 0
  order = np.argsort(ids, kind='stable')[np.count_nonzero(~is_routed) :]
  ends = np.cumsum(np.bincount(ids[is_routed], minlength=config.num_experts))
  for expert, end in enumerate(ends):
    begin = ends[expert - 1] if expert else 0
    for first in range(begin, end, CHUNK_ROWS):
      rows = order[first : min(first + CHUNK_ROWS, end)]
      yield expert, rows // config.top_k, rows % config.top_k


def _check_integers(name, array):
  entries = sparse.find(array)
  if entries is not None:
    # All other elements are 0.
    array = np.stack([expert.values for expert in entries])
  flat = array.reshape(-1)
  for first in range(0, flat.size, _PIECE_ELEMENTS):
    piece = exact_rows.as_float32(flat[first : first + _PIECE_ELEMENTS])
    is_fraction = piece != np.rint(piece)
    if is_fraction.any():
      place = np.unravel_index(first + int(is_fraction.argmax()), array.shape)
      raise exact_limits.ExactnessError(
        f'{name}: expected integers, got {array[place]} at '
        f'{[int(i) for i in place]}'
      )


def check_distinct_rows(config, name, values):
  rows = values.reshape(-1, config.d_model).astype(np.int8)
  distinct = len({row.tobytes() for row in rows})
  if distinct != len(rows):
    raise exact_limits.ExactnessError(
      f'{name}: expected {len(rows)} distinct rows, got {distinct}: d_model='
      f'{config.d_model} is too small to tell tokens apart'
    )


def check_distinct(config, arrays):
  check_distinct_rows(config, 'x', arrays['x'])
  for name in numeric_inputs(config):
    # Ranks hold copies of the shared experts.
    is_shared = tensors.SPECS[name].part == 'shared'
    if name in ('x', 'topk_weights') or is_shared:
      continue
    experts: Sequence[Any] | None = sparse.find(arrays[name])
    if experts is not None:
      marks = {expert.mark() for expert in experts}
    else:
      experts = arrays[name].reshape(-1, *arrays[name].shape[2:])
      marks = {zlib.crc32(expert) for expert in experts}
    if len(marks) != len(experts):
      raise exact_limits.ExactnessError(
        f'{name}: expected {len(experts)} distinct experts, got {len(marks)}'
      )
