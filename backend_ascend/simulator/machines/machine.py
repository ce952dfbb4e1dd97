"""Machines as data: figures, each with its unit, its tag and its source."""

import collections.abc
import dataclasses
import math
import pathlib
import tomllib
import zlib

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.simulator.machines import fabric as fabric_lib

# How a figure is known: from a source's text or configuration, from a source's
# measurement, fitted by us to rows that are named, or assumed.
TAGS = ('published', 'measured', 'fitted', 'assumed')
# Beside those of the engine, what plans of whole models ask for.
UNITS: dict[str, str] = _native.figure_units() | {
  'memory': 'B',
  'host_link': 'B/s',
  'run_share': '1',
  # What the twin asks of an AIC's pipes.
  'aic_l0a': 'B/s',
  'aic_l0b': 'B/s',
  'read_latency': 's',
  'move_head': 's',
  'product_head': 's',
}
SWITCH_UNITS: dict[str, str] = _native.switch_units()

# Figures that a file need not have, and what one without them means.
OPTIONAL = {
  'threads': 'no host: each worker is a core, each rank has a memory',
  'poll_miss': 'a poll that misses is in `poll`',
  'aiv_add': 'an AIV takes `signal` for each signal, as an AIC does',
  'add_trip': 'a word that an AIV adds is there at once',
  'add_waits': 'an AIV waits for each word that it adds',
  'put_row': 'a put takes no time for a row but for its bytes',
  'aiv_window': 'a put is never held up by what is on its way',
  'put_trip': 'links share max-min fairly',
  'home_trip': 'links share max-min fairly',
  'aic_home': 'puts send what goes home',
  'home_beside': 'products do not slow beside puts home',
  'write_beside': 'a task writes behind its last product',
  'pack': 'what is read is brought while the product runs',
  'product': 'nothing beside what its figures say',
  'memory': 'not told: nothing is planned for it',
  'host_link': 'not told: nothing is kept in the host',
  'run_share': 'a training run is as fast as its plan',
  'aic_l0a': 'not told: the twin has no times',
  'aic_l0b': 'not told: the twin has no times',
  'read_latency': 'flags see at once what was read',
  'move_head': 'moves to L0A and L0B begin at once',
  'product_head': 'products begin at once',
}

# Shares of a peak or of a time: more than 1 is outside physics.
SHARES = frozenset(
  [
    'cube_efficiency',
    'operator_efficiency',
    'collective',
    'run_share',
    'home_beside',
  ]
  + [f'overlap_{system}' for system in ('fastermoe', 'tutel', 'ccfuser')]
)

# A time may be 0, and what a packet need not have.
_MAY_BE_NONE = ('s', 'op', 'flits', 'ids', 'yes')

_FOLDER = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Figure:
  """A number of a machine.

  Attributes:
    value: in `unit`.
    unit: SI, of a rank, an AIC or an AIV; see `figures.h`.
    tag: one of TAGS.
    source: where the value is from; for a fitted one, the fitted rows.
  """

  value: float
  unit: str
  tag: str
  source: str


@dataclasses.dataclass(frozen=True)
class Machine:
  """A described machine.  A rank is one die.

  Attributes:
    name: of its file.
    about: one line.
    figures: by name; the engine's, and those that the fabric names.
    fabric: links and routes, with the same figures.
    changed_figures: names of figures whose value is not the file's.
    shipped: the included machine that it is, or is based on; '' if none.
    location: the name or path that `load` read; '' if none was read.
  """

  name: str
  about: str
  figures: collections.abc.Mapping[str, Figure]
  fabric: fabric_lib.Fabric
  changed_figures: tuple[str, ...] = ()
  shipped: str = ''
  location: str = ''

  def __getitem__(self, name: str) -> float:
    return self.figures[name].value

  def digest(self) -> str:
    """Returns a digest of all that a time depends on: values and fabric."""
    values = (sorted(_values(self.figures).items()), self.fabric.classes)
    switch = (self.fabric.switch,) if self.fabric.switch else ()
    text = repr((*values, self.fabric.routes, *switch))
    return f'{zlib.crc32(text.encode()):08x}'

  def with_figures(self, **values: float) -> 'Machine':
    """Returns the machine with other values, for fits and sensitivity.

    Raises:
      ValueError: an unknown figure, or a value that it cannot have.
    """
    figures = dict(self.figures)
    for name, value in values.items():
      if name not in figures:
        raise ValueError(_unknown(self.name, name, figures))
      figures[name] = dataclasses.replace(figures[name], value=float(value))
    _check_values(self.name, figures)
    return dataclasses.replace(
      self,
      figures=figures,
      fabric=dataclasses.replace(self.fabric, figures=_values(figures)),
      changed_figures=tuple(sorted({*self.changed_figures, *values})),
    )

  def at_peak(self) -> 'Machine':
    """Returns the machine with every fitted share of a peak set to 1."""
    shares = {
      name: 1.0
      for name, figure in self.figures.items()
      if figure.tag == 'fitted' and figure.unit == '1'
    }
    return self.with_figures(**shares)


def names() -> tuple[str, ...]:
  """Returns the machines that have a file here."""
  return tuple(sorted(path.stem for path in _FOLDER.glob('*.toml')))


def load(name: str) -> Machine:
  """Returns a machine of `names()`, or that of a TOML file.

  A file with a `base`, the name of another machine, lists only differences:
  whole figures, all links, or all routes.  Its default name is the file's.  A
  file with its own routes inherits no figure that the base's fabric names.

  Raises:
    ValueError: no such machine, or a figure that is unknown, missing, without
      value, unit, tag or source, or a share of a peak above 1; in one line.
  """
  data = _read(name)
  base = data.pop('base', '')
  machine = parse(data, pathlib.Path(name).stem)
  return dataclasses.replace(
    machine, shipped=name if name in names() else base, location=name
  )


def _read(name: str) -> dict:
  """Returns what a file says, on top of what its base says."""
  path = _FOLDER / f'{name}.toml'
  if name not in names():
    path = pathlib.Path(name)
    if path.suffix != '.toml' or not path.is_file():
      raise ValueError(
        f'machine: expected one of {", ".join(names())} or a TOML file, '
        f'got {name!r}'
      )
  try:
    data = tomllib.loads(path.read_text())
  except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
    raise ValueError(f'{path.name}: expected TOML, got {error}') from None
  base = data.get('base')
  if base is None:
    return data
  if base not in names() or base == path.stem:
    raise ValueError(
      f'{path.stem}: base: expected another of {", ".join(names())}, '
      f'got {base!r}'
    )
  below = _read(base)
  if 'routes' in data.get('fabric', {}):
    # Another fabric, with figures of its own.
    below['figures'] = {n: f for n, f in below['figures'].items() if n in UNITS}
  for table in ('figures', 'fabric'):
    data[table] = below[table] | data.get(table, {})
  return below | {'name': path.stem} | data


def parse(data: collections.abc.Mapping, machine_name: str) -> Machine:
  """Returns the machine that a file's data describes; raises as `load`."""
  _require_keys(machine_name, data, ('name', 'about', 'figures', 'fabric'))
  figures = {
    name: _figure(machine_name, name, entry)
    for name, entry in data['figures'].items()
  }
  for name, meaning in OPTIONAL.items():
    figures.setdefault(name, Figure(0.0, UNITS[name], 'published', meaning))
  classes, routes = _fabric(machine_name, data['fabric'])
  switch = _switch(machine_name, data['fabric'].get('switch', {}))
  fabric = fabric_lib.Fabric(classes, routes, _values(figures), switch)
  fabric_figures = fabric.list_figures() | set(data['fabric'].get('flows', ()))
  for name in sorted({*UNITS, *fabric_figures} - set(figures)):
    raise ValueError(f'{machine_name}: expected a figure {name!r}, got none')
  for name in sorted(set(figures) - {*UNITS, *fabric_figures}):
    raise ValueError(_unknown(machine_name, name, {*UNITS, *fabric_figures}))
  for field, name in switch.items():
    unit, required = figures[name].unit, SWITCH_UNITS[field]
    if unit != required:
      raise ValueError(
        f'{machine_name}: figure {name!r}: expected unit {required!r}, '
        f'got {unit!r}'
      )
  _check_values(machine_name, figures)
  for name, figure in figures.items():
    check_share(machine_name, name, figure.value)
  return Machine(data['name'], data['about'], figures, fabric)


def check_share(machine_name: str, figure: str, value: float) -> None:
  """Raises ValueError if the figure is a share and above 1."""
  if figure in SHARES and value > 1:
    raise ValueError(
      f'{figure}: expected at most 1 in {machine_name}, as it is a share, '
      f'got {value:.4g}'
    )


def _values(figures) -> dict[str, float]:
  return {name: figure.value for name, figure in figures.items()}


def _unknown(machine_name: str, name: str, figure_names) -> str:
  names_text = ', '.join(sorted(figure_names))
  return f'{machine_name}: expected figures among {names_text}, got {name!r}'


def _require_keys(location: str, table, keys) -> None:
  for key in keys:
    if key not in table:
      raise ValueError(f'{location}: expected {key!r}, got none')
  for key in sorted(set(table) - set(keys)):
    raise ValueError(f'{location}: expected {", ".join(keys)}, got {key!r}')


def _figure(machine_name: str, name: str, entry) -> Figure:
  location = f'{machine_name}: figure {name!r}'
  if not isinstance(entry, dict):
    raise ValueError(f'{location}: expected a table, got {entry!r}')
  _require_keys(location, entry, ('value', 'unit', 'tag', 'source'))
  value, unit, tag, source = (
    entry[key] for key in ('value', 'unit', 'tag', 'source')
  )
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise ValueError(f'{location}: expected a number, got {value!r}')
  if tag not in TAGS:
    raise ValueError(f'{location}: expected a tag of {TAGS}, got {tag!r}')
  if unit != UNITS.get(name, unit):
    raise ValueError(f'{location}: expected unit {UNITS[name]!r}, got {unit!r}')
  if not isinstance(source, str) or not source.strip():
    raise ValueError(f'{location}: expected a source, got {source!r}')
  return Figure(float(value), unit, tag, source)


def _check_values(machine_name: str, figures) -> None:
  """Raises ValueError if a figure that is a divisor is 0."""
  for name, figure in figures.items():
    limit = (
      'at least 0'
      if name in OPTIONAL or figure.unit in _MAY_BE_NONE
      else 'more than 0'
    )
    good = figure.value >= 0 if limit == 'at least 0' else figure.value > 0
    if not good or not math.isfinite(figure.value):
      raise ValueError(
        f'{machine_name}: figure {name!r}: expected {limit}, got {figure.value}'
      )


def _fabric(machine_name: str, table):
  location = f'{machine_name}: fabric'
  optional_keys = dict(switch=None, flows=None)  # what a file need not have
  _require_keys(
    location, optional_keys | table, ('links', 'routes', *optional_keys)
  )
  classes = {}
  for name, entry in table['links'].items():
    _require_keys(
      f'{location}: link {name!r}',
      entry,
      ('owner', 'end', 'capacity', 'factor'),
    )
    if entry['end'] not in ('source', 'destination'):
      raise ValueError(
        f"{location}: link {name!r}: expected end 'source' or 'destination', "
        f'got {entry["end"]!r}'
      )
    classes[name] = fabric_lib.LinkClass(**entry)
  routes = []
  for entry in table['routes']:
    _require_keys(
      f'{location}: route',
      {'within': None} | entry,
      ('links', 'latency', 'within'),
    )
    for name in entry['links']:
      if name not in classes:
        raise ValueError(
          f'{location}: route: expected links among {", ".join(classes)}, '
          f'got {name!r}'
        )
    routes.append(
      fabric_lib.RouteClass(
        tuple(entry['links']), entry['latency'], entry.get('within')
      )
    )
  return classes, tuple(routes)


def _switch(machine_name: str, table) -> dict[str, str]:
  """Returns which figure each field of a switch is."""
  location = f'{machine_name}: fabric: switch'
  if table:
    _require_keys(location, table, tuple(SWITCH_UNITS))
  for field, name in table.items():
    if not isinstance(name, str):
      raise ValueError(f'{location}: {field}: expected a figure, got {name!r}')
  return dict(table)
