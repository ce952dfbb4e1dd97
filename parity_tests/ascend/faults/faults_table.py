"""`hpmoe faults`: whether every known fault is caught and located."""

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
from hpmoe.parity_tests.judge import isolated_replay
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import launch_tasks
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import tensors

Kind = layout.Kind
_TILE = ['kind', 'rank', 'expert', 'row_block', 'col_block']

CONTROL = 'none'
DIAGNOSIS = 'wait diagnosis'
# Equal routing weights hide this fault.
_OF_WEIGHTS = 'misplaced_weight'


@dataclasses.dataclass(frozen=True)
class Row:
  """The result of one fault, or of the control.

  Attributes:
    direction: pass in which the fault is planted.
    name: the fault.
    caught_by: lanes that fail, and 'races', which must blame the fault's tasks
      alone; or ('wait diagnosis',); or a finding of the twin, such as
      ('race',).  A fault that shows in some schedules only runs with late
      puts, and 'races' must be among the lanes; the twin finds it in any mode.
    located_at: where the check locates it.
    expected_at: where it was planted.
    isolated: the tasks that isolated replay names; '-' on the twin, which has
      none.
    fused: as `isolated`, in the launch of front ends, or why that launch has no
      place for the fault.
    is_caught: whether it was caught, located and named alone; for the control,
      whether nothing was.
  """

  direction: str
  name: str
  caught_by: tuple[str, ...]
  located_at: str
  expected_at: str
  isolated: str
  fused: str
  is_caught: bool


def count_rows(direction: str) -> int:
  """Returns the largest number of rows of a table."""
  specs_by_pass = [
    faults.specs(layer_pass.direction)
    for layer_pass in passes.from_direction(direction)
  ]
  return sum(1 + len(specs) for specs in specs_by_pass)


def run(
  request: check.Request, progress: Callable[[str], None] = lambda step: None
) -> list[Row]:
  """Runs the control of each pass, then every fault on the same inputs.

  A fault that does not show in the inputs' storage dtype is left out.  A fault
  that needs an expert without rows, or unequal weights, runs under a routing
  that has them; it is left out if there is none, or if a file fixes the
  routing.  `left_out` names these faults.

  Raises:
    ValueError: the request was wrong, or the layer is too small for a fault.
    candidates.CandidateError: the control did not run.
  """
  rows = []
  for layer_pass in request.case.passes:
    case = dataclasses.replace(request.case, direction=layer_pass.name)
    pass_request = dataclasses.replace(request, case=case)
    bench = bench_lib.Bench(case, keep=True)
    progress(f'{layer_pass.name}: {CONTROL}')
    rows.append(_run_control(pass_request, bench))
    front_end_stages = _list_front_end_stages(pass_request, bench)
    sublayer = bench.real_inputs.config.sublayer
    for spec in faults.specs(layer_pass.direction, sublayer).values():
      if bench.real_inputs.policy.storage not in spec.storages:
        continue
      routing = _routing(case, bench, spec)
      if routing is None:
        continue
      progress(f'{layer_pass.name}: {spec.name}')
      rows.append(
        _run_fault(pass_request, bench, spec, front_end_stages, routing)
      )
  return rows


def left_out(request: check.Request, rows: Sequence[Row]) -> list[str]:
  """Returns why a fault has no row, one line each."""
  in_table = {(row.direction, row.name) for row in rows}
  return [
    f'{layer_pass.name} {spec.name}: left out, {_needs(spec)}'
    for layer_pass in request.case.passes
    for spec in faults.specs(
      layer_pass.direction, request.case.sublayer
    ).values()
    if (layer_pass.name, spec.name) not in in_table
  ]


def _needs(spec: faults.FaultSpec) -> str:
  if spec.empty:
    return 'needs an expert without rows'
  if spec.name == _OF_WEIGHTS:
    return 'needs routing weights that differ'
  return f'shows in {" or ".join(spec.storages)} only'


def _run_control(request: check.Request, bench: bench_lib.Bench) -> Row:
  results = bench.judge(_prepare(request))
  failing_lanes = _failed_lanes(results)
  tasks = _replay_isolated(request, bench)[0] if _is_on_host(request) else []
  return Row(
    request.case.direction,
    CONTROL,
    failing_lanes,
    _describe_place(_find_first_failure(results)),
    '-',
    _format_tasks(tasks),
    _format_tasks(tasks),
    not failing_lanes and not tasks,
  )


def _run_fault(
  request: check.Request,
  bench: bench_lib.Bench,
  spec: faults.FaultSpec,
  front_end_stages: Sequence[str],
  routing: str,
) -> Row:
  request = _prepare(request, fault=spec.name)
  if routing:
    case = dataclasses.replace(request.case, routing=routing)
    request = dataclasses.replace(request, case=case)
    bench = bench_lib.Bench(case)
  finding = _judge_in_lanes(request, bench, spec)
  isolated, alone, fused = '-', True, '-'
  if _is_on_host(request):
    isolated, alone = _names_alone(*_replay_isolated(request, bench))
    fused = _explain_no_place(request, spec, front_end_stages)
    if not fused:
      fused, used_alone = _names_alone(
        *_replay_front_end_launch(request, bench)
      )
      alone = alone and used_alone
  return Row(
    request.case.direction,
    spec.name,
    finding.caught_by,
    finding.located_at,
    finding.expected_at,
    isolated,
    fused,
    finding.right and alone,
  )


def _is_on_host(request: check.Request) -> bool:
  return bool(request.candidate.capabilities.modes)


def _prepare(request: check.Request, **fields) -> check.Request:
  """Returns the request with a new candidate that has the fields."""
  candidate = dataclasses.replace(_get_megakernel(request), **fields)
  ready = candidate.ready(request.case)
  return dataclasses.replace(request, candidate=ready)


@dataclasses.dataclass(frozen=True)
class _Finding:
  """Where a check locates a fault, and whether that is right."""

  caught_by: tuple[str, ...]
  located_at: str
  expected_at: str
  right: bool


def _judge_in_lanes(
  request: check.Request, bench: bench_lib.Bench, spec: faults.FaultSpec
) -> _Finding:
  if spec.needs and _is_on_host(request):
    request = _prepare(request, checking=checking.Checking(late_puts=True))
  candidate = _get_megakernel(request)
  try:
    results = bench.judge(request)
  except twin_candidate.TwinFailure as error:
    return _judge_twin_finding(candidate, error)
  except candidates.CandidateError as error:
    return _judge_hang(spec, candidate, error.diagnosis)
  except bench_lib.NothingToJudge:
    return _Finding((), 'no lane could see it', '-', False)
  first, failing_lanes = _find_first_failure(results), _failed_lanes(results)
  right = first is not None and _is_at(request, spec, candidate, first)
  raced = any(launch.num_races for launch in candidate.launches)
  failing_lanes = (
    (*failing_lanes, isolated_replay.RACES) if raced else failing_lanes
  )
  if raced or (spec.needs and _is_on_host(request)):
    right = right and _races_blame_fault(candidate)
  return _Finding(
    failing_lanes,
    _describe_place(first),
    _format_tasks(_committed(candidate)),
    right,
  )


def _is_at(
  request: check.Request,
  spec: faults.FaultSpec,
  candidate: host.Megakernel,
  first: verdicts.Failure,
) -> bool:
  """Returns whether a failure is in elements that the guilty tasks wrote.

  If the fault must be located in another tensor than theirs, the failure must
  be in their rows.
  """
  launch = candidate.launches[-1]
  image = launch.image
  _, stage = spec.located(request.case.placement, candidate.options.relay)
  own = layout.STAGE_OF_KIND[Kind(candidate.committed[0]['kind'])]
  rows = [tensors.SPECS[n].shape.split()[:-1] for n in (own, stage)]
  if rows[0] != rows[1]:  # rows of tokens and rows of experts
    return first.stage == stage
  like = {own: np.empty(arrays.shape(image, own))}
  # A wrong link of a chain shows in the elements that the last link writes.
  tasks = image.tables['tasks'][_TILE]
  guilty = np.isin(tasks, np.stack(candidate.committed)[_TILE])
  masks = image_launch.mask_written_elements(image, launch.plan, guilty, like)
  mask = (launch.view.restore(masks) if launch.view else masks)[own]
  if own != stage:
    mask = mask.any(axis=-1, keepdims=True)
  index = first.index if own == stage else (*first.index[:-1], 0)
  return first.stage == stage and bool(mask[index])


def _judge_twin_finding(
  candidate: host.Megakernel, error: twin_candidate.TwinFailure
) -> _Finding:
  """Judges the twin's finding: it must name the faulty task or a reader of it.

  The schedule of the cores decides which of several readers comes first.
  """
  first = error.findings[0]
  tasks = [task for task in first.tasks if task is not None]
  guilty = _identities(candidate) | _readers(candidate)
  right = any(_identity(task) in guilty for task in tasks)
  expected_at = _format_tasks(_committed(candidate))
  return _Finding((first.kind,), _format_tasks(tasks), expected_at, right)


def _image(candidate: host.Megakernel) -> image_lib.Image:
  return next(
    image
    for (*_, options), image in candidate.images.items()
    if options == candidate.options
  )


def _guilty(image: image_lib.Image, candidate: host.Megakernel) -> np.ndarray:
  """Returns `[tasks]` bool, whether a task committed the fault."""
  return np.isin(image.tables['tasks'], np.stack(candidate.committed))


def _committed(candidate: host.Megakernel) -> list[runtime.TaskName]:
  image = _image(candidate)
  guilty = np.flatnonzero(_guilty(image, candidate))
  return [runtime.task_name(image, int(task)) for task in guilty]


def _identities(candidate: host.Megakernel) -> set[tuple]:
  return {_identity(task) for task in _committed(candidate)}


def _readers(candidate: host.Megakernel) -> set[tuple]:
  """Returns the tasks that wait for the faulty task's signals."""
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


def _get_megakernel(request: check.Request) -> host.Megakernel:
  candidate = request.candidate
  assert isinstance(candidate, host.Megakernel)
  return candidate


def _races_blame_fault(candidate: host.Megakernel) -> bool:
  """Returns whether races blame just the tasks that committed the fault."""
  blamed = {
    _identity(race.blame)
    for launch in candidate.launches
    for race in launch.races
  }
  return blamed == _identities(candidate)


def _replay_isolated(
  request: check.Request, bench: bench_lib.Bench
) -> tuple[list[runtime.TaskName], set[tuple]]:
  """Returns the tasks that isolated replay names, and the guilty tasks."""
  tolerant = ('exact', 'bitwise', 'bounded')
  judgement = request.judgement
  lanes = tuple(lane for lane in judgement.lanes if lane in tolerant)
  request = dataclasses.replace(
    _prepare(request, checking=checking.Checking(isolate=True)),
    judgement=dataclasses.replace(judgement, lanes=lanes or tolerant),
  )
  candidate = _get_megakernel(request)
  try:
    tasks = [
      wrong_task.task
      for wrong_task in bench.examine(request, explain=False).wrong
    ]
  except candidates.CandidateError as error:
    tasks = _suspects(error)
  except bench_lib.NothingToJudge:
    tasks = []
  return tasks, _identities(candidate) if candidate.committed else set()


def _replay_front_end_launch(
  request: check.Request, bench: bench_lib.Bench
) -> tuple[list[runtime.TaskName], set[tuple]]:
  """As `_replay_isolated`, for the launch of front ends."""
  isolated_request = _prepare(request, checking=checking.Checking(isolate=True))
  candidate, (layer_pass,) = (
    _get_megakernel(isolated_request),
    isolated_request.case.passes,
  )
  case = bench.case(candidate, layer_pass, bench.real_inputs)
  try:
    _, wrong = launch_tasks.judge_tasks_as_used(case, candidate)
    races = candidate.launches[-1].races
    tasks = [
      w.task
      for w in isolated_replay.find_guilty_tasks(wrong, races, layer_pass.name)
    ]
  except candidates.CandidateError as error:
    tasks = _suspects(error)
  return tasks, _identities(candidate) if candidate.committed else set()


def _list_front_end_stages(
  request: check.Request, bench: bench_lib.Bench
) -> tuple[str, ...]:
  """Returns the tensors that front ends' launches write; none on the twin."""
  if not _is_on_host(request):
    return ()
  plain_request = _prepare(request)
  (layer_pass,) = plain_request.case.passes
  case = bench.case(plain_request.candidate, layer_pass, bench.real_inputs)
  rows, _ = launch_tasks.judge_tasks_as_used(case, plain_request.candidate)
  return tuple(row.stage for row in rows)


def _explain_no_place(
  request: check.Request,
  spec: faults.FaultSpec,
  front_end_stages: Sequence[str],
) -> str:
  """Returns why a launch of front ends has no place for a fault, or ''.

  A tensor that is not written can be neither wrong nor early, but its tasks
  still signal.
  """
  relay = request.candidate.options.relay
  kind, _ = spec.located(request.case.placement, relay)
  tensor = layout.STAGE_OF_KIND[kind]
  if tensor in front_end_stages or spec.hangs:
    return ''
  return f'no place: {tensor} is not made'


def _suspects(error: candidates.CandidateError) -> list[runtime.TaskName]:
  return list(error.diagnosis.suspects[:1]) if error.diagnosis else []


def _names_alone(
  tasks: Sequence[runtime.TaskName], committed: set[tuple]
) -> tuple[str, bool]:
  """Returns the tasks as text, and whether they are the guilty ones."""
  return _format_tasks(tasks), {_identity(task) for task in tasks} == committed


def _identity(task: runtime.TaskName) -> tuple:
  return (task.kind, task.rank, task.expert, task.row_block, task.col_block)


def _format_tasks(tasks: Sequence[runtime.TaskName]) -> str:
  return '; '.join(str(task) for task in tasks) or '-'


def _routing(
  case: case_lib.Case, bench: bench_lib.Bench, spec: faults.FaultSpec
) -> str | None:
  """Returns a routing that shows a fault; '': the case's; None: none does."""
  layer_inputs, own = bench.real_inputs, case.input is None
  has_rows = bench.plan['counts'].sum(axis=0).all()
  if spec.empty and has_rows:
    spare = 2 * layer_inputs.config.top_k <= layer_inputs.config.num_experts + 1
    return 'empty_experts' if own and spare else None
  weights = layer_inputs.arrays['topk_weights']
  if spec.name == _OF_WEIGHTS and (weights == weights.flat[0]).all():
    return 'balanced' if own else None
  return ''


def _judge_hang(
  spec: faults.FaultSpec,
  candidate: host.Megakernel,
  diagnosis: runtime.Diagnosis | None,
) -> _Finding:
  """Judges a diagnosis: it must name a waiting task and the guilty one."""
  expected_at = _format_tasks(_committed(candidate))
  if not spec.hangs or diagnosis is None or diagnosis.task is None:
    return _Finding((DIAGNOSIS,), str(diagnosis), expected_at, False)
  suspects = {_identity(suspect) for suspect in diagnosis.suspects}
  waits = _identity(diagnosis.task) in _readers(candidate)
  right = waits and bool(suspects & _identities(candidate))
  return _Finding((DIAGNOSIS,), str(diagnosis.task), expected_at, right)


def _failed_lanes(results: Sequence[verdicts.Result]) -> tuple[str, ...]:
  failing_lanes = {r.lane for r in results if r.verdict == verdicts.FAIL}
  return tuple(lane for lane in verdicts.LANES if lane in failing_lanes)


def _find_first_failure(
  results: Sequence[verdicts.Result],
) -> verdicts.Failure | None:
  failures = [r.failure for r in results if r.failure is not None]
  sublayer = verdicts.is_of_sublayer(r.stage for r in results)
  return min(
    failures, key=lambda failure: failure.order(sublayer), default=None
  )


def _describe_place(failure: verdicts.Failure | None) -> str:
  if failure is None:
    return '-'
  stage = failure.stage
  parts = zip(
    ('rank', 'expert', verdicts.block_name(stage), 'column block'),
    (failure.rank, failure.expert, failure.row_block, failure.col_block),
  )
  coordinates = [
    f'{name} {value}' for name, value in parts if value is not None
  ]
  return ', '.join([stage, *coordinates])


def to_json(rows: Sequence[Row]) -> dict[str, object]:
  """Returns the table as plain data."""
  return dict(
    verdict=verdicts.PASS
    if all(row.is_caught for row in rows)
    else verdicts.FAIL,
    faults=[json_fields.rename_fields(row, is_caught='caught') for row in rows],
  )


def format_table(rows: Sequence[Row]) -> str:
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
    return 'passes' if row.is_caught else 'FAILS'
  return 'caught' if row.is_caught else f'MISSED at {row.expected_at}'
