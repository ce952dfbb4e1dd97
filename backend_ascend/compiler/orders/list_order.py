"""Policy 'list': the core that is free takes what has the longest way to go.

Times are those of the machine that the order names, under a balanced routing:
which rows there will be is not known when the queues are made.  A task takes as
long as if all cores of its pool did the like: links and HBM are shared.
"""

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.orders import orders
from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.reference.contract import config as config_lib


def place(flow: flow_lib.Flow) -> placement.Placement:
  """Places a flow by critical path.

  Raises:
    ValueError: no such machine, fewer cores than the options say, or no room
      for balanced routing.
  """
  machine = machine_lib.load(flow.options.order.machine)
  ids = balanced(flow.config)
  image = image_lib.load(
    image_lib.serialize(placement.place(flow, orders.in_order(flow)))
  )
  pool, cores = orders.pools(flow)
  n = len(flow.tasks)
  list_placement = placement.Placement(
    np.empty(n, np.int64), np.empty(n, np.int64)
  )
  num_placed = _native.list_schedule(
    image,
    seconds(flow, image, machine, ids, cores[pool, 1]),
    np.ascontiguousarray(pool, np.int32),
    np.ascontiguousarray(cores[:, 0], np.int32),
    np.ascontiguousarray(cores[:, 1], np.int32),
    np.ascontiguousarray(orders.sequence(flow), np.int32),
    list_placement.core,
    list_placement.order,
  )
  if num_placed < n:
    raise AssertionError(f'order: expected all {n} tasks, got {num_placed}')
  return list_placement


def balanced(config: config_lib.MoEConfig) -> np.ndarray:
  """Returns `[R, T, K]` i32: experts of tokens, each as often as it can be."""
  sizes = config.dims()
  token = np.arange(sizes['R'] * sizes['T'])[:, None]
  # Experts far from one another: those of a token are not on one rank.
  apart = np.arange(sizes['K']) * (sizes['E'] // sizes['K'])
  ids = (token + apart) % sizes['E']
  shape = (sizes['R'], sizes['T'], sizes['K'])
  return np.ascontiguousarray(ids.reshape(shape), np.int32)


def seconds(
  flow: flow_lib.Flow,
  image: image_lib.Image,
  machine: machine_lib.Machine,
  topk_ids: np.ndarray,
  cores: np.ndarray,
) -> np.ndarray:
  """Returns `[tasks]` f8 s; `cores` `[tasks]` share what a task's pool has."""
  cost = simulate.costs(image, machine, topk_ids)
  links = machine.fabric.links(flow.config.num_ranks)
  # The share of a rank's traffic that the busiest link carries.
  slowest = max(
    (
      link_bytes / link.capacity
      for link, link_bytes in zip(links, cost.link_bytes, strict=True)
    ),
    default=0.0,
  )
  busiest_bytes = np.bincount(flow.tasks['rank'], cost.linked).max(initial=0)
  a_byte = slowest / busiest_bytes if busiest_bytes else 0.0
  vector = flow.tasks['unit'] == layout.Unit.AIV
  shared = np.maximum(
    cost.linked * a_byte * cores,
    np.where(vector, cost.miss_bytes + cost.write_bytes, 0)
    * cores
    / machine['hbm'],
  )
  return np.ascontiguousarray(np.maximum(cost.alone, shared))
