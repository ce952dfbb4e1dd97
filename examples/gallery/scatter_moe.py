"""ScatterMoE's products as they are; it takes routing weights in x's dtype."""

import of_torch
from scattermoe import parallel_experts


@of_torch.differentiable
def moe(inputs, layer, policy):
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  plan = parallel_experts.flatten_sort_count(ids, layer.num_experts)
  gate_up = parallel_experts.parallel_linear(
    x, w_gate_up, layer.top_k, *plan, grouped_out=True
  )
  hidden = of_torch.act(*gate_up.chunk(2, -1), policy)
  y = parallel_experts.parallel_linear(
    hidden, w_down, 1, *plan, grouped_in=True, gates=weights.to(x.dtype)
  )
  return {'y': y[None]}
