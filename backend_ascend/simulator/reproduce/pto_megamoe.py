"""The A3 MoE megakernel of pto-isa: 28 measured times and two timelines.

int8, EP8 and EP16, seven token counts, two schedules.  What it does before its
dispatch (start, sorting, counts, quantising) is no part of our flow and stands
before it as one time.  Two figures are fitted on the seven EP8 stage-major
times; the other 21 and all timelines are held out.
"""

from collections.abc import Iterator

import numpy as np

from hpmoe.backend_ascend.compiler.orders import megamoe
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import pto_layer
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

Kind = layout.Kind
Row = witness_lib.Row
STAGE_MAJOR, EXPERT_MAJOR = pto_layer.STAGE_MAJOR, pto_layer.EXPERT_MAJOR
MACHINE = 'ascend_a3_pto'

_KERNEL = 'hw-native-sys/pto-isa, dispatch_mega_combine'
_TIMES = f'{_KERNEL}/overview_v1.md, average of a launch'
_STAGES = f'{_KERNEL}/overview.md, timeline'
_EXPERTS = f'{_KERNEL}/overview_v1.md, timeline'

TOKENS = (16, 32, 64, 128, 512, 1024, 2048)
_PUBLISHED = witness_lib.published('pto-megamoe')
# us, by EP and schedule, one for each of TOKENS.
TABLE = {
  (int(ep), schedule): times
  for ep, of in _PUBLISHED['times'].items()
  for schedule, times in of.items()
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

# Times that differ by more than this are told apart.
_APART = 0.03


def name(ep: int, schedule: str, tokens: int) -> str:
  return f'EP{ep} {schedule}, M={tokens}'


def _stage_name(stage: str, end: str) -> str:
  return f'{name(16, STAGE_MAJOR, _LARGEST)}: {stage} {end}'


def _expert_name(what: str) -> str:
  return f'{name(8, EXPERT_MAJOR, _LARGEST)}: {what}'


def _rows() -> Iterator[Row]:
  for (ep, schedule), times in TABLE.items():
    for tokens, time in zip(TOKENS, times):
      yield Row(
        name(ep, schedule, tokens),
        time,
        'us',
        'time',
        _TIMES,
        fitted=(ep, schedule) == _FITTED,
        nearest=name(*_FITTED, tokens),
      )
  for stage, (_, start, end) in _PUBLISHED['stages'].items():
    for which, time in (('begins', start), ('ends', end)):
      yield Row(_stage_name(stage, which), time, 'us', 'timeline', _STAGES)
  for what, time in _EXPERT_TIMES.items():
    yield Row(_expert_name(what), time, 'us', 'timeline', _EXPERTS)


def _of(timed: simulate.Simulation, kind: int) -> np.ndarray:
  """Returns the tasks of a kind on rank 0, whose timeline is published."""
  tasks = timed.image.tables['tasks']
  return (tasks['kind'] == kind) & (tasks['rank'] == 0)


def _span(timed: simulate.Simulation, of: np.ndarray) -> tuple[float, float]:
  return timed.start[of].min(), timed.end[of].max()


def _stage_times(timed, front: float) -> Iterator[tuple[str, float]]:
  for stage, (kind, _, _) in _PUBLISHED['stages'].items():
    start, end = _span(timed, _of(timed, layout.Kind[kind]))
    yield _stage_name(stage, 'begins'), 1e6 * (front + start)
    yield _stage_name(stage, 'ends'), 1e6 * (front + end)


def _expert_times(timed, front: float) -> Iterator[tuple[str, float]]:
  """An expert's time is that from one end to the next, as experts overlap."""
  tasks = timed.image.tables['tasks']
  aic = (tasks['unit'] == layout.Unit.AIC) & (tasks['rank'] == 0)
  start, end = _span(timed, aic)
  down, swiglu = _of(timed, Kind.DOWN), _of(timed, Kind.SWIGLU)
  local = tasks['expert'] % pto_layer.EXPERTS
  join = local[down & (tasks['core'] < _GATE_UP_AIC)].min()
  began, joined = _span(timed, down & (local < join))
  seconds = {
    _HEAD: front + start,
    _TAIL: timed.total - end,
    _FEW: (joined - began) / join,
    _ALL: (end - joined) / (pto_layer.EXPERTS - join),
    _SWIGLU: (timed.end - timed.start)[swiglu].mean(),
  }
  for what, value in seconds.items():
    yield _expert_name(what), 1e6 * float(value)


def _values(machine: machine_lib.Machine, cases, tell) -> dict[str, float]:
  values = {}
  for ep, schedule in cases:
    for tokens in TOKENS:
      tell(name(ep, schedule, tokens))
      timed = pto_layer.run(machine, ep, tokens, schedule)
      front = pto_layer.front(machine, tokens)
      values[name(ep, schedule, tokens)] = 1e6 * (front + timed.total)
      if tokens == _LARGEST and (ep, schedule) == (16, STAGE_MAJOR):
        values |= dict(_stage_times(timed, front))
      if tokens == _LARGEST and (ep, schedule) == (8, EXPERT_MAJOR):
        values |= dict(_expert_times(timed, front))
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
    for seconds in [pto_layer.roofline(machines[MACHINE], ep, tokens).fused]
    for schedule in (STAGE_MAJOR, EXPERT_MAJOR)
  }


def wrong_order(values: witness_lib.Values) -> str:
  """Returns where the schedule that was measured to be faster is not here."""
  wrong = []
  for ep in (8, 16):
    for i, tokens in enumerate(TOKENS):
      stage, expert = (TABLE[ep, s][i] for s in (STAGE_MAJOR, EXPERT_MAJOR))
      told = [values[name(ep, s, tokens)] for s in (STAGE_MAJOR, EXPERT_MAJOR)]
      right = told[0] != told[1] and (stage < expert) == (told[0] < told[1])
      if abs(stage - expert) > _APART * min(stage, expert) and not right:
        wrong.append(f'EP{ep}, M={tokens}')
  return '; '.join(wrong)


_FITTED_ROWS = tuple(name(*_FITTED, tokens) for tokens in TOKENS)

WITNESS = witness_lib.Witness(
  **witness_lib.told('pto-megamoe'),
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
