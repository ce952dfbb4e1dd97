"""The Cell with one rank in each process of an `msrun` job, on CPUs.

The collectives that MindSpore has on a CPU are all-gathers and sums: none that
sends rows to their experts, and none with a gradient of the kind.  So every
process gathers all tokens and all experts for the time of a call, launches all
ranks, and keeps its own slab.  Bits are those of one process.  It divides what
is held between calls (weights, gradients, optimizer) among the processes, and
no arithmetic.  `host/ranks/` is what divides the arithmetic.
"""

import mindspore as ms
from mindspore import communication
from mindspore import nn
from mindspore import ops

from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision


class ParallelMoELayer(nn.Cell):
  """`y` `[T, D]` of this process's tokens; its inputs are its own slabs.

  Called with x `[T, D]`, topk_ids `[T, K]`, topk_weights `[T, K]`, w_gate_up
  `[L, D, 2F]` and w_down `[L, F, D]`, as `MoELayer` without the rank axis, by
  every process of the job at once.  PYNATIVE; differentiable in reverse, once.
  The gradient launches the forward image again, which costs a launch and saves
  no tensor.
  """

  def __init__(
    self,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    options: granularity.Options | None = None,
    *,
    threads: int | None = None,
    deadline_s: float = 60.0,
  ):
    """After `mindspore.communication.init`.

    Args:
      config: of the whole layer.
      policy: see `MoELayer`.
      options: see `MoELayer`.
      threads: see `MoELayer`.
      deadline_s: see `MoELayer`.

    Raises:
      ValueError: as `MoELayer`, or the job has not num_ranks processes.
    """
    super().__init__()
    size = communication.get_group_size()
    if size != config.num_ranks:
      raise ValueError(
        f'config.num_ranks: expected {size}, one for each process of the job, '
        f'got {config.num_ranks}'
      )
    self.rank = communication.get_rank()
    self.layer = mindspore_layer.MoELayer(
      config,
      policy,
      options,
      device='cpu',
      threads=threads,
      deadline_s=deadline_s,
    )
    self.gather = ops.AllGather()
    self.pull = ops.GradOperation(get_all=True, sens_param=True)

  def gathered(self, slab: ms.Tensor) -> ms.Tensor:
    """Returns all ranks' slabs, `[R, ...]`; bfloat16 travels as float32."""
    wide = ms.float32 if slab.dtype == ms.bfloat16 else slab.dtype
    return self.gather(slab.astype(wide).expand_dims(0)).astype(slab.dtype)

  def construct(
    self,
    x: at.Float[ms.Tensor, 'T D'],
    topk_ids: at.Int32[ms.Tensor, 'T K'],
    topk_weights: at.Float[ms.Tensor, 'T K'],
    w_gate_up: at.Float[ms.Tensor, 'L D 2*F'],
    w_down: at.Float[ms.Tensor, 'L F D'],
  ):
    """See the class."""
    slabs = (x, topk_ids, topk_weights, w_gate_up, w_down)
    return self.layer(*map(self.gathered, slabs))[self.rank]

  def bprop(self, x, topk_ids, topk_weights, w_gate_up, w_down, out, dout):
    """Returns this process's slab of each gradient."""
    del out
    slabs = (x, topk_ids, topk_weights, w_gate_up, w_down)
    full = tuple(map(self.gathered, slabs))
    grads = self.pull(self.layer)(*full, self.gathered(dout))
    return tuple(grad[self.rank] for grad in grads)
