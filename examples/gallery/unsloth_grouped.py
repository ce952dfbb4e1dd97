"""Unsloth's grouped GEMM as it is; its first one gathers rows by itself.

Of the package only the folder of that GEMM is imported.
"""

import importlib.util
import sys
import types

import of_torch
import torch

_FOLDER = importlib.util.find_spec('unsloth').submodule_search_locations[0]
for _name in ('unsloth', 'unsloth.kernels', 'unsloth.kernels.moe'):
  _package = types.ModuleType(_name)
  _package.DEVICE_TYPE = of_torch.DEVICE
  _package.__path__ = [
    _FOLDER + _name.removeprefix('unsloth').replace('.', '/')
  ]
  sys.modules[_name] = _package

from unsloth.kernels.moe.grouped_gemm import interface  # noqa: E402
from unsloth.kernels.moe.grouped_gemm.kernels import tuning  # noqa: E402


def _multiply(rows, weights, sizes, order, top_k, **flags):
  return interface.grouped_gemm(
    *(rows, weights.mT.contiguous(), sizes.int(), top_k, order.int()),
    kernel_config_fwd=tuning.KernelConfigForward(),
    kernel_config_bwd_dX=tuning.KernelConfigBackward_dX(),
    kernel_config_bwd_dW=tuning.KernelConfigBackward_dW(),
    **flags,
  )


@of_torch.differentiable
def moe(inputs, layer, policy):
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  order = ids.flatten().argsort(stable=True)
  sizes = ids.flatten().bincount(minlength=layer.num_experts)
  plan = sizes, order, layer.top_k
  gate_up = _multiply(x, w_gate_up, *plan, permute_x=True)
  hidden = of_torch.act(*gate_up.chunk(2, -1), policy)
  rows = _multiply(hidden, w_down, *plan, permute_y=True, is_first_gemm=False)
  sent = rows.unflatten(0, ids.shape).float()
  return {'y': torch.einsum('tkd,tk->td', sent, weights).to(x.dtype)[None]}
