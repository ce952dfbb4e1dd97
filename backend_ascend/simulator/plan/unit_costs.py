"""What a rank's unit of a model holds and how long it takes, once for each."""

from collections.abc import Iterable
import dataclasses
import functools

import numpy as np

from hpmoe.backend_ascend.simulator.plan import collectives
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import operators
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import sizes

Plan = plan_lib.Plan
Setting = plan_lib.Setting


@dataclasses.dataclass(frozen=True)
class Pass:
  """Seconds of one pass of a unit.

  Attributes:
    compute: of operators.
    tensor: of TP collectives.
    exchange: of rows of experts.
    offload: of copies to or from the host.
  """

  compute: float = 0.0
  tensor: float = 0.0
  exchange: float = 0.0
  offload: float = 0.0

  @property
  def seconds(self) -> float:
    """All of it, one after the other."""
    return self.compute + self.tensor + self.exchange + self.offload


@dataclasses.dataclass(frozen=True)
class Held:
  """What a unit holds on a rank.

  Attributes:
    kept: B of a micro-batch from its forward pass to its backward one.
    working: B besides, while its backward pass runs.
    shared, experts: parameters, as of `operators.Unit`.
  """

  kept: float = 0.0
  working: float = 0.0
  shared: float = 0.0
  experts: float = 0.0


@dataclasses.dataclass(frozen=True)
class Timed:
  """Seconds of a unit's passes for one micro-batch.

  Attributes:
    forward, backward: nothing hidden.
    exposed: of both, what computation does not hide.
  """

  forward: Pass
  backward: Pass
  exposed: tuple[Pass, Pass]


def _sum(*passes: Pass) -> Pass:
  return Pass(
    *(sum(getattr(p, f.name) for p in passes) for f in dataclasses.fields(Pass))
  )


def _exposed(passes: tuple[Pass, Pass], overlap) -> tuple[Pass, Pass]:
  """Returns both passes where computation hides what it can.

  It hides that of the other pass of another micro-batch, so both are one sum.
  Copies to the host hide behind it always.
  """
  both = _sum(*passes)
  left, exposed = both.compute, {'compute': 1.0}
  for name in ('exchange', 'tensor', 'offload'):
    whole = getattr(both, name)
    hidden = min(left, whole) if name == 'offload' or name in overlap else 0.0
    left -= hidden
    exposed[name] = (whole - hidden) / whole if whole else 0.0
  forward, backward = (
    Pass(**{name: part * getattr(one, name) for name, part in exposed.items()})
    for one in passes
  )
  return forward, backward


def _held(unit: operators.Unit, recompute: str) -> Held:
  whole = sum(one.kept for one in unit.operators)
  cheap = sum(one.kept for one in unit.operators if one.cheap)
  kept, working = dict(
    none=(whole, 0.0),
    cheap=(whole - cheap, cheap),
    layer=(unit.input, whole),
  )[recompute]
  return Held(kept, working, unit.shared, unit.experts)


class Costs:
  """Costs of units in one setting, each computed once.

  Attributes:
    setting: what is planned.
    layers: the engine's times of MoE layers.
  """

  def __init__(self, setting: Setting, layers: moe_layer.Timer):
    self.setting = setting
    self.layers = layers
    self._kinds = frozenset(setting.model.units())
    self._held = functools.cache(self._new_held)
    self._timed = functools.cache(self._new_timed)

  def held(self, plan: Plan) -> dict[str, Held]:
    """Returns by kind what a unit holds; the engine does not run."""
    return self._held(_key(plan))

  def timed(self, plan: Plan) -> dict[str, Timed]:
    """Returns by kind how long a unit takes."""
    return self._timed(_key(plan))

  def _new_held(self, key: Plan) -> dict[str, Held]:
    share = self.setting.share(key)
    return {k: _held(share.unit(k), key.recompute) for k in self._kinds}

  def _new_timed(self, key: Plan) -> dict[str, Timed]:
    share = self.setting.share(key)
    return {k: self._time(share.unit(k), key) for k in self._kinds}

  def _time(self, unit: operators.Unit, key: Plan) -> Timed:
    machine = self.setting.machine
    forward, backward = self._passes(unit, key.tp)
    if key.recompute == 'layer':
      backward = _sum(backward, forward)
    elif key.recompute == 'cheap':
      again = (one for one in unit.operators if one.cheap)
      backward = _sum(backward, Pass(compute=self._run(again)))
    if key.offload:
      kept = _held(unit, key.recompute).kept
      copied = Pass(offload=kept / machine['host_link'])
      forward, backward = _sum(forward, copied), _sum(backward, copied)
    passes = forward, backward
    return Timed(*passes, _exposed(passes, self.setting.overlap))

  def _run(self, some: Iterable[operators.Operator]) -> float:
    """Returns s of operators forward, one after the other."""
    return sum(
      one.seconds(self.setting.machine, self.setting.element) for one in some
    )

  def _passes(self, unit: operators.Unit, tp: int) -> tuple[Pass, Pass]:
    machine, element = self.setting.machine, self.setting.element
    forward = self._run(o for o in unit.operators if not o.routed)
    backward = sum(one.back(machine, element) for one in unit.operators)
    gathers, scatters = (
      sum(collectives.all_gather(machine, size, tp) for size in some)
      for some in (unit.gathered, unit.scattered)
    )
    routed = (moe_layer.Times(0.0, 0.0),) * 2
    if unit.routed:
      routed = self.layers(unit.routed)
    # Backward what was gathered is scattered, and gathered anew for the
    # gradients of weights.
    return (
      Pass(forward + routed[0].compute, gathers + scatters, routed[0].exchange),
      Pass(
        backward + routed[1].compute,
        2 * gathers + scatters,
        routed[1].exchange,
      ),
    )


def _key(plan: Plan) -> Plan:
  """Returns a plan with what no unit depends on at its least."""
  return dataclasses.replace(plan, pp=1, vpp=1, dp=plan.ep, pad=0)


def of_chunks(setting: Setting, plan: Plan, units, value) -> np.ndarray:
  """Returns `[V, P]`: sums over the units of each chunk."""
  each = [value(units[k]) if k in units else 0.0 for k in sizes.KINDS]
  return plan_lib.counts(setting.model, plan.pp, plan.vpp, plan.pad) @ np.array(
    each
  )
