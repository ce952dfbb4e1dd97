"""What a kernel keeps of a token's bits: run to run, in any batch, anywhere.

A candidate runs on a layer and on variants of it, see `variants`; each of its
tensors is compared with itself.  A difference is 'rounding' where it is no more
than the bounds of both allow, and 'wrong' where it is.  Whether the values are
right, `hpmoe check` says.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import os
import pathlib
import tomllib

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import codes
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.determinism import variants
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import tensors

# What may be promised, and what nobody may.
BITS, ROUNDING, WRONG = 'bits', 'rounding', 'wrong'
GRADES = (BITS, ROUNDING, WRONG)
Promise = Mapping[str, str | Mapping[str, str]]
# Where none is given.
DEFAULT: Promise = {'run_to_run': BITS}
# What libraries of threads read.
_THREADS = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS')


@dataclasses.dataclass(frozen=True)
class Apart:
  """A tensor that a variant gave other bits.

  Attributes:
    says: the variant.
    grade: ROUNDING or WRONG.
    elements, of: those that differ, of those compared.
    ulp: the largest distance.
    index: coordinates of the first one in the variant.
    where: the same, as rank, token or expert of the base.
    got, expected: the variant's value there and the base's.
  """

  says: str
  grade: str
  elements: int
  of: int
  ulp: int
  index: tuple[int, ...]
  where: str
  got: float
  expected: float


@dataclasses.dataclass(frozen=True)
class Row:
  """What became of one property in one pass.

  Attributes:
    name: of the property.
    direction: the pass.
    tried: its variants; none: the layer is too small to have one.
    compared: tensors, in the order in which they are computed.
    apart: by tensor, the variant that is furthest off.
    promised: grade by tensor.
    why: why nothing was tried, or ''.
    likely: what would explain it, or ''.
  """

  name: str
  direction: str
  tried: tuple[str, ...]
  compared: tuple[str, ...]
  apart: Mapping[str, Apart]
  promised: Mapping[str, str]
  why: str = ''
  likely: str = ''

  @property
  def holds(self) -> str:
    """The worst grade, BITS where nothing differs, '' where nothing ran."""
    if not self.tried:
      return ''
    return max((a.grade for a in self.apart.values()), key=_rank, default=BITS)

  @property
  def broken(self) -> tuple[str, ...]:
    """Tensors that are not as promised."""
    return tuple(
      name
      for name, apart in self.apart.items()
      if _rank(apart.grade) > _rank(self.promised[name])
    )


def _rank(grade: str) -> int:
  return GRADES.index(grade)


def read_promise(path: str | None) -> Promise:
  """Returns what a file promises: [promise], each property a grade or a table.

      [promise]
      batch = "bits"
      tokens = {y = "bits", d_w_down = "rounding"}

  Raises:
    ValueError: it is none; names the property.
  """
  if path is None:
    return DEFAULT
  try:
    with open(path, 'rb') as file:
      held = tomllib.load(file)
  except (OSError, tomllib.TOMLDecodeError) as error:
    raise ValueError(f'promise: expected a TOML file, got {error}') from error
  promise = held.get('promise')
  if not isinstance(promise, dict) or {*held} != {'promise'}:
    raise ValueError(
      f'promise: expected one table [promise] in {path}, got {sorted(held)}'
    )
  check_promise(promise)
  return promise


def check_promise(promise: Promise) -> None:
  """Refuses a promise of what is not known.

  Raises:
    ValueError: a property, a tensor or a grade is unknown.
  """
  known = variants.PROPERTIES
  for name, said in promise.items():
    if name not in known:
      raise ValueError(
        f'promise: expected properties among {", ".join(known)}, got {name!r}'
      )
    of = said if isinstance(said, Mapping) else {None: said}
    for tensor, grade in of.items():
      if tensor is not None and tensor not in tensors.SPECS:
        raise ValueError(
          f'promise: {name}: expected names of tensors, got {tensor!r}'
        )
      if grade not in GRADES[:2]:
        raise ValueError(
          f'promise: {name}: expected {BITS!r} or {ROUNDING!r}, got {grade!r}'
        )


def promised(promise: Promise, name: str, tensor: str) -> str:
  """Returns the grade that a tensor must have under a property."""
  said = promise.get(name, ROUNDING)
  return said.get(tensor, ROUNDING) if isinstance(said, Mapping) else said


def count_steps(case: case_lib.Case) -> int:
  """Returns how often `run` calls `progress`, at most."""
  return 20 * len(case.passes)


def run(
  candidate: candidates.Candidate,
  case: case_lib.Case,
  promise: Promise = DEFAULT,
  properties: Sequence[str] = (),
  progress: Callable[[str], None] = lambda step: None,
) -> list[Row]:
  """Tries each property in each pass.

  A backward pass reads what the oracle's forward pass saved, dealt likewise.

  Args:
    candidate: who is asked.
    case: the layer.
    promise: what must hold, by property.
    properties: some of `variants.PROPERTIES`; none: all.
    progress: called with the name of each step as it begins.

  Raises:
    ValueError: the request was wrong, or the candidate cannot be run again.
    candidates.CandidateError: it gave no answer.
  """
  check_promise(promise)
  if isinstance(candidate, outputs.Outputs):
    raise ValueError(
      f'{candidate.name}: expected a kernel that can be run again, got what '
      'one has left in files'
    )
  candidate = candidate.ready(case)
  bench = bench_lib.Bench(case)
  rows = []
  for which in case.passes:
    made = bench.read_by((which,), 'real')
    which = which.of_layer(made.config)
    tried = _Tried(candidate, which, made, bench.plan, case.seed)
    progress(f'{which.name}: as it is')
    unsteady: frozenset[str] = frozenset()
    for name in variants.PROPERTIES:
      if properties and name not in properties:
        continue
      row = tried.row(name, promise, unsteady, progress)
      if name == 'run_to_run':
        unsteady = frozenset(row.apart)
      rows.append(row)
  return rows


class _Tried:
  """A candidate on one pass of a layer, and on its variants."""

  def __init__(
    self,
    candidate: candidates.Candidate,
    which: passes.Pass,
    made: inputs_lib.LayerInputs,
    plan: passes.Tensors,
    seed: int,
  ):
    self._candidate, self._which, self._made = candidate, which, made
    self._tiling = bench_lib.cut_tiles(candidate.options, made, plan)
    self._seed = seed
    self._got = self._run(candidate, made)
    self._limits: dict[str, np.ndarray] = {}

  def row(
    self,
    of: str,
    promise: Promise,
    unsteady: frozenset[str],
    progress: Callable[[str], None],
  ) -> Row:
    """Returns what became of a property."""
    apart: dict[str, Apart] = {}
    compared: set[str] = set()
    tried = []
    trials = variants.PROPERTIES[of]
    why = self._cannot(of)
    for variant in [] if why else trials(self._made.config, self._seed):
      progress(f'{self._which.name}, {of}: {variant.says}')
      try:
        found = [*self._compared(variant)]
      except candidates.CandidateError as error:
        # Who was made for one number of ranks has promised no other.
        if of != 'ranks' or of in promise:
          raise
        why = f'it cannot: {variant.says}: {error}'
        break
      tried.append(variant.says)
      for name, one in found:
        compared.add(name)
        if one is None:
          continue
        worse = name not in apart or _badness(one) > _badness(apart[name])
        apart |= {name: one} if worse else {}
    names = tuple(n for n in self._which.stages if n in compared)
    apart = {name: apart[name] for name in names if name in apart}
    return Row(
      of,
      self._which.name,
      tuple(tried),
      names,
      apart,
      {name: promised(promise, of, name) for name in names},
      why or ('' if tried else 'the layer is too small'),
      likely(of, self._which, names, apart, unsteady),
    )

  def _cannot(self, of: str) -> str:
    here = isinstance(self._candidate, in_process.Function)
    if of == 'threads' and here:
      return 'it runs in this process, whose threads it shares'
    return ''

  def _run(
    self,
    candidate: candidates.Candidate,
    made: inputs_lib.LayerInputs,
  ) -> dict[str, np.ndarray]:
    given = codes.replace_values(made.policy, made.arrays)
    got = candidate.run(made.config, made.policy, given, self._which)
    return {n: a for n, a in got.items() if n in self._which.stages}

  def _compared(
    self, variant: variants.Variant
  ) -> Iterator[tuple[str, Apart | None]]:
    """Yields what is compared, and what differs of it."""
    pair = variants.pair(self._made, variant)
    with _with_threads(self._candidate, variant.threads) as candidate:
      got = self._run(candidate, variants.inputs(self._made, pair))
    for name in (n for n in got if n in self._got):
      mask = pair.compared(name)
      if mask is None:
        continue
      expected = pair.mapped(name, self._got[name])
      bad = mask & (ulp.bits(got[name]) != ulp.bits(expected))
      yield (
        name,
        self._apart(pair, name, got[name], expected, bad, mask)
        if bad.any()
        else None,
      )

  def _apart(self, pair, name, got, expected, bad, mask) -> Apart:
    error = np.abs(got[bad].astype(np.float64) - expected[bad])
    limit = pair.mapped(name, self._limit(name))[bad]
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return Apart(
      pair.variant.says,
      ROUNDING if bool(np.all(error <= 2 * limit)) else WRONG,
      int(bad.sum()),
      int(mask.sum()),
      int(ulp.distance(got[bad], expected[bad]).max()),
      index,
      _where(pair, name, index),
      float(got[index]),
      float(expected[index]),
    )

  def _limit(self, name: str) -> np.ndarray:
    """Returns `[R, ...]` float64, how far a right kernel's may be off."""
    if name not in self._limits:
      self._limits[name] = self._bounds(name)
    return self._limits[name]

  def _bounds(self, name: str) -> np.ndarray:
    tiling, made = self._tiling, self._made
    golden = pass_reference.build_golden(
      self._which, tiling, made.policy, made.arrays, {}
    )
    limits = np.zeros(self._got[name].shape)
    for rank in tiling.judged_ranks:
      rows = tiling.rows(name, limits, rank)
      with np.errstate(over='ignore', invalid='ignore'):
        rows[:] = golden.rows(name, rank, 0, len(rows)).bound()
    return limits


def _badness(apart: Apart) -> tuple:
  return _rank(apart.grade), apart.elements / apart.of, apart.ulp


@contextlib.contextmanager
def _with_threads(candidate: candidates.Candidate, threads: int | None):
  """Yields the candidate, with as many threads as it may use."""
  if threads is None:
    yield candidate
    return
  if hasattr(candidate, 'threads'):  # ours
    yield dataclasses.replace(candidate, threads=threads)  # type: ignore
    return
  # A process of its own inherits both.
  cores = os.sched_getaffinity(0)
  kept = {name: os.environ.get(name) for name in _THREADS}
  os.environ.update(dict.fromkeys(_THREADS, str(threads)))
  os.sched_setaffinity(0, sorted(cores)[:threads])
  try:
    yield candidate
  finally:
    os.sched_setaffinity(0, cores)
    for name, value in kept.items():
      os.environ.pop(name)
      os.environ.update({name: value} if value is not None else {})


def _where(pair: variants.Pair, name: str, index: tuple[int, ...]) -> str:
  """Returns which token or expert of the base an element is of."""
  axes = tensors.SPECS[name].shape.split()
  base, variant = pair.base.config, pair.variant
  if axes[1] == 'L':
    expert = index[0] * pair.other.config.experts_per_rank + index[1]
    return f'expert {variant.experts[expert]}'
  if axes[1] == 'T':
    flat, slot = int(variant.tokens[index[:2]]), ''
  else:
    owner, row = pair.other.rows
    at, k = np.argwhere((owner == index[0]) & (row == index[1]))[0]
    flat = int(variant.tokens.reshape(-1)[at])
    slot = f', slot {variant.slots[k]}'
  rank, token = divmod(flat, base.num_tokens)
  return f'rank {rank} token {token}{slot}'


# Where a kernel's bits first change: a GEMM over rows, a sum of a token's rows,
# or a sum over tokens.
_KINDS = dict.fromkeys((*tensors.GEMMS, *tensors.TRANSPOSED_GEMMS), 'gemm')
_KINDS |= dict.fromkeys(tensors.WEIGHT_GRADS, 'weights')
_KINDS |= dict.fromkeys(('y', 'dx'), 'sum')
_KINDS |= {n: _KINDS[r] for n, r in tensors.AS_ROUTED.items() if r in _KINDS}

# By property, and by kind of the first tensor that differs, 'any' for all.
_LIKELY = tomllib.loads(
  (pathlib.Path(__file__).parents[1] / 'data/likely.toml').read_text()
)


def likely(
  name: str,
  which: passes.Pass,
  held: Sequence[str],
  apart: Mapping[str, Apart],
  unsteady: frozenset[str] = frozenset(),
) -> str:
  """Returns what would explain differences, or ''.

  Args:
    name: of the property.
    which: the pass of the layer.
    held: tensors that were compared.
    apart: those that differ, in order.
    unsteady: those that differ from run to run.
  """
  if not apart:
    return ''
  if name != 'run_to_run' and {*apart} <= unsteady:
    return 'not told apart from what changes from run to run'
  first = next(iter(apart))
  kind = _KINDS.get(first, '')
  known = _LIKELY.get(name, {})
  found = known.get(kind, known.get('any', ''))
  unseen = [n for n in _before(which, first) if n not in held and n in _KINDS]
  if kind == 'sum' and unseen:
    gemm = known.get('gemm')
    either = '; or '.join(dict.fromkeys(w for w in (gemm, found) if w))
    return f'{either}; return {", ".join(unseen)} to tell which'
  return found


@functools.cache
def _before(which: passes.Pass, name: str) -> tuple[str, ...]:
  """Returns the stages of its pass that a tensor is computed from, in order."""
  found: set[str] = set()
  reads = tensors.reads(tensors.EVERY_PART, 'combine')
  todo = [name]
  while todo:
    read = [r for r in reads[todo.pop()] if r in which.stages]
    todo += [r for r in read if r not in found]
    found |= {*read}
  return tuple(n for n in which.stages if n in found)


def is_kept(rows: Sequence[Row]) -> bool:
  """Says whether all is as promised."""
  return not any(row.broken for row in rows)
