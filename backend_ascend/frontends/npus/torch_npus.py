"""The operator of torch: one rank of a layer on several NPUs, for torch_npu.

    layer = torch_npus.NpusMoELayer(call, library=.., kernel=..)
    y = layer(x, topk_ids, topk_weights, w_gate_up, w_down)

in each process of `torchrun`, after `torch.npu.set_device`.  Tensors of an NPU
are used where they lie; those of the CPU, with the twin, too.  torch 2.4 or
newer.
"""

import itertools
from typing import Any

import numpy as np
import torch

from hpmoe.backend_ascend.device.npus import comms
from hpmoe.backend_ascend.device.npus import npu_launch
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.frontends.npus import npus_layer
from hpmoe.backend_ascend.host.ranks import rank_runtime
from hpmoe.reference.contract import tensors

# Layers by the number that a graph of torch can hold.
_LAYERS: dict[int, npus_layer.RankLayer] = {}
_NUMBERS = itertools.count()


class _Tensors:
  """Tensors of torch."""

  def empty(self, shape, dtype, like: torch.Tensor) -> torch.Tensor:
    kind = getattr(torch, dtype)
    return torch.zeros(shape, dtype=kind, device=like.device)

  def slab(self, tensor: torch.Tensor) -> npu_launch.Slab:
    on_device = tensor.device.type != 'cpu'
    size = tensor.numel() * tensor.element_size()
    return npu_launch.Slab(tensor.data_ptr(), size, on_device)

  def ids(self, tensor: torch.Tensor) -> np.ndarray:
    # Waits for what the framework's own stream still computes of it.
    return tensor.cpu().numpy()


def _name_arguments(
  arguments: tuple[torch.Tensor, ...],
) -> dict[str, torch.Tensor]:
  operands = dict(zip(tensors.INPUTS, arguments, strict=True))
  # The launch has a stream of its own: what was asked of torch's comes first.
  if arguments[0].device.type == 'npu':
    torch.npu.synchronize()
  return {
    name: tensor.detach().contiguous() for name, tensor in operands.items()
  }


@torch.library.custom_op('hpmoe::npus_moe_layer', mutates_args=())
def npus_moe_layer(
  x: torch.Tensor,
  topk_ids: torch.Tensor,
  topk_weights: torch.Tensor,
  w_gate_up: torch.Tensor,
  w_down: torch.Tensor,
  number: int,
) -> torch.Tensor:
  """Returns y `[T, D]` of layer `number`; a call of `NpusMoELayer`."""
  operands = _name_arguments((x, topk_ids, topk_weights, w_gate_up, w_down))
  return _LAYERS[number].y(operands)


@torch.library.custom_op('hpmoe::npus_moe_layer_grad', mutates_args=())
def npus_moe_layer_grad(
  dy: torch.Tensor,
  x: torch.Tensor,
  topk_ids: torch.Tensor,
  topk_weights: torch.Tensor,
  w_gate_up: torch.Tensor,
  w_down: torch.Tensor,
  number: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
  """Returns the gradients of x, topk_weights, w_gate_up and w_down."""
  operands = _name_arguments((x, topk_ids, topk_weights, w_gate_up, w_down))
  grads = _LAYERS[number].grads(operands, dy.detach().contiguous())
  names = layer_call.GRAD_OF
  return (
    grads[names['x']],
    grads[names['topk_weights']],
    grads[names['w_gate_up']],
    grads[names['w_down']],
  )


@npus_moe_layer.register_fake
def _(x, topk_ids, topk_weights, w_gate_up, w_down, number):
  del topk_ids, topk_weights, w_gate_up, w_down, number
  return torch.empty_like(x)


@npus_moe_layer_grad.register_fake
def _(dy, x, topk_ids, topk_weights, w_gate_up, w_down, number):
  del dy, topk_ids, number
  floats = (x, topk_weights, w_gate_up, w_down)
  return tuple(torch.empty_like(tensor) for tensor in floats)


def _keep(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
  del output
  *saved_tensors, ctx.number = inputs
  ctx.save_for_backward(*saved_tensors)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple:
  dx, d_weights, d_gate_up, d_down = npus_moe_layer_grad(
    dy, *ctx.saved_tensors, ctx.number
  )
  return dx, None, d_weights, d_gate_up, d_down, None


npus_moe_layer.register_autograd(_backward, setup_context=_keep)


class NpusMoELayer(torch.nn.Module):
  """`y` `[T, D]` of this process's tokens; its inputs are its own slabs.

  Called with x `[T, D]`, topk_ids `[T, K]` int32, topk_weights `[T, K]`
  float32, w_gate_up `[L, D, 2F]` and w_down `[L, F, D]` by every process of the
  job at once.  Differentiable in reverse, once.
  """

  def __init__(
    self,
    call: layer_call.LayerCall,
    comm: rank_runtime.Comm | None = None,
    **options: Any,
  ):
    """Meets the other ranks.

    Args:
      call: the whole layer, of one rank for each process of the job.
      comm: of the job; None: of `torchrun`.
      **options: `library`, `kernel` and `device` of `npus_layer.RankLayer`.

    Raises:
      ValueError, RankError, DeviceError: as of `npus_layer.RankLayer`.
    """
    super().__init__()
    comm = comm or comms.TorchComm()
    options.setdefault('device', getattr(comm, 'local_rank', comm.rank))
    self._call = call
    self._layer = npus_layer.RankLayer(call, comm, _Tensors(), **options)
    self._number = next(_NUMBERS)
    _LAYERS[self._number] = self._layer

  def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
    """See the class."""
    for name, tensor in zip(tensors.INPUTS, arguments, strict=True):
      shape = self._call.shape(name)[:1] + tuple(tensor.shape)
      dtype = str(tensor.dtype).removeprefix('torch.')
      self._call.check_array(name, shape, dtype)
    return npus_moe_layer(*arguments, self._number)

  def close(self) -> None:
    """Leaves; every process must call it."""
    del _LAYERS[self._number]
    self._layer.close()
