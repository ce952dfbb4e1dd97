"""Collectives among many alike groups, level by level of a fabric.

All groups of a machine communicate at once, so what ranks share is divided
among its owners.  A level is a route of the fabric, from near to far.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import TypeVar

import numpy as np

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

# Bytes: of one group, or of the group of each stage.
Size = TypeVar('Size', float, np.ndarray)


@dataclasses.dataclass(frozen=True)
class Level:
  """One way between two ranks of a group.

  Attributes:
    ranks: of the group that are that near to one another.
    rate: B/s of payload out of a rank, the same into it.
    latency: s.
    links: classes of links on the way.
  """

  ranks: int
  rate: float
  latency: float
  links: tuple[str, ...]


def link_rate(machine: machine_lib.Machine, name: str) -> float:
  """Returns the payload of a rank on a link, B/s, while all its owners send."""
  fabric = machine.fabric
  link = fabric.classes[name]
  owners = 1 if link.owner == 'rank' else fabric.figures[link.owner]
  rate = fabric.figures[link.capacity] / fabric.figures[link.factor]
  return machine['collective'] * rate / owners


def levels(
  machine: machine_lib.Machine, ranks: int, stride: int = 1
) -> tuple[Level, ...]:
  """Returns the levels of a group of every `stride`-th rank, near to far.

  Raises:
    ValueError: the fabric has no route between two of the ranks.
  """
  figures = machine.fabric.figures
  levels_: list[Level] = []
  for route in machine.fabric.routes:
    near = ranks
    if route.group_size:
      near = min(ranks, max(1, int(figures[route.group_size]) // stride))
    if near > (levels_[-1].ranks if levels_ else 1):
      rates = [link_rate(machine, name) for name in route.links]
      rate = min(rates, default=math.inf)
      levels_.append(Level(near, rate, figures[route.latency], route.links))
  ranks_joined = levels_[-1].ranks if levels_ else 1
  if ranks_joined < ranks:
    raise ValueError(
      f'machine: expected a fabric of {ranks * stride} ranks, got '
      f'{machine.name}, whose routes join {ranks_joined * stride}'
    )
  return tuple(levels_)


def all_gather(
  machine: machine_lib.Machine, size: Size, ranks: int, stride: int = 1
) -> Size:
  """Returns s of an all-gather of `size` bytes, an equal share on each rank.

  Rings run level by level: first between the farthest ranks, with one share
  each, and last between the nearest, with all shares received so far.  A
  reduce-scatter is the same in reverse.
  """
  seconds, inner = 0.0 * size, 1
  for level in levels(machine, ranks, stride):
    members = level.ranks / inner
    bytes_moved = size * (members - 1) / level.ranks
    seconds = seconds + bytes_moved / level.rate + (members - 1) * level.latency
    inner = level.ranks
  return seconds


def shares(
  machine: machine_lib.Machine, ranks: int, stride: int = 1
) -> tuple[float, ...]:
  """Returns the part of a rank's even traffic that takes each level.

  They add up to one with what stays on the rank, 1 / `ranks`.
  """
  inner, out = 1, []
  for level in levels(machine, ranks, stride):
    out.append((level.ranks - inner) / ranks)
    inner = level.ranks
  return tuple(out)


def on_links(
  machine: machine_lib.Machine,
  by_level: tuple[float, ...],
  ranks: int,
  stride: int = 1,
) -> Mapping[str, float]:
  """Returns the traffic of each class of links, from that of each level."""
  traffic: dict[str, float] = {}
  for level, part in zip(levels(machine, ranks, stride), by_level, strict=True):
    for name in level.links:
      traffic[name] = traffic.get(name, 0.0) + part
  return traffic


def send(machine: machine_lib.Machine, size: float, distance: int) -> float:
  """Returns s of a message to the rank that is so far away."""
  (level,) = levels(machine, 2, distance)
  return size / level.rate + level.latency
