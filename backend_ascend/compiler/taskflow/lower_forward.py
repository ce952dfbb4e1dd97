"""Lowers the forward layer to tile tasks.

The operators and their order are those of HyperParallel-MoE (arXiv 2605.23764):
dispatch, gate/up GEMM, SwiGLU, down GEMM, return.  The ordered combine, which
runs outside the published kernel, is a task here.  Nothing in this file says
who waits for whom: `events.py` derives that from the regions.
"""

from hpmoe.backend_ascend.compiler.taskflow import emit
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

Buffer = layout.Buffer
Kind = layout.Kind


ARRIVALS = emit.Arrivals(
  source=Buffer.X,
  relayed=Buffer.X_RELAYED,
  expert_rows=Buffer.EXPERT_IN,
  put=Kind.DISPATCH,
  once=Kind.RELAY_PUT,
  copy=Kind.RELAY,
)


def _batches(s: emit.Shape) -> list[emit.Batch]:
  header = (Buffer.EXPERT_IN, (s.d, s.d + 1))
  swiglu_reads = [(Buffer.GATE_UP, (0, 2 * s.f))]
  if s.placement == 'before_down' or s.quantised:
    swiglu_reads.append(header)
  down_reads = [header] if s.placement == 'epilogue' else []
  return [
    *ARRIVALS.batches(s),
    emit.gemm(s, Kind.GATE_UP, s.d, 2 * s.f),
    emit.row_wise(s, Kind.SWIGLU, swiglu_reads, s.f, beside=s.quantised),
    emit.gemm(s, Kind.DOWN, s.f, s.d, extra_reads=down_reads),
    emit.puts_home(
      s,
      Kind.RETURN,
      [
        (Buffer.EXPERT_OUT, (0, s.d)),
        header,
        *([(Buffer.ACTIVATION, (s.f, s.f + 1))] if s.quantised else []),
      ],
      s.d,
    ),
    emit.token_wise(s, Kind.COMBINE, [(Buffer.RETURNED, s.k, (0, s.d))], s.d),
  ]


def lower_forward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: granularity.Options,
) -> flow_lib.Flow:
  """Returns the unplaced flow of the forward layer.

  Args:
    config: sizes of the layer; `config.num_rows` is N of the packed buffers.
    policy: a storage dtype of `layout.DTYPES`, accumulation float32.
    options: granularity; None fields take their defaults.

  Raises:
    ValueError: the policy is not one that the backend computes.
  """
  s = emit.shape(config, policy, options)
  homes = [Buffer.RETURNED]
  rows = [
    (Buffer.GATE_UP, s.l, s.c, 2 * s.f),
    (Buffer.ACTIVATION, s.l, s.c, s.f + s.quantised),
    (Buffer.EXPERT_OUT, s.l, s.c, s.d),
  ]
  return emit.flow(
    config,
    policy,
    s,
    layout.Direction.FORWARD,
    _batches(s),
    emit.partitions(s, ARRIVALS, [b for b, *_ in rows], homes),
    emit.spaces(
      s, ARRIVALS, rows, [(b, s.d) for b in homes], [(Buffer.Y, s.d)]
    ),
  )
