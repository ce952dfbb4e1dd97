"""The Cell with one rank in each process of an `msrun` job, on NPUs.

What crosses between ranks is written by the kernel into the other ranks'
memory; a process holds its own slabs, and all arithmetic is divided.  Tensors
go through the host's memory on their way to the kernel and back.
"""

import pathlib

import mindspore as ms
from mindspore import nn
from mindspore import ops
import numpy as np

from hpmoe.backend_ascend.device.npus import comms
from hpmoe.backend_ascend.device.npus import npu_launch
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.frontends.npus import npus_layer
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors


class _Arrays:
  """Tensors as arrays of numpy."""

  def empty(self, shape, dtype, like) -> np.ndarray:
    del like
    storage_format = storage.FORMATS.get(dtype)
    kind = storage_format.numpy if storage_format else dtype
    return np.zeros(shape, kind)

  def slab(self, tensor: np.ndarray) -> npu_launch.Slab:
    return npu_launch.Slab(tensor.ctypes.data, tensor.nbytes)

  def ids(self, tensor: np.ndarray) -> np.ndarray:
    return tensor


class NpusMoELayer(nn.Cell):
  """`y` `[T, D]` of this process's tokens; its inputs are its own slabs.

  Called with x `[T, D]`, topk_ids `[T, K]`, topk_weights `[T, K]`, w_gate_up
  `[L, D, 2F]` and w_down `[L, F, D]` by every process of the job at once, as
  `mindspore_parallel.ParallelMoELayer`.  PYNATIVE; differentiable in reverse,
  once.
  """

  def __init__(
    self,
    call: layer_call.LayerCall,
    *,
    library: str | pathlib.Path,
    kernel: str | pathlib.Path,
    device: int | None = None,
  ):
    """After `mindspore.communication.init`.

    Args:
      call: the whole layer, of one rank for each process of the job.
      library: what `make ascend-npus` built.
      kernel: what `make ascend-npus` built.
      device: of this process; None: its number on this server.

    Raises:
      ValueError, RankError, DeviceError: as of `npus_layer.RankLayer`.
    """
    super().__init__()
    comm = comms.MindSporeComm()
    self._call = call
    self._layer = npus_layer.RankLayer(
      call,
      comm,
      _Arrays(),
      library=library,
      kernel=kernel,
      device=comm.local_rank if device is None else device,
    )

  def close(self) -> None:
    """Leaves; every process must call it."""
    self._layer.close()

  def _name_arguments(self, *arguments: ms.Tensor) -> dict[str, np.ndarray]:
    operands = dict(zip(tensors.INPUTS, arguments, strict=True))
    for name, tensor in operands.items():
      dtype = str(tensor.dtype).lower()
      shape = self._call.shape(name)[:1] + tuple(tensor.shape)
      self._call.check_array(name, shape, dtype)
    return {n: mindspore_layer.to_numpy(t) for n, t in operands.items()}

  def construct(
    self,
    x: at.Float[ms.Tensor, 'T D'],
    topk_ids: at.Int32[ms.Tensor, 'T K'],
    topk_weights: at.Float[ms.Tensor, 'T K'],
    w_gate_up: at.Float[ms.Tensor, 'L D 2*F'],
    w_down: at.Float[ms.Tensor, 'L F D'],
  ):
    """See the class."""
    operands = self._name_arguments(
      x, topk_ids, topk_weights, w_gate_up, w_down
    )
    return ms.Tensor(self._layer.y(operands))

  def bprop(self, x, topk_ids, topk_weights, w_gate_up, w_down, out, dout):
    """Returns this process's slab of each gradient."""
    del out
    operands = self._name_arguments(
      x, topk_ids, topk_weights, w_gate_up, w_down
    )
    grads = self._layer.grads(operands, mindspore_layer.to_numpy(dout))
    grads = {name: ms.Tensor(array) for name, array in grads.items()}
    return layer_call.grads_by_input(grads, ops.zeros_like(topk_ids))
