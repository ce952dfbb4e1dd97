"""TritonMoE, the fused dispatch of bassrehab/triton-kernels, as it is."""

import of_torch
from triton_kernels.moe import fused_moe
from triton_kernels.moe import permute


def moe(inputs, layer, policy):
  del policy
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  w_gate, w_up = w_gate_up.mT.chunk(2, 1)
  rows, offsets, order, _ = permute.permute_tokens(x, ids, layer.num_experts)
  y = fused_moe.fused_expert_ffn(
    *(rows, w_gate, w_up, w_down.mT.contiguous(), offsets),
    *(layer.num_experts, weights, order, *ids.shape),
  )
  return {'y': y.to(x.dtype)[None]}


moe.torch = of_torch.DEVICE
moe.activations = ('swiglu',)
