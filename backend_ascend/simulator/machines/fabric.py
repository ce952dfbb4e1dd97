"""Fabrics: which links a put crosses, what they carry and who shares them.

A fabric is what `links` and `route` tell; an image's engine sees nothing else,
and ranks share a link by having it on their routes.  What a switch does to the
packets of a flow (`simulator/flows/`) is `switched`.
"""

import collections.abc
import dataclasses


@dataclasses.dataclass(frozen=True)
class Link:
  """One link in one direction.

  Attributes:
    name: its class and number.
    capacity: B/s.
    factor: bytes on it for a byte of payload.
  """

  name: str
  capacity: float
  factor: float


@dataclasses.dataclass(frozen=True)
class Route:
  """From one rank to another.

  Attributes:
    links: numbers of the links, all of which carry every byte.
    latency: s, from the last byte sent until it is there.
  """

  links: tuple[int, ...]
  latency: float


@dataclasses.dataclass(frozen=True)
class LinkClass:
  """Links of one name, one an owner.  All but `end` name figures.

  Attributes:
    owner: 'rank', or the figure that says how many ranks own one.
    end: whose link a put crosses, that of its 'source' or 'destination'.
    capacity: figure, B/s.
    factor: figure, bytes on the link for a byte of payload.
  """

  owner: str
  end: str
  capacity: str
  factor: str


@dataclasses.dataclass(frozen=True)
class RouteClass:
  """The way between ranks that have no nearer one.  It names figures.

  Attributes:
    links: classes of the links on it.
    latency: figure, s.
    within: figure, how many ranks are that near; none: any two.
  """

  links: tuple[str, ...]
  latency: str
  within: str | None = None


@dataclasses.dataclass(frozen=True)
class Fabric:
  """Links by class, and routes from near to far.

  Attributes:
    classes: by name.
    routes: the first whose group holds both ranks is taken.
    figures: numbers of what the classes name.
    switch: by what a switch is described by, a figure; see `flows/fabric.h`.
  """

  classes: collections.abc.Mapping[str, LinkClass]
  routes: tuple[RouteClass, ...]
  figures: collections.abc.Mapping[str, float]
  switch: collections.abc.Mapping[str, str] = dataclasses.field(
    default_factory=dict
  )

  def named(self) -> set[str]:
    """Returns the figures that links, routes and switches name."""
    links = self.classes.values()
    names = {name for c in links for name in (c.capacity, c.factor)}
    names |= {c.owner for c in links} - {'rank'}
    names |= {n for r in self.routes for n in (r.latency, r.within) if n}
    return names | set(self.switch.values())

  def switched(self) -> dict[str, float]:
    """Returns what its switches are described by; empty without."""
    return {name: self.figures[figure] for name, figure in self.switch.items()}

  def _owners(self, name: str) -> int:
    return 1 if name == 'rank' else int(self.figures[name])

  def links(self, num_ranks: int) -> tuple[Link, ...]:
    """Returns the links among ranks, class by class."""
    return tuple(
      Link(f'{name} {i}', self.figures[c.capacity], self.figures[c.factor])
      for name, c in self.classes.items()
      for i in range(-(-num_ranks // self._owners(c.owner)))
    )

  def route(self, source: int, destination: int, num_ranks: int) -> Route:
    """Returns the way of a put; nothing to cross to the own rank.

    Raises:
      ValueError: no route is that long.
    """
    if source == destination:
      return Route((), 0.0)
    for route in self.routes:
      near = route.within and self._owners(route.within)
      if near and source // near != destination // near:
        continue
      return Route(
        tuple(
          self._link(name, source, destination, num_ranks)
          for name in route.links
        ),
        self.figures[route.latency],
      )
    raise ValueError(
      f'fabric: expected a route between ranks {source} and {destination}, '
      'got none'
    )

  def _link(self, name, source, destination, num_ranks) -> int:
    first = 0
    for other, c in self.classes.items():
      if other == name:
        rank = source if c.end == 'source' else destination
        return first + rank // self._owners(c.owner)
      first += -(-num_ranks // self._owners(c.owner))
    raise ValueError(f'fabric: expected a known link, got {name!r}')
