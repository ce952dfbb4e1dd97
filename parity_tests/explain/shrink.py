"""The smallest case that still fails in the same way.

Each size in turn is made smaller, beginning with the smallest, then values are
made simpler; a case is kept if it fails at the same stage and looks the same.
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
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import reproduce
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.explain import explain
from hpmoe.parity_tests.explain import roundings
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check as check_lib
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import equality
from hpmoe.reference.contract import tensors

Arrays = Mapping[str, np.ndarray]
# What must stay the same: lane, stage and words of a failure.
Look = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Layer:
  """Inputs by axes that may be cut: M = R T, E = R L, and 2F as 2 and F.

  Weights of shared experts count for as many ranks as there are.

  Attributes:
    ranks: R.
    arrays_by_name: all tensors that the layer reads: x, dy, ids, weights, ...
  """

  ranks: int
  arrays_by_name: Arrays

  @classmethod
  def from_inputs(cls, inputs: inputs_lib.LayerInputs) -> 'Layer':
    sizes = {**inputs.config.dims(), '2': 2}
    sizes['M'] = sizes['R'] * sizes['T']
    return cls(
      inputs.config.num_ranks,
      {
        name: array.reshape([sizes[axis] for axis in _axes(name)])
        for name, array in inputs.arrays.items()
      },
    )

  @property
  def sizes(self) -> dict[str, int]:
    """R, T, E, K, D and F, and S if there are shared experts."""
    num, width = self.arrays_by_name['x'].shape
    experts, hidden = self.arrays_by_name['w_down'].shape[:2]
    shared = self.arrays_by_name.get('w_shared_down')
    shared_sizes = {} if shared is None else dict(S=shared.shape[1])
    return dict(
      R=self.ranks,
      T=num // self.ranks,
      E=experts,
      K=self.arrays_by_name['topk_ids'].shape[1],
      D=width,
      F=hidden,
      **shared_sizes,
    )

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns them as a case takes them."""
    sizes = self.sizes
    sizes['L'] = sizes['E'] // sizes['R']
    return {
      name: np.ascontiguousarray(
        array[: self.ranks] if _axes(name)[0] == 'R' else array
      ).reshape(tensors.SPECS[name].dims(**sizes))
      for name, array in self.arrays_by_name.items()
    }

  def cut(self, axis: str, selection: np.ndarray | slice) -> 'Layer':
    """Returns what is left of an axis."""
    cut_arrays = {}
    for name, array in self.arrays_by_name.items():
      index = [
        selection if own_axis == axis else slice(None)
        for own_axis in _axes(name)
      ]
      cut_arrays[name] = array[tuple(index)]
    return dataclasses.replace(self, arrays_by_name=cut_arrays)

  def but(self, name: str, array: np.ndarray) -> 'Layer':
    """Returns the layer with another tensor of a name."""
    return dataclasses.replace(
      self, arrays_by_name={**self.arrays_by_name, name: array}
    )


_MERGED_AXES = {'R T': 'M', 'R L': 'E'}


def _axes(name: str) -> tuple[str, ...]:
  shape = tensors.SPECS[name].shape.replace('2', '2 ')
  return (*_MERGED_AXES.get(shape[:3], shape[:3]).split(), *shape[3:].split())


@dataclasses.dataclass(frozen=True)
class FailingCase:
  """A case that fails.

  Attributes:
    case: the case, as a check takes it.
    layer: its inputs.
    failure: its first failure.
    num_tried: number of cases that were checked.
    other_stages: stages that fail in the same way in the case as it was.
    tasks: tasks of our own launch that are wrong by themselves; if there are
      none, two tasks that no event orders.
  """

  case: case_lib.Case
  layer: Layer
  failure: verdicts.Failure
  num_tried: int = 1
  other_stages: tuple[str, ...] = ()
  tasks: tuple[str, ...] = ()


class NothingFails(ValueError):
  """The case does not fail."""


# Words that fit many bugs, and places that tell more than a location.
_VAGUE = ('only ', 'off by ', 'near ', 'look at ')
_TELLING = tuple(
  f'only in {place} ' for place in ('the first', 'the last', 'odd', 'even')
)


def describe_looks(failure: verdicts.Failure) -> tuple[Look, ...]:
  """Returns what a smaller failure must share, for each bug in its pattern."""
  return tuple(
    (failure.lane, failure.stage, _words(cause))
    for cause in failure.pattern.split(explain.BESIDE)
  )


def _words(pattern: str) -> str:
  """Returns the words of a bug without numbers.

  Places are left out too, unless little else is said.
  """
  first, *details = pattern.split('; ')
  words = re.split(' where |,|:', first)[0]
  if first.startswith(_VAGUE):
    places = (part.split(',')[0] for part in (first, *details))
    plain_words = '' if words.startswith(('only ', 'look at ')) else words
    words = next(
      (part for part in places if part.startswith(_TELLING)), plain_words
    )
  return re.sub(r'-?\d+(\.\d+)?', 'n', words)


def separate_bugs(
  report: check_lib.Report,
) -> list[tuple[verdicts.Failure, Look, list[str]]]:
  """Returns each bug: a failure, its look, and other stages with that look.

  These are the first failure and each stage that is wrong in itself: lane
  bounded computes a stage from the returned tensors before it.
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
  bug_by_kind: dict[str, tuple[verdicts.Failure, Look, list[str]]] = {}
  for failure in (*([first] if first else []), *local):
    for look in describe_looks(failure):
      kind = _NAMES.sub('', look[2])
      bug = bug_by_kind.setdefault(kind, (failure, look, []))
      if failure.stage not in (bug[0].stage, *bug[2]):
        bug[2].append(failure.stage)
  return [*bug_by_kind.values()]


# The same bug of several GEMMs has other tensor names in each.
_NAMES = re.compile(rf'\b({"|".join(tensors.SPECS)})\b')


def write(
  failing_cases: Sequence[FailingCase], folder: str, command: str
) -> None:
  """Writes cases, and scripts that show the failures with numpy alone.

  Args:
    failing_cases: the cases.
    folder: the folder to write, empty or absent.
    command: the command that a report names as its origin.

  Raises:
    ValueError: the folder has something in it.
  """
  for bug, failing_case in enumerate(failing_cases):
    _write(failing_case, folder_of(bug, folder), command)


def _write(failing_case: FailingCase, folder: str, command: str) -> None:
  bench = bench_lib.Bench(failing_case.case)
  data = _data(failing_case.failure)
  inputs_of_data = {}
  for kind in inputs_lib.DATA:
    # Layers that are too small have no exact data.
    with contextlib.suppress(exact_limits.ExactnessError):
      inputs_of_data[kind] = bench.read_by(failing_case.case.passes, kind)
  folder_writer.write(
    folder, failing_case.case.direction, inputs_of_data, command=command
  )
  failure = failing_case.failure
  script = pathlib.Path(reproduce.__file__).read_text(encoding='utf-8')
  values = dict(
    DATA=data,
    STAGE=verdicts.tensor_of(failure.stage),
    INDEX=failure.index,
    ACTUAL=failure.actual,
    EXPECTED=failure.expected,
  )
  for name, value in values.items():
    script = re.sub(rf'^{name} = .*', f'{name} = {value!r}', script, flags=re.M)
  (pathlib.Path(folder) / 'reproduce.py').write_text(script, encoding='utf-8')


def _data(failure: verdicts.Failure) -> str:
  """Returns the kind of data on which a failure occurs."""
  if failure.lane != 'exact':
    return 'real'
  is_wide = failure.rule == equality.WIDE_RULE
  return 'wide' if is_wide else 'exact'


def shrink(
  request: request_lib.Request,
  progress: Callable[[str], None] = lambda step: None,
) -> list[FailingCase]:
  """Returns a smallest case that a candidate fails as before, for each bug.

  Args:
    request: the case that fails.
    progress: called with what is tried next.

  Raises:
    NothingFails: it does not fail.
    candidates.CandidateError: the candidate gave no answer to it.
  """
  progress('as it is')
  tensors.require_layer(request.case, 'to shrink')
  case = request.case
  for flag, form in (('weights', case.quantised), ('x_form', case.x_form)):
    if form:
      raise ValueError(
        f'{flag}: expected none, codes of groups do not shrink, got {form}'
      )
  bugs = separate_bugs(check_lib.run(request))
  if not bugs:
    raise NothingFails(
      f'{request.candidate.name}: expected a case that fails, got one that '
      'passes'
    )
  smallest_cases = []
  for failure, look, other_stages in bugs:
    smallest = _Shrinking(request, failure, look, progress).smallest()
    tasks = _tasks(request, smallest, progress)
    smallest_cases.append(
      dataclasses.replace(
        smallest, other_stages=tuple(other_stages), tasks=tasks
      )
    )
  return smallest_cases


def _tasks(
  request: request_lib.Request,
  failing_case: FailingCase,
  progress: Callable[[str], None],
) -> tuple[str, ...]:
  """Returns the tasks of our launch that are wrong by themselves.

  Each task runs on the oracle's inputs, so errors do not spread.  If no task is
  wrong, returns a race; if the launch cannot be replayed so, nothing.
  """
  backend_candidate: Any = request.candidate
  if (
    not backends.is_default(backend_candidate)
    or not backend_candidate.capabilities.modes
  ):
    return ()
  if backend_candidate.fused or backend_candidate.checking.is_part:
    return ()
  progress('task by task')
  alone = dataclasses.replace(backend_candidate.checking, isolate=True)
  candidate = dataclasses.replace(backend_candidate, checking=alone)
  judgement = dataclasses.replace(
    request.judgement, lanes=(failing_case.failure.lane,), repeat=1
  )
  replay_request = request_lib.Request(failing_case.case, candidate, judgement)
  try:
    report = check_lib.run(replay_request)
  except candidates.CandidateError:
    return ()
  wrong = [str(task) for task in report.wrong if task.bad]
  return tuple(wrong or [str(race) for race in report.races[:1]])


class _Shrinking:
  """One failure, made smaller.

  Compiling the oracle for each shape takes long.  So golden values replace it,
  a smaller case is judged only on the data on which it fails, and roundings are
  searched only if the failure to keep is one.
  """

  def __init__(
    self,
    request: request_lib.Request,
    first: verdicts.Failure,
    look: Look,
    progress: Callable[[str], None],
  ):
    judgement = judgement_lib.Judgement(
      lanes=(first.lane,), standards=request.judgement.standards, repeat=1
    )
    self._request = dataclasses.replace(request, judgement=judgement)
    self._first, self._look = first, look
    self._data = _data(first)
    is_rounding = any(words in first.pattern for words in roundings.ASKS)
    stage = verdicts.tensor_of(first.stage)
    self._roundings = (stage,) if is_rounding else ()
    self._progress, self._num_tried = progress, 1
    self._oracle = pass_reference.store_golden

  def smallest(self) -> FailingCase:
    """Returns the smallest case, confirmed by the oracle."""
    failing_case = self._search()
    self._oracle = oracle_lib.stage
    failing_case = (
      self._fails(failing_case.case, failing_case.layer) or self._search()
    )
    return dataclasses.replace(failing_case, num_tried=self._num_tried)

  def _search(self) -> FailingCase:
    failing_case = self._start()
    before = None
    while before != failing_case.layer.sizes:
      before = failing_case.layer.sizes
      for axis in _AXES:
        failing_case = self._smaller(failing_case, axis)
    return self._simpler(failing_case)

  def _start(self) -> FailingCase:
    """Returns the case with explicit inputs, in one pass if that fails too."""
    case, first = self._request.case, self._first
    layer = Layer.from_inputs(case.make())
    pass_name = verdicts.pass_of(first.stage).name
    for direction in dict.fromkeys((pass_name, case.direction)):
      one_pass_case = dataclasses.replace(case, direction=direction)
      failing_case = self._fails(one_pass_case, layer)
      if failing_case is not None:
        return failing_case
    return FailingCase(case, layer, first)

  def _fails(self, case: case_lib.Case, layer: Layer) -> FailingCase | None:
    """Returns a case on a layer's inputs if it fails in the same way."""
    self._num_tried += 1
    case = dataclasses.replace(
      case, input=layer.arrays(), folder=None, capacity=None
    )
    try:
      ready_request = dataclasses.replace(
        self._request,
        case=case,
        candidate=self._request.candidate.ready(case),
      )
      with oracle_lib.use_stages(self._oracle):
        findings = bench_lib.Bench(case).judge_ranks(
          ready_request, data_kind=self._data, roundings=self._roundings
        )
    except (ValueError, candidates.CandidateError):
      return None  # smaller than the kernel, or exact data, can be
    failures = [r.failure for r in findings.results if r.failure is not None]
    failures.sort(key=verdicts.Failure.order)
    if self._data != 'real':
      del failures[1:]  # The rest may follow from it.
    for failure in failures:
      if self._look in describe_looks(failure):
        return FailingCase(case, layer, failure)
    return None

  def _smaller(self, failing_case: FailingCase, axis: str) -> FailingCase:
    """Returns the case with an axis as small as still fails."""
    for size in _sizes(axis, failing_case.layer):
      for layer in _AXES[axis](failing_case, size):
        self._progress(f'{axis}={size} of {failing_case.layer.sizes[axis]}')
        smaller = self._fails(failing_case.case, layer)
        if smaller is not None:
          return smaller
    return failing_case

  def _simpler(self, failing_case: FailingCase) -> FailingCase:
    """Returns the case with small integers for values, if they still fail."""
    if self._data != 'real':
      return failing_case  # its data are such
    for name, values in failing_case.layer.arrays_by_name.items():
      if values.dtype.kind == 'i':
        continue
      self._progress(f'{name} of integers')
      simple = _integers(values.astype(np.float32)).astype(values.dtype)
      layer = failing_case.layer.but(name, simple)
      failing_case = self._fails(failing_case.case, layer) or failing_case
    return failing_case


def _sizes(axis: str, layer: Layer) -> Iterator[int]:
  """Yields smaller sizes of an axis, the smallest first."""
  sizes = layer.sizes
  full_size, size = sizes.get(axis, 0), 1
  while size < full_size:
    fits = {
      'R': sizes['E'] % size == 0
      and len(layer.arrays_by_name['x']) % size == 0,
      'E': size >= sizes['K'] and size % sizes['R'] == 0,
    }
    if fits.get(axis, True):
      yield size
    size += 1 if size < 4 else size // 2
  if full_size > 4:
    yield full_size - 1 if axis == 'T' else full_size - full_size % 2


def _ranks(failing_case: FailingCase, size: int) -> Iterator[Layer]:
  yield dataclasses.replace(failing_case.layer, ranks=size)


def _tokens(failing_case: FailingCase, size: int) -> Iterator[Layer]:
  """Yields windows of tokens of each rank: at the failure, then the ends."""
  num = failing_case.layer.sizes['T']
  rows = np.arange(num * failing_case.layer.ranks).reshape(-1, num)
  for start in _starts(failing_case.failure.token, size, num):
    window = rows[:, start : start + size]
    yield failing_case.layer.cut('M', window.reshape(-1))


def _starts(position: int | None, size: int, full_size: int) -> Iterator[int]:
  """Yields starts of windows that begin or end at `position` if they can."""
  last = full_size - size
  preferred = (
    () if position is None else (max(position - size + 1, 0), position)
  )
  yield from dict.fromkeys(min(start, last) for start in (*preferred, 0, last))


def _experts(failing_case: FailingCase, size: int) -> Iterator[Layer]:
  """Yields windows of experts; tokens of other experts move into them."""
  layer = failing_case.layer
  for start in _starts(failing_case.failure.expert, size, layer.sizes['E']):
    ids = layer.arrays_by_name['topk_ids']
    ids = np.where(ids < 0, ids, _distinct(ids - np.int32(start), size))
    yield layer.cut('E', slice(start, start + size)).but('topk_ids', ids)


def _distinct(ids: np.ndarray, size: int) -> np.ndarray:
  """Returns `[M, K]` int32 distinct ids below `size`; valid ids are kept."""
  distinct_ids = ids.copy()
  for row in distinct_ids:
    free = [e for e in range(size) if e not in row]
    for slot in np.flatnonzero((row < 0) | (row >= size)):
      row[slot] = free.pop(row[slot] % len(free))
  return distinct_ids


def _slots(failing_case: FailingCase, size: int) -> Iterator[Layer]:
  for start in _starts(
    failing_case.failure.slot, size, failing_case.layer.sizes['K']
  ):
    yield failing_case.layer.cut('K', slice(start, start + size))


def _columns(axis: str) -> Callable[[FailingCase, int], Iterator[Layer]]:
  def columns(failing_case: FailingCase, size: int) -> Iterator[Layer]:
    for start in _starts(None, size, failing_case.layer.sizes[axis]):
      yield failing_case.layer.cut(axis, slice(start, start + size))

  return columns


_AXES: Mapping[str, Callable[[FailingCase, int], Iterator[Layer]]] = dict(
  T=_tokens,
  R=_ranks,
  E=_experts,
  K=_slots,
  D=_columns('D'),
  F=_columns('F'),
  S=_columns('S'),
)


def _integers(values: np.ndarray) -> np.ndarray:
  """Returns the values scaled and rounded to integers from -4 to 4."""
  scale = 4 / max(float(np.abs(values).max()), 2.0**-100)
  return np.rint(values * scale)


def folder_of(bug: int, folder: str) -> str:
  """Returns where the case of a bug is written; the first is number 0."""
  return folder if bug == 0 else f'{folder}/bug_{bug + 1}'


def text(failing_cases: Sequence[FailingCase], folder: str) -> str:
  """Returns the cases in words, and the commands that show them again."""
  texts = [
    _text(failing_case, folder_of(bug, folder))
    for bug, failing_case in enumerate(failing_cases)
  ]
  if len(texts) > 1:
    texts.insert(0, f'{len(texts)} bugs, a case for each')
  return '\n'.join(texts)


def _text(failing_case: FailingCase, folder: str) -> str:
  failure = failing_case.failure
  sizes = ' '.join(
    f'{name}={size}' for name, size in failing_case.layer.sizes.items()
  )
  tensor = verdicts.tensor_of(failure.stage)
  lines = [
    f'{sizes}, {failing_case.case.direction}: {failure.stage} still fails '
    f'({failure.lane}: {failure.rule}), {failing_case.num_tried} cases tried',
    f'  element   {tensor}{list(failure.index)}',
    f'  got       {failure.actual!r}',
    f'  expected  {failure.expected!r}',
  ]
  lines += [f'  pattern   {failure.pattern}'] if failure.pattern else []
  lines += (
    [f'  also in   {", ".join(failing_case.other_stages)}']
    if failing_case.other_stages
    else []
  )
  if failing_case.tasks:
    rest = (
      f'; {len(failing_case.tasks) - 1} more like it'
      if failing_case.tasks[1:]
      else ''
    )
    lines.append(f'  task      {failing_case.tasks[0]}{rest}')
  return '\n'.join(
    [
      *lines,
      f'{folder}: the case, and a script that needs numpy alone:',
      f'  python {folder}/reproduce.py kernel.py:function',
      f'  hpmoe check --case={folder} --candidate=kernel.py:function',
    ]
  )


def to_json(failing_cases: Sequence[FailingCase]) -> dict:
  """Returns the first case as plain data, with the others under `others`."""
  first, *other_bugs = (
    dict(
      sizes=failing_case.layer.sizes,
      direction=failing_case.case.direction,
      tried=failing_case.num_tried,
      also=failing_case.other_stages,
      tasks=failing_case.tasks,
      failure=failing_case.failure,
    )
    for failing_case in failing_cases
  )
  return first | dict(others=other_bugs)
