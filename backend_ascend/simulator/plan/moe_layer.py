"""The MoE layer of a plan: a compiled layer in modelled time.

Ranks of a group do the same where routing is even, so a few stand for all.
Each has the experts, tokens and puts of a rank of the whole group, and its
links carry what theirs would: what stays on a rank is more among few, so links
are slower by as much.  `moe_layer_test.py` holds it against whole groups.
"""

from collections.abc import Callable
import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import fabric as fabric_lib
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.plan import collectives
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

# As the published system cuts a layer.
_ROWS, _COLUMNS, _TOKENS = 128, 256, 16
_FEW = 4
# Rows and weights are bfloat16, whatever products are computed in.
_BYTES = {b.name.lower(): 2.0 for b in layout.Buffer} | {'d_topk_weights': 4.0}
EXCHANGES = ('flat', 'nodes')


@dataclasses.dataclass(frozen=True)
class Layer:
  """One MoE layer of a plan on one rank.

  Attributes:
    experts: E.
    top_k: K.
    hidden: D.
    width: F.
    ranks: neighbours that the experts are dealt out to.
    tokens: of one rank.
    fused: whether it is one launch; else operator by operator.
    exchange: of EXCHANGES: each row to its expert; or each token once to every
      node, and rows to experts inside of it.
    nodes: at most that many nodes have experts of a token; 0: any number.
    element: of products, a name of `simulate.ELEMENTS`; rows are bfloat16.
  """

  experts: int
  top_k: int
  hidden: int
  width: int
  ranks: int
  tokens: int
  fused: bool = True
  exchange: str = 'flat'
  nodes: int = 0
  element: str = 'bfloat16'

  @property
  def rows(self) -> int:
    """Rows that a rank receives."""
    return self.tokens * self.top_k


@dataclasses.dataclass(frozen=True)
class Times:
  """Seconds of a pass.

  Attributes:
    compute: with rows that move at once.
    exchange: that rows on their way add to it.
  """

  compute: float
  exchange: float


def count_sent(machine: machine_lib.Machine, layer: Layer) -> tuple[float, ...]:
  """Returns copies of a token that leave its rank by level, near to far.

  Each row for itself: K times the share of the ranks there.  By nodes: over
  the farthest links one copy to each other node that has experts of it, and
  all K rows move inside of nodes.
  """
  parts = collectives.shares(machine, layer.ranks)
  if layer.exchange == 'flat' or len(parts) < 2:
    return tuple(layer.top_k * part for part in parts)
  inner = collectives.levels(machine, layer.ranks)[-2].ranks
  nodes = layer.ranks / inner
  copies = min(layer.nodes or nodes, nodes) * (nodes - 1) / nodes
  near = collectives.shares(machine, inner)
  return (*(layer.top_k * part for part in near), copies)


def _few(layer: Layer) -> int:
  """Returns ranks that stand for all: few, with experts for all K."""
  experts_per_rank = layer.experts // layer.ranks
  return next(
    d
    for d in range(1, layer.ranks + 1)
    if layer.ranks % d == 0
    and (
      d == layer.ranks or (d >= _FEW and d * experts_per_rank >= layer.top_k)
    )
  )


def stand_in(
  machine: machine_lib.Machine, layer: Layer, few: int
) -> machine_lib.Machine:
  """Returns the machine on which `few` ranks take as long as all of them."""
  if layer.ranks == 1 or (few, layer.exchange) == (layer.ranks, 'flat'):
    return machine
  by_level = count_sent(machine, layer)
  parts = collectives.shares(machine, layer.ranks)
  copies_by_link = collectives.on_links(machine, by_level, layer.ranks)
  leaves = layer.top_k * (few - 1) / few
  fabric = machine.fabric
  links = {}
  figures = dict(fabric.figures)
  for name, copies in copies_by_link.items():
    link = fabric.classes[name]
    owners = 1 if link.owner == 'rank' else fabric.figures[link.owner]
    figures[f'{name} of few'] = (
      fabric.figures[link.capacity] / owners * leaves / copies
    )
    links[name] = dataclasses.replace(
      link, owner='rank', capacity=f'{name} of few'
    )
  far = collectives.levels(machine, layer.ranks)
  figures['latency of few'] = sum(
    level.latency * part for level, part in zip(far, parts)
  ) / sum(parts)
  route = fabric_lib.RouteClass(tuple(links), 'latency of few')
  # An AIV puts rows on more ranks than the few.
  leaving = sum(parts) * few / (few - 1)
  stand_in_machine = machine.with_figures(
    aiv_link=machine['aiv_link'] / leaving
  )
  return dataclasses.replace(
    stand_in_machine, fabric=fabric_lib.Fabric(links, (route,), figures)
  )


def balanced(config: config_lib.MoEConfig) -> np.ndarray:
  """Returns `[R, T, K]` i32: each rank's tokens take experts in turn.

  Rows of two slices (source, expert) differ by one at most, and are equal where
  E divides T * K.
  """
  slots = np.arange(config.num_tokens * config.top_k, dtype=np.int32)
  ids = (slots % config.num_experts).reshape(-1, config.top_k)
  return np.tile(ids, (config.num_ranks, 1, 1))


def _options(machine, layer: Layer, capacity: int) -> granularity.Options:
  slice_rows = max(1, layer.rows // layer.experts)
  return granularity.Options(
    row_block=_ROWS,
    col_block=_COLUMNS,
    put_rows=min(_ROWS, slice_rows),
    token_block=_TOKENS,
    num_aic=int(machine['aic']),
    num_aiv=int(machine['aiv']),
    expert_capacity=capacity,
  )


class Timer:
  """Layers on one machine, each simulated once.

  Attributes:
    machine: that they run on.
    times: of both passes by layer, as they were asked for.
  """

  def __init__(
    self,
    machine: machine_lib.Machine,
    tell: Callable[[str], None] = lambda text: None,
  ):
    self.machine = machine
    self.times: dict[Layer, tuple[Times, Times]] = {}
    self._tell = tell

  def __call__(self, layer: Layer) -> tuple[Times, Times]:
    """Returns times of the forward and of the backward pass."""
    if layer not in self.times:
      self._tell(
        f'simulating a layer of {layer.ranks} ranks, {layer.tokens} tokens'
      )
      self.times[layer] = simulate_few(self.machine, layer, _few(layer))
    return self.times[layer]


class Roofline(Timer):
  """The same layers, no slower than any engine runs them: bounds.

  Products at the rate that long ones reach, and the busiest link.
  """

  def __call__(self, layer: Layer) -> tuple[Times, Times]:
    """Returns bounds of the forward and of the backward pass."""
    machine, fused = self.machine, layer.fused
    share = 'cube_efficiency' if fused else 'operator_efficiency'
    cube = simulate.ELEMENTS[layer.element][1]
    rate = machine['aic'] * machine[cube] * machine[share]
    products = 6.0 * layer.rows * layer.hidden * layer.width / rate
    link = 2 * link_seconds(machine, layer)
    out = []
    for compute in (products, 2 * products):
      beside = max(0.0, link - compute) if fused else link
      out.append(Times(compute, beside))
    return out[0], out[1]


def link_seconds(machine: machine_lib.Machine, layer: Layer) -> float:
  """Returns s that the busiest link needs for a rank's rows, one way."""
  copies_by_link = collectives.on_links(
    machine, count_sent(machine, layer), layer.ranks
  )
  size = _BYTES['expert_in'] * layer.hidden * layer.tokens
  whole = machine['collective'] if layer.fused else 1.0
  return max(
    (
      size * copies / collectives.link_rate(machine, name) * whole
      for name, copies in copies_by_link.items()
    ),
    default=0.0,
  )


def simulate_few(
  machine: machine_lib.Machine, layer: Layer, few: int
) -> tuple[Times, Times]:
  """Returns times of both passes by simulation of `few` ranks."""
  stand_in_machine = stand_in(machine, layer, few)
  config = config_lib.MoEConfig(
    num_ranks=few,
    num_tokens=layer.tokens,
    num_experts=layer.experts // layer.ranks * few,
    top_k=layer.top_k,
    d_model=layer.hidden,
    d_ff=layer.width,
  )
  ids = balanced(config)
  expert_rows = np.bincount(ids.ravel(), minlength=config.num_experts)
  capacity = int(expert_rows.reshape(few, -1).sum(1).max())
  config = dataclasses.replace(config, capacity=capacity)
  options = _options(machine, layer, int(expert_rows.max()))
  forward, backward = (
    _pass(stand_in_machine, layer, config, options, ids, direction)
    for direction in layout.Direction
  )
  return forward, backward


def _pass(machine, layer: Layer, config, options, ids, direction) -> Times:
  policy = precision.PrecisionPolicy(storage='bfloat16')
  image = compiler.COMPILE[direction](config, policy, options).image
  puts = [k.name.lower() for k in layout.select_kinds(*layout.PUTS)]
  whole, compute = (
    simulate.simulate(
      image,
      machine,
      ids,
      skip=skip,
      barriers=not layer.fused,
      element=layer.element,
      element_bytes=_BYTES,
    ).total
    for skip in ((), puts)
  )
  return Times(compute, max(0.0, whole - compute))
