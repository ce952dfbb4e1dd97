"""Published acceptance rules: what the records of records.toml mean.

Three values meet at every element: a (candidate), g (golden, float64) and
b (benchmark, the oracle in the candidate's own dtype).  A record says which
elements disagree, how errors are summed up, and what is too much:

    error           |a - g|
    relative error  |a - g| / (|g| + 1e-7)
    tolerance       E where |g| < T, else atol + rtol * max(|g|, floor), or the
                    larger of these two terms where the record says so
    mismatch        error > tolerance, and error > the type's rounding bound

The last clause is `excuse_rounding`.  Every one of these texts wants to tell a
bug from what the type can hold (cann-bench says so in these words), but a rule
with fixed numbers cannot where terms cancel: there a correct kernel has any
relative error.  `bounds` knows what the type can hold at each element, so
in the records of the default set an error within that bound never counts as a
mismatch or a maximum, nor turns a vector.  The means (mere, rmse) have no such
clause: they average every error.  The records named `*_letter` have none at
all: the printed numbers only.  The floor under a ratio of rmse is meant for
values of order one, and is as much larger as their root mean square is.
"""

from collections.abc import Callable, Mapping
import dataclasses
import difflib
import functools
import pathlib
import tomllib
from typing import NamedTuple

import numpy as np

from hpmoe.parity_tests.judge.limits import chunk_sums

FLOAT32, BFLOAT16, FLOAT16 = 'float32', 'bfloat16', 'float16'
_RELATIVE_EPS = 1e-7

# Where a rule looks.
ALL, NORMAL, SMALL, CANCEL = 'all', 'normal', 'small', 'cancel'


@dataclasses.dataclass(frozen=True)
class Tolerance:
  """What one element may be off, for one dtype.

  Attributes:
    rtol: share of the golden's magnitude.
    atol: absolute part.
    floor: least magnitude that `rtol` is taken of.
    small: T, magnitudes below it are "small"; 0 if the rule has no such idea.
    small_error: E, absolute tolerance there.
    cancel: where |a| and |g| lie below it and the element is not small, it is
      a cancellation position; 0 if the rule has no such idea.
    takes_larger: 1 if an error within atol or within rtol is right; 0: within
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
    region: the elements it looks at.
    ratio: the metric is divided by the benchmark's own, which is floored.
    floor: by dtype, least denominator of a ratio.
  """

  metric: str
  limit: Mapping[str, float]
  region: str = ALL
  ratio: bool = False
  floor: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def text(self, dtype: str, floor: float | None = None) -> str:
    floor = self.floor.get(dtype) if floor is None else floor
    over = f' / max(benchmark, {floor:g})' if self.ratio else ''
    return f'{self.metric}[{self.region}]{over} <= {self.limit[dtype]:g}'


@dataclasses.dataclass(frozen=True)
class Standard:
  """One published acceptance rule.

  Attributes:
    name: what reports and `--standard` call it.
    version: of the source text.
    source: where it is published.
    scope: what its authors judge with it.
    reading: how unclear words were read, and where we part from the letter.
    tolerance: by dtype.
    rules: all clauses must hold; a clause holds if any of its rules does.
    layer: whether it also judges a whole pass: the fused layer, x to y, and
      stages made of tensors that were not returned.  The others are meant for
      one operator; there the layer must lie within its rounding bound.
    excuse_rounding: see the module.
    default: whether a check uses it unasked.
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

  def has(self, dtype: str) -> bool:
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
    defined: `[...]` bool, where the golden is finite; elsewhere g is 0.  True
      stands for everywhere.
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
  def raw(self) -> 'Off':
    return Off(self.actual, self.golden, self.size, self.bound)

  @functools.cached_property
  def finite(self) -> 'Off':
    """With 0 for what is not finite: it would hide what others say in a sum."""
    if not self.num_not_finite:
      return self.raw
    return Off(
      np.where(np.isfinite(self.actual), self.actual, 0.0),
      self.golden,
      self.size,
      self.bound,
    )

  @functools.cached_property
  def beside(self) -> 'Off':
    return Off(self.benchmark, self.golden, self.size, self.bound)


class Off:
  """How far values `[...]` are off the golden.

  It holds no `Elements`, which hold it: memory must not wait for a collector.
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
  def within(self) -> np.ndarray:
    return self.error <= self._bound

  @functools.cached_property
  def all_within(self) -> bool:
    """Whether rounding explains every error, as it most often does."""
    return bool(self.within.all())


class _Seen:
  """One chunk as a standard sees it, each thing computed once."""

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

  def mismatches(self, off: Off) -> np.ndarray:
    """Returns `[...]` bool, values that break the tolerance.

    A value that is not finite where the golden is always does.
    """
    if id(off) not in self._mismatches:
      # What is excused is within any tolerance: it need not be computed.
      if self.excuses_all(off):
        broken = np.zeros(off.error.shape, bool)
      else:
        broken = ~(off.error <= self._limit)
      self._mismatches[id(off)] = broken
    return self._mismatches[id(off)]

  def excuses_all(self, off: Off) -> bool:
    """Says whether no value counts, since rounding explains each."""
    return self.standard.excuse_rounding and off.all_within

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

  def excused(self, off: Off, values: np.ndarray, by) -> np.ndarray:
    """Returns values, `by` in place of those that rounding explains."""
    if not self.standard.excuse_rounding:
      return values
    return np.where(off.within, by, values)


def _pick(values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
  return values.reshape(-1) if mask is None else values[mask]


def _size(values: np.ndarray, mask: np.ndarray | None) -> int:
  return values.size if mask is None else int(np.count_nonzero(mask))


class Metric(NamedTuple):
  """How a number is made from chunks.

  Attributes:
    partial: of a chunk: (seen, values' errors, mask) -> array.
    total: what merged partials come to.
    merge: np.add or np.maximum, of two partials.
    right: as `partial`, of a region whose errors rounding explains, and 1 for
      the benchmark's or 0.
  """

  partial: Callable[..., np.ndarray]
  total: Callable[[np.ndarray], float]
  merge: Callable[[np.ndarray, np.ndarray], np.ndarray]
  right: Callable[[chunk_sums.Region, int], np.ndarray]


def _mean(values: np.ndarray) -> np.ndarray:
  return np.array([values.sum(), values.size], np.float64)


def _over(p: np.ndarray) -> float:
  return p[0] / p[1] if p[1] else 0.0


def _mere(seen, off, mask):
  return _mean(_pick(off.relative, mask))


def _rmse(seen, off, mask):
  golden = _pick(seen.e.golden, mask)
  return np.append(_mean(np.square(_pick(off.error, mask))), golden @ golden)


def _worst(seen, off, mask, of: str):
  if seen.excuses_all(off):
    return np.zeros(1)
  worst = _pick(seen.excused(off, getattr(off, of), 0.0), mask)
  return np.array([worst.max(initial=0.0)])


_mare = functools.partial(_worst, of='relative')
_max_abs = functools.partial(_worst, of='error')


def _count(seen, off, mask):
  if seen.excuses_all(off):
    return np.array([0, _size(off.error, mask)], np.float64)
  return _mean(_pick(seen.mismatches(off), mask))


def _products(seen, off, mask):
  if seen.excuses_all(off):
    g = _pick(seen.e.golden, mask)
    return np.full(3, g @ g)
  a = _pick(seen.excused(off, off.values, seen.e.golden), mask)
  g = _pick(seen.e.golden, mask)
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
    _mere, _over, np.add, lambda r, i: _pair(r.relative[i], r.count)
  ),
  'mare': Metric(_mare, lambda p: p[0], np.maximum, _no_worst),
  'rmse': Metric(
    _rmse,
    lambda p: np.sqrt(_over(p)),
    np.add,
    lambda r, i: _pair(r.square[i], r.count, r.golden_square),
  ),
  'max_abs': Metric(_max_abs, lambda p: p[0], np.maximum, _no_worst),
  'mismatches': Metric(_count, lambda p: p[0], np.add, _no_mismatch),
  'mismatch_share': Metric(_count, _over, np.add, _no_mismatch),
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
    seen = _Seen(self.standard, self._dtype, e)
    with np.errstate(over='ignore', invalid='ignore'):
      for rule in self._rules:
        counts = METRICS[rule.metric].partial is _count
        self._take(rule, False, seen, e.raw if counts else e.finite)
        if rule.ratio:
          self._take(rule, True, seen, e.beside)
      return seen.mismatches(e.raw)

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
      region = regions.of(pair or (0.0, 0.0), place)
      right = METRICS[rule.metric].right
      self._merge(rule, False, right(region, 0))
      if rule.ratio:
        self._merge(rule, True, right(region, 1))

  def _take(self, rule, of_benchmark, seen: _Seen, off: Off) -> None:
    metric = METRICS[rule.metric]
    new = metric.partial(seen, off, seen.region(rule.region))
    self._merge(rule, of_benchmark, new)

  def _merge(self, rule, of_benchmark: bool, new: np.ndarray) -> None:
    key = (self._number(rule), of_benchmark)
    old = self._partials.get(key)
    merge = METRICS[rule.metric].merge
    self._partials[key] = new if old is None else merge(old, new)

  def _number(self, rule: Rule) -> int:
    return next(i for i, one in enumerate(self._rules) if one is rule)

  def _value(self, rule: Rule, of_benchmark: bool = False) -> float:
    partial = self._partials.get((self._number(rule), of_benchmark))
    total = METRICS[rule.metric].total
    return 0.0 if partial is None else float(total(partial))

  def _broken(self, rule: Rule) -> str | None:
    """Returns why the rule does not hold, or None if it does."""
    value, limit = self._value(rule), rule.limit[self._dtype]
    floor = self._floor(rule)
    if rule.ratio:
      value /= max(self._value(rule, True), floor)
    if value <= limit:
      return None
    return f'{rule.text(self._dtype, floor)}, got {value:.3g}'

  def _floor(self, rule: Rule) -> float:
    """Returns the least denominator of a ratio, for values of any size."""
    floor = rule.floor.get(self._dtype, 0.0)
    if rule.metric != 'rmse':  # others are relative
      return floor
    partial = self._partials.get((self._number(rule), False))
    square = 0.0 if partial is None else _over(partial[[2, 1]])
    return floor * max(1.0, float(np.sqrt(square)))

  def broken(self) -> list[str]:
    """Returns the clauses that do not hold; empty means it accepts."""
    broken = []
    if self.not_finite:
      broken.append(f'finite values, got {self.not_finite} that are not')
    for clause in self.standard.rules:
      reasons = [self._broken(rule) for rule in clause]
      if all(reasons):
        broken.append(' and '.join(reasons))
    return broken

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


def _number(told: float | str) -> float:
  """Returns what a file tells: a number, '2^-7' or '5 * 2^-7'."""
  if not isinstance(told, str):
    return float(told)
  factor, _, exponent = told.partition('2^')
  return float(factor.strip(' *') or 1) * 2.0 ** int(exponent)


def _by_dtype(told: float | str | Mapping) -> dict[str, float]:
  """Returns a number of each dtype; one that is told alone is all dtypes'."""
  if not isinstance(told, Mapping):
    told = dict.fromkeys((FLOAT32, BFLOAT16, FLOAT16), told)
  return {dtype: _number(one) for dtype, one in told.items()}


def _rule(metric: str, limit, region: str = ALL, floor=None) -> Rule:
  ratio = floor is not None
  floors = _by_dtype(floor) if ratio else {}
  return Rule(metric, _by_dtype(limit), region, ratio, floors)


def _standard(name: str, fields: dict) -> Standard:
  """Returns the record of a table: numbers of a tolerance stand beside it."""
  told = {n: fields.pop(n) for n in _TOLERANCE if n in fields}
  every_dtype = dict.fromkeys((FLOAT32, BFLOAT16, FLOAT16))
  dtypes = next(
    (n for n in told.values() if isinstance(n, Mapping)), every_dtype
  )
  told = {n: _by_dtype(one) for n, one in told.items()}
  return Standard(
    name=name,
    tolerance={
      dtype: Tolerance(**{n: one[dtype] for n, one in told.items()})
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
  return {name: _standard(name, dict(of)) for name, of in tables.items()}


STANDARDS = read(_RECORDS)
DEFAULT = tuple(s.name for s in STANDARDS.values() if s.default)


def names(dtype: str) -> list[str]:
  """Returns the records that have numbers for a dtype."""
  return [s.name for s in STANDARDS.values() if s.has(dtype)]


def get(name: str, dtype: str = FLOAT32) -> Standard:
  """Returns the record of that name.

  Raises:
    ValueError: there is none, or it has no numbers for the dtype; the text
      lists some names that have.
  """
  known = names(dtype)
  if name not in known:
    closest = difflib.get_close_matches(name, known, n=8, cutoff=0.0)
    raise ValueError(
      f'standard: expected one of {", ".join(closest)} or '
      f'{len(known) - len(closest)} more for {dtype} (hpmoe check --help lists '
      f'them), got {name!r}'
    )
  return STANDARDS[name]
