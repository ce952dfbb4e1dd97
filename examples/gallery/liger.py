"""Liger-Kernel's fused MoE as it is installed, forward and backward."""

from liger_kernel.ops import fused_moe
import of_torch


@of_torch.differentiable
def moe(inputs, layer, policy):
  del layer, policy
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  y = fused_moe.LigerFusedMoEFunction.apply(
    x, w_gate_up.mT.contiguous(), w_down.mT.contiguous(), ids.int(), weights
  )
  return {'y': y[None]}


moe.activations = ('swiglu',)
