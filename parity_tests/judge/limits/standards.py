"""Published acceptance rules: the meaning of the records of records.toml.

Three values meet at every element: a (candidate), g (golden, float64) and
b (benchmark, the oracle in the candidate's own dtype).  A record says which
elements mismatch, how errors are aggregated, and their limits:

    error           |a - g|
    relative error  |a - g| / (|g| + 1e-7)
    tolerance       E where |g| < T, else atol + rtol * max(|g|, floor), or the
                    larger of these two terms if the record says so
    mismatch        error > tolerance, and error > the type's rounding bound

The last clause is `excuse_rounding`.  All these rules want to separate bugs
from the precision of the type (cann-bench says so), but fixed numbers cannot
where terms cancel: there a right kernel may have any relative error.  `bounds`
has the rounding bound of each element.  In the default records an error within
that bound never counts as a mismatch or for a maximum or a cosine.  The means
(mere, rmse) have no such clause: they average every error.  The records named
`*_letter` have no such clause at all, only the printed numbers.  The floor of a
ratio of rmse is meant for values of order one, and scales with their root mean
square.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import pathlib
import tomllib
from typing import NamedTuple

import numpy as np

from hpmoe.parity_tests.judge.limits import chunk_sums
from hpmoe.reference.contract import messages

FLOAT32, BFLOAT16, FLOAT16 = 'float32', 'bfloat16', 'float16'
_RELATIVE_EPS = 1e-7

# The elements that a rule reads.
ALL, NORMAL, SMALL, CANCEL = 'all', 'normal', 'small', 'cancel'


@dataclasses.dataclass(frozen=True)
class Tolerance:
  """The tolerance of one element, for one dtype.

  Attributes:
    rtol: share of the golden's magnitude.
    atol: absolute part.
    floor: the smallest magnitude that `rtol` multiplies.
    small: T, magnitudes below it are "small"; 0: the rule has no such limit.
    small_error: E, absolute tolerance of small elements.
    cancel: an element that is not small is a cancellation position if |a| and
      |g| are below this; 0: the rule has no such limit.
    takes_larger: 1: the tolerance is the larger of the atol and rtol terms; 0:
      their sum.
  """

  rtol: float = 0.0
  atol: float = 0.0
  floor: float = 0.0
  small: float = 0.0
  small_error: float = 0.0
  cancel: float = 0.0
  takes_larger: float = 0.0


@dataclasses.dataclass(frozen=True)
class Rule:
  """One number and its limit: the rule holds if metric <= limit.

  Attributes:
    metric: one of `METRICS`.
    limit: by dtype.
    region: the elements that it reads.
    ratio: whether the metric is divided by the benchmark's metric.
    floor: by dtype, the smallest denominator of a ratio.
  """

  metric: str
  limit: Mapping[str, float]
  region: str = ALL
  ratio: bool = False
  floor: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def text(self, dtype: str, floor: float | None = None) -> str:
    floor = self.floor.get(dtype) if floor is None else floor
    ratio_text = f' / max(benchmark, {floor:g})' if self.ratio else ''
    return f'{self.metric}[{self.region}]{ratio_text} <= {self.limit[dtype]:g}'


@dataclasses.dataclass(frozen=True)
class Standard:
  """One published acceptance rule.

  Attributes:
    name: its name in reports and of `--standard`.
    version: of the source text.
    source: where it is published.
    scope: what its authors judge with it.
    reading: how we read unclear passages, and where we differ from the text.
    tolerance: by dtype.
    rules: all clauses must hold; a clause holds if any of its rules does.
    layer: whether it also judges a whole pass: the fused layer, x to y, and
      stages whose inputs were not returned.  Other records are meant for one
      operator; there the layer must be within its rounding bound.
    excuse_rounding: see the module.
    default: whether a check uses it by default.
  """

  name: str
  version: str
  source: str
  scope: str
  reading: str
  tolerance: Mapping[str, Tolerance]
  rules: tuple[tuple[Rule, ...], ...]
  layer: bool = False
  excuse_rounding: bool = True
  default: bool = False

  def supports(self, dtype: str) -> bool:
    """Says whether it has numbers for a dtype."""
    return dtype in self.tolerance


@dataclasses.dataclass(frozen=True)
class Elements:
  """One chunk of a tensor under judgement, each `[...]` float64.

  Attributes:
    actual: a.
    golden: g.
    bound: the type's rounding bound around g.
    benchmark: b.
    defined: `[...]` bool, where the golden is finite; elsewhere g is 0.  True:
      everywhere.
  """

  actual: np.ndarray
  golden: np.ndarray
  bound: np.ndarray
  benchmark: np.ndarray
  defined: np.ndarray | bool = True

  def __post_init__(self):
    everywhere = np.broadcast_to(self.defined, np.shape(self.golden))
    object.__setattr__(self, 'defined', everywhere)

  # Each computed once for all records.
  @functools.cached_property
  def size(self) -> np.ndarray:
    return np.abs(self.golden)

  @functools.cached_property
  def num_not_finite(self) -> int:
    return int(np.size(self.actual) - np.isfinite(self.actual).sum())

  @functools.cached_property
  def raw(self) -> 'Deviation':
    return Deviation(self.actual, self.golden, self.size, self.bound)

  @functools.cached_property
  def finite(self) -> 'Deviation':
    """With 0 for values that are not finite, which would hide all others."""
    if not self.num_not_finite:
      return self.raw
    return Deviation(
      np.where(np.isfinite(self.actual), self.actual, 0.0),
      self.golden,
      self.size,
      self.bound,
    )

  @functools.cached_property
  def beside(self) -> 'Deviation':
    return Deviation(self.benchmark, self.golden, self.size, self.bound)


class Deviation:
  """Errors of values `[...]` against the golden.

  It has no reference to its `Elements`: a cycle would delay their deallocation.
  """

  def __init__(
    self,
    values: np.ndarray,
    golden: np.ndarray,
    size: np.ndarray,
    bound: np.ndarray,
  ):
    self.values = values
    self._golden, self._size, self._bound = golden, size, bound

  @functools.cached_property
  def error(self) -> np.ndarray:
    return np.abs(self.values - self._golden)

  @functools.cached_property
  def relative(self) -> np.ndarray:
    return self.error / (self._size + _RELATIVE_EPS)

  @functools.cached_property
  def is_within(self) -> np.ndarray:
    return self.error <= self._bound

  @functools.cached_property
  def all_within(self) -> bool:
    """Whether rounding explains every error, which is the usual case."""
    return bool(self.is_within.all())


class _ChunkView:
  """One chunk under the rules of a standard; each result is computed once."""

  def __init__(self, standard: Standard, dtype: str, e: Elements):
    self.standard, self.e = standard, e
    self._tolerance = standard.tolerance[dtype]
    self._masks: dict[str, np.ndarray | None] = {ALL: None}
    self._mismatches: dict[int, np.ndarray] = {}

  @functools.cached_property
  def _limit(self) -> np.ndarray:
    t, size = self._tolerance, self.e.size
    relative = t.rtol * (np.maximum(size, t.floor) if t.floor else size)
    limit = (
      np.maximum(t.atol, relative) if t.takes_larger else t.atol + relative
    )
    if t.small:
      limit = np.where(size < t.small, t.small_error, limit)
    if self.standard.excuse_rounding:
      limit = np.maximum(limit, self.e.bound)
    return limit

  def mismatches(self, deviation: Deviation) -> np.ndarray:
    """Returns `[...]` bool, values that exceed the tolerance.

    A value that is not finite always does if the golden is finite.
    """
    if id(deviation) not in self._mismatches:
      # Excused values are within any tolerance: it need not be computed.
      if self.excuses_all(deviation):
        is_broken = np.zeros(deviation.error.shape, bool)
      else:
        is_broken = ~(deviation.error <= self._limit)
      self._mismatches[id(deviation)] = is_broken
    return self._mismatches[id(deviation)]

  def excuses_all(self, deviation: Deviation) -> bool:
    """Says whether no value counts, as rounding explains each."""
    return self.standard.excuse_rounding and deviation.all_within

  def region(self, region: str) -> np.ndarray | None:
    """Returns `[...]` bool, or None for all elements."""
    t = self._tolerance
    if not (t.small or t.cancel):
      return None
    if region not in self._masks:
      small = self.e.size < t.small
      actual = np.abs(self.e.finite.values)
      cancel = (self.e.size < t.cancel) & (actual < t.cancel) & ~small
      masks = {SMALL: small, CANCEL: cancel, NORMAL: ~(small | cancel)}
      self._masks |= masks
    return self._masks[region]

  def excused(
    self, deviation: Deviation, values: np.ndarray, replacement
  ) -> np.ndarray:
    """Returns values; `replacement` replaces those that rounding explains."""
    if not self.standard.excuse_rounding:
      return values
    return np.where(deviation.is_within, replacement, values)


def _pick(values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
  return values.reshape(-1) if mask is None else values[mask]


def _size(values: np.ndarray, mask: np.ndarray | None) -> int:
  return values.size if mask is None else int(np.count_nonzero(mask))


class Metric(NamedTuple):
  """How a number is computed from chunks.

  Attributes:
    partial: (view, deviation, mask) of a chunk -> array.
    total: merged partials -> the number.
    merge: np.add or np.maximum, of two partials.
    right: as `partial`, of (a region whose errors rounding explains, 0 for the
      candidate or 1 for the benchmark).
  """

  partial: Callable[..., np.ndarray]
  total: Callable[[np.ndarray], float]
  merge: Callable[[np.ndarray, np.ndarray], np.ndarray]
  right: Callable[[chunk_sums.Region, int], np.ndarray]


def _mean(values: np.ndarray) -> np.ndarray:
  return np.array([values.sum(), values.size], np.float64)


def _divide(p: np.ndarray) -> float:
  return p[0] / p[1] if p[1] else 0.0


def _mere(view, deviation, mask):
  return _mean(_pick(deviation.relative, mask))


def _rmse(view, deviation, mask):
  golden = _pick(view.e.golden, mask)
  return np.append(
    _mean(np.square(_pick(deviation.error, mask))), golden @ golden
  )


def _worst(view, deviation, mask, field: str):
  if view.excuses_all(deviation):
    return np.zeros(1)
  worst = _pick(view.excused(deviation, getattr(deviation, field), 0.0), mask)
  return np.array([worst.max(initial=0.0)])


_mare = functools.partial(_worst, field='relative')
_max_abs = functools.partial(_worst, field='error')


def _count(view, deviation, mask):
  if view.excuses_all(deviation):
    return np.array([0, _size(deviation.error, mask)], np.float64)
  return _mean(_pick(view.mismatches(deviation), mask))


def _products(view, deviation, mask):
  if view.excuses_all(deviation):
    g = _pick(view.e.golden, mask)
    return np.full(3, g @ g)
  a = _pick(view.excused(deviation, deviation.values, view.e.golden), mask)
  g = _pick(view.e.golden, mask)
  return np.array([a @ g, a @ a, g @ g])


def _cosine_loss(p: np.ndarray) -> float:
  """1 - cosine; 0 if both vectors are zero, 1 if one is."""
  norms = np.sqrt(p[1] * p[2])
  return 1 - p[0] / norms if norms else float(p[1] != p[2])


def _calc_diff(p: np.ndarray) -> float:
  return 1 - 2 * p[0] / (p[1] + p[2]) if p[1] + p[2] else 0.0


def _pair(*values: float) -> np.ndarray:
  return np.array(values, np.float64)


def _no_worst(region, i) -> np.ndarray:
  return np.zeros(1)


def _no_mismatch(region, i) -> np.ndarray:
  return _pair(0, region.count)


def _golden_products(region, i) -> np.ndarray:
  return np.full(3, region.golden_square)


METRICS = {
  'mere': Metric(
    _mere, _divide, np.add, lambda r, i: _pair(r.relative[i], r.count)
  ),
  'mare': Metric(_mare, lambda p: p[0], np.maximum, _no_worst),
  'rmse': Metric(
    _rmse,
    lambda p: np.sqrt(_divide(p)),
    np.add,
    lambda r, i: _pair(r.square[i], r.count, r.golden_square),
  ),
  'max_abs': Metric(_max_abs, lambda p: p[0], np.maximum, _no_worst),
  'mismatches': Metric(_count, lambda p: p[0], np.add, _no_mismatch),
  'mismatch_share': Metric(_count, _divide, np.add, _no_mismatch),
  'cosine_loss': Metric(_products, _cosine_loss, np.add, _golden_products),
  'calc_diff': Metric(_products, _calc_diff, np.add, _golden_products),
}
# As `chunk_sums` numbers them.
_PLACES = {NORMAL: 0, SMALL: 1, CANCEL: 2}


# Number of a rule, whether of the benchmark, and its sums.
Partials = tuple[tuple[int, bool, np.ndarray], ...]


class Judge:
  """One standard on one tensor, fed chunk by chunk."""

  def __init__(self, standard: Standard, dtype: str):
    self.standard = standard
    self._dtype = dtype
    self._rules = [rule for clause in standard.rules for rule in clause]
    self._partials: dict[tuple[int, bool], np.ndarray] = {}
    self.not_finite = 0

  @property
  def partials(self) -> Partials:
    """Its sums so far."""
    return tuple((*key, sums) for key, sums in self._partials.items())

  def merge(self, partials: Partials, not_finite: int) -> None:
    """Takes in what a judge of the same standard added up."""
    self.not_finite += not_finite
    for number, of_benchmark, sums in partials:
      self._merge(self._rules[number], of_benchmark, sums)

  def add(self, e: Elements) -> np.ndarray:
    """Takes a chunk in; returns `[...]` bool, its mismatches."""
    # A wrong infinity or NaN is a mismatch, and no part of any sum.
    self.not_finite += e.num_not_finite
    view = _ChunkView(self.standard, self._dtype, e)
    with np.errstate(over='ignore', invalid='ignore'):
      for rule in self._rules:
        counts = METRICS[rule.metric].partial is _count
        self._take(rule, False, view, e.raw if counts else e.finite)
        if rule.ratio:
          self._take(rule, True, view, e.beside)
      return view.mismatches(e.raw)

  @property
  def thresholds(self) -> chunk_sums.Thresholds | None:
    """What tells its regions apart, or None if it has none."""
    t = self.standard.tolerance[self._dtype]
    return (t.small, t.cancel) if t.small or t.cancel else None

  def add_right(self, regions: chunk_sums.Regions) -> None:
    """Takes chunks in whose every error rounding explains, and excuses."""
    pair = self.thresholds
    for rule in self._rules:
      place = None if pair is None else _PLACES.get(rule.region)
      region = regions.select(pair or (0.0, 0.0), place)
      right = METRICS[rule.metric].right
      self._merge(rule, False, right(region, 0))
      if rule.ratio:
        self._merge(rule, True, right(region, 1))

  def _take(
    self, rule, of_benchmark, view: _ChunkView, deviation: Deviation
  ) -> None:
    metric = METRICS[rule.metric]
    new = metric.partial(view, deviation, view.region(rule.region))
    self._merge(rule, of_benchmark, new)

  def _merge(self, rule, of_benchmark: bool, new: np.ndarray) -> None:
    key = (self._number(rule), of_benchmark)
    old = self._partials.get(key)
    merge = METRICS[rule.metric].merge
    self._partials[key] = new if old is None else merge(old, new)

  def _number(self, rule: Rule) -> int:
    return next(i for i, other in enumerate(self._rules) if other is rule)

  def _value(self, rule: Rule, of_benchmark: bool = False) -> float:
    partial = self._partials.get((self._number(rule), of_benchmark))
    total = METRICS[rule.metric].total
    return 0.0 if partial is None else float(total(partial))

  def _explain_broken(self, rule: Rule) -> str | None:
    """Returns a message if the rule does not hold, or None."""
    value, limit = self._value(rule), rule.limit[self._dtype]
    floor = self._floor(rule)
    if rule.ratio:
      value /= max(self._value(rule, True), floor)
    if value <= limit:
      return None
    return f'{rule.text(self._dtype, floor)}, got {value:.3g}'

  def _floor(self, rule: Rule) -> float:
    """Returns the smallest denominator of a ratio."""
    floor = rule.floor.get(self._dtype, 0.0)
    if rule.metric != 'rmse':  # others are relative
      return floor
    partial = self._partials.get((self._number(rule), False))
    square = 0.0 if partial is None else _divide(partial[[2, 1]])
    return floor * max(1.0, float(np.sqrt(square)))

  def list_broken(self) -> list[str]:
    """Returns the clauses that do not hold; empty means it accepts."""
    clauses = []
    if self.not_finite:
      clauses.append(f'finite values, got {self.not_finite} that are not')
    for clause in self.standard.rules:
      reasons = [self._explain_broken(rule) for rule in clause]
      if all(reasons):
        clauses.append(' and '.join(reasons))
    return clauses

  def values(self) -> dict[str, float]:
    """Returns every metric, and the benchmark's for the ratios, by name."""
    values = {}
    for rule in self._rules:
      name = f'{rule.metric}[{rule.region}]'
      values[name] = self._value(rule)
      if rule.ratio:
        values[f'{name} benchmark'] = self._value(rule, True)
    return values


_RECORDS = pathlib.Path(__file__).parent / 'records.toml'
_TOLERANCE = tuple(field.name for field in dataclasses.fields(Tolerance))


def _number(number: float | str) -> float:
  """Returns a number of a file: a number, '2^-7' or '5 * 2^-7'."""
  if not isinstance(number, str):
    return float(number)
  factor, _, exponent = number.partition('2^')
  return float(factor.strip(' *') or 1) * 2.0 ** int(exponent)


def _by_dtype(number: float | str | Mapping) -> dict[str, float]:
  """Returns a number for each dtype; a single number holds for all."""
  if not isinstance(number, Mapping):
    number = dict.fromkeys((FLOAT32, BFLOAT16, FLOAT16), number)
  return {dtype: _number(value) for dtype, value in number.items()}


def _rule(metric: str, limit, region: str = ALL, floor=None) -> Rule:
  ratio = floor is not None
  floors = _by_dtype(floor) if ratio else {}
  return Rule(metric, _by_dtype(limit), region, ratio, floors)


def _standard(name: str, fields: dict) -> Standard:
  """Returns the record of a table, whose keys include those of `Tolerance`."""
  tolerance_fields = {n: fields.pop(n) for n in _TOLERANCE if n in fields}
  every_dtype = dict.fromkeys((FLOAT32, BFLOAT16, FLOAT16))
  dtypes = next(
    (n for n in tolerance_fields.values() if isinstance(n, Mapping)),
    every_dtype,
  )
  tolerance_fields = {
    n: _by_dtype(value) for n, value in tolerance_fields.items()
  }
  return Standard(
    name=name,
    tolerance={
      dtype: Tolerance(
        **{n: values[dtype] for n, values in tolerance_fields.items()}
      )
      for dtype in dtypes
    },
    rules=tuple(
      tuple(_rule(**rule) for rule in clause)
      for clause in fields.pop('clauses')
    ),
    **fields,
  )


def read(path: pathlib.Path) -> dict[str, Standard]:
  """Returns the records of a TOML file by name; `like` names an earlier one."""
  tables: dict[str, dict] = {}
  for name, table in tomllib.loads(path.read_text('utf-8')).items():
    tables[name] = tables.get(table.pop('like', ''), {}) | table
  return {name: _standard(name, dict(table)) for name, table in tables.items()}


STANDARDS = read(_RECORDS)
DEFAULT = tuple(s.name for s in STANDARDS.values() if s.default)


def names(dtype: str) -> list[str]:
  """Returns the records that have numbers for a dtype."""
  return [s.name for s in STANDARDS.values() if s.supports(dtype)]


def get(name: str, dtype: str = FLOAT32) -> Standard:
  """Returns the record of that name.

  Raises:
    ValueError: there is none, or it has no numbers for the dtype; the text
      lists some names that have.
  """
  dtype_names = names(dtype)
  if name not in dtype_names:
    choices = messages.name_choices(dtype_names, name)
    dtypes = ', '.join(STANDARDS[name].tolerance) if name in STANDARDS else ''
    words = f', which is of {dtypes}' if dtypes else ''
    raise ValueError(
      f'standard: expected one of {choices} for {dtype}, got {name!r}'
      f'{words or messages.suggest(STANDARDS, name)}'
    )
  return STANDARDS[name]
