"""SGLang's fused_moe_kernel on FP8 codes, 1 x 128 by 128 x 128, on a GPU.

Rows are quantised by SGLang's Triton kernel, before both GEMMs.
"""

import of_torch
import sglang_fused_moe
import torch
import triton.language as tl

_BLOCKS = dict(
  BLOCK_SIZE_M=16, BLOCK_SIZE_N=128, BLOCK_SIZE_K=128, GROUP_SIZE_M=1
)
_quantise = sglang_fused_moe.load('ops/quantization/fp8_kernel.py')


def _multiply(rows, codes, scales, ids, weights, top_k):
  plan = sglang_fused_moe.plan_slots(ids, _BLOCKS['BLOCK_SIZE_M'])
  rows_codes, rows_scales = _quantise._per_token_group_quant_8bit_raw(rows, 128)
  out = rows.new_empty(ids.numel(), codes.shape[-1])
  sglang_fused_moe.KERNELS.invoke_fused_moe_kernel(
    *(rows_codes, codes.mT.contiguous(), None, out),
    *(rows_scales, scales.mT.contiguous(), None, weights, ids, *plan),
    *(False, top_k, _BLOCKS, tl.bfloat16, True, False, False, False, False),
    block_shape=[128, 128],
  )
  return out


def moe(inputs, layer, policy):
  names = 'w_gate_up_codes', 'w_gate_up_scales', 'w_down_codes', 'w_down_scales'
  x, ids, weights = (inputs[n][0] for n in ('x', 'topk_ids', 'topk_weights'))
  w_gate_up, s_gate_up, w_down, s_down = (inputs[name][0] for name in names)
  gate_up = _multiply(x, w_gate_up, s_gate_up, ids, weights, layer.top_k)
  hidden = of_torch.act(*gate_up.chunk(2, -1), policy)
  rows = _multiply(hidden, w_down, s_down, ids.reshape(-1, 1), weights, 1)
  sent = rows.unflatten(0, ids.shape).float()
  y = torch.einsum('tkd,tk->td', sent, weights).to(x.dtype)
  return {'y': y[None]}


moe.torch = of_torch.DEVICE
moe.activations = ('swiglu',)
