"""The two published schedules of the A3 MoE megakernel, on our flow.

`hw-native-sys/pto-isa`, `kernels/manual/a2a3/dispatch_mega_combine`: the
stage-major form is its overview, the expert-major one its overview V1, with the
knobs that its authors tuned by hand for each (EP, M).  What the kernel says by
barriers and flags is said here by groups of cores and by the order of queues.
"""

import dataclasses

from hpmoe.backend_ascend.compiler.orders import core_groups
from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.backend_ascend.compiler.taskflow import layout

Kind = layout.Kind
Stage = core_groups.Stage

NUM_AIC, NUM_AIV = 24, 48
_AIC, _AIV = tuple(range(NUM_AIC)), tuple(range(NUM_AIV))
# SwiGLU runs in two segments; the second is the last three experts.
_LAST_SEGMENT = 3


def _always(cores) -> tuple[tuple[int, tuple[int, ...]], ...]:
  return ((0, tuple(cores)),)


def stage_major(
  num_ranks: int, experts: int, return_aiv: int
) -> placement.Scheduler:
  """Stage by stage, experts pipelined inside a stage.

  One AIV sends to each rank.  A segment of SwiGLU waits for all its experts,
  and the second GEMM for the whole segment: so the segment runs downwards, its
  last expert first, and ends with the one for which the second GEMM waits.

  Args:
    num_ranks: R.
    experts: L, experts of a rank.
    return_aiv: AIVs that send home.
  """
  cut = max(experts - _LAST_SEGMENT, 1) if experts > 1 else experts
  segments = (*reversed(range(cut)), *reversed(range(cut, experts)))
  return core_groups.scheduler(
    (
      Stage(Kind.DISPATCH, _always(_AIV[: min(num_ranks, NUM_AIV)])),
      Stage(Kind.GATE_UP, _always(_AIC)),
      Stage(Kind.SWIGLU, _always(_AIV), steps=segments),
      Stage(Kind.DOWN, _always(_AIC)),
      Stage(Kind.RETURN, _always(_AIV[:return_aiv])),
      Stage(Kind.COMBINE, _always(_AIV)),
    )
  )


@dataclasses.dataclass(frozen=True)
class Knobs:
  """What the authors set by hand for each (EP, M); experts count from 0.

  Attributes:
    swiglu_aiv: AIVs that run SwiGLU.
    return_after: expert whose second GEMM is awaited before any row goes home.
    join: expert from which the second GEMM may have all AICs.
    full: experts whose first GEMM runs on all AICs.
    gate_up_aic: AICs of the first GEMM after that; the others run the second.
    return_aiv: AIVs that send home.
    early: share of the experts that must be home before combine begins, as a
      step: tokens before it are combined by the AIVs of dispatch and SwiGLU
      alone, those after it by all.
  """

  swiglu_aiv: int = 16
  return_after: int = 2
  join: int = 13
  full: int = 2
  gate_up_aic: int = 16
  return_aiv: int = 8
  early: int = 8


def expert_major(num_ranks: int, knobs: Knobs) -> placement.Scheduler:
  """Expert by expert through all stages at once, each on cores of its own."""
  front = knobs.gate_up_aic
  senders, swiglu = _AIV[:front], _AIV[NUM_AIC : NUM_AIC + front]
  homeward = _AIV[front : front + knobs.return_aiv]
  return core_groups.scheduler(
    (
      Stage(Kind.DISPATCH, _always(senders[: min(num_ranks, front)])),
      Stage(Kind.GATE_UP, ((0, _AIC), (knobs.full, _AIC[:front]))),
      Stage(Kind.SWIGLU, _always(swiglu[: knobs.swiglu_aiv])),
      Stage(Kind.DOWN, ((0, _AIC[front:]), (knobs.join, _AIC))),
      Stage(Kind.RETURN, _always(homeward), after=knobs.return_after),
      Stage(Kind.COMBINE, ((0, senders + swiglu), (knobs.early, _AIV))),
    )
  )
