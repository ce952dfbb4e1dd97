"""Dumps a small MoE of MindSpore's cells on two ranks with msprobe, on CPUs.

MODE is all_reduce or all_to_all, by which half of the experts lie on each rank
and see all ranks' tokens, or data: each rank holds all.

Run by msrun as: python cell_ranks_torch_testing.py FOLDER MODE BUG
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent))

import cells_torch_testing as cells  # noqa: E402
from mindspore import communication  # noqa: E402
from mindspore import ops  # noqa: E402
from mindspore.common import _grad_function  # noqa: E402


class _Sum(_grad_function._Function):  # noqa: SLF001
  """Adds all ranks' parts; a part's gradient is the sum's."""

  @staticmethod
  def forward(ctx, part):
    del ctx
    return ops.AllReduce()(part)

  @staticmethod
  def backward(ctx, grad):
    del ctx
    return grad


class _Copy(_grad_function._Function):  # noqa: SLF001
  """What all ranks read; its gradient is the sum of theirs."""

  @staticmethod
  def forward(ctx, x):
    del ctx
    return x * 1

  @staticmethod
  def backward(ctx, grad):
    del ctx
    return ops.AllReduce()(grad)


class _Gather(_grad_function._Function):  # noqa: SLF001
  """Rows of all ranks; the gradient is of this rank's rows."""

  @staticmethod
  def forward(ctx, slab):
    del ctx
    return ops.AllGather()(slab)

  @staticmethod
  def backward(ctx, grad):
    del ctx
    return _take_own(ops.AllReduce()(grad))


class _Scatter(_grad_function._Function):  # noqa: SLF001
  """The sum of all ranks' parts, this rank's rows of it."""

  @staticmethod
  def forward(ctx, part):
    del ctx
    return _take_own(ops.AllReduce()(part))

  @staticmethod
  def backward(ctx, grad):
    del ctx
    return ops.AllGather()(grad)


def _take_own(rows):
  count = rows.shape[0] // communication.get_group_size()
  begin = communication.get_rank() * count
  return rows[begin : begin + count]


class HalfRank:
  """Half of the experts; `combine` adds what the ranks computed."""

  count = cells.EXPERTS // 2

  def __init__(self, mode):
    self.first = communication.get_rank() * self.count
    pair = dict(all_reduce=(_Copy, _Sum), all_to_all=(_Gather, _Scatter))[mode]
    self._dispatch, self._combine = pair

  def dispatch(self, slab):
    return self._dispatch.apply(slab)

  def combine(self, y):
    return self._combine.apply(y)


def main():
  folder, mode, bug = sys.argv[1:]
  communication.init('mccl')
  rank = communication.get_rank()
  ranks = cells.OneRank() if mode == 'data' else HalfRank(mode)
  is_wrong = rank == 1 and bug == 'lose_expert'
  lost_expert = ranks.first + 3 if is_wrong else None
  seed = 1 if mode == 'all_reduce' else rank
  cells.dump_run(folder, 'L0', lost_expert, ranks, seed)


if __name__ == '__main__':
  main()
