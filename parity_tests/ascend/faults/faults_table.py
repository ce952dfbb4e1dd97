"""`hpmoe faults`: is every known fault caught, and in the right place?"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import image_launch
from hpmoe.parity_tests.ascend import twin_candidate
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import isolation
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import launch_tasks
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import tensors

Kind = layout.Kind
_TILE = ['kind', 'rank', 'expert', 'row_block', 'col_block']

CONTROL = 'none'
DIAGNOSIS = 'wait diagnosis'
# The fault that equal routing weights hide.
_OF_WEIGHTS = 'misplaced_weight'


@dataclasses.dataclass(frozen=True)
class Row:
  """One fault (or the control) and what the check said.

  Attributes:
    direction: pass in which it is committed.
    name: the fault.
    caught_by: lanes that fail and 'races', which must blame the fault's tasks
      alone, or ('wait diagnosis',), or what the twin finds, such as ('race',).
      A fault that shows by bad luck only is run with late puts, and 'races'
      must be among them; the twin finds it in every mode.
    located_at: where the check says that it is.
    expected_at: where it was put.
    isolated: the task that isolated replay names, or several; '-' on the twin,
      which has none.
    fused: as `isolated`, in the launch that front ends make, where that has a
      place for the fault; otherwise why it has none.
    caught: whether it was caught, located and named alone; for the control,
      whether nothing was.
  """

  direction: str
  name: str
  caught_by: tuple[str, ...]
  located_at: str
  expected_at: str
  isolated: str
  fused: str
  caught: bool


def count(direction: str) -> int:
  """Returns the most rows that a table can have."""
  each = [
    faults.specs(which.direction) for which in passes.from_direction(direction)
  ]
  return sum(1 + len(specs) for specs in each)


def run(
  request: check.Request, progress: Callable[[str], None] = lambda step: None
) -> list[Row]:
  """Runs the control of each pass, then every fault on the same inputs.

  A fault of another storage dtype than the inputs' is left out.  One that needs
  an expert without rows, or weights that differ, gets a routing that has them,
  but is left out where there is none or a file says the routing.  `left_out`
  names them.

  Raises:
    ValueError: the request was wrong, or the layer is too small for a fault.
    candidates.CandidateError: the control did not run.
  """
  rows = []
  for which in request.case.passes:
    case = dataclasses.replace(request.case, direction=which.name)
    one = dataclasses.replace(request, case=case)
    bench = bench_lib.Bench(case, keep=True)
    progress(f'{which.name}: {CONTROL}')
    rows.append(_control(one, bench))
    made = _made_as_used(one, bench)
    sublayer = bench.real_inputs.config.sublayer
    for spec in faults.specs(which.direction, sublayer).values():
      if bench.real_inputs.policy.storage not in spec.storages:
        continue
      routing = _routing(case, bench, spec)
      if routing is None:
        continue
      progress(f'{which.name}: {spec.name}')
      rows.append(_fault(one, bench, spec, made, routing))
  return rows


def left_out(request: check.Request, rows: Sequence[Row]) -> list[str]:
  """Returns why a fault has no row, one line each."""
  in_table = {(row.direction, row.name) for row in rows}
  return [
    f'{which.name} {spec.name}: left out, {_needs(spec)}'
    for which in request.case.passes
    for spec in faults.specs(which.direction, request.case.sublayer).values()
    if (which.name, spec.name) not in in_table
  ]


def _needs(spec: faults.FaultSpec) -> str:
  if spec.empty:
    return 'needs an expert without rows'
  if spec.name == _OF_WEIGHTS:
    return 'needs routing weights that differ'
  return f'shows in {" or ".join(spec.storages)} only'


def _control(request: check.Request, bench: bench_lib.Bench) -> Row:
  results = bench.judge(_ready(request))
  failed = _failed_lanes(results)
  named = _isolated(request, bench)[0] if _is_on_host(request) else []
  return Row(
    request.case.direction,
    CONTROL,
    failed,
    _where(_first(results)),
    '-',
    _told(named),
    _told(named),
    not failed and not named,
  )


def _fault(
  request: check.Request,
  bench: bench_lib.Bench,
  spec: faults.FaultSpec,
  made: Sequence[str],
  routing: str,
) -> Row:
  request = _ready(request, fault=spec.name)
  if routing:
    case = dataclasses.replace(request.case, routing=routing)
    request = dataclasses.replace(request, case=case)
    bench = bench_lib.Bench(case)
  found = _in_lanes(request, bench, spec)
  isolated, alone, fused = '-', True, '-'
  if _is_on_host(request):
    isolated, alone = _names_alone(*_isolated(request, bench))
    fused = _no_place(request, spec, made)
    if not fused:
      fused, used_alone = _names_alone(*_isolated_as_used(request, bench))
      alone = alone and used_alone
  return Row(
    request.case.direction,
    spec.name,
    found.by,
    found.located_at,
    found.expected_at,
    isolated,
    fused,
    found.right and alone,
  )


def _is_on_host(request: check.Request) -> bool:
  return bool(request.candidate.capabilities.modes)


def _ready(request: check.Request, **fields) -> check.Request:
  """Returns the request, its candidate with other fields and no launch yet."""
  candidate = dataclasses.replace(_ours(request), **fields)
  ready = candidate.ready(request.case)
  return dataclasses.replace(request, candidate=ready)


@dataclasses.dataclass(frozen=True)
class _Found:
  """What the lanes say, and whether they are right."""

  by: tuple[str, ...]
  located_at: str
  expected_at: str
  right: bool


def _in_lanes(
  request: check.Request, bench: bench_lib.Bench, spec: faults.FaultSpec
) -> _Found:
  if spec.needs and _is_on_host(request):
    request = _ready(request, checking=checking.Checking(late_puts=True))
  candidate = _ours(request)
  try:
    results = bench.judge(request)
  except twin_candidate.TwinFailure as error:
    return _found_by_twin(candidate, error)
  except candidates.CandidateError as error:
    return _hung(spec, candidate, error.diagnosis)
  except bench_lib.NothingToJudge:
    return _Found((), 'no lane could see it', '-', False)
  first, failed = _first(results), _failed_lanes(results)
  right = first is not None and _is_at(request, spec, candidate, first)
  raced = any(launch.num_races for launch in candidate.launches)
  failed = (*failed, isolation.RACES) if raced else failed
  if raced or (spec.needs and _is_on_host(request)):
    right = right and _raced(candidate)
  return _Found(failed, _where(first), _told(_committed(candidate)), right)


def _is_at(
  request: check.Request,
  spec: faults.FaultSpec,
  candidate: host.Megakernel,
  first: verdicts.Failure,
) -> bool:
  """Says whether a failure is where the tasks that did it wrote.

  In the tensor that it must be located in: where that is another one than
  theirs, in their rows.
  """
  launch = candidate.launches[-1]
  image = launch.image
  _, stage = spec.located(request.case.placement, candidate.options.relay)
  own = layout.STAGE_OF_KIND[Kind(candidate.committed[0]['kind'])]
  rows = [tensors.SPECS[n].shape.split()[:-1] for n in (own, stage)]
  if rows[0] != rows[1]:  # Of tokens, and shown by their experts' rows.
    return first.stage == stage
  like = {own: np.empty(arrays.shape(image, own))}
  # What a link of a chain spoils shows in what the last one writes.
  tasks = image.tables['tasks'][_TILE]
  guilty = np.isin(tasks, np.stack(candidate.committed)[_TILE])
  masks = image_launch.mask_written_elements(image, launch.plan, guilty, like)
  written = (launch.view.restore(masks) if launch.view else masks)[own]
  if own != stage:
    written = written.any(axis=-1, keepdims=True)
  index = first.index if own == stage else (*first.index[:-1], 0)
  return first.stage == stage and bool(written[index])


def _found_by_twin(
  candidate: host.Megakernel, error: twin_candidate.TwinFailure
) -> _Found:
  """What the twin finds must name the faulty task, or one that reads of it.

  Which of several readers comes first is the turns' of the cores.
  """
  first = error.findings[0]
  named = [task for task in first.tasks if task is not None]
  guilty = _identities(candidate) | _readers(candidate)
  right = any(_identity(task) in guilty for task in named)
  where = _told(_committed(candidate))
  return _Found((first.kind,), _told(named), where, right)


def _image(candidate: host.Megakernel) -> image_lib.Image:
  return next(
    image
    for (*_, options), image in candidate.images.items()
    if options == candidate.options
  )


def _guilty(image: image_lib.Image, candidate: host.Megakernel) -> np.ndarray:
  """Returns `[tasks]` bool, those that committed the fault."""
  return np.isin(image.tables['tasks'], np.stack(candidate.committed))


def _committed(candidate: host.Megakernel) -> list[runtime.TaskName]:
  image = _image(candidate)
  guilty = np.flatnonzero(_guilty(image, candidate))
  return [runtime.task_name(image, int(task)) for task in guilty]


def _identities(candidate: host.Megakernel) -> set[tuple]:
  return {_identity(task) for task in _committed(candidate)}


def _readers(candidate: host.Megakernel) -> set[tuple]:
  """Returns the tasks that wait for what the faulty task announces."""
  image = _image(candidate)
  signals, waits = (
    happens_before.list_signals(image),
    happens_before.list_waits(image),
  )
  guilty = _guilty(image, candidate)
  events = signals[guilty[signals[:, 0]], 1]
  waiting = np.unique(waits[np.isin(waits[:, 1], events), 0])
  names = (runtime.task_name(image, int(task)) for task in waiting)
  return {_identity(task) for task in names}


def _ours(request: check.Request) -> host.Megakernel:
  candidate = request.candidate
  assert isinstance(candidate, host.Megakernel)
  return candidate


def _raced(candidate: host.Megakernel) -> bool:
  """Says whether races blame the tasks that committed the fault, and only."""
  blamed = {
    _identity(race.blame)
    for launch in candidate.launches
    for race in launch.races
  }
  return blamed == _identities(candidate)


def _isolated(
  request: check.Request, bench: bench_lib.Bench
) -> tuple[list[runtime.TaskName], set[tuple]]:
  """Returns the tasks that isolated replay names, and those that did it."""
  tolerant = ('exact', 'bitwise', 'bounded')
  judgement = request.judgement
  asked = tuple(lane for lane in judgement.lanes if lane in tolerant)
  request = dataclasses.replace(
    _ready(request, checking=checking.Checking(isolate=True)),
    judgement=dataclasses.replace(judgement, lanes=asked or tolerant),
  )
  candidate = _ours(request)
  try:
    named = [one.task for one in bench.examine(request, explain=False).wrong]
  except candidates.CandidateError as error:
    named = _suspects(error)
  except bench_lib.NothingToJudge:
    named = []
  return named, _identities(candidate) if candidate.committed else set()


def _isolated_as_used(
  request: check.Request, bench: bench_lib.Bench
) -> tuple[list[runtime.TaskName], set[tuple]]:
  """As `_isolated`, of the launch that front ends make."""
  one = _ready(request, checking=checking.Checking(isolate=True))
  candidate, (which,) = _ours(one), one.case.passes
  case = bench.case(candidate, which, bench.real_inputs)
  try:
    _, wrong = launch_tasks.judge_tasks_as_used(case, candidate)
    races = candidate.launches[-1].races
    named = [
      w.task for w in isolation.find_guilty_tasks(wrong, races, which.name)
    ]
  except candidates.CandidateError as error:
    named = _suspects(error)
  return named, _identities(candidate) if candidate.committed else set()


def _made_as_used(
  request: check.Request, bench: bench_lib.Bench
) -> tuple[str, ...]:
  """Returns the tensors that a launch of front ends makes; none on the twin."""
  if not _is_on_host(request):
    return ()
  one = _ready(request)
  (which,) = one.case.passes
  case = bench.case(one.candidate, which, bench.real_inputs)
  rows, _ = launch_tasks.judge_tasks_as_used(case, one.candidate)
  return tuple(row.stage for row in rows)


def _no_place(
  request: check.Request, spec: faults.FaultSpec, made: Sequence[str]
) -> str:
  """Returns why a launch of front ends has no place for a fault, or ''.

  What is not made cannot be wrong, nor early; it is announced all the same.
  """
  relay = request.candidate.options.relay
  kind, _ = spec.located(request.case.placement, relay)
  tensor = layout.STAGE_OF_KIND[kind]
  if tensor in made or spec.hangs:
    return ''
  return f'no place: {tensor} is not made'


def _suspects(error: candidates.CandidateError) -> list[runtime.TaskName]:
  return list(error.diagnosis.suspects[:1]) if error.diagnosis else []


def _names_alone(
  named: Sequence[runtime.TaskName], committed: set[tuple]
) -> tuple[str, bool]:
  """Returns the tasks that are named, and whether just those did it."""
  return _told(named), {_identity(task) for task in named} == committed


def _identity(task: runtime.TaskName) -> tuple:
  return (task.kind, task.rank, task.expert, task.row_block, task.col_block)


def _told(named: Sequence[runtime.TaskName]) -> str:
  return '; '.join(str(task) for task in named) or '-'


def _routing(
  case: case_lib.Case, bench: bench_lib.Bench, spec: faults.FaultSpec
) -> str | None:
  """Returns the routing in which a fault shows; '': the case's; None: none."""
  made, own = bench.real_inputs, case.input is None
  has_rows = bench.plan['counts'].sum(axis=0).all()
  if spec.empty and has_rows:
    spare = 2 * made.config.top_k <= made.config.num_experts + 1
    return 'empty_experts' if own and spare else None
  weights = made.arrays['topk_weights']
  if spec.name == _OF_WEIGHTS and (weights == weights.flat[0]).all():
    return 'balanced' if own else None
  return ''


def _hung(
  spec: faults.FaultSpec,
  candidate: host.Megakernel,
  diagnosis: runtime.Diagnosis | None,
) -> _Found:
  """A launch that ended early must name a task that waits, and for whom."""
  where = _told(_committed(candidate))
  if not spec.hangs or diagnosis is None or diagnosis.task is None:
    return _Found((DIAGNOSIS,), str(diagnosis), where, False)
  named = {_identity(suspect) for suspect in diagnosis.suspects}
  waits = _identity(diagnosis.task) in _readers(candidate)
  right = waits and bool(named & _identities(candidate))
  return _Found((DIAGNOSIS,), str(diagnosis.task), where, right)


def _failed_lanes(results: Sequence[verdicts.Result]) -> tuple[str, ...]:
  failed = {r.lane for r in results if r.verdict == verdicts.FAIL}
  return tuple(lane for lane in verdicts.LANES if lane in failed)


def _first(results: Sequence[verdicts.Result]) -> verdicts.Failure | None:
  found = [r.failure for r in results if r.failure is not None]
  sublayer = verdicts.is_of_sublayer(r.stage for r in results)
  return min(found, key=lambda one: one.order(sublayer), default=None)


def _where(failure: verdicts.Failure | None) -> str:
  if failure is None:
    return '-'
  stage = failure.stage
  parts = zip(
    ('rank', 'expert', verdicts.block_name(stage), 'column block'),
    (failure.rank, failure.expert, failure.row_block, failure.col_block),
  )
  named = [f'{name} {value}' for name, value in parts if value is not None]
  return ', '.join([stage, *named])


def to_json(rows: Sequence[Row]) -> dict[str, object]:
  """Returns the table as plain data."""
  return dict(
    verdict=verdicts.PASS if all(row.caught for row in rows) else verdicts.FAIL,
    faults=rows,
  )


def table(rows: Sequence[Row]) -> str:
  """Returns one line per fault."""
  return text_table.format_rows(
    [
      {
        'pass': row.direction,
        'fault': row.name,
        'caught by': ', '.join(row.caught_by) or '-',
        'first bad tile': row.located_at,
        'isolated replay names': row.isolated,
        'fused, it names': row.fused,
        'verdict': _verdict(row),
      }
      for row in rows
    ]
  )


def _verdict(row: Row) -> str:
  if row.name == CONTROL:
    return 'passes' if row.caught else 'FAILS'
  return 'caught' if row.caught else f'MISSED at {row.expected_at}'
