"""The smallest case that still fails in the same way.

One after another sizes are made smaller, the smallest first, and values
simpler; what fails at the same stage and looks the same is kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import pathlib
import re
from typing import Any

import numpy as np

from hpmoe.parity_tests.candidates import backends
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import exact_limits
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import reproduce
from hpmoe.parity_tests.explain import explain
from hpmoe.parity_tests.explain import roundings
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check as check_lib
from hpmoe.parity_tests.judge import equality
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import tensors

Arrays = Mapping[str, np.ndarray]
# Of a failure, what must stay: its lane, its stage and what it looks like.
Look = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Layer:
  """Inputs by axes that may be cut: M = R T, E = R L, and 2F as 2 and F.

  Of weights of shared experts as many ranks' count as there are ranks.

  Attributes:
    ranks: R.
    held: x, dy, ids, weights and whatever else a layer reads, by name.
  """

  ranks: int
  held: Arrays

  @classmethod
  def of(cls, made: inputs_lib.LayerInputs) -> 'Layer':
    sizes = {**made.config.dims(), '2': 2}
    sizes['M'] = sizes['R'] * sizes['T']
    return cls(
      made.config.num_ranks,
      {
        name: array.reshape([sizes[axis] for axis in _axes(name)])
        for name, array in made.arrays.items()
      },
    )

  @property
  def sizes(self) -> dict[str, int]:
    """R, T, E, K, D and F, and S if there are shared experts."""
    num, width = self.held['x'].shape
    experts, hidden = self.held['w_down'].shape[:2]
    shared = self.held.get('w_shared_down')
    more = {} if shared is None else dict(S=shared.shape[1])
    return dict(
      R=self.ranks,
      T=num // self.ranks,
      E=experts,
      K=self.held['topk_ids'].shape[1],
      D=width,
      F=hidden,
      **more,
    )

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns them as a case takes them."""
    sizes = self.sizes
    sizes['L'] = sizes['E'] // sizes['R']
    return {
      name: np.ascontiguousarray(
        array[: self.ranks] if _axes(name)[0] == 'R' else array
      ).reshape(tensors.SPECS[name].dims(**sizes))
      for name, array in self.held.items()
    }

  def cut(self, axis: str, at: np.ndarray | slice) -> 'Layer':
    """Returns what is left of an axis."""
    made = {}
    for name, array in self.held.items():
      index = [at if mine == axis else slice(None) for mine in _axes(name)]
      made[name] = array[tuple(index)]
    return dataclasses.replace(self, held=made)

  def but(self, name: str, array: np.ndarray) -> 'Layer':
    """Returns the layer with another tensor of a name."""
    return dataclasses.replace(self, held={**self.held, name: array})


_ONE = {'R T': 'M', 'R L': 'E'}


def _axes(name: str) -> tuple[str, ...]:
  shape = tensors.SPECS[name].shape.replace('2', '2 ')
  return (*_ONE.get(shape[:3], shape[:3]).split(), *shape[3:].split())


@dataclasses.dataclass(frozen=True)
class Found:
  """A case that fails.

  Attributes:
    case: as a check takes it.
    layer: its inputs.
    failure: the first one.
    tried: cases that were checked.
    also: stages that fail in the same way in the case as it was.
    tasks: of our own launch, those wrong by themselves in it; if none is, two
      that no event orders.
  """

  case: case_lib.Case
  layer: Layer
  failure: verdicts.Failure
  tried: int = 1
  also: tuple[str, ...] = ()
  tasks: tuple[str, ...] = ()


class Right(ValueError):
  """The case does not fail."""


# What is said of many bugs, and places that say more than where it is.
_VAGUE = ('in ', 'off by ', 'near ', 'look at ')
_TELLING = ('in the first ', 'in the last ', 'in odd ', 'in even ')


def looks(failure: verdicts.Failure) -> tuple[Look, ...]:
  """Returns what a smaller failure must share, for each bug that is told."""
  return tuple(
    (failure.lane, failure.stage, _words(told))
    for told in failure.pattern.split(explain.BESIDE)
  )


def _words(pattern: str) -> str:
  """Returns what is told of a bug; numbers may differ.

  Places may as well, but where little else is said.
  """
  first, *more = pattern.split('; ')
  words = re.split(' where |,|:', first)[0]
  if first.startswith(_VAGUE):
    places = (one.split(',')[0] for one in (first, *more))
    said = '' if words.startswith(('in ', 'look at ')) else words
    words = next((one for one in places if one.startswith(_TELLING)), said)
  return re.sub(r'-?\d+(\.\d+)?', 'n', words)


def apart(
  report: check_lib.Report,
) -> list[tuple[verdicts.Failure, Look, list[str]]]:
  """Returns bugs: a failure, what it looks like, other stages of that look.

  Beside the first failure that is each stage that is wrong in itself: in lane
  bounded a stage is computed from what was captured before it.
  """
  first = report.first_failure
  failures = [r.failure for r in report.results if r.failure is not None]
  failures.sort(key=verdicts.Failure.order)
  spread = {f.stage for f in failures if f.lane == 'exact'}
  local = [
    f
    for f in failures
    if f.lane == 'bounded' or f.rule.startswith('equals its own ')
    if f.stage not in verdicts.TENSOR_OF and first and f.stage != first.stage
    # What is right after a wrong tensor was computed from another copy of it.
    if first.lane != 'exact' or f.stage in spread
  ]
  found: dict[str, tuple[verdicts.Failure, Look, list[str]]] = {}
  for failure in (*([first] if first else []), *local):
    for look in looks(failure):
      kind = _NAMES.sub('', look[2])
      bug = found.setdefault(kind, (failure, look, []))
      if failure.stage not in (bug[0].stage, *bug[2]):
        bug[2].append(failure.stage)
  return [*found.values()]


# Of a GEMM's bug each GEMM has its own tensors.
_NAMES = re.compile(rf'\b({"|".join(tensors.SPECS)})\b')


def write(found: Sequence[Found], folder: str, command: str) -> None:
  """Writes cases, and scripts that show the failures without us.

  Args:
    found: what fails.
    folder: to write to, empty or not there.
    command: what a report should say wrote it.

  Raises:
    ValueError: the folder has something in it.
  """
  for bug, one in enumerate(found):
    _write(one, folder_of(bug, folder), command)


def _write(found: Found, folder: str, command: str) -> None:
  bench = bench_lib.Bench(found.case)
  data = _data(found.failure)
  made = {}
  for kind in inputs_lib.DATA:
    # Layers that are too small have no exact data.
    with contextlib.suppress(exact_limits.ExactnessError):
      made[kind] = bench.read_by(found.case.passes, kind)
  folder_writer.write(folder, found.case.direction, made, command=command)
  failure = found.failure
  script = pathlib.Path(reproduce.__file__).read_text(encoding='utf-8')
  values = dict(
    DATA=data,
    STAGE=verdicts.tensor_of(failure.stage),
    INDEX=failure.index,
    GOT=failure.got,
    EXPECTED=failure.expected,
  )
  for name, value in values.items():
    script = re.sub(rf'^{name} = .*', f'{name} = {value!r}', script, flags=re.M)
  (pathlib.Path(folder) / 'reproduce.py').write_text(script, encoding='utf-8')


def _data(failure: verdicts.Failure) -> str:
  """Returns the kind of data on which it fails."""
  if failure.lane != 'exact':
    return 'real'
  is_wide = failure.rule == equality.WIDE_RULE
  return 'wide' if is_wide else 'exact'


def shrink(
  request: request_lib.Request,
  progress: Callable[[str], None] = lambda step: None,
) -> list[Found]:
  """Returns a smallest case that a candidate fails as before, for each bug.

  Args:
    request: the case that fails.
    progress: called with what is tried next.

  Raises:
    Right: it does not fail.
    candidates.CandidateError: the candidate gave no answer to it.
  """
  progress('as it is')
  tensors.require_layer(request.case, 'to shrink')
  if form := request.case.quantised:
    raise ValueError(
      f'weights: expected none, codes of groups do not shrink, got {form}'
    )
  bugs = apart(check_lib.run(request))
  if not bugs:
    raise Right(
      f'{request.candidate.name}: expected a case that it fails, got one that '
      'it passes'
    )
  made = []
  for failure, wanted, also in bugs:
    found = _Shrinking(request, failure, wanted, progress).smallest()
    tasks = _tasks(request, found, progress)
    made.append(dataclasses.replace(found, also=tuple(also), tasks=tasks))
  return made


def _tasks(
  request: request_lib.Request,
  found: Found,
  progress: Callable[[str], None],
) -> tuple[str, ...]:
  """Returns the tasks of our launch that are wrong by themselves.

  Each on the oracle's inputs, so that what one does wrong does not spread.  If
  none is, what nothing orders.  None of a launch that cannot be replayed so.
  """
  ours: Any = request.candidate
  if not backends.is_default(ours) or not ours.can.modes:
    return ()
  if ours.fused or ours.checking.is_part:
    return ()
  progress('task by task')
  alone = dataclasses.replace(ours.checking, isolate=True)
  candidate = dataclasses.replace(ours, checking=alone)
  judgement = dataclasses.replace(
    request.judgement, lanes=(found.failure.lane,), repeat=1
  )
  asked = request_lib.Request(found.case, candidate, judgement)
  try:
    report = check_lib.run(asked)
  except candidates.CandidateError:
    return ()
  wrong = [str(one) for one in report.wrong if one.bad]
  return tuple(wrong or [str(race) for race in report.races[:1]])


class _Shrinking:
  """One failure, made smaller.

  Each shape of the oracle is compiled, which takes long.  So golden values
  stand in for it, of a smaller case only the data are judged on which it fails,
  and roundings are looked for only if one of them is what must stay.
  """

  def __init__(
    self,
    request: request_lib.Request,
    first: verdicts.Failure,
    wanted: Look,
    progress: Callable[[str], None],
  ):
    judgement = judgement_lib.Judgement(
      lanes=(first.lane,), standards=request.judgement.standards, repeat=1
    )
    self._request = dataclasses.replace(request, judgement=judgement)
    self._first, self._wanted = first, wanted
    self._data = _data(first)
    is_rounding = roundings.ASKS in first.pattern
    stage = verdicts.tensor_of(first.stage)
    self._roundings = (stage,) if is_rounding else ()
    self._progress, self._tried = progress, 1
    self._oracle = pass_reference.stored_golden

  def smallest(self) -> Found:
    """Returns it, once the oracle says so as well."""
    found = self._search()
    self._oracle = oracle_lib.stage
    found = self._fails(found.case, found.layer) or self._search()
    return dataclasses.replace(found, tried=self._tried)

  def _search(self) -> Found:
    found = self._begun()
    before = None
    while before != found.layer.sizes:
      before = found.layer.sizes
      for axis in _AXES:
        found = self._smaller(found, axis)
    return self._simpler(found)

  def _begun(self) -> Found:
    """Returns the case with its inputs given, in one pass if that fails."""
    case, first = self._request.case, self._first
    layer = Layer.of(case.make())
    which = verdicts.pass_of(first.stage).name
    for direction in dict.fromkeys((which, case.direction)):
      of = dataclasses.replace(case, direction=direction)
      found = self._fails(of, layer)
      if found is not None:
        return found
    return Found(case, layer, first)

  def _fails(self, case: case_lib.Case, layer: Layer) -> Found | None:
    """Returns a case on a layer's inputs if it fails as wanted."""
    self._tried += 1
    case = dataclasses.replace(
      case, input=layer.arrays(), folder=None, capacity=None
    )
    try:
      asked = dataclasses.replace(
        self._request,
        case=case,
        candidate=self._request.candidate.ready(case),
      )
      with oracle_lib.by(self._oracle):
        found = bench_lib.Bench(case).judged(
          asked, only=self._data, roundings=self._roundings
        )
    except (ValueError, candidates.CandidateError):
      return None  # smaller than the kernel, or exact data, can be
    failures = [r.failure for r in found.results if r.failure is not None]
    failures.sort(key=verdicts.Failure.order)
    if self._data != 'real':
      del failures[1:]  # The rest may follow from it.
    for failure in failures:
      if self._wanted in looks(failure):
        return Found(case, layer, failure)
    return None

  def _smaller(self, found: Found, axis: str) -> Found:
    """Returns the case with an axis as small as still fails."""
    for size in _sizes(axis, found.layer):
      for layer in _AXES[axis](found, size):
        self._progress(f'{axis}={size} of {found.layer.sizes[axis]}')
        smaller = self._fails(found.case, layer)
        if smaller is not None:
          return smaller
    return found

  def _simpler(self, found: Found) -> Found:
    """Returns the case with small integers for values, if they still fail."""
    if self._data != 'real':
      return found  # its data are such
    for name, held in found.layer.held.items():
      if held.dtype.kind == 'i':
        continue
      self._progress(f'{name} of integers')
      simple = _integers(held.astype(np.float32)).astype(held.dtype)
      layer = found.layer.but(name, simple)
      found = self._fails(found.case, layer) or found
    return found


def _sizes(axis: str, layer: Layer) -> Iterator[int]:
  """Yields smaller sizes of an axis, the smallest first."""
  sizes = layer.sizes
  most, size = sizes.get(axis, 0), 1
  while size < most:
    fits = {
      'R': sizes['E'] % size == 0 and len(layer.held['x']) % size == 0,
      'E': size >= sizes['K'] and size % sizes['R'] == 0,
    }
    if fits.get(axis, True):
      yield size
    size += 1 if size < 4 else size // 2
  if most > 4:
    yield most - 1 if axis == 'T' else most - most % 2


def _ranks(found: Found, size: int) -> Iterator[Layer]:
  yield dataclasses.replace(found.layer, ranks=size)


def _tokens(found: Found, size: int) -> Iterator[Layer]:
  """Yields windows of tokens of each rank: where it fails, then the ends."""
  num = found.layer.sizes['T']
  rows = np.arange(num * found.layer.ranks).reshape(-1, num)
  for start in _starts(found.failure.token, size, num):
    some = rows[:, start : start + size]
    yield found.layer.cut('M', some.reshape(-1))


def _starts(at: int | None, size: int, most: int) -> Iterator[int]:
  """Yields where a window may begin: it ends or begins with `at`, if it can."""
  last = most - size
  some = () if at is None else (max(at - size + 1, 0), at)
  yield from dict.fromkeys(min(start, last) for start in (*some, 0, last))


def _experts(found: Found, size: int) -> Iterator[Layer]:
  """Yields some experts; tokens of others go to one of these."""
  layer = found.layer
  for start in _starts(found.failure.expert, size, layer.sizes['E']):
    ids = layer.held['topk_ids']
    ids = np.where(ids < 0, ids, _distinct(ids - np.int32(start), size))
    yield layer.cut('E', slice(start, start + size)).but('topk_ids', ids)


def _distinct(ids: np.ndarray, size: int) -> np.ndarray:
  """Returns `[M, K]` int32 ids below `size`, those that are so kept."""
  made = ids.copy()
  for row in made:
    free = [e for e in range(size) if e not in row]
    for slot in np.flatnonzero((row < 0) | (row >= size)):
      row[slot] = free.pop(row[slot] % len(free))
  return made


def _slots(found: Found, size: int) -> Iterator[Layer]:
  for start in _starts(found.failure.slot, size, found.layer.sizes['K']):
    yield found.layer.cut('K', slice(start, start + size))


def _columns(axis: str) -> Callable[[Found, int], Iterator[Layer]]:
  def columns(found: Found, size: int) -> Iterator[Layer]:
    for start in _starts(None, size, found.layer.sizes[axis]):
      yield found.layer.cut(axis, slice(start, start + size))

  return columns


_AXES: Mapping[str, Callable[[Found, int], Iterator[Layer]]] = dict(
  T=_tokens,
  R=_ranks,
  E=_experts,
  K=_slots,
  D=_columns('D'),
  F=_columns('F'),
  S=_columns('S'),
)


def _integers(values: np.ndarray) -> np.ndarray:
  """Returns integers of -4 to 4, as far apart as the values are."""
  scale = 4 / max(float(np.abs(values).max()), 2.0**-100)
  return np.rint(values * scale)


def folder_of(bug: int, folder: str) -> str:
  """Returns where the case of a bug is written; the first is number 0."""
  return folder if bug == 0 else f'{folder}/bug_{bug + 1}'


def text(found: Sequence[Found], folder: str) -> str:
  """Returns what was found, and what shows it again."""
  told = [_text(one, folder_of(bug, folder)) for bug, one in enumerate(found)]
  if len(told) > 1:
    told.insert(0, f'{len(told)} bugs, a case for each')
  return '\n'.join(told)


def _text(found: Found, folder: str) -> str:
  failure = found.failure
  sizes = ' '.join(f'{name}={size}' for name, size in found.layer.sizes.items())
  tensor = verdicts.tensor_of(failure.stage)
  lines = [
    f'{sizes}, {found.case.direction}: {failure.stage} still fails '
    f'({failure.lane}: {failure.rule}), {found.tried} cases tried',
    f'  element   {tensor}{list(failure.index)}',
    f'  got       {failure.got!r}',
    f'  expected  {failure.expected!r}',
  ]
  lines += [f'  pattern   {failure.pattern}'] if failure.pattern else []
  lines += [f'  also in   {", ".join(found.also)}'] if found.also else []
  if found.tasks:
    more = f'; {len(found.tasks) - 1} more like it' if found.tasks[1:] else ''
    lines.append(f'  task      {found.tasks[0]}{more}')
  return '\n'.join(
    [
      *lines,
      f'{folder}: the case, and a script that needs numpy alone:',
      f'  python {folder}/reproduce.py kernel.py:function',
      f'  hpmoe check --case={folder} --candidate=kernel.py:function',
    ]
  )


def to_json(found: Sequence[Found]) -> dict:
  """Returns the first as plain data, and the others beside it."""
  first, *others = (
    dict(
      sizes=one.layer.sizes,
      direction=one.case.direction,
      tried=one.tried,
      also=one.also,
      tasks=one.tasks,
      failure=one.failure,
    )
    for one in found
  )
  return first | dict(others=others)
