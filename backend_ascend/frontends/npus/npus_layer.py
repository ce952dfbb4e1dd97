"""One rank of a layer on several NPUs, whichever framework holds its tensors.

A process is a rank.  The gradient launches the forward image again, which costs
a launch and saves no tensor.
"""

from collections.abc import Mapping
import pathlib
from typing import Any, Protocol

import numpy as np

from hpmoe.backend_ascend.device.npus import npu_launch
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.host.ranks import rank_runtime
from hpmoe.reference.contract import tensors


class Holder(Protocol):
  """How a framework holds tensors."""

  def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
    """Returns a dense tensor, where `like` is."""

  def slab(self, tensor: Any) -> npu_launch.Slab:
    """Returns where a dense tensor lies."""

  def ids(self, tensor: Any) -> np.ndarray:
    """Returns ids on the host."""


class RankLayer:
  """The rank's part of both passes."""

  def __init__(
    self,
    call: layer_call.LayerCall,
    comm: rank_runtime.Comm,
    holder: Holder,
    *,
    library: str | pathlib.Path,
    kernel: str | pathlib.Path,
    device: int | None = None,
  ):
    """Compiles both passes, and meets the other ranks.

    Args:
      call: the whole layer.
      comm: of its ranks.
      holder: of its tensors.
      library: as of `npu_launch.Launch`.
      kernel: as of `npu_launch.Launch`.
      device: as of `npu_launch.Launch`.

    Raises:
      ValueError: the comm has not as many ranks, or NPUs have no kernels for
        the policy.
      RankError, DeviceError: as of `npu_launch.Launch`.
    """
    call.check()
    if comm.num_ranks != call.config.num_ranks:
      raise ValueError(
        f'config.num_ranks: expected {comm.num_ranks}, one for each process of '
        f'the job, got {call.config.num_ranks}'
      )
    self._call, self._holder = call, holder
    self._images = {
      direction: call.compile(direction)
      for direction in (layer_call.FORWARD, layer_call.BACKWARD)
    }
    self._launch = npu_launch.Launch(
      list(self._images.values()),
      comm,
      library=library,
      kernel=kernel,
      device=device,
      deadline_s=call.deadline_s,
    )

  def _run(
    self, direction, operands: Mapping[str, Any], names
  ) -> dict[str, Any]:
    """Returns tensors that a pass makes."""
    holder, image = self._holder, self._images[direction]
    like = operands['topk_weights']
    results = {
      name: holder.empty(
        arrays.shape(image, name, of_rank=True), self._call.dtype(name), like
      )
      for name in names
    }
    read = {n: operands[n] for n in arrays.INPUTS[direction] if n in operands}
    ids = holder.ids(read.pop('topk_ids'))
    slabs = {n: holder.slab(t) for n, t in (read | results).items()}
    self._launch.run_at(image, ids, slabs)
    return results

  def y(self, operands: Mapping[str, Any]) -> Any:
    """Returns `[T, D]`; `given` are the rank's slabs of `tensors.INPUTS`.

    Raises:
      ValueError: a tensor's shape or dtype, or ids, are not the layer's.
      RankError, runtime.WaitError, DeviceError: as `npu_launch.Launch.run`.
    """
    return self._run(layer_call.FORWARD, operands, ('y',))['y']

  def grads(self, operands: Mapping[str, Any], dy: Any) -> dict[str, Any]:
    """Returns the rank's slabs of `layer_call.GRAD_OF`, by name.

    Raises:
      ValueError, RankError, runtime.WaitError, DeviceError: as `y`.
    """
    saved_names = tensors.saved_stages(
      tensors.Parts(), self._call.policy.placement
    )
    backward_operands = self._run(layer_call.FORWARD, operands, saved_names)
    backward_operands = {**operands, **backward_operands, 'dy': dy}
    del backward_operands['x']
    grad_names = tuple(layer_call.GRAD_OF.values())
    return self._run(layer_call.BACKWARD, backward_operands, grad_names)

  def close(self) -> None:
    """Leaves; every rank must call it."""
    self._launch.close()
