"""Lowers the backward layer to tile tasks.

The operators are those of HyperParallel-MoE (arXiv 2605.23764): dispatch of dy,
input gradient and weight gradient of both GEMMs, SwiGLU gradient, return.  The
ordered sum of dx and the gradient of the routing weights, which run outside the
published kernel, are tasks here.  Forward tensors are inputs of this flow.

A weight gradient sums over the rows of its expert in row order.  With
`chain_rows` it is a chain of tasks, each waiting for the one before it.
"""

from collections.abc import Sequence

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import emit
from hpmoe.backend_ascend.compiler.taskflow import events
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

Buffer = layout.Buffer
Kind = layout.Kind
View = layout.View


def links_of(s: emit.Shape) -> int:
  return emit.count(s.c, s.options.chain_rows)


def weight_grad(
  s: emit.Shape,
  kind: Kind,
  height: int,
  width: int,
  extra_reads: Sequence[tuple] = (),
) -> emit.Batch:
  """Chains of `left[rows].T @ right[rows]` tiles, one chain per tile.

  `extra_reads` lists further reads of each summed row: (buffer, columns).
  """
  links, col = links_of(s), s.options.col_block
  (left, right), target = layout.OPERANDS[kind], layout.OUTPUT_OF_KIND[kind]
  g = emit.grid(
    r=s.r,
    l=s.l,
    j=links,
    b=emit.count(height, s.weight_rows),
    c=emit.count(width, col),
  )
  n = g['r'].size
  rows = emit.blocks(g['b'], s.weight_rows, height)
  cols = emit.blocks(g['c'], col, width)
  summed_rows = emit.blocks(g['j'], s.options.chain_rows, s.c)
  rank_group = (g['r'], g['l'])
  link = g['l'] * links + g['j']
  table = emit.expert_tasks(
    s, kind, g, rows, cols, peer=g['j'], row_block=g['b'], col_block=g['c']
  )
  reads = [
    emit.region(n, left, View.ROWS, *rank_group, summed_rows, rows),
    emit.region(n, right, View.ROWS, *rank_group, summed_rows, cols),
  ]
  if links > 1:
    # The first link reads nothing of the chain: an empty box.
    before = np.where(g['j'] > 0, link - 1, link)
    box = (rows[0], np.where(g['j'] > 0, rows[1], rows[0]))
    reads.append(emit.region(n, target, View.ROWS, g['r'], before, box, cols))
  reads += [
    emit.region(n, b, View.ROWS, *rank_group, summed_rows, read)
    for b, read in extra_reads
  ]
  write = emit.region(n, target, View.ROWS, g['r'], link, rows, cols)
  return emit.Batch(table, emit.stack(*reads), emit.stack(write))


ARRIVALS = emit.Arrivals(
  source=Buffer.DY,
  relayed=Buffer.DY_RELAYED,
  expert_rows=Buffer.D_EXPERT_OUT,
  put=Kind.DISPATCH_GRAD,
  once=Kind.RELAY_PUT_GRAD,
  copy=Kind.RELAY_GRAD,
)


def _batches(s: emit.Shape) -> list[emit.Batch]:
  header = (Buffer.D_EXPERT_OUT, (s.d, s.d + 1))
  swiglu_reads = [
    (Buffer.D_ACTIVATION, (0, s.f)),
    (Buffer.GATE_UP, (0, 2 * s.f)),
  ]
  home_reads = [(Buffer.D_EXPERT_IN, (0, s.d)), header]
  weight_reads = [(Buffer.DY, 1, (0, s.d)), (Buffer.RETURNED, s.k, (0, s.d))]
  if s.early:
    swiglu_reads.append(header)
    home_reads.append((Buffer.D_GATE_UP, (2 * s.f, 2 * s.f + 1)))
    weight_reads = [(Buffer.D_RETURNED, s.k, (s.d, s.d + 1))]
  down_reads = []
  if s.placement == 'epilogue':
    swiglu_reads.append((Buffer.ACTIVATION, (0, s.f)))
    down_reads.append(header)
  return [
    *ARRIVALS.batches(s),
    emit.gemm(s, Kind.DOWN_GRAD, s.d, s.f, transposed=True),
    weight_grad(s, Kind.DOWN_WEIGHT_GRAD, s.f, s.d, extra_reads=down_reads),
    emit.row_wise(s, Kind.SWIGLU_GRAD, swiglu_reads, 2 * s.f + s.early),
    emit.gemm(s, Kind.GATE_UP_GRAD, 2 * s.f, s.d, transposed=True),
    weight_grad(s, Kind.GATE_UP_WEIGHT_GRAD, s.d, 2 * s.f),
    emit.puts_home(s, Kind.RETURN_GRAD, home_reads, s.d + s.early),
    emit.token_wise(
      s, Kind.COMBINE_GRAD, [(Buffer.D_RETURNED, s.k, (0, s.d))], s.d
    ),
    emit.token_wise(s, Kind.TOPK_WEIGHT_GRAD, weight_reads, s.k),
  ]


def chain_cuts(
  s: emit.Shape, grads: Sequence[tuple[Buffer, int, int, int]]
) -> tuple[events.Partition, ...]:
  """Returns how weight gradients are cut where chains of tasks sum them.

  Args:
    s: sizes.
    grads: buffer, groups, rows and columns of each.
  """
  if links_of(s) == 1:
    return ()
  return tuple(
    events.Partition(b, groups, height, s.weight_rows)
    for b, groups, height, _ in grads
  )


def lower_backward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: granularity.Options,
) -> flow_lib.Flow:
  """As `lower_forward`, for the backward layer."""
  emit.refuse_codes(policy, 'of the backward pass')
  s = emit.shape(config, policy, options)
  links = s.l * links_of(s)
  homes = [Buffer.D_RETURNED]
  rows = [
    (Buffer.D_ACTIVATION, s.l, s.c, s.f),
    (Buffer.D_GATE_UP, s.l, s.c, 2 * s.f + s.early),
    (Buffer.D_EXPERT_IN, s.l, s.c, s.d),
  ]
  grads = [
    (Buffer.D_W_DOWN, links, s.f, s.d),
    (Buffer.D_W_GATE_UP, links, s.d, 2 * s.f),
  ]
  cuts = emit.partitions(s, ARRIVALS, [b for b, *_ in rows], homes)
  cuts += chain_cuts(s, grads)
  return emit.flow(
    config,
    policy,
    s,
    layout.Direction.BACKWARD,
    _batches(s),
    cuts,
    emit.spaces(
      s,
      ARRIVALS,
      rows + grads,
      [(b, s.d + s.early) for b in homes],
      [(Buffer.DX, s.d), (Buffer.D_TOPK_WEIGHTS, s.k)],
    ),
  )
