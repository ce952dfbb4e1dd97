"""Memory and time of each unit of a model on a rank, computed once each."""

from collections.abc import Iterable
import dataclasses
import functools
from typing import Any

import numpy as np

from hpmoe.backend_ascend.simulator.plan import collectives
from hpmoe.backend_ascend.simulator.plan import decoder_sizes
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import operators
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib

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
class UnitMemory:
  """The memory of a unit on a rank.

  Attributes:
    saved_bytes: B that a micro-batch keeps until its backward pass.
    working: B besides, while its backward pass runs.
    shared, experts: parameters, as of `operators.Unit`.
  """

  saved_bytes: float = 0.0
  working: float = 0.0
  shared: float = 0.0
  experts: float = 0.0


@dataclasses.dataclass(frozen=True)
class UnitTimes:
  """Seconds of a unit's passes for one micro-batch.

  Attributes:
    forward, backward: the passes without any overlap.
    exposed_passes: both passes, without what computation hides.
  """

  forward: Pass
  backward: Pass
  exposed_passes: tuple[Pass, Pass]

  def to_json(self) -> dict[str, Any]:
    """Returns the fields under their names in reports."""
    fields = dataclasses.asdict(self)
    return fields | dict(exposed=fields.pop('exposed_passes'))


def _sum(*passes: Pass) -> Pass:
  return Pass(
    *(sum(getattr(p, f.name) for p in passes) for f in dataclasses.fields(Pass))
  )


def _expose(passes: tuple[Pass, Pass], overlap) -> tuple[Pass, Pass]:
  """Returns the parts of both passes that computation does not hide.

  Computation hides communication of the other pass of another micro-batch, so
  both passes form one sum.  Copies to the host are always hidden behind it.
  """
  total = _sum(*passes)
  left, shares = total.compute, {'compute': 1.0}
  for name in ('exchange', 'tensor', 'offload'):
    whole = getattr(total, name)
    hidden = min(left, whole) if name == 'offload' or name in overlap else 0.0
    left -= hidden
    shares[name] = (whole - hidden) / whole if whole else 0.0
  forward, backward = (
    Pass(**{name: share * getattr(p, name) for name, share in shares.items()})
    for p in passes
  )
  return forward, backward


def _measure_memory(unit: operators.Unit, recompute: str) -> UnitMemory:
  whole = sum(o.saved_bytes for o in unit.operators)
  cheap = sum(o.saved_bytes for o in unit.operators if o.cheap)
  kept_bytes, working = dict(
    none=(whole, 0.0),
    cheap=(whole - cheap, cheap),
    layer=(unit.input, whole),
  )[recompute]
  return UnitMemory(kept_bytes, working, unit.shared, unit.experts)


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
    self._memory_cache = functools.cache(self._new_memory)
    self._times_cache = functools.cache(self._new_times)

  def memory(self, plan: Plan) -> dict[str, UnitMemory]:
    """Returns the memory of a unit by kind, without a run of the engine."""
    return self._memory_cache(_key(plan))

  def times(self, plan: Plan) -> dict[str, UnitTimes]:
    """Returns the times of a unit by kind."""
    return self._times_cache(_key(plan))

  def _new_memory(self, key: Plan) -> dict[str, UnitMemory]:
    share = self.setting.share(key)
    return {
      k: _measure_memory(share.unit(k), key.recompute) for k in self._kinds
    }

  def _new_times(self, key: Plan) -> dict[str, UnitTimes]:
    share = self.setting.share(key)
    return {k: self._time(share.unit(k), key) for k in self._kinds}

  def _time(self, unit: operators.Unit, key: Plan) -> UnitTimes:
    machine = self.setting.machine
    forward, backward = self._passes(unit, key.tp)
    if key.recompute == 'layer':
      backward = _sum(backward, forward)
    elif key.recompute == 'cheap':
      recomputed = (o for o in unit.operators if o.cheap)
      backward = _sum(backward, Pass(compute=self._run(recomputed)))
    if key.offload:
      kept_bytes = _measure_memory(unit, key.recompute).saved_bytes
      copies = Pass(offload=kept_bytes / machine['host_link'])
      forward, backward = _sum(forward, copies), _sum(backward, copies)
    passes = forward, backward
    return UnitTimes(*passes, _expose(passes, self.setting.overlap))

  def _run(self, operators_: Iterable[operators.Operator]) -> float:
    """Returns s of operators forward, one after the other."""
    return sum(
      operator.seconds(self.setting.machine, self.setting.element)
      for operator in operators_
    )

  def _passes(self, unit: operators.Unit, tp: int) -> tuple[Pass, Pass]:
    machine, element = self.setting.machine, self.setting.element
    forward = self._run(o for o in unit.operators if not o.routed)
    backward = sum(o.back(machine, element) for o in unit.operators)
    gathers, scatters = (
      sum(collectives.all_gather(machine, size, tp) for size in sizes_)
      for sizes_ in (unit.gathered, unit.scattered)
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
  """Returns a plan whose fields that no unit depends on are minimal."""
  return dataclasses.replace(plan, pp=1, vpp=1, dp=plan.ep, pad=0)


def sum_chunks(setting: Setting, plan: Plan, units, value) -> np.ndarray:
  """Returns `[V, P]`: sums over the units of each chunk."""
  unit_values = [
    value(units[k]) if k in units else 0.0 for k in decoder_sizes.KINDS
  ]
  return plan_lib.counts(setting.model, plan.pp, plan.vpp, plan.pad) @ np.array(
    unit_values
  )
