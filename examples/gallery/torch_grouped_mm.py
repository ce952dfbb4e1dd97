"""torch.nn.functional.grouped_mm; activation and combine in float32."""

import of_torch
from torch.nn.functional import grouped_mm


@of_torch.differentiable
def moe(inputs, layer, policy):
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  order = ids.flatten().argsort(stable=True)
  ends = ids.flatten().bincount(minlength=len(w_down)).cumsum(0).int()
  rows = x[order // layer.top_k]
  gate_up = grouped_mm(rows, w_gate_up, offs=ends)
  hidden = of_torch.act(*gate_up.chunk(2, dim=-1), policy)
  out = grouped_mm(hidden, w_down, offs=ends)
  sent = out[order.argsort()].unflatten(0, ids.shape)
  y = (sent.float() * weights[..., None]).sum(1).to(x.dtype)
  return of_torch.answer(rows, gate_up, hidden, out, sent, y)
