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
  """Links of one name, one for each owner.  All but `end` name figures.

  Attributes:
    owner: 'rank', or the figure with the number of ranks that own one together.
    end: a put crosses the link of its 'source' or of its 'destination'.
    capacity: figure, B/s.
    factor: figure, bytes on the link for a byte of payload.
  """

  owner: str
  end: str
  capacity: str
  factor: str


@dataclasses.dataclass(frozen=True)
class RouteClass:
  """The route between ranks that have no nearer one.  It names figures.

  Attributes:
    links: classes of the links on it.
    latency: figure, s.
    group_size: figure, number of ranks that it connects (`within` in a machine
      file); None: all.
  """

  links: tuple[str, ...]
  latency: str
  group_size: str | None = None


@dataclasses.dataclass(frozen=True)
class Fabric:
  """Links by class, and routes from near to far.

  Attributes:
    classes: classes of links by name.
    routes: a put takes the first whose group has both ranks.
    figures: values of the figures that the classes name.
    switch: figures of the switches, by property; see `flows/fabric.h`.
  """

  classes: collections.abc.Mapping[str, LinkClass]
  routes: tuple[RouteClass, ...]
  figures: collections.abc.Mapping[str, float]
  switch: collections.abc.Mapping[str, str] = dataclasses.field(
    default_factory=dict
  )

  def list_figures(self) -> set[str]:
    """Returns the figures that links, routes and switches name."""
    links = self.classes.values()
    names = {name for c in links for name in (c.capacity, c.factor)}
    names |= {c.owner for c in links} - {'rank'}
    names |= {n for r in self.routes for n in (r.latency, r.group_size) if n}
    return names | set(self.switch.values())

  def switched(self) -> dict[str, float]:
    """Returns the properties of its switches; empty without switches."""
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
    """Returns the route of a put; a put to its own rank crosses no link.

    Raises:
      ValueError: no route is that long.
    """
    if source == destination:
      return Route((), 0.0)
    for route in self.routes:
      near = route.group_size and self._owners(route.group_size)
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
