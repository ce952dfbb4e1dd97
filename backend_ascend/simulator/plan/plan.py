"""How a model is dealt out to devices: plans, and what they are for."""

import dataclasses
import functools

import numpy as np

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.plan import decoder_sizes
from hpmoe.backend_ascend.simulator.plan import operators

# What the backward pass makes anew: nothing; norms, up-projections and
# activations; whole units.
RECOMPUTE = ('none', 'cheap', 'layer')
OVERLAPS = ('exchange', 'tensor', 'pipeline', 'gradients')


@dataclasses.dataclass(frozen=True, order=True)
class Plan:
  """One way to deal a model out.

  Attributes:
    tp: ranks that share a layer's heads and blocks, and are neighbours.
    pp: P, stages.
    vpp: V, chunks of a stage.
    ep: data-parallel ranks that share experts; with TP ranks a group of
      `tp * ep`.
    dp: ranks that have other sequences.
    micro_batch: sequences.
    pad: layers that head and MTP heads count as, besides, when layers are dealt
      out to chunks.
    recompute: of RECOMPUTE.
    offload: whether what is kept for the backward pass lies in the host.
  """

  tp: int = 1
  pp: int = 1
  vpp: int = 1
  ep: int = 1
  dp: int = 1
  micro_batch: int = 1
  pad: int = 0
  recompute: str = 'none'
  offload: bool = False

  @property
  def devices(self) -> int:
    """TP * PP * DP."""
    return self.tp * self.pp * self.dp


@dataclasses.dataclass(frozen=True)
class States:
  """Bytes of a parameter.

  Attributes:
    weight: of it, as it is multiplied.
    gradient: of its sum.
    optimizer: of its copy and moments, shared by data-parallel ranks (ZeRO-1).
  """

  weight: float = 2.0
  gradient: float = 4.0
  optimizer: float = 12.0


@dataclasses.dataclass(frozen=True)
class Setting:
  """What is planned, for what.

  Attributes:
    model: sizes.
    machine: what a rank is, and the fabric.
    devices: ranks.
    sequence: tokens.
    global_batch: sequences of a step.
    fused, exchange, nodes, element: as of `moe_layer.Layer`.
    overlap: of OVERLAPS, what hides behind computation: the exchange of
      experts and TP behind that of another micro-batch; sends between stages;
      gradients behind the last backward pass.
    states: bytes of a parameter.
    memory_share: of a device's memory that a plan may fill.

  Raises:
    ValueError: a value is out of range, or the machine cannot be planned for.
  """

  model: decoder_sizes.Model
  machine: machine_lib.Machine
  devices: int
  sequence: int = 4096
  global_batch: int = 1024
  fused: bool = True
  exchange: str = 'flat'
  nodes: int = 0
  element: str = 'bfloat16'
  overlap: frozenset[str] = frozenset({'pipeline', 'gradients'})
  states: States = States()
  memory_share: float = 0.9

  def __post_init__(self):
    for name in ('devices', 'sequence', 'global_batch'):
      if getattr(self, name) < 1:
        raise ValueError(
          f'{name}: expected a positive integer, got {getattr(self, name)}'
        )
    if self.machine['threads'] or not self.machine['memory']:
      raise ValueError(
        'machine: expected one that says its `memory`, and is no host, got '
        f'{self.machine.name}'
      )
    if not 0 < self.memory_share <= 1:
      raise ValueError(
        f'memory_share: expected more than 0, at most 1, got '
        f'{self.memory_share}'
      )
    for name in sorted(self.overlap - set(OVERLAPS)):
      raise ValueError(f'overlap: expected some of {OVERLAPS}, got {name!r}')

  def share(self, plan: Plan) -> operators.Share:
    """Returns a rank's share of a micro-batch."""
    return operators.Share(
      self.model,
      self.sequence,
      plan.micro_batch,
      plan.tp,
      plan.ep,
      self.fused,
      self.exchange,
      self.nodes,
      self.element,
    )

  def micros(self, plan: Plan) -> int:
    """Returns micro-batches of a step."""
    return self.global_batch // (plan.dp * plan.micro_batch)

  def refusal(self, plan: Plan) -> str:
    """Returns why a plan cannot be, by what does not divide; '' if it can."""
    model, micros = self.model, self.micros(plan)
    units = len(model.units())
    rules = (
      (plan.devices == self.devices, 'dp', f'TP x PP x DP = {self.devices}'),
      (model.heads % plan.tp == 0, 'tp', f'a divisor of heads={model.heads}'),
      (
        self.sequence * plan.micro_batch % plan.tp == 0,
        'tp',
        'a divisor of the tokens of a micro-batch',
      ),
      (plan.dp % plan.ep == 0, 'ep', f'a divisor of DP = {plan.dp}'),
      (
        model.experts % (plan.tp * plan.ep) == 0,
        'ep',
        f'TP x EP to divide experts={model.experts}',
      ),
      (plan.pp * plan.vpp <= units, 'vpp', f'at most {units} chunks'),
      (
        self.global_batch % (plan.dp * plan.micro_batch) == 0,
        'micro_batch',
        f'DP x micro-batch to divide global_batch={self.global_batch}',
      ),
      (
        plan.vpp == 1 or (plan.pp > 1 and micros % plan.pp == 0),
        'vpp',
        f'a multiple of PP > 1 as micro-batches, which are {micros}',
      ),
      (
        not plan.offload or self.machine['host_link'] > 0,
        'offload',
        'a machine that says its `host_link`',
      ),
      (plan.recompute in RECOMPUTE, 'recompute', f'one of {RECOMPUTE}'),
    )
    for holds, name, expected in rules:
      if not holds:
        return f'{name}: expected {expected}, got {getattr(plan, name)}'
    return ''


@functools.lru_cache(maxsize=4096)
def chunks(
  model: decoder_sizes.Model, pp: int, vpp: int, pad: int
) -> tuple[tuple[str, ...], ...]:
  """Returns the units of each chunk; each unit is in one chunk, in order.

  Layers and MTP heads are spread evenly, as if `pad` more followed at the end:
  so the last chunk, which also has the output head, gets fewer layers.
  """
  units = model.units()
  inner, number = units[1:-1], pp * vpp
  slots = len(inner) + pad
  edges = [min(i * slots // number, len(inner)) for i in range(number + 1)]
  chunks_ = [inner[a:b] for a, b in zip(edges, edges[1:])]
  chunks_[0] = (units[0], *chunks_[0])
  chunks_[-1] = (*chunks_[-1], units[-1])
  return tuple(chunks_)


@functools.lru_cache(maxsize=4096)
def counts(
  model: decoder_sizes.Model, pp: int, vpp: int, pad: int
) -> np.ndarray:
  """Returns `[V, P, kinds]`: units of each of `KINDS` in a chunk."""
  chunks_ = chunks(model, pp, vpp, pad)
  table = np.array(
    [[c.count(kind) for kind in decoder_sizes.KINDS] for c in chunks_]
  )
  table.flags.writeable = False
  return table.reshape(vpp, pp, -1)
