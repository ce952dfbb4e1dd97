"""ONNX Runtime's com.microsoft.MoE; combine in float32.

It routes by itself, so each slot is a row of its own whose logits name one
expert.  |gate| up is relu(gate) up + relu(-gate) up, of twice as many columns,
and relu is gate sigmoid(alpha gate) where alpha is huge.
"""

import numpy as np
import of_both
import of_onnx


def moe(inputs, layer, policy):
  x, ids, weights, w_gate_up, w_down = (
    inputs[name][0] for name in of_both.NAMES
  )
  rows = np.repeat(x, layer.top_k, axis=0)
  logits = np.where(np.eye(layer.num_experts)[ids.reshape(-1)], 0, -1e4)
  given = rows, logits.astype(x.dtype)
  alpha = 1.0
  if policy.activation != 'swiglu':
    gate, up = np.split(w_gate_up, 2, -1)
    w_gate_up = np.concatenate([gate, -gate, up, up], -1)
    w_down, alpha = np.concatenate([w_down, w_down], 1), 1e30
  out = of_onnx.experts(*given, w_gate_up, w_down, alpha)
  sent = out.reshape(1, *ids.shape, -1)
  y = (sent[0].astype(np.float32) * weights[..., None]).sum(1)
  return {'returned': sent, 'y': y.astype(x.dtype)[None]}
