"""A layer in numpy alone: tests take the text of this file elsewhere."""

import numpy as np


def read_expert(name, inputs, index):
  return inputs[name][index] if name in inputs else np.float32(0)


def mlp(row, up, down, b_up, b_down, policy):
  gate, up = np.split(row @ up + b_up, 2)
  if policy.limit:
    gate = np.minimum(gate, np.float32(policy.limit))
    up = np.clip(up, -policy.limit, policy.limit)
  hidden = abs(gate)
  if policy.activation == 'swiglu':
    with np.errstate(over='ignore'):
      hidden = gate / (1 + np.exp(-np.float32(policy.alpha) * gate))
  hidden = (hidden * (up + np.float32(policy.offset))).astype(np.float32)
  return hidden @ down + b_down


def moe(inputs, layer, policy):
  x, ids, weights = inputs['x'], inputs['topk_ids'], inputs['topk_weights']
  local = layer.num_experts // layer.num_ranks
  y = np.zeros_like(x)
  for rank, token, slot in np.ndindex(*ids.shape):
    expert = divmod(int(ids[rank, token, slot]), local)
    names = 'w_gate_up', 'w_down', 'b_gate_up', 'b_down'
    expert_tensors = (read_expert(name, inputs, expert) for name in names)
    y[rank, token] += weights[rank, token, slot] * mlp(
      x[rank, token], *expert_tensors, policy
    )
  if 'w_shared_down' in inputs:
    for rank, token in np.ndindex(*ids.shape[:2]):
      names = 'w_shared_gate_up', 'w_shared_down'
      shared = (inputs[name][rank] for name in names)
      y[rank, token] += mlp(x[rank, token], *shared, 0, 0, policy)
  return {'y': y}
