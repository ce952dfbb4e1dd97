"""torch.nn.functional.grouped_mm; activation and combine in float32."""

import of_both
import of_torch
from torch.nn.functional import grouped_mm


def _product(rows, weights, sizes):
  return grouped_mm(rows, weights, offs=sizes.cumsum(0).int())


@of_torch.differentiable
def moe(inputs, layer, policy, product=_product):
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  order = ids.flatten().argsort(stable=True)
  sizes = ids.flatten().bincount(minlength=len(w_down))
  rows = x[order // layer.top_k]
  gate_up = product(rows, w_gate_up, sizes)
  hidden = of_torch.act(*gate_up.chunk(2, dim=-1), policy)
  out = product(hidden, w_down, sizes)
  sent = out[order.argsort()].unflatten(0, ids.shape)
  y = (sent.float() * weights[..., None]).sum(1).to(x.dtype)
  return of_both.answer(rows, gate_up, hidden, out, sent, y)
