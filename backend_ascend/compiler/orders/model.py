"""The analytical model of `model.h`: many schedules of a layer in a second."""

from collections.abc import Callable, Sequence
from concurrent import futures
import dataclasses

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.orders import orders
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

COLUMNS = tuple(_native.schedule_columns())


@dataclasses.dataclass(frozen=True)
class Traffic:
  """A routing, as the busiest rank sees it; by local expert.

  Attributes:
    rank: the busiest.
    rows: `[L]` f8, rows that it receives.
    sent_rows: `[L]` f8, rows that the busiest sender sends.
    remote: share of rows that leave their rank.
    dispatch_s: `[L]` f8, s on the busiest link for each byte of a row.
    return_s: `[L]` f8, the same on the way back.
    link_s: `[2, N]` f8, of each link, over all experts, there and back.
  """

  rank: int
  rows: np.ndarray
  sent_rows: np.ndarray
  remote: float
  dispatch_s: np.ndarray
  return_s: np.ndarray
  link_s: np.ndarray


def traffic(
  config: config_lib.MoEConfig,
  machine: machine_lib.Machine,
  topk_ids: np.ndarray,
) -> Traffic:
  """Returns the load that a routing `[R, T, K]` i32 puts on ranks and links."""
  sizes = config.dims()
  ranks, experts = sizes['R'], sizes['E']
  source = np.arange(ranks)[:, None, None]
  flat = (source * experts + topk_ids).ravel()
  rows = np.bincount(flat, minlength=ranks * experts)
  rows = rows.reshape(ranks, ranks, sizes['L'])  # source, owner, expert
  received_rows = rows.sum(0)
  rank = int(received_rows.sum(-1).argmax())
  links = machine.fabric.links(ranks)
  seconds = np.zeros((2, len(links), sizes['L']))
  for origin in range(ranks):
    for other in range(ranks):
      if origin == other:
        continue
      for link in machine.fabric.route(origin, other, ranks).links:
        a_byte = links[link].factor / links[link].capacity
        seconds[0, link] += rows[origin, other] * a_byte
        seconds[1, link] += rows[other, origin] * a_byte
  local = rows[np.arange(ranks), np.arange(ranks)].sum()
  outbound, homeward = seconds.max(1, initial=0.0)
  return Traffic(
    rank,
    received_rows[rank].astype(float),
    rows.sum(1).max(0).astype(float),
    float(1 - local / rows.sum()),
    outbound,
    homeward,
    seconds.sum(-1),
  )


def columns(
  config: config_lib.MoEConfig, options: granularity.Options
) -> list[float]:
  """Returns what the model knows of options, in the order of COLUMNS."""
  resolved, order = options.resolve(config), options.order
  values = dataclasses.asdict(resolved) | dataclasses.asdict(order)
  values |= orders.rules(order, config.experts_per_rank)
  values |= dict(
    by_row=options.event_grain == 'row_block',
    vector_rows=resolved.vector_rows or resolved.row_block,
    weight_rows=resolved.weight_rows or resolved.col_block,
    put_aiv=orders.communicating(order.comm_share, options.num_aiv),
    row_order=granularity.ROW_ORDERS.index(order.row_order),
    expert_order=granularity.EXPERT_ORDERS.index(order.expert_order),
  )
  return [float(values[name]) for name in COLUMNS]


def predict(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  machine: machine_lib.Machine,
  case: Traffic,
  points: np.ndarray,
) -> dict[layout.Direction, np.ndarray]:
  """Returns `[points]` f8 s by pass, as the model estimates them.

  Args:
    config: sizes.
    policy: precision.
    machine: its figures.
    case: the routing.
    points: `[points, len(COLUMNS)]` f8.
  """
  return _fill(_native.schedule_predict, config, policy, machine, case, points)


def bound_below(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  machine: machine_lib.Machine,
  case: Traffic,
  points: np.ndarray,
) -> dict[layout.Direction, np.ndarray]:
  """Returns `[points]` f8 s by pass that the engine takes at least.

  `model.h` says why, and for which rows. Arguments are those of `predict`.
  """
  return _fill(_native.schedule_floor, config, policy, machine, case, points)


def _fill(
  function: Callable[..., None],
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  machine: machine_lib.Machine,
  case: Traffic,
  points: np.ndarray,
) -> dict[layout.Direction, np.ndarray]:
  """Returns `[points]` f8 s by pass, of a function of the extension module."""
  points = np.ascontiguousarray(points, np.float64)
  layer = {
    name: float(getattr(config, name))
    for name in (
      'num_ranks',
      'num_tokens',
      'num_experts',
      'top_k',
      'd_model',
      'd_ff',
    )
  }
  layer['placement'] = precision.PLACEMENTS.index(policy.placement)
  width, cube, depth = simulate.ELEMENTS[policy.storage]
  latency = max(
    machine.fabric.route(0, other, config.num_ranks).latency
    for other in range(config.num_ranks)
  )
  seconds = {direction: np.empty(len(points)) for direction in layout.Direction}

  def fill(direction: layout.Direction) -> None:
    function(
      layer | dict(direction=float(direction)),
      {name: machine[name] for name in machine_lib.UNITS},
      dict(bytes=float(width), cube=machine[cube], cube_depth=float(depth)),
      latency,
      case.rank,
      case.rows.tolist(),
      case.sent_rows.tolist(),
      case.remote,
      case.dispatch_s.tolist(),
      case.return_s.tolist(),
      points,
      seconds[direction],
    )

  with futures.ThreadPoolExecutor(len(seconds)) as pool:
    list(pool.map(fill, seconds))
  return seconds


def table(
  config: config_lib.MoEConfig, options: Sequence[granularity.Options]
) -> np.ndarray:
  """Returns `[points, len(COLUMNS)]` of options."""
  return np.array([columns(config, point_options) for point_options in options])
