"""SGLang's fused_moe_kernel as it is installed, under Triton's interpreter.

Its activation and its sum over K are SGLang's kernels too.  `pip install
--no-deps sglang` will do: what else the file imports is for other devices.
"""

import importlib.util
import os
import sys
from unittest import mock

os.environ['TRITON_INTERPRET'] = '1'

import of_torch  # noqa: E402
import torch  # noqa: E402
import triton.language as tl  # noqa: E402

_BLOCKS = dict(
  BLOCK_SIZE_M=16, BLOCK_SIZE_N=64, BLOCK_SIZE_K=32, GROUP_SIZE_M=1
)
_ABSENT = [f'kernels.ops.quantization.{n}_kernel' for n in ('fp8', 'int8')]
_ABSENT += [f'srt.{n}' for n in ('batch_invariant_ops', 'environ', 'utils')]
_ABSENT += ['kernels.jit.utils', 'srt.layers.moe.utils']
_NO = ('is_cuda', 'is_hip', 'is_cpu', 'is_arch_support_pdl')


def _kernels():
  no = mock.MagicMock(**{f'{name}.return_value': False for name in _NO})
  sys.modules.update({f'sglang.{name}': no for name in _ABSENT})
  root = importlib.util.find_spec('sglang').submodule_search_locations[0]
  path = f'{root}/kernels/ops/moe/fused_moe_triton_kernels.py'
  spec = importlib.util.spec_from_file_location('sglang_kernels', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


_sglang = _kernels()


def _product(rows, weights, ids, scales, top_k):
  blocks = torch.full((ids.numel(), _BLOCKS['BLOCK_SIZE_M']), ids.numel())
  blocks[:, 0] = torch.arange(ids.numel())  # a slot is a block of its own
  out = rows.new_empty(ids.numel(), weights.shape[-1])
  size = torch.tensor([blocks.numel()], dtype=torch.int32)
  _sglang.invoke_fused_moe_kernel(
    *(rows, weights.mT.contiguous(), None, out, None, None, None, scales, ids),
    *(blocks.int().flatten(), ids.int().flatten(), size, top_k == 1, top_k),
    *(_BLOCKS, getattr(tl, str(rows.dtype)[len('torch.') :]), *(False,) * 5),
  )
  return out


def moe(inputs, layer, policy):
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  gate_up = _product(x, w_gate_up, ids, weights, layer.top_k)
  hidden = of_torch.act(*gate_up.chunk(2, -1), policy)
  if policy.activation == 'swiglu':
    _sglang.act_and_mul_triton(gate_up, hidden, _BLOCKS)
  rows = _product(hidden, w_down, ids, weights, 1)
  y = torch.empty_like(x)
  sent = rows.unflatten(0, ids.shape)
  _sglang.moe_sum_reduce_triton(sent, y, 1.0)
  return {'y': y[None]}


moe.torch = True
