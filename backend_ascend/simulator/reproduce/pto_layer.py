"""The layer of the A3 MoE megakernel: sizes, routing, images, the front.

`hw-native-sys/pto-isa`, `kernels/manual/a2a3/dispatch_mega_combine`: int8, K
7168, N 4096, 16 experts a rank, top-8.  Its N is both halves of the first GEMM.
"""

import functools

import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.orders import megamoe
from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import null
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

EXPERTS = 16
TOP_K = 8
STAGE_MAJOR, EXPERT_MAJOR = 'stage-major', 'expert-major'

# Rows of its GEMM tiles, and columns.
_TILE_ROWS, _TILE_COLS = 128, 256
# Slots up to which all AIVs of the stage-major form send home; behind it two
# for each rank.
_SMALL_SLOTS = 4096
_LANES = 2

# GEMM inputs are int8; what a GEMM writes, and what goes home, is float16.
_ELEMENT = 'int8'
_ELEMENT_BYTES = dict(gate_up=2, expert_out=2, returned=2, y=2)

# Casts, absolute value, row maximum, scale and the casts to int8.
_QUANTISE_OPS = 8

# Of `tiling_builder.cpp`, by M: experts whose second GEMM is awaited before any
# row goes home.  The AIVs of SwiGLU are 8 at M=16; the expert at which the
# second GEMM may have all AICs is 11 at EP16, 13 at EP8, and 12 at EP8, M=16.
_RETURN_AFTER = {16: 3, 32: 0, 64: 0, 128: 3, 512: 0, 1024: 2, 2048: 2}


def knobs(ep: int, tokens: int, join: int | None = None) -> megamoe.Knobs:
  """Returns the authors' knobs of a shape, but for another `join`."""
  first = 11 if ep == 16 else 12 if tokens == 16 else 13
  return megamoe.Knobs(
    swiglu_aiv=8 if tokens == 16 else 16,
    return_after=_RETURN_AFTER[tokens],
    join=first if join is None else join,
  )


def config(ep: int, tokens: int) -> config_lib.MoEConfig:
  rows = tokens * TOP_K
  return config_lib.MoEConfig(
    num_ranks=ep,
    num_tokens=tokens,
    num_experts=EXPERTS * ep,
    top_k=TOP_K,
    d_model=7168,
    d_ff=2048,
    capacity=rows,
  )


def topk_ids(ep: int, tokens: int) -> np.ndarray:
  """Returns `[R, T, K]` i32: its generator's, which deals experts in turn.

  A token's experts lie in one half of a rank's.  Tokens of the lower half come
  first here, for they are the ones that are whole first: which token is which
  changes nothing else.
  """
  dealt = np.arange(ep * tokens * TOP_K, dtype=np.int32) % (EXPERTS * ep)
  ids = dealt.reshape(ep, tokens, TOP_K)
  late = ids[:, :, 0] % EXPERTS >= EXPERTS // 2
  order = np.argsort(late, axis=1, kind='stable')
  return np.take_along_axis(ids, order[:, :, None], axis=1)


def _return_aiv(ep: int, tokens: int) -> int:
  if tokens * TOP_K <= _SMALL_SLOTS:
    return megamoe.NUM_AIV
  return min(_LANES * ep, megamoe.NUM_AIV)


def options(ep: int, tokens: int, schedule: str) -> granularity.Options:
  """Returns tiles of the sizes that its cores share a stage by."""
  rows = tokens * TOP_K // EXPERTS
  slice_rows = max(rows // ep, 1)
  by_stage = schedule == STAGE_MAJOR
  halved = by_stage and tokens * TOP_K > _SMALL_SLOTS
  return granularity.Options(
    event_grain='expert' if by_stage else 'row_block',
    row_block=min(rows, _TILE_ROWS),
    col_block=_TILE_COLS,
    vector_rows=max(rows // (64 if by_stage else 16), 1),
    put_rows=max(slice_rows // _LANES, 1) if halved else slice_rows,
    token_block=max(tokens // 768, 1),
    num_aic=megamoe.NUM_AIC,
    num_aiv=megamoe.NUM_AIV,
    expert_capacity=rows,
  )


def scheduler(
  ep: int, tokens: int, schedule: str, join: int | None
) -> placement.Scheduler:
  if schedule == STAGE_MAJOR:
    return megamoe.stage_major(ep, EXPERTS, _return_aiv(ep, tokens))
  return megamoe.expert_major(ep, knobs(ep, tokens, join))


@functools.cache
def image(
  ep: int, tokens: int, schedule: str, join: int | None = None
) -> image_lib.Image:
  """Returns the proved image; its elements are priced, not stored, as int8."""
  return compiler.compile_forward(
    config(ep, tokens),
    precision.PrecisionPolicy(storage='bfloat16', placement='combine'),
    options(ep, tokens, schedule),
    scheduler(ep, tokens, schedule, join),
  ).image


def front(machine: machine_lib.Machine, tokens: int) -> float:
  """Returns seconds before the layer's first task, which are no tasks of ours.

  The kernel sorts its slots, exchanges counts and quantises each token once,
  but stores it for each of its slots.  The first two are part of `launch`.
  """
  elements = tokens * config(1, tokens).d_model
  moved = elements * (2 + TOP_K) / machine['hbm']
  cast = elements * _QUANTISE_OPS / (megamoe.NUM_AIV * machine['vector'])
  return machine['launch'] + max(moved, cast)


def roofline(machine: machine_lib.Machine, ep: int, tokens: int):
  """Returns the layer's products, weights and links at their peaks."""
  return null.roofline(
    config(ep, tokens),
    machine,
    topk_ids(ep, tokens),
    element=_ELEMENT,
    home_bytes=_ELEMENT_BYTES['returned'],
  )


def run(
  machine: machine_lib.Machine, ep: int, tokens: int, schedule: str
) -> simulate.Simulation:
  """Returns the layer in modelled time, from the end of the front.

  All AICs join the second GEMM at the first border of an expert, not before the
  one that the authors set, at which the first GEMM is done; at the last one at
  the latest.
  """
  join = None if schedule == STAGE_MAJOR else knobs(ep, tokens).join
  while True:
    timed = simulate.simulate(
      image(ep, tokens, schedule, join),
      machine,
      topk_ids(ep, tokens),
      element=_ELEMENT,
      element_bytes=_ELEMENT_BYTES,
    )
    if join in (None, EXPERTS - 1) or _done_before(timed, join):
      return timed
    join += 1


def _done_before(timed: simulate.Simulation, join: int) -> bool:
  """Whether the first GEMM ends before the second of the expert before."""
  tasks = timed.image.tables['tasks']
  first = tasks['kind'] == layout.Kind.GATE_UP
  last = tasks['expert'] % EXPERTS == join - 1
  second = (tasks['kind'] == layout.Kind.DOWN) & last
  return timed.end[first].max() <= timed.end[second].max()
