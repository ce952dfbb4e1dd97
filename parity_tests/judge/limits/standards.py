"""Published acceptance rules, as versioned data.

Three values meet at every element: a (candidate), g (golden, float64) and
b (benchmark, the oracle in the candidate's own dtype).  A record says which
elements disagree, how errors are summed up, and what is too much:

    error           |a - g|
    relative error  |a - g| / (|g| + 1e-7)
    tolerance       E where |g| < T, else atol + rtol * max(|g|, floor)
    mismatch        error > tolerance, and error > the type's rounding bound

The last clause is `excuse_rounding`.  Every one of these texts wants to tell a
bug from what the type can hold (cann-bench says so in these words), but a rule
with fixed numbers cannot where terms cancel: there a correct kernel has any
relative error.  `bounds` knows what the type can hold at each element, so
in the records of the default set an error within that bound never counts as a
mismatch or a maximum, nor turns a vector.  The means (mere, rmse) have no such
clause: they average every error.  The records named `*_letter` have none at
all: the printed numbers only.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
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
  """

  rtol: float = 0.0
  atol: float = 0.0
  floor: float = 0.0
  small: float = 0.0
  small_error: float = 0.0
  cancel: float = 0.0


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

  def text(self, dtype: str) -> str:
    over = f' / max(benchmark, {self.floor[dtype]:g})' if self.ratio else ''
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

  def letter(self, reading: str, **changes) -> 'Standard':
    """Returns the record as printed, out of the default set."""
    return dataclasses.replace(
      self,
      name=f'{self.name}_letter',
      reading=reading,
      excuse_rounding=False,
      default=False,
      **changes,
    )


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
    limit = t.atol + t.rtol * (np.maximum(size, t.floor) if t.floor else size)
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


def _mare(seen, off, mask):
  if seen.excuses_all(off):
    return np.zeros(1)
  worst = _pick(seen.excused(off, off.relative, 0.0), mask)
  return np.array([worst.max(initial=0.0)])


def _rmse(seen, off, mask):
  return _mean(np.square(_pick(off.error, mask)))


def _max_abs(seen, off, mask):
  if seen.excuses_all(off):
    return np.zeros(1)
  worst = _pick(seen.excused(off, off.error, 0.0), mask)
  return np.array([worst.max(initial=0.0)])


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
    lambda r, i: _pair(r.square[i], r.count),
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
      for clause in self.standard.rules:
        for rule in clause:
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
    for clause in self.standard.rules:
      for rule in clause:
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
    if rule.ratio:
      value /= max(self._value(rule, True), rule.floor[self._dtype])
    if value <= limit:
      return None
    return f'{rule.text(self._dtype)}, got {value:.3g}'

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
    for clause in self.standard.rules:
      for rule in clause:
        name = f'{rule.metric}[{rule.region}]'
        values[name] = self._value(rule)
        if rule.ratio:
          values[f'{name} benchmark'] = self._value(rule, True)
    return values


def _all(value: float) -> dict[str, float]:
  return dict.fromkeys((FLOAT32, BFLOAT16, FLOAT16), value)


_CANN_BENCH_CANCEL = {FLOAT32: 2.0**-8, BFLOAT16: 2.0**-3, FLOAT16: 2.0**-5}
_SMALL = {FLOAT32: 2.0**-14, BFLOAT16: 2.0**-8, FLOAT16: 2.0**-11}
_SMALL_ERROR = {FLOAT32: 2.0**-30, BFLOAT16: 2.0**-16, FLOAT16: 2.0**-16}
_V1_T = {FLOAT32: 2.0**-13, BFLOAT16: 2.0**-7, FLOAT16: 2.0**-10}
_ONE = _all(1.0)

_ECOSYSTEM_V1 = Standard(
  name='ecosystem_v1',
  version='2026-04',
  source=(
    'hicann/opbase docs/zh/ops_precision_standard/experimental_standard.md'
    ' (v1); hicann/cann-bench docs/design/precision_comparison_design.md'
  ),
  scope='float operators, one golden; cann-bench adds a CPU benchmark',
  reading=(
    'mere < T and mare < 10 T, as cann-bench reads it: normal values by '
    'that rule; small values (|g| < T_small) and cancellation positions '
    '(|a| and |g| below the boundary) by count of mismatches, at most '
    'twice the same-precision CPU benchmark, whose count is floored at 1. '
    'Relative errors have |g| + 1e-7 below. The boundary is absolute, as '
    'in its code. An error within the rounding bound is "a limit of the '
    'type, not a bug of the operator" and does not count.'
  ),
  tolerance={
    d: Tolerance(
      rtol=10 * _V1_T[d],
      atol=10 * _V1_T[d] * _RELATIVE_EPS,
      small=_SMALL[d],
      small_error=_SMALL_ERROR[d],
      cancel=_CANN_BENCH_CANCEL[d],
    )
    for d in _SMALL
  },
  rules=(
    (Rule('mere', _V1_T, NORMAL),),
    (Rule('mismatches', _all(0), NORMAL),),
    (Rule('mismatches', _all(2), SMALL, ratio=True, floor=_ONE),),
    (Rule('mismatches', _all(2), CANCEL, ratio=True, floor=_ONE),),
  ),
  default=True,
)

_ECOSYSTEM_V1_LETTER = _ECOSYSTEM_V1.letter(
  'mere < T and mare < 10 T over all elements. Fails correct kernels '
  'wherever terms cancel.',
  rules=(
    (Rule('mere', _V1_T),),
    (Rule('mare', {d: 10 * t for d, t in _V1_T.items()}),),
  ),
)


def _mixed(name: str, version: str, source: str, rtol, atol, limit) -> Standard:
  return Standard(
    name=name,
    version=version,
    source=source,
    scope='float operators, one golden; integer and movement are outside',
    reading=(
      '|a - g| <= atol + rtol |g| on at least 99 % of elements, and max '
      '|a - g| <= the constant. The text says "constant or 32 ULP" and '
      'defines neither: the constant alone is used, the stricter reading '
      'for values near 1. Errors within the rounding bound do not count.'
    ),
    tolerance={d: Tolerance(rtol=rtol[d], atol=atol[d]) for d in rtol},
    rules=(
      (Rule('mismatch_share', _all(0.01)),),
      (Rule('max_abs', limit),),
    ),
  )


_ECOSYSTEM_V2 = _mixed(
  'ecosystem_v2',
  '2026-07-15, adbe441',
  'hicann/opbase docs/zh/ops_precision_standard/experimental_standard.md',
  rtol={FLOAT32: 2.0**-10, BFLOAT16: 2.0**-6, FLOAT16: 2.0**-9},
  atol={FLOAT32: 2.0**-16, BFLOAT16: 2.0**-6, FLOAT16: 2.0**-9},
  limit={FLOAT32: 1e-2, BFLOAT16: 1.0, FLOAT16: 1e-1},
)
_ECOSYSTEM_V3 = _mixed(
  'ecosystem_v3',
  '233ee24',
  'hicann/opbase docs/zh/ops_precision_standard/mixed_tolerance_standard.md',
  rtol=_V1_T,
  atol=_V1_T,
  limit={FLOAT32: 1e-2, BFLOAT16: 1e-1, FLOAT16: 1e-1},
)

# Denominators of the ratios, as the dual-benchmark tests that ship with
# Ascend operators floor them (`err_threshold`).
_DUAL_FLOOR = {FLOAT32: 2.0**-14, BFLOAT16: 2.0**-8, FLOAT16: 2.0**-11}


def _commercial(level: int, mare: float, mean: float, **kwargs) -> Standard:
  def ratio(metric, limit):
    return (Rule(metric, _all(limit), NORMAL, ratio=True, floor=_DUAL_FLOOR),)

  return Standard(
    name=f'commercial_l{level}',
    version='2026-04-09, 6049643',
    source=(
      'hicann/opbase docs/zh/ops_precision_standard/commercial_standard.md'
      ' (deleted by 8b296c7); copy in hicann/cannbot-skills '
      'ops/ops-precision-standard/reference/golden/'
      'COMMERCIAL_OPS_PRECISION_DOCS.md'
    ),
    scope=(
      f'dual benchmark, level L{level}; kernels and fused operators; '
      'movement is bitwise, as lane bitwise judges it. L1 is for LLM MoE.'
    ),
    reading=(
      'mare, mere and rmse of the candidate over those of the '
      'same-precision benchmark, over elements with |g| >= T; small values '
      'by count, at most twice the benchmark, whose count is floored at 1. '
      'The text has no floor under the other ratios, so a benchmark that '
      'happens to be exact fails everybody; the floor is that of the dual '
      'tests shipped with Ascend operators (2^-14, bf16 2^-8, fp16 2^-11). '
      'The text '
      'answers a failing case with 200 to 1000 runs on new seeds and fails '
      'only a systematic loss; one run cannot, so errors within the '
      'rounding bound do not count in mare and counts instead. Tiles are '
      'located by relative error above limit times floor.'
    ),
    tolerance={
      d: Tolerance(
        rtol=mare * _DUAL_FLOOR[d],
        atol=mare * _DUAL_FLOOR[d] * _RELATIVE_EPS,
        small=_SMALL[d],
        small_error=_SMALL_ERROR[d],
      )
      for d in _SMALL
    },
    rules=(
      ratio('mare', mare),
      ratio('mere', mean),
      ratio('rmse', mean),
      (Rule('mismatches', _all(2), SMALL, ratio=True, floor=_ONE),),
    ),
    layer=True,
    **kwargs,
  )


_COMMERCIAL_L1 = _commercial(1, 5, 1.5, default=True)

# Below any error of a benchmark that is not exact: stands for "no floor".
_NO_FLOOR = _all(np.finfo(np.float64).tiny)
_COMMERCIAL_L1_LETTER = _COMMERCIAL_L1.letter(
  'The ratios without floor, the first run final (no re-check). Fails a '
  'correct kernel that sums in another order than the benchmark, by chance.',
  rules=tuple(
    tuple(
      dataclasses.replace(r, floor=r.floor if r.region == SMALL else _NO_FLOOR)
      for r in clause
    )
    for clause in _COMMERCIAL_L1.rules
  ),
)

_MSPROBE = Standard(
  name='msprobe',
  version='acc_check, mindstudio-probe 1.x',
  source='mindstudio-probe, accuracy pre-check',
  scope='one API against a CPU golden of higher precision',
  reading=(
    'error if cosine <= 0.99; else pass if max |a - g| < 1e-3; else error '
    'if the share of relative errors above 1e-3 (16 bits: 1e-2) reaches 1e-3 '
    '(1e-2). Its "warning" is no error. Two zero vectors have cosine 1. '
    'Errors within the rounding bound do not count.'
  ),
  tolerance={
    FLOAT32: Tolerance(rtol=1e-3, atol=1e-3 * _RELATIVE_EPS),
    BFLOAT16: Tolerance(rtol=1e-2, atol=1e-2 * _RELATIVE_EPS),
    FLOAT16: Tolerance(rtol=1e-2, atol=1e-2 * _RELATIVE_EPS),
  },
  rules=(
    (Rule('cosine_loss', _all(0.01)),),
    (
      Rule('max_abs', _all(1e-3)),
      Rule('mismatch_share', {FLOAT32: 1e-3, BFLOAT16: 1e-2, FLOAT16: 1e-2}),
    ),
  ),
  default=True,
)

_TORCH = Standard(
  name='torch',
  version='torch.testing.assert_close defaults, 2.x',
  source='pytorch torch/testing/_comparison.py',
  scope='two tensors of one dtype',
  reading=(
    '|a - g| <= atol + rtol |g| at every element, g the golden. The '
    'default numbers know no reduction: 1e-5 of float32 is less than a '
    'long sum loses. Errors within the rounding bound do not count.'
  ),
  tolerance={
    FLOAT32: Tolerance(rtol=1.3e-6, atol=1e-5),
    BFLOAT16: Tolerance(rtol=1.6e-2, atol=1e-5),
    FLOAT16: Tolerance(rtol=1e-3, atol=1e-5),
  },
  rules=((Rule('mismatches', _all(0)),),),
  default=True,
)

_CATLASS = Standard(
  name='catlass',
  version='compare_data.hpp, generic (float32, float16) and bf16',
  source='catlass examples, compare_data.hpp',
  scope='matmul examples',
  reading=(
    '|a - g| <= rtol max(1, |g|), bf16: rtol max(1/256, |g|), '
    'everywhere. The text doubles rtol from depth 2048 on; the smaller '
    'number is used at any depth. Errors within the rounding bound do not '
    'count.'
  ),
  tolerance={
    FLOAT32: Tolerance(rtol=1 / 256, floor=1.0),
    BFLOAT16: Tolerance(rtol=1 / 128, floor=1 / 256),
    FLOAT16: Tolerance(rtol=1 / 256, floor=1.0),
  },
  rules=((Rule('mismatches', _all(0)),),),
)

_DEEPGEMM = Standard(
  name='deepgemm',
  version='calc_diff, bf16 limit',
  source='deepseek-ai/DeepGEMM tests',
  scope='one GEMM against a float32 or float64 reference',
  reading=(
    '1 - 2 sum(a g) / sum(a a + g g) < 1e-5, for float32 too; the text has '
    'no number for float16, so there the record judges nothing. One figure '
    'for the tensor: a lost row of many goes unseen, tiles are located by '
    'relative error above 1e-2.'
  ),
  tolerance=dict.fromkeys((FLOAT32, BFLOAT16), Tolerance(rtol=1e-2)),
  rules=((Rule('calc_diff', dict.fromkeys((FLOAT32, BFLOAT16), 1e-5)),),),
)


def _of_test(
  name: str,
  version: str,
  source: str,
  tolerance: dict[str, Tolerance],
  *,
  share: float = 0.0,
  scope: str = 'a fused MoE layer, x to y, on small inputs',
  reading: str = 'at every element, g the golden for their loop in torch.',
) -> Standard:
  """Returns a rule of a test; `share` of the elements may break it."""
  clause = (Rule('mismatches', _all(0)),)
  if share:
    clause = (Rule('mismatch_share', _all(share)),)
  return Standard(
    name=name,
    version=version,
    source=source,
    scope=scope,
    reading=(
      f'|a - g| <= atol + rtol |g| {reading} The numbers are absolute: they '
      'say what they mean on inputs of their size alone, see '
      'docs/elsewhere.md. Errors within the rounding bound do not count.'
    ),
    tolerance=tolerance,
    rules=(clause,),
    layer=True,
  )


_VLLM = _of_test(
  'vllm',
  '0026f37',
  'vllm-project/vllm tests/kernels/moe/test_moe.py run_moe_test',
  {BFLOAT16: Tolerance(atol=2e-2)},
)
_SGLANG = _of_test(
  'sglang',
  '0716759',
  'sgl-project/sglang test/registered/moe/test_fused_moe.py get_tolerance',
  {
    FLOAT32: Tolerance(rtol=1e-3, atol=1e-5),
    BFLOAT16: Tolerance(rtol=1e-1, atol=1e-2),
    FLOAT16: Tolerance(rtol=1e-1, atol=1e-2),
  },
)
_MEGATRON = _of_test(
  'megatron',
  '00fa19c',
  'NVIDIA/Megatron-LM tests/unit_tests/inference/test_vllm_fused_moe.py',
  {BFLOAT16: Tolerance(rtol=5e-2, atol=5e-2)},
)
_FLASHINFER = _of_test(
  'flashinfer',
  '042d4a2',
  'flashinfer-ai/flashinfer tests/moe/trtllm_gen_fused_moe_utils.py '
  'check_accuracy, get_tolerances of bfloat16',
  {BFLOAT16: Tolerance(rtol=0.85, atol=0.1)},
  share=0.075,
  reading=(
    "on at least 92.5 % of the elements; they take rtol of the kernel's value."
  ),
)
_TRANSFORMER_ENGINE = _of_test(
  'transformer_engine',
  '5b5d8d7',
  'NVIDIA/TransformerEngine tests/pytorch/test_permutation.py dtype_tols',
  {
    FLOAT32: Tolerance(rtol=1e-6, atol=1e-6),
    BFLOAT16: Tolerance(rtol=2e-2, atol=1e-5),
    FLOAT16: Tolerance(rtol=3e-3, atol=1e-5),
  },
  scope='permute and unpermute with probabilities: dispatch and combine',
  reading=(
    "at every element; they take rtol of the kernel's value. Their grouped "
    'GEMM (test_grouped_linear.py, 010de66) must have the bits of one Linear '
    'for each expert.'
  ),
)
_TRITON_DISTRIBUTED = _of_test(
  'triton_distributed',
  '1632e65',
  'ByteDance-Seed/Triton-distributed '
  'python/triton_dist/test/nvidia/test_ep_a2a.py',
  {BFLOAT16: Tolerance(rtol=1e-2, atol=1e-2)},
  scope='combine; dispatch must have the bits, as lane bitwise judges it',
  reading="at every element; they take rtol of the kernel's value.",
)
_DEEPGEMM_MEGA_MOE = _of_test(
  'deepgemm_mega_moe',
  '057ca59',
  'deepseek-ai/DeepGEMM tests/test_mega_moe.py',
  {BFLOAT16: Tolerance()},
  scope='a fused MoE layer against the same layer of unfused kernels',
  reading=(
    'with both 0: theirs is torch.equal to a chain of their own kernels, which '
    'another order of sums cannot meet and a bug of both passes.'
  ),
)

_ALL = (
  _ECOSYSTEM_V1,
  _ECOSYSTEM_V1_LETTER,
  _ECOSYSTEM_V2,
  _ECOSYSTEM_V3,
  _commercial(0, 10, 2),
  _COMMERCIAL_L1,
  _COMMERCIAL_L1_LETTER,
  _commercial(2, 2, 1.2),
  _MSPROBE,
  _TORCH,
  _TORCH.letter('As printed, against the golden.'),
  _CATLASS,
  _DEEPGEMM,
  _VLLM,
  _SGLANG,
  _MEGATRON,
  _FLASHINFER,
  _TRANSFORMER_ENGINE,
  _TRITON_DISTRIBUTED,
  _DEEPGEMM_MEGA_MOE,
)
STANDARDS = {standard.name: standard for standard in _ALL}
DEFAULT = tuple(s.name for s in _ALL if s.default)


def names(dtype: str) -> list[str]:
  """Returns the records that have numbers for a dtype."""
  return [s.name for s in _ALL if s.has(dtype)]


def get(name: str, dtype: str = FLOAT32) -> Standard:
  """Returns the record of that name.

  Raises:
    ValueError: there is none, or it has no numbers for the dtype; the text
      lists the names that have.
  """
  known = names(dtype)
  if name not in known:
    raise ValueError(
      f'standard: expected one of {known} for {dtype}, got {name!r}'
    )
  return STANDARDS[name]
