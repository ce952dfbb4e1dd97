"""The A3 MoE megakernel of pto-isa: 28 measured times and two timelines.

`hw-native-sys/pto-isa`, `kernels/manual/a2a3/dispatch_mega_combine`: int8, EP8
and EP16, seven token counts, two schedules; K 7168, N 4096 (both halves of the
first GEMM), 16 experts per rank, top-8.

What the kernel does before its dispatch (start, sorting, counts, quantisation)
is not part of the simulated flow; it is added before the flow as one time.  Two
figures are fitted on the seven EP8 stage-major times; the other 21 times and
all timelines are held out.
"""

from collections.abc import Iterator
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
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
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
  """Returns the authors' knobs of a shape, or the same with another `join`."""
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
  """Returns `[R, T, K]` i32 as its generator assigns them: experts round robin.

  A token's experts lie in one half of a rank's experts.  Here tokens of the
  lower half come first because their rows are complete first; the order of
  tokens changes nothing else.
  """
  round_robin = np.arange(ep * tokens * TOP_K, dtype=np.int32) % (EXPERTS * ep)
  ids = round_robin.reshape(ep, tokens, TOP_K)
  late = ids[:, :, 0] % EXPERTS >= EXPERTS // 2
  order = np.argsort(late, axis=1, kind='stable')
  return np.take_along_axis(ids, order[:, :, None], axis=1)


def _return_aiv(ep: int, tokens: int) -> int:
  if tokens * TOP_K <= _SMALL_SLOTS:
    return megamoe.NUM_AIV
  return min(_LANES * ep, megamoe.NUM_AIV)


def options(ep: int, tokens: int, schedule: str) -> granularity.Options:
  """Returns the tile sizes by which its cores divide a stage."""
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
  """Returns the proven image, which stores bfloat16; timing assumes int8."""
  return compiler.compile_forward(
    config(ep, tokens),
    precision.PrecisionPolicy(storage='bfloat16', placement='combine'),
    options(ep, tokens, schedule),
    scheduler(ep, tokens, schedule, join),
  ).image


def compute_front(machine: machine_lib.Machine, tokens: int) -> float:
  """Returns the seconds before the first task of the simulated layer.

  The kernel sorts its slots, exchanges counts and quantises each token once,
  but stores it for each of its slots.  The first two are part of `launch`.
  """
  elements = tokens * config(1, tokens).d_model
  memory_seconds = elements * (2 + TOP_K) / machine['hbm']
  cast = elements * _QUANTISE_OPS / (megamoe.NUM_AIV * machine['vector'])
  return machine['launch'] + max(memory_seconds, cast)


def roofline(machine: machine_lib.Machine, ep: int, tokens: int):
  """Returns the layer's time at peak rates of GEMMs, memory and links."""
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
  """Returns the simulated layer, which starts when the front ends.

  All AICs join the second GEMM at the first expert, not earlier than the
  authors' `join`, at which the first GEMM is done, and at the last expert at
  the latest.
  """
  join = None if schedule == STAGE_MAJOR else knobs(ep, tokens).join
  while True:
    simulation = simulate.simulate(
      image(ep, tokens, schedule, join),
      machine,
      topk_ids(ep, tokens),
      element=_ELEMENT,
      element_bytes=_ELEMENT_BYTES,
    )
    if join in (None, EXPERTS - 1) or _done_before(simulation, join):
      return simulation
    join += 1


def _done_before(simulation: simulate.Simulation, join: int) -> bool:
  """Whether the first GEMM ends before the previous expert's second GEMM."""
  tasks = simulation.image.tables['tasks']
  first = tasks['kind'] == layout.Kind.GATE_UP
  last = tasks['expert'] % EXPERTS == join - 1
  second = (tasks['kind'] == layout.Kind.DOWN) & last
  return simulation.end[first].max() <= simulation.end[second].max()


Kind = layout.Kind
Row = witness_lib.Row
STAGE_MAJOR, EXPERT_MAJOR = STAGE_MAJOR, EXPERT_MAJOR
MACHINE = 'ascend_a3_pto'

_KERNEL = 'hw-native-sys/pto-isa, dispatch_mega_combine'
_TIMES_SOURCE = f'{_KERNEL}/overview_v1.md, average of a launch'
_STAGES_SOURCE = f'{_KERNEL}/overview.md, timeline'
_EXPERTS_SOURCE = f'{_KERNEL}/overview_v1.md, timeline'

TOKENS = (16, 32, 64, 128, 512, 1024, 2048)
_PUBLISHED = witness_lib.published('pto-megamoe')
# us, by EP and schedule, one for each of TOKENS.
TABLE = {
  (int(ep), schedule): times
  for ep, schedules in _PUBLISHED['times'].items()
  for schedule, times in schedules.items()
}
_FITTED = (8, STAGE_MAJOR)

# us of EP8 expert-major at 2048 tokens.
_HEAD, _TAIL = 'AIC idle before', 'AIC idle after'
_FEW, _ALL, _SWIGLU = (
  'GMM2, an expert on 8 AIC',
  'GMM2, an expert on 24 AIC',
  'SwiGLU, an expert on 16 AIV',
)
_EXPERT_TIMES = {_HEAD: 302, _TAIL: 537, _FEW: 181, _ALL: 61, _SWIGLU: 69}
_LARGEST = TOKENS[-1]
_GATE_UP_AIC = megamoe.Knobs().gate_up_aic

# The order of two times counts if they differ by more than this share.
_APART = 0.03


def name(ep: int, schedule: str, tokens: int) -> str:
  return f'EP{ep} {schedule}, M={tokens}'


def _stage_name(stage: str, end: str) -> str:
  return f'{name(16, STAGE_MAJOR, _LARGEST)}: {stage} {end}'


def _expert_name(quantity: str) -> str:
  return f'{name(8, EXPERT_MAJOR, _LARGEST)}: {quantity}'


def _rows() -> Iterator[Row]:
  for (ep, schedule), times in TABLE.items():
    for tokens, time in zip(TOKENS, times):
      yield Row(
        name(ep, schedule, tokens),
        time,
        'us',
        'time',
        _TIMES_SOURCE,
        fitted=(ep, schedule) == _FITTED,
        nearest=name(*_FITTED, tokens),
      )
  for stage, (_, start, end) in _PUBLISHED['stages'].items():
    for edge, time in (('begins', start), ('ends', end)):
      yield Row(
        _stage_name(stage, edge), time, 'us', 'timeline', _STAGES_SOURCE
      )
  for quantity, time in _EXPERT_TIMES.items():
    yield Row(_expert_name(quantity), time, 'us', 'timeline', _EXPERTS_SOURCE)


def _select_tasks(simulation: simulate.Simulation, kind: int) -> np.ndarray:
  """Returns a mask of one kind's tasks on rank 0, which has the timeline."""
  tasks = simulation.image.tables['tasks']
  return (tasks['kind'] == kind) & (tasks['rank'] == 0)


def _span(
  simulation: simulate.Simulation, mask: np.ndarray
) -> tuple[float, float]:
  return simulation.start[mask].min(), simulation.end[mask].max()


def _stage_times(simulation, front: float) -> Iterator[tuple[str, float]]:
  for stage, (kind, _, _) in _PUBLISHED['stages'].items():
    start, end = _span(simulation, _select_tasks(simulation, layout.Kind[kind]))
    yield _stage_name(stage, 'begins'), 1e6 * (front + start)
    yield _stage_name(stage, 'ends'), 1e6 * (front + end)


def _expert_times(simulation, front: float) -> Iterator[tuple[str, float]]:
  """Yields times of experts, measured from end to end, as experts overlap."""
  tasks = simulation.image.tables['tasks']
  aic = (tasks['unit'] == layout.Unit.AIC) & (tasks['rank'] == 0)
  start, end = _span(simulation, aic)
  down, swiglu = (
    _select_tasks(simulation, Kind.DOWN),
    _select_tasks(simulation, Kind.SWIGLU),
  )
  local = tasks['expert'] % EXPERTS
  join = local[down & (tasks['core'] < _GATE_UP_AIC)].min()
  first_start, join_time = _span(simulation, down & (local < join))
  seconds = {
    _HEAD: front + start,
    _TAIL: simulation.total - end,
    _FEW: (join_time - first_start) / join,
    _ALL: (end - join_time) / (EXPERTS - join),
    _SWIGLU: (simulation.end - simulation.start)[swiglu].mean(),
  }
  for quantity, value in seconds.items():
    yield _expert_name(quantity), 1e6 * float(value)


def _values(machine: machine_lib.Machine, cases, tell) -> dict[str, float]:
  values = {}
  for ep, schedule in cases:
    for tokens in TOKENS:
      tell(name(ep, schedule, tokens))
      simulation = run(machine, ep, tokens, schedule)
      front = compute_front(machine, tokens)
      values[name(ep, schedule, tokens)] = 1e6 * (front + simulation.total)
      if tokens == _LARGEST and (ep, schedule) == (16, STAGE_MAJOR):
        values |= dict(_stage_times(simulation, front))
      if tokens == _LARGEST and (ep, schedule) == (8, EXPERT_MAJOR):
        values |= dict(_expert_times(simulation, front))
  return values


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  return _values(machines[MACHINE], TABLE, tell)


def _run_fitted(machines: witness_lib.Machines, tell) -> dict[str, float]:
  return _values(machines[MACHINE], [_FITTED], tell)


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  return {
    name(ep, schedule, tokens): 1e6 * seconds
    for ep in (8, 16)
    for tokens in TOKENS
    for seconds in [roofline(machines[MACHINE], ep, tokens).fused]
    for schedule in (STAGE_MAJOR, EXPERT_MAJOR)
  }


def wrong_order(values: witness_lib.Values) -> str:
  """Returns the shapes where the simulation picks the wrong schedule."""
  wrong = []
  for ep in (8, 16):
    for i, tokens in enumerate(TOKENS):
      stage, expert = (TABLE[ep, s][i] for s in (STAGE_MAJOR, EXPERT_MAJOR))
      pair = [values[name(ep, s, tokens)] for s in (STAGE_MAJOR, EXPERT_MAJOR)]
      agrees = pair[0] != pair[1] and (stage < expert) == (pair[0] < pair[1])
      if abs(stage - expert) > _APART * min(stage, expert) and not agrees:
        wrong.append(f'EP{ep}, M={tokens}')
  return '; '.join(wrong)


_FITTED_ROWS = tuple(name(*_FITTED, tokens) for tokens in TOKENS)

WITNESS = witness_lib.Witness(
  **witness_lib.load_fields('pto-megamoe'),
  machines=(MACHINE,),
  quick=False,
  rows=tuple(_rows()),
  run=_run,
  run_fitted=_run_fitted,
  roofline=_roofline,
  fits=tuple(
    witness_lib.Fit(MACHINE, figure, _FITTED_ROWS)
    for figure in ('launch', 'bus_link')
  ),
  claims=(
    witness_lib.Claim(
      'the faster of the two schedules is named right wherever they differ by '
      'more than 3 %',
      wrong_order,
    ),
  ),
)
