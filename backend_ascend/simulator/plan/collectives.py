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
  """Returns the levels of a group of each so-manieth rank, near to far.

  Raises:
    ValueError: the fabric has no way between two of them.
  """
  figures = machine.fabric.figures
  found: list[Level] = []
  for route in machine.fabric.routes:
    near = ranks
    if route.within:
      near = min(ranks, max(1, int(figures[route.within]) // stride))
    if near > (found[-1].ranks if found else 1):
      rates = [link_rate(machine, name) for name in route.links]
      rate = min(rates, default=math.inf)
      found.append(Level(near, rate, figures[route.latency], route.links))
  reached = found[-1].ranks if found else 1
  if reached < ranks:
    raise ValueError(
      f'machine: expected a fabric of {ranks * stride} ranks, got '
      f'{machine.name}, whose routes join {reached * stride}'
    )
  return tuple(found)


def all_gather(
  machine: machine_lib.Machine, size: Size, ranks: int, stride: int = 1
) -> Size:
  """Returns s until every rank has `size` bytes, of which each had its share.

  Rings: first between the farthest, with one share each, and last between the
  nearest, with all that came.  A reduce-scatter is the same backwards.
  """
  seconds, inner = 0.0 * size, 1
  for level in levels(machine, ranks, stride):
    members = level.ranks / inner
    moved = size * (members - 1) / level.ranks
    seconds = seconds + moved / level.rate + (members - 1) * level.latency
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
  """Returns what each class of links carries of what takes each level."""
  carried: dict[str, float] = {}
  for level, part in zip(levels(machine, ranks, stride), by_level, strict=True):
    for name in level.links:
      carried[name] = carried.get(name, 0.0) + part
  return carried


def send(machine: machine_lib.Machine, size: float, distance: int) -> float:
  """Returns s of a message to the rank that is so far away."""
  (level,) = levels(machine, 2, distance)
  return size / level.rate + level.latency
