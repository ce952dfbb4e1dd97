"""SGLang's fused_moe_kernel as it is installed.

Its activation and its sum over K are SGLang's kernels too.  `pip install
--no-deps sglang` will do: what else the file imports is for other devices.
"""

import importlib.util
import sys
from unittest import mock

import of_torch
import torch
import triton.language as tl

_BLOCKS = dict(
  BLOCK_SIZE_M=16, BLOCK_SIZE_N=64, BLOCK_SIZE_K=32, GROUP_SIZE_M=1
)
_ABSENT = [f'kernels.ops.quantization.{n}_kernel' for n in ('fp8', 'int8')]
_ABSENT += [f'srt.{n}' for n in ('batch_invariant_ops', 'environ', 'utils')]
_ABSENT += ['kernels.jit.utils', 'srt.layers.moe.utils']
_ABSENT += ['kernels.ops.quantization.fp8_utils', 'srt.utils.patch_torch']
_NO = ('is_arch_support_pdl', 'is_sm90_supported')
_NO += tuple(f'is_{name}' for name in ('cuda', 'hip', 'cpu', 'musa', 'xpu'))


def load(path):
  """Returns a module of sglang/kernels without what it imports for others."""
  absent = mock.MagicMock(**{f'{name}.return_value': False for name in _NO})
  sys.modules.update({f'sglang.{name}': absent for name in _ABSENT})
  root = importlib.util.find_spec('sglang').submodule_search_locations[0]
  spec = importlib.util.spec_from_file_location(
    'sglang_kernels', f'{root}/kernels/{path}'
  )
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


KERNELS = load('ops/moe/fused_moe_triton_kernels.py')


def plan_slots(ids, block):
  """Returns slots, experts and their number: a slot is a block of its own."""
  slots = torch.full((ids.numel(), block), ids.numel(), device=ids.device)
  slots[:, 0] = torch.arange(ids.numel())
  size = torch.tensor([slots.numel()], dtype=torch.int32, device=ids.device)
  return slots.int().flatten(), ids.int().flatten(), size


def _product(rows, weights, ids, scales, top_k):
  out = rows.new_empty(ids.numel(), weights.shape[-1])
  KERNELS.invoke_fused_moe_kernel(
    *(rows, weights.mT.contiguous(), None, out, None, None, None, scales, ids),
    *plan_slots(ids, _BLOCKS['BLOCK_SIZE_M']),
    *(top_k == 1, top_k, _BLOCKS),
    *(getattr(tl, str(rows.dtype)[len('torch.') :]), *(False,) * 5),
  )
  return out


def moe(inputs, layer, policy):
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  gate_up = _product(x, w_gate_up, ids, weights, layer.top_k)
  hidden = of_torch.act(*gate_up.chunk(2, -1), policy)
  if policy.activation == 'swiglu':
    KERNELS.act_and_mul_triton(gate_up, hidden, _BLOCKS)
  rows = _product(hidden, w_down, ids, weights, 1)
  y = torch.empty_like(x)
  sent = rows.unflatten(0, ids.shape)
  KERNELS.moe_sum_reduce_triton(sent, y, 1.0)
  return {'y': y[None]}


moe.torch = of_torch.DEVICE
