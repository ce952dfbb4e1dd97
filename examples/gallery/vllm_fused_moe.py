"""vLLM's fused_moe_kernel as it is installed.

Each slot is a block of its own, as vLLM does with few tokens: the kernel that
sorts slots into blocks is not for CPUs.  The activation is the adapter's.
"""

import os

import of_torch

if of_torch.DEVICE == 'cpu':
  # With an empty list of GPUs vLLM keeps Triton where there is none.
  os.environ['CUDA_VISIBLE_DEVICES'] = ''

import torch  # noqa: E402
import triton.language as tl  # noqa: E402
from vllm.model_executor.layers.fused_moe import fused_moe  # noqa: E402

_BLOCKS = dict(
  BLOCK_SIZE_M=16, BLOCK_SIZE_N=64, BLOCK_SIZE_K=32, GROUP_SIZE_M=1
)


def _product(rows, weights, ids, scales, top_k):
  held = rows, weights.mT.contiguous()
  out = rows.new_empty(*ids.shape, weights.shape[-1])
  size = torch.tensor([ids.numel() * _BLOCKS['BLOCK_SIZE_M']])
  experts = ids.int().flatten()
  fused_moe.invoke_fused_moe_triton_kernel(
    *(*held, out, None, None, scales, None, experts, size.int()),
    *(scales is not None, top_k, _BLOCKS),
    *(getattr(tl, str(rows.dtype)[len('torch.') :]), *(False,) * 5),
  )
  return out


def moe(inputs, layer, policy):
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  gate_up = _product(x, w_gate_up, ids, None, layer.top_k)
  hidden = of_torch.act(*gate_up.flatten(0, 1).chunk(2, -1), policy)
  slots = (t.reshape(-1, 1) for t in (ids, weights))
  rows = _product(hidden, w_down, *slots, 1)
  return {'y': rows.reshape(*ids.shape, -1).sum(1)[None]}


moe.torch = of_torch.DEVICE
