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
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.determinism import variants
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import tensors

# Grades that may be promised, and one that may not.
BITS, ROUNDING, WRONG = 'bits', 'rounding', 'wrong'
GRADES = (BITS, ROUNDING, WRONG)
Promise = Mapping[str, str | Mapping[str, str]]
# Where none is given.
DEFAULT: Promise = {'run_to_run': BITS}
# What libraries of threads read.
_THREADS = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS')


@dataclasses.dataclass(frozen=True)
class Apart:
  """A tensor whose bits differ between a variant and the base.

  Attributes:
    says: description of the variant.
    grade: ROUNDING or WRONG.
    elements: how many differ.
    compared_elements: how many were compared.
    ulp: the largest distance.
    index: coordinates in the variant of the first element that differs.
    place: rank, token or expert of that element in the base.
    actual: its value in the variant.
    expected: its value in the base.
  """

  says: str
  grade: str
  elements: int
  compared_elements: int
  ulp: int
  index: tuple[int, ...]
  place: str
  actual: float
  expected: float


@dataclasses.dataclass(frozen=True)
class Row:
  """The result of testing one property in one pass.

  Attributes:
    name: of the property.
    direction: the pass.
    variants_tried: descriptions; empty if the layer is too small for any.
    tensors_compared: names, in the order of computation.
    apart: by tensor that differs, the variant with the largest difference.
    promised: grade by tensor.
    reason: why no variant ran, or ''.
    likely: a likely cause of the differences, or ''.
  """

  name: str
  direction: str
  variants_tried: tuple[str, ...]
  tensors_compared: tuple[str, ...]
  apart: Mapping[str, Apart]
  promised: Mapping[str, str]
  reason: str = ''
  likely: str = ''

  @property
  def holds(self) -> str:
    """The worst grade; BITS if nothing differs, '' if nothing ran."""
    if not self.variants_tried:
      return ''
    return max((a.grade for a in self.apart.values()), key=_rank, default=BITS)

  @property
  def broken_promises(self) -> tuple[str, ...]:
    """Tensors whose grade is worse than promised."""
    return tuple(
      name
      for name, apart in self.apart.items()
      if _rank(apart.grade) > _rank(self.promised[name])
    )


def _rank(grade: str) -> int:
  return GRADES.index(grade)


def read_promise(path: str | None) -> Promise:
  """Returns the table [promise] of a file: a grade, or a table, per property.

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
      tables = tomllib.load(file)
  except (OSError, tomllib.TOMLDecodeError) as error:
    raise ValueError(f'promise: expected a TOML file, got {error}') from error
  promise = tables.get('promise')
  if not isinstance(promise, dict) or {*tables} != {'promise'}:
    raise ValueError(
      f'promise: expected one table [promise] in {path}, got {sorted(tables)}'
    )
  check_promise(promise)
  return promise


def check_promise(promise: Promise) -> None:
  """Checks that a promise names known properties, tensors and grades.

  Raises:
    ValueError: a property, a tensor or a grade is unknown.
  """
  properties = variants.PROPERTIES
  for name, grades in promise.items():
    if name not in properties:
      raise ValueError(
        f'promise: expected properties among {", ".join(properties)}, '
        f'got {name!r}'
      )
    grade_of_tensor = grades if isinstance(grades, Mapping) else {None: grades}
    for tensor, grade in grade_of_tensor.items():
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
  grade = promise.get(name, ROUNDING)
  return grade.get(tensor, ROUNDING) if isinstance(grade, Mapping) else grade


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
      f'{candidate.name}: expected a kernel that can be run again, got the '
      'outputs of one'
    )
  candidate = candidate.ready(case)
  bench = bench_lib.Bench(case)
  rows = []
  for pass_ in case.passes:
    layer_inputs = bench.read_by((pass_,), 'real')
    pass_ = pass_.of_layer(layer_inputs.config)
    trial = _Trial(candidate, pass_, layer_inputs, bench.plan, case.seed)
    progress(f'{pass_.name}: as it is')
    unsteady: frozenset[str] = frozenset()
    for name in variants.PROPERTIES:
      if properties and name not in properties:
        continue
      row = trial.row(name, promise, unsteady, progress)
      if name == 'run_to_run':
        unsteady = frozenset(row.apart)
      rows.append(row)
  return rows


class _Trial:
  """Runs a candidate on one pass of a layer, and on variants of the layer."""

  def __init__(
    self,
    candidate: candidates.Candidate,
    pass_: passes.Pass,
    layer_inputs: inputs_lib.LayerInputs,
    plan: passes.Tensors,
    seed: int,
  ):
    self._candidate, self._pass, self._base = candidate, pass_, layer_inputs
    self._tiling = bench_lib.cut_tiles(candidate.options, layer_inputs, plan)
    self._seed = seed
    self._base_outputs = self._run(candidate, layer_inputs)
    self._limits: dict[str, np.ndarray] = {}

  def row(
    self,
    property_name: str,
    promise: Promise,
    unsteady: frozenset[str],
    progress: Callable[[str], None],
  ) -> Row:
    """Returns the result of testing a property."""
    apart: dict[str, Apart] = {}
    names_compared: set[str] = set()
    variants_tried = []
    trials = variants.PROPERTIES[property_name]
    reason = self._find_obstacle(property_name)
    for variant in [] if reason else trials(self._base.config, self._seed):
      progress(f'{self._pass.name}, {property_name}: {variant.says}')
      try:
        differences = [*self._compare(variant)]
      except candidates.CandidateError as error:
        # A kernel built for one number of ranks has promised no other.
        if property_name != 'ranks' or property_name in promise:
          raise
        reason = f'it cannot: {variant.says}: {error}'
        break
      variants_tried.append(variant.says)
      for name, difference in differences:
        names_compared.add(name)
        if difference is None:
          continue
        worse = name not in apart or _badness(difference) > _badness(
          apart[name]
        )
        apart |= {name: difference} if worse else {}
    names = tuple(n for n in self._pass.stages if n in names_compared)
    apart = {name: apart[name] for name in names if name in apart}
    return Row(
      property_name,
      self._pass.name,
      tuple(variants_tried),
      names,
      apart,
      {name: promised(promise, property_name, name) for name in names},
      reason or ('' if variants_tried else 'the layer is too small'),
      likely(property_name, self._pass, names, apart, unsteady),
    )

  def _find_obstacle(self, property_name: str) -> str:
    is_in_process = isinstance(self._candidate, in_process.Function)
    if property_name == 'threads' and is_in_process:
      return 'it runs in this process, whose threads it shares'
    return ''

  def _run(
    self,
    candidate: candidates.Candidate,
    layer_inputs: inputs_lib.LayerInputs,
  ) -> dict[str, np.ndarray]:
    arrays = quantised_inputs.replace_values(
      layer_inputs.policy, layer_inputs.arrays
    )
    outputs = candidate.run(
      layer_inputs.config, layer_inputs.policy, arrays, self._pass
    )
    return {n: a for n, a in outputs.items() if n in self._pass.stages}

  def _compare(
    self, variant: variants.Variant
  ) -> Iterator[tuple[str, Apart | None]]:
    """Yields each compared tensor, and its difference if it has one."""
    pair = variants.pair(self._base, variant)
    with _with_threads(self._candidate, variant.threads) as candidate:
      outputs = self._run(candidate, variants.inputs(self._base, pair))
    for name in (n for n in outputs if n in self._base_outputs):
      mask = pair.compare_mask(name)
      if mask is None:
        continue
      expected = pair.map_tensor(name, self._base_outputs[name])
      bad = mask & (ulp.bits(outputs[name]) != ulp.bits(expected))
      yield (
        name,
        self._apart(pair, name, outputs[name], expected, bad, mask)
        if bad.any()
        else None,
      )

  def _apart(self, pair, name, actual, expected, bad, mask) -> Apart:
    error = np.abs(actual[bad].astype(np.float64) - expected[bad])
    limit = pair.map_tensor(name, self._limit(name))[bad]
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return Apart(
      pair.variant.says,
      ROUNDING if bool(np.all(error <= 2 * limit)) else WRONG,
      int(bad.sum()),
      int(mask.sum()),
      int(ulp.distance(actual[bad], expected[bad]).max()),
      index,
      _locate(pair, name, index),
      float(actual[index]),
      float(expected[index]),
    )

  def _limit(self, name: str) -> np.ndarray:
    """Returns `[R, ...]` float64, the largest error of a right kernel."""
    if name not in self._limits:
      self._limits[name] = self._bounds(name)
    return self._limits[name]

  def _bounds(self, name: str) -> np.ndarray:
    tiling, base = self._tiling, self._base
    golden = pass_reference.build_golden(
      self._pass, tiling, base.policy, base.arrays, {}
    )
    limits = np.zeros(self._base_outputs[name].shape)
    for rank in tiling.judged_ranks:
      rows = tiling.rows(name, limits, rank)
      with np.errstate(over='ignore', invalid='ignore'):
        rows[:] = golden.rows(name, rank, 0, len(rows)).bound()
    return limits


def _badness(apart: Apart) -> tuple:
  return _rank(apart.grade), apart.elements / apart.compared_elements, apart.ulp


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
  saved_environment = {name: os.environ.get(name) for name in _THREADS}
  os.environ.update(dict.fromkeys(_THREADS, str(threads)))
  os.sched_setaffinity(0, sorted(cores)[:threads])
  try:
    yield candidate
  finally:
    os.sched_setaffinity(0, cores)
    for name, value in saved_environment.items():
      os.environ.pop(name)
      os.environ.update({name: value} if value is not None else {})


def _locate(pair: variants.Pair, name: str, index: tuple[int, ...]) -> str:
  """Returns the token or expert of the base that an element belongs to."""
  axes = tensors.SPECS[name].shape.split()
  base, variant = pair.base.config, pair.variant
  if axes[1] == 'L':
    expert = index[0] * pair.other.config.experts_per_rank + index[1]
    return f'expert {variant.experts[expert]}'
  if axes[1] == 'T':
    flat, slot = int(variant.tokens[index[:2]]), ''
  else:
    owner, row = pair.other.rows
    place, k = np.argwhere((owner == index[0]) & (row == index[1]))[0]
    flat = int(variant.tokens.reshape(-1)[place])
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
  pass_: passes.Pass,
  names_compared: Sequence[str],
  apart: Mapping[str, Apart],
  unsteady: frozenset[str] = frozenset(),
) -> str:
  """Returns a likely cause of differences, or ''.

  Args:
    name: of the property.
    pass_: the pass of the layer.
    names_compared: tensors that were compared.
    apart: those that differ, in order.
    unsteady: those that differ from run to run.
  """
  if not apart:
    return ''
  if name != 'run_to_run' and {*apart} <= unsteady:
    return 'not told apart from what changes from run to run'
  first = next(iter(apart))
  kind = _KINDS.get(first, '')
  causes = _LIKELY.get(name, {})
  cause = causes.get(kind, causes.get('any', ''))
  unseen = [
    n for n in _before(pass_, first) if n not in names_compared and n in _KINDS
  ]
  if kind == 'sum' and unseen:
    gemm = causes.get('gemm')
    both_causes = '; or '.join(dict.fromkeys(w for w in (gemm, cause) if w))
    return f'{both_causes}; return {", ".join(unseen)} to tell which'
  return cause


@functools.cache
def _before(pass_: passes.Pass, name: str) -> tuple[str, ...]:
  """Returns the stages of a pass that a tensor depends on, in order."""
  stages: set[str] = set()
  reads = tensors.reads(tensors.EVERY_PART, 'combine')
  todo = [name]
  while todo:
    read = [r for r in reads[todo.pop()] if r in pass_.stages]
    todo += [r for r in read if r not in stages]
    stages |= {*read}
  return tuple(n for n in pass_.stages if n in stages)


def is_kept(rows: Sequence[Row]) -> bool:
  """Returns whether every property holds as promised."""
  return not any(row.broken_promises for row in rows)
