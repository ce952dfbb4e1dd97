"""A dense MLP that is sharded over ranks.

A layer whose tokens go to all experts is such an MLP: expert e is shard e,
columns of its first matrix and rows of its second, with a gate for each token,
1 in tensor parallelism.  Dispatch is then an all-gather and combine a
reduce-scatter, so this module needs no row, count or address.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

RULE = 'equals a dense MLP, cut over ranks'
# A tensor's name and its values `[E, R T, ...]`; returns them as stored.
Store = Callable[[str, np.ndarray], np.ndarray]


def applies(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  arrays: Mapping[str, np.ndarray],
) -> bool:
  """Says whether a layer is such an MLP, rounded at its tensors only."""
  has_codes = policy.coded or policy.rows or policy.operand_forms
  narrow = has_codes or policy.points_inside
  return bool(
    config.top_k == config.num_experts
    and not (config.d_shared or narrow)
    and (policy.placement, policy.accumulate) == ('combine', 'float32')
    and (arrays['topk_ids'] >= 0).all()
  )


def compute_mlp(
  policy: precision.PrecisionPolicy,
  arrays: Mapping[str, np.ndarray],
  store: Store,
  backward: bool,
) -> dict[str, np.ndarray]:
  """Returns the results of a dense MLP, float64.

  Args:
    policy: activation.
    arrays: x `[R, T, D]`, topk_ids and topk_weights `[R, T, K]`, w_gate_up
      `[R, L, D, 2F]`, w_down `[R, L, F, D]`, and perhaps biases and dy.
    store: rounds.
    backward: whether gradients are the results.

  Returns:
    y `[R, T, D]`; or a gradient of each of `arrays`, laid out as it is.  Of a
    sub-layer, which has w_norm `[R, D]`, gate_up `[R, N, 2F]` of its
    `activation`, or the gradients of d_gate_up.
  """
  wide = {n: a.astype(np.float64) for n, a in arrays.items()}
  if 'w_norm' in arrays:
    return _normed(policy, wide, store, backward)
  x = wide['x'].reshape(-1, wide['x'].shape[-1])
  columns, rows = (_shards(wide[n]) for n in ('w_gate_up', 'w_down'))
  slots = np.argsort(arrays['topk_ids'], axis=-1)
  gates = np.take_along_axis(wide['topk_weights'], slots, -1)
  gates = gates.reshape(len(x), -1).T[..., None]

  gate_up = store('gate_up', x @ columns + _bias(wide, 'b_gate_up'))
  act, up, slopes = _gated(policy, gate_up)
  hidden = store('activation', act * up)
  parts = store('returned', hidden @ rows + _bias(wide, 'b_down'))
  if not backward:
    y = (gates * parts).sum(0).reshape(wide['x'].shape)
    return dict(y=store('y', y))

  dy = wide['dy'].reshape(x.shape)
  d_out = store('d_expert_out', gates * dy)
  d_hidden = store('d_activation', d_out @ rows.swapaxes(1, 2))
  d_gate_up = slopes * np.concatenate([d_hidden * up, d_hidden * act], -1)
  d_gate_up = store('d_gate_up', d_gate_up)
  d_in = store('d_expert_in', d_gate_up @ columns.swapaxes(1, 2))
  d_gates = (parts * dy).sum(-1).T.reshape(slots.shape)
  grads = dict(
    dx=d_in.sum(0),
    d_topk_weights=np.take_along_axis(d_gates, np.argsort(slots), -1),
    d_w_gate_up=x.T @ d_gate_up,
    d_w_down=hidden.swapaxes(1, 2) @ d_out,
    d_b_gate_up=d_gate_up.sum(1),
    d_b_down=d_out.sum(1),
  )
  return {
    n: store(n, grads[n].reshape(arrays[source].shape))
    for n in grads
    if (source := 'x' if n == 'dx' else n.removeprefix('d_')) in arrays
  }


def _normed(
  policy: precision.PrecisionPolicy,
  wide: Mapping[str, np.ndarray],
  store: Store,
  backward: bool,
) -> dict[str, np.ndarray]:
  """Returns the results of a sub-layer: sum over shards, norm, product.

  A shard's rows are all tokens, in order, and the gates are those of `stored`.
  """
  columns, rows = (_shards(wide[n]) for n in ('w_gate_up', 'w_down'))
  ranks, tokens, shards = wide['topk_ids'].shape
  slots = np.argsort(wide['topk_ids'], axis=-1)
  gates = np.take_along_axis(wide['topk_weights'], slots, -1)
  gates = gates.reshape(ranks * tokens, -1).T[..., None]
  per_rank = shards // ranks
  cut_rows = lambda a: a[:, : per_rank * ranks * tokens].reshape(
    shards, ranks * tokens, -1
  )
  hidden = cut_rows(wide['activation'])
  gain = np.repeat(wide['w_norm'], tokens, axis=0)
  parts = store('returned', hidden @ rows)
  y = store('y', (gates * parts).sum(0))
  x, back, gains = _rms(policy, y, gain)
  x = store('expert_in', np.broadcast_to(store('x', x), parts.shape))
  if not backward:
    gate_up = store('gate_up', x @ columns)
    return dict(gate_up=_padded(gate_up, wide['activation'].shape[:2]))

  d_gate_up = cut_rows(wide['d_gate_up'])
  d_in = store('d_expert_in', d_gate_up @ columns.swapaxes(1, 2))
  dx = store('dx', d_in.sum(0))
  dy = store('dy', back(dx))
  d_out = store('d_expert_out', gates * dy)
  d_hidden = d_out @ rows.swapaxes(1, 2)
  shape = wide['activation'].shape[:2]
  grads = dict(
    d_activation=_padded(store('d_activation', d_hidden), shape),
    d_w_down=hidden.swapaxes(1, 2) @ d_out,
    d_w_gate_up=x.swapaxes(1, 2) @ d_gate_up,
    d_w_norm=gains(dx).reshape(ranks, tokens, -1).sum(1),
  )
  return {
    n: a if n == 'd_activation' else store(n, a.reshape(wide[n[2:]].shape))
    for n, a in grads.items()
  }


def _rms(policy: precision.PrecisionPolicy, y: np.ndarray, gain: np.ndarray):
  """Returns x of y `[n, D]`, and functions of dx: dy, and its part of a gain.

  The norm's gradient is the scaled one less what lies along the scaled row.
  """
  if policy.activation == 'absolute':
    return y * gain, lambda dx: dx * gain, lambda dx: dx * y
  epsilon = float(np.float32(policy.epsilon))
  length = np.sqrt((y * y).mean(-1, keepdims=True) + epsilon)
  unit = y / length

  def back(dx: np.ndarray) -> np.ndarray:
    pulled = dx * gain / length
    return pulled - unit * (pulled * unit).mean(-1, keepdims=True)

  return unit * gain, back, lambda dx: dx * unit


def _padded(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """Returns `[R, N, columns]` of rows of shards, zeros past them."""
  padded = np.zeros((*shape, rows.shape[-1]))
  flat = rows.reshape(shape[0], -1, rows.shape[-1])
  padded[:, : flat.shape[1]] = flat
  return padded


def rounded(
  policy: precision.PrecisionPolicy,
  arrays: Mapping[str, np.ndarray],
  backward: bool,
) -> dict[str, np.ndarray]:
  """Returns the results in their dtypes: right where all sums are exact."""
  round_to = lambda name, values: values.astype(policy.dtype(name))
  store = lambda name, values: round_to(name, values).astype(np.float64)
  results = compute_mlp(policy, arrays, store, backward)
  return {name: round_to(name, values) for name, values in results.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows(golden_lib.Rows):
  """Golden rows of a layer whose results are a dense MLP's.

  Attributes:
    layer: the same layer, as experts: as many terms, so its bounds hold.
    backward: which pass.
  """

  layer: golden_lib.Rows
  backward: bool

  @classmethod
  def from_layer(cls, layer: golden_lib.Rows, backward: bool) -> 'Rows':
    """Returns rows of the MLP that a layer is."""
    return cls(
      tiling=layer.tiling,
      policy=layer.policy,
      inputs=layer.inputs,
      captured_tensors={},
      layer=layer,
      backward=backward,
    )

  @functools.cached_property
  def _results(self) -> Mapping[str, np.ndarray]:
    return compute_mlp(
      self.policy, self.inputs, self._read_saved, self.backward
    )

  def _read_saved(self, name: str, values: np.ndarray) -> np.ndarray:
    """Returns what the forward pass kept, if it did.

    The rows of a shard are all tokens, in order.
    """
    tensor = self.inputs.get(name)
    if tensor is None:
      return values
    if name == 'returned':
      slots = np.argsort(self.inputs['topk_ids'], axis=-1)[..., None]
      tensor = np.take_along_axis(tensor, slots, 2).reshape(
        -1, *tensor.shape[2:]
      )
      return tensor.swapaxes(0, 1).astype(np.float64)
    if values.ndim == 2:  # A sub-layer's tokens.
      return tensor.reshape(values.shape).astype(np.float64)
    shards, tokens, _ = values.shape
    tensor = tensor[:, : shards * tokens // len(tensor)]
    return tensor.reshape(values.shape).astype(np.float64)

  def rows(
    self, stage: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, columns]`, rows of one rank of a result."""
    results = self.layer.rows(stage, rank, lo, hi)
    value = self.tiling.rows(stage, self._results[stage], rank)[lo:hi]
    return dataclasses.replace(results, value=value)


def _shards(weights: np.ndarray) -> np.ndarray:
  """Returns `[E, ...]` of `[R, L, ...]`."""
  return weights.reshape(-1, *weights.shape[2:])


def _bias(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray | int:
  """Returns `[E, 1, columns]`, or 0."""
  return _shards(arrays[name])[:, None] if name in arrays else 0


def _gated(
  policy: precision.PrecisionPolicy, gate_up: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns act(gate) and up, `[..., F]`, and their slopes `[..., 2F]`."""
  gate, up = np.split(gate_up, 2, axis=-1)
  limit, alpha = policy.limit or np.inf, float(np.float32(policy.alpha))
  passes = np.concatenate([gate <= limit, np.abs(up) <= limit], axis=-1)
  gate = np.minimum(gate, limit)
  up = np.clip(up, -limit, limit) + float(np.float32(policy.offset))
  if policy.activation == 'absolute':
    act, slope = np.abs(gate), np.sign(gate)
  else:
    with np.errstate(over='ignore'):
      sigmoid = 1 / (1 + np.exp(-alpha * gate))
    act, slope = gate * sigmoid, sigmoid * (1 + alpha * gate * (1 - sigmoid))
  slopes = np.concatenate([slope, np.ones_like(slope)], axis=-1)
  return act, up, passes * slopes
