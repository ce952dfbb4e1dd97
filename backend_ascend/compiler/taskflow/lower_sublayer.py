"""Lowers a sub-layer of tensor parallelism, both passes, to tile tasks.

GEMM + reduce-scatter, norm, all-gather + GEMM, as CAIS (arXiv 2605.05628) fuses
them: the operators of the layer from its second GEMM on, the norm, those up to
its first GEMM.  Row headers are there when it starts: rows go home before they
have come.
"""

from collections.abc import Sequence

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import emit
from hpmoe.backend_ascend.compiler.taskflow import events
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lower_backward
from hpmoe.backend_ascend.compiler.taskflow import lower_forward
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

Buffer = layout.Buffer
Kind = layout.Kind
View = layout.View


def _norm(s: emit.Shape, kind: Kind, *rows: Buffer) -> emit.Batch:
  """Returns tiles of tokens that read rows of buffers, and the gain."""
  batch = emit.token_wise(s, kind, [(b, 1, (0, s.d)) for b in rows], s.d)
  gain = emit.region(
    len(batch.tasks),
    Buffer.W_NORM,
    View.ROWS,
    batch.tasks['rank'],
    0,
    (0, 1),
    (0, s.d),
  )
  reads = np.concatenate([batch.reads, emit.stack(gain)], axis=1)
  return emit.Batch(batch.tasks, reads, batch.writes)


def _gain_grad(s: emit.Shape) -> emit.Batch:
  """Returns sums over all tokens of a rank, some columns a task."""
  g = emit.grid(r=s.r, c=emit.count(s.d, s.options.col_block))
  n, rank = g['r'].size, g['r']
  cols = emit.blocks(g['c'], s.options.col_block, s.d)
  kind = Kind.GAIN_GRAD
  table = emit.tasks(kind, n, (0, 1), cols, rank=rank, col_block=g['c'])
  reads = emit.stack(
    emit.region(n, Buffer.DX, View.ROWS, rank, 0, (0, s.t), cols),
    emit.region(n, Buffer.Y, View.ROWS, rank, 0, (0, s.t), (0, s.d)),
  )
  write = emit.region(n, Buffer.D_W_NORM, View.ROWS, rank, 0, (0, 1), cols)
  return emit.Batch(table, reads, emit.stack(write))


def _cuts(
  s: emit.Shape,
  arrivals: emit.Arrivals,
  rows: Buffer,
  home: Buffer,
  tokens: Sequence[Buffer],
) -> tuple[events.Partition, ...]:
  part = s.options.token_block if s.by_row else s.t
  return (
    *emit.partitions(s, arrivals, [rows], [home]),
    *(events.Partition(b, 1, s.t, part) for b in tokens),
  )


def lower_forward_pass(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: granularity.Options,
) -> flow_lib.Flow:
  """Returns the unplaced flow from `activation` to `gate_up`.

  Args:
    config: sizes, those of a sub-layer.
    policy: as of a layer; the routing weight multiplies at combine.
    options: granularity, without relay.

  Raises:
    ValueError: policy or options are not those of a sub-layer.
  """
  emit.refuse_codes(policy, 'of a sub-layer')
  s = emit.shape(config, policy, options)
  arrivals, width = lower_forward.ARRIVALS, (0, s.d)
  batches = [
    emit.gemm(s, Kind.DOWN, s.f, s.d),
    emit.puts_home(s, Kind.RETURN, [(Buffer.EXPERT_OUT, width)], s.d),
    emit.token_wise(s, Kind.COMBINE, [(Buffer.RETURNED, s.k, width)], s.d),
    _norm(s, Kind.NORM, Buffer.Y),
    *arrivals.batches(s),
    emit.gemm(s, Kind.GATE_UP, s.d, 2 * s.f),
  ]
  rows = [
    (Buffer.EXPERT_OUT, s.l, s.c, s.d),
    (Buffer.GATE_UP, s.l, s.c, 2 * s.f),
  ]
  homes = [(Buffer.RETURNED, s.d)]
  tokens = [Buffer.Y, Buffer.X]
  return emit.flow(
    config,
    policy,
    s,
    layout.Direction.FORWARD,
    batches,
    _cuts(s, arrivals, Buffer.EXPERT_OUT, Buffer.RETURNED, tokens),
    emit.spaces(s, arrivals, rows, homes, [(b, s.d) for b in tokens]),
  )


def lower_backward_pass(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: granularity.Options,
) -> flow_lib.Flow:
  """Returns the unplaced flow from d_gate_up to d_activation.

  As `lower_forward_pass`.
  """
  emit.refuse_codes(policy, 'of a sub-layer')
  s = emit.shape(config, policy, options)
  arrivals, links = lower_backward.ARRIVALS, lower_backward.links_of(s)
  width, weight_grad = (0, s.d), lower_backward.weight_grad
  batches = [
    emit.gemm(s, Kind.GATE_UP_GRAD, 2 * s.f, s.d, transposed=True),
    weight_grad(s, Kind.GATE_UP_WEIGHT_GRAD, s.d, 2 * s.f),
    emit.puts_home(s, Kind.RETURN_GRAD, [(Buffer.D_EXPERT_IN, width)], s.d),
    emit.token_wise(
      s, Kind.COMBINE_GRAD, [(Buffer.D_RETURNED, s.k, width)], s.d
    ),
    _norm(s, Kind.NORM_GRAD, Buffer.DX, Buffer.Y),
    _gain_grad(s),
    *arrivals.batches(s),
    emit.gemm(s, Kind.DOWN_GRAD, s.d, s.f, transposed=True),
    weight_grad(s, Kind.DOWN_WEIGHT_GRAD, s.f, s.d),
  ]
  grads = [
    (Buffer.D_W_GATE_UP, s.l * links, s.d, 2 * s.f),
    (Buffer.D_W_DOWN, s.l * links, s.f, s.d),
  ]
  rows = [
    (Buffer.D_EXPERT_IN, s.l, s.c, s.d),
    (Buffer.D_ACTIVATION, s.l, s.c, s.f),
    (Buffer.D_W_NORM, 1, 1, s.d),
    *grads,
  ]
  homes = [(Buffer.D_RETURNED, s.d)]
  tokens = [Buffer.DX, Buffer.DY]
  cuts = _cuts(s, arrivals, Buffer.D_EXPERT_IN, Buffer.D_RETURNED, tokens)
  cuts += lower_backward.chain_cuts(s, grads)
  return emit.flow(
    config,
    policy,
    s,
    layout.Direction.BACKWARD,
    batches,
    cuts,
    emit.spaces(s, arrivals, rows, homes, [(b, s.d) for b in tokens]),
  )
