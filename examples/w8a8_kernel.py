r"""A W8A8 layer in numpy: int8 weights by channel, int8 rows by token.

It routes by the ids that it is given, and quantises its rows twice, before each
GEMM.  Judge it, and then your own in its place, with

    hpmoe check --candidate=examples/w8a8_kernel.py:layer --preset=tiny \
      --weights=int8_channel --rows=int8_token

It returns y alone.  A kernel that returns the codes and scales of its rows too
has a wrong scale found where it is made: see docs/contract.md.
"""

import numpy as np


def quantise_rows(rows):
  """Returns int8 codes [N, X] and float32 scales [N, 1] of rows [N, X]."""
  largest = np.abs(rows).max(-1, keepdims=True, initial=0)
  scales = (largest / np.float32(127)).astype(np.float32)
  codes = np.rint(rows / np.where(scales > 0, scales, 1))
  return np.clip(codes, -128, 127).astype(np.int8), scales


def multiply(codes, scales, weight_codes, weight_scales):
  """Returns [N, Y]: int32 sums of codes, dequantised by token and channel."""
  sums = codes.astype(np.int32) @ weight_codes.astype(np.int32)
  return sums.astype(np.float32) * scales * weight_scales


def layer(inputs, config, policy):
  """Returns y [R, T, D] by name."""
  x, ids = inputs['x'], inputs['topk_ids']
  weights = {
    name: value.reshape(-1, *value.shape[2:])  # [R, L, ...] as [E, ...]
    for name, value in inputs.items()
    if name.startswith('w_')
  }
  y = np.zeros(x.shape, np.float32)
  for expert in range(config.num_experts):
    rank, token, slot = np.nonzero(ids == expert)
    codes, scales = quantise_rows(x[rank, token].astype(np.float32))
    gate_up = multiply(
      codes,
      scales,
      weights['w_gate_up_codes'][expert],
      weights['w_gate_up_scales'][expert],
    )
    gate, up = np.split(gate_up, 2, -1)
    with np.errstate(over='ignore'):
      activation = gate / (1 + np.exp(-gate)) * up
    codes, scales = quantise_rows(activation)
    out = multiply(
      codes,
      scales,
      weights['w_down_codes'][expert],
      weights['w_down_scales'][expert],
    )
    weight = inputs['topk_weights'][rank, token, slot]
    np.add.at(y, (rank, token), out * weight[:, None])
  return {'y': y.astype(x.dtype)}


layer.activations = ('swiglu',)
