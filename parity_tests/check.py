"""One check: inputs, candidate, lanes, verdict."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import importlib.metadata
import os
import platform
import shlex
import shutil
import sys
import time
from typing import Any

import jax
import ml_dtypes
import numpy as np

from backend_ascend.taskflow import flow as flow_lib
from parity_tests import candidates
from parity_tests import exact_data
from parity_tests import golden as golden_lib
from parity_tests import inputs as inputs_lib
from parity_tests import lanes
from parity_tests import oracle as oracle_lib
from parity_tests import presets
from parity_tests import standards
from parity_tests import tiles
from reference import tensors

MOVEMENT = tuple(
    name for name in tensors.STAGES if tensors.SPECS[name].role == 'movement'
)
_BEFORE = dict(zip(tensors.STAGES[1:], tensors.STAGES))
ORACLE_RULE = 'equals the oracle'

Progress = Callable[[str], None]


class NothingToJudge(ValueError):
  """The lanes asked for have nothing that they could judge."""


@dataclasses.dataclass(frozen=True)
class Request:
  """What `hpmoe check` was asked for.

  Attributes:
    preset: name of the shape.
    ranks: R.
    tokens: T instead of the preset's.
    dtype: 'float32' or 'bfloat16'.
    routing: a name of `inputs.ROUTINGS` or a file.
    input: a .safetensors file that holds all inputs; its shapes win.
    text: a text file to embed.
    seed: of all values.
    placement: where the routing weight multiplies.
    capacity: N; None is what the routing needs.
    lanes: some of `lanes.LANES`.
    standards: names of records for lane 'standard'.
    options: granularity and cores of our backend.
    threads: OS threads of our backend.
    deadline_s: seconds without progress before our backend gives up.
    candidate: `pkg.module:function`, or None for our backend.
    timeout_s: seconds that a user's candidate may take.
    fault: a fault for our backend to commit.
    arguments: the command line without --lane and --json, for replays.
  """

  preset: str = 'small'
  ranks: int = 4
  tokens: int | None = None
  dtype: str = 'float32'
  routing: str = 'text'
  input: str | None = None
  text: str | None = None
  seed: int = 0
  placement: str = 'combine'
  capacity: int | None = None
  lanes: tuple[str, ...] = lanes.LANES
  standards: tuple[str, ...] = standards.DEFAULT
  options: flow_lib.Options = flow_lib.Options()
  threads: int | None = None
  deadline_s: float = 60.0
  candidate: str | None = None
  timeout_s: float = 600.0
  fault: str | None = None
  arguments: tuple[str, ...] = ()

  def replay(self, *lanes_: str) -> str:
    """Returns the command that repeats some lanes of this check."""
    lane = f'--lane={",".join(lanes_)}'
    return shlex.join([program(), 'check', *self.arguments, lane])


@dataclasses.dataclass(frozen=True)
class Report:
  """The answer.

  Attributes:
    config: sizes, policy, routing facts and options, as plain data.
    results: every comparison, by lane, in dependency order.
    seconds: wall time.
  """

  config: Mapping[str, Any]
  results: tuple[lanes.Result, ...]
  seconds: float

  @property
  def verdict(self) -> str:
    fails = any(r.verdict == lanes.FAIL for r in self.results)
    return lanes.FAIL if fails else lanes.PASS

  @property
  def first_failure(self) -> lanes.Failure | None:
    """The failing tile that comes first in dependency order."""
    found = [r.failure for r in self.results if r.failure is not None]
    return min(found, key=lanes.Failure.order, default=None)


def program() -> str:
  """Returns what runs `hpmoe` if it is typed here."""
  invoked = sys.argv[0]
  if os.path.basename(invoked) != 'hpmoe':
    return 'hpmoe'
  found = shutil.which('hpmoe')
  same = found and os.path.realpath(found) == os.path.realpath(invoked)
  return 'hpmoe' if same else invoked


def versions() -> dict[str, str]:
  """Returns what the figures were made with."""
  try:
    project = importlib.metadata.version('hyperparallel-moe')
  except importlib.metadata.PackageNotFoundError:
    project = 'not installed'
  return {
      'hyperparallel-moe': project,
      'python': platform.python_version(),
      'jax': jax.__version__,
      'numpy': np.__version__,
      'ml_dtypes': ml_dtypes.__version__,
      'machine': f'{platform.system()} {platform.machine()}',
  }


def make_inputs(request: Request) -> inputs_lib.LayerInputs:
  """Returns the inputs of lanes bitwise, bounded and standard.

  Raises:
    ValueError: the request or a file is wrong.
  """
  if request.input is not None:
    return inputs_lib.load_safetensors(
        request.input, request.placement, request.capacity
    )
  preset = presets.get(request.preset)
  if not preset.runs_here:
    raise ValueError(
        f'preset: expected one of {list(presets.RUNS_HERE)} to run here, got '
        f'{request.preset!r}, which is for hpmoe compile'
    )
  return inputs_lib.make_inputs(
      preset,
      request.ranks,
      request.tokens,
      request.dtype,
      request.routing,
      request.seed,
      request.text,
      placement=request.placement,
      capacity=request.capacity,
  )


def make_candidate(request: Request) -> candidates.Candidate:
  """Returns our backend or the user's function.

  Raises:
    ValueError: the request is contradictory.
  """
  if request.candidate is None:
    return candidates.Megakernel(
        request.options, request.threads, request.deadline_s, request.fault
    )
  if request.fault is not None:
    raise ValueError(
        f'fault: expected none with --candidate, got {request.fault!r}: faults '
        'are built into our own backend'
    )
  return candidates.Subprocess(request.candidate, request.timeout_s)


def tiling_of(
    request: Request, made: inputs_lib.LayerInputs, plan: candidates.Tensors
) -> tiles.Tiling:
  options = request.options.resolve(made.config)
  return tiles.Tiling(
      made.config,
      plan['counts'],
      plan['row_of_slot'],
      made.arrays['topk_ids'],
      options.row_block,
      options.col_block,
      options.token_block,
  )


def count_steps(request: Request) -> int:
  """Returns how often `run` calls `progress`."""
  steps = 1
  if 'exact' in request.lanes:
    steps += 3
  if set(request.lanes) - {'exact'}:
    steps += 2
  if 'bitwise' in request.lanes and request.candidate is None:
    steps += 1
  if {'bounded', 'standard'} & set(request.lanes):
    steps += len(tensors.STAGES) + 1
  return steps


class Bench:
  """The inputs of a request, and the oracle's answers to them.

  Whoever checks several candidates on the same inputs keeps the answers; a
  single check lets go of them, for the sake of memory.
  """

  def __init__(self, request: Request, keep: bool = False):
    """Makes the inputs.

    Raises:
      ValueError: the request was wrong.
    """
    self.made = make_inputs(request)
    self._seed = request.seed
    self._keep = keep
    self._answers: dict[str, dict[str, np.ndarray]] = {}

  def exact_inputs(self) -> inputs_lib.LayerInputs:
    """Returns integer data on the same routing."""
    policy = dataclasses.replace(self.made.policy, activation='product')
    ids = self.made.arrays['topk_ids']
    arrays, _ = exact_data.make(self.made.config, policy, ids, self._seed)
    return dataclasses.replace(self.made, policy=policy, arrays=arrays)

  def oracle(self, made: inputs_lib.LayerInputs) -> oracle_lib.Oracle:
    return oracle_lib.Oracle(made.config, made.policy, made.arrays)

  def answer(self, made: inputs_lib.LayerInputs) -> dict[str, np.ndarray]:
    """Returns the oracle's tensors; the caller may drop some."""
    name = made.policy.activation
    if name not in self._answers:
      answer = self.oracle(made).forward()
      if not self._keep:
        return answer
      self._answers[name] = answer
    return dict(self._answers[name])

  def judge(
      self,
      request: Request,
      candidate: candidates.Candidate,
      progress: Progress = lambda step: None,
  ) -> list[lanes.Result]:
    """Runs the lanes; see `run`."""
    results: list[lanes.Result] = []
    if 'exact' in request.lanes:
      results += exact_lane(request, self, candidate, progress)
    if set(request.lanes) - {'exact'}:
      results += real_lanes(request, self, candidate, progress)
    if all(r.verdict == lanes.NOT_JUDGED for r in results):
      raise NothingToJudge(
          f'lane: expected one that can judge what {candidate.name} returned, '
          f'got {list(request.lanes)}: {results[0].why}'
      )
    results.sort(key=lambda r: lanes.LANES.index(r.lane))
    return list(with_replay(request, with_hint(results)))


def run(request: Request, progress: Progress = lambda step: None) -> Report:
  """Runs the lanes of a request.

  Args:
    request: what to check.
    progress: called with the name of each step as it begins.

  Raises:
    ValueError: the request was wrong.
    candidates.CandidateError: the candidate crashed, hung or could not run.
  """
  start = time.perf_counter()
  candidate = make_candidate(request)
  progress('inputs')
  bench = Bench(request)
  try:
    results = bench.judge(request, candidate, progress)
  except candidates.CandidateError as error:
    replay = request.replay(*request.lanes)
    told = f'; replay: {replay}' if error.diagnosis else ''
    raise candidates.CandidateError(
        f'{error}{told}',
        error.diagnosis,
        replay,
        time.perf_counter() - start,
    ) from error
  return Report(
      config=describe(request, bench.made, candidate),
      results=tuple(results),
      seconds=time.perf_counter() - start,
  )


def with_hint(results: Sequence[lanes.Result]) -> list[lanes.Result]:
  """Tells who returned only y how to have a failure located."""
  missing = {r.missing for r in results}
  wanted = [name for name in tensors.STAGES if name in missing]
  if not wanted:
    return list(results)
  hint = f'return {", ".join(wanted)} to locate it nearer'
  hinted = []
  for result in results:
    failure = result.failure
    if failure is not None and result.stage in ('y', lanes.LAYER):
      failure = dataclasses.replace(failure, hint=failure.hint or hint)
    hinted.append(dataclasses.replace(result, failure=failure))
  return hinted


def with_replay(
    request: Request, results: Sequence[lanes.Result]
) -> Iterator[lanes.Result]:
  for result in results:
    failure = result.failure
    if failure is not None:
      replay = request.replay(failure.lane)
      failure = dataclasses.replace(failure, replay=replay)
    yield dataclasses.replace(result, failure=failure)


def describe(
    request: Request, made: inputs_lib.LayerInputs, candidate
) -> dict[str, object]:
  """Returns all that decides the outcome, as plain data."""
  return dict(
      layer=dataclasses.asdict(made.config),
      policy=dataclasses.asdict(made.policy),
      routing=made.routing,
      inputs=dict(made.facts),
      candidate=candidate.name,
      options=dataclasses.asdict(request.options.resolve(made.config)),
      threads=request.threads,
      fault=request.fault,
      lanes=list(request.lanes),
      standards=list(request.standards),
      command=shlex.join([program(), 'check', *request.arguments]),
  )


def exact_lane(
    request: Request,
    bench: Bench,
    candidate: candidates.Candidate,
    progress: Progress,
) -> list[lanes.Result]:
  """Integer data on the same routing: candidate and oracle must be equal."""
  progress('exact: candidate')
  made = bench.exact_inputs()
  try:
    got = candidate.run(made.config, made.policy, made.arrays)
  except candidates.CannotJudge as error:
    return [
        lanes.Result(
            'y', 'exact', ORACLE_RULE, verdict=lanes.NOT_JUDGED,
            why=str(error),
        )
    ]  # fmt: skip
  progress('exact: oracle')
  expected = bench.answer(made)
  tiling = tiling_of(request, made, expected)
  progress('exact: compare')
  return [
      equality(name, 'exact', ORACLE_RULE, got, expected, tiling)
      for name in (*tensors.PLAN, *tensors.STAGES)
  ]


def equality(
    name: str,
    lane: str,
    rule: str,
    got: dict[str, np.ndarray],
    expected: candidates.Tensors,
    tiling: tiles.Tiling,
) -> lanes.Result:
  if name not in got:
    return lanes.not_captured(name, lane, rule, name)
  return lanes.compare(name, lane, rule, got[name], expected[name], tiling)


def real_lanes(
    request: Request,
    bench: Bench,
    candidate: candidates.Candidate,
    progress: Progress,
) -> list[lanes.Result]:
  """Lanes bitwise, bounded and standard, on one run of the candidate."""
  made = bench.made
  progress('real data: candidate')
  got = candidate.run(made.config, made.policy, made.arrays)
  results = []
  if 'bitwise' in request.lanes and candidate.serial is not None:
    progress('bitwise: own kernels, serially')
    results += serial_rows(request, made, candidate, got)
  progress('real data: oracle')
  oracle, expected = bench.oracle(made), bench.answer(made)
  tiling = tiling_of(request, made, expected)
  # The oracle's own stages stand in only where the candidate kept the inputs
  # of a stage to itself.
  needed = {'y', 'expert_in', *tensors.PLAN} | {
      name for name in tensors.STAGES if _BEFORE.get(name) not in got
  }
  expected = {name: expected[name] for name in needed}
  if 'bitwise' in request.lanes:
    results += moved(request, got, expected, oracle, tiling)
  if {'bounded', 'standard'} & set(request.lanes):
    results += judged(request, made, got, expected, oracle, tiling, progress)
  return results


def serial_rows(
    request: Request,
    made: inputs_lib.LayerInputs,
    candidate: candidates.Megakernel,
    got: dict[str, np.ndarray],
) -> list[lanes.Result]:
  """The megakernel against its own tile kernels, run serially."""
  serial = candidate.serial(made.config, made.policy, made.arrays)
  tiling = tiling_of(request, made, serial)
  return [
      lanes.compare(
          name, 'bitwise', 'equals its kernels run serially', got[name],
          serial.pop(name), tiling,
      )
      for name in tensors.STAGES
  ]  # fmt: skip


def moved(
    request: Request,
    got: dict[str, np.ndarray],
    expected: candidates.Tensors,
    oracle: oracle_lib.Oracle,
    tiling: tiles.Tiling,
) -> list[lanes.Result]:
  """What only moves or counts, bit for bit: plan, dispatch and return."""
  results = [
      equality(name, 'bitwise', ORACLE_RULE, got, expected, tiling)
      for name in (*tensors.PLAN, 'expert_in')
  ]
  rule = 'equals its own expert_out, returned'
  if 'returned' in got and 'expert_out' in got:
    home = {'returned': oracle.stage('returned', got)}
    results.append(equality('returned', 'bitwise', rule, got, home, tiling))
  else:
    missing = 'expert_out' if 'returned' in got else 'returned'
    results.append(lanes.not_captured('returned', 'bitwise', rule, missing))
  return results


def judged(
    request: Request,
    made: inputs_lib.LayerInputs,
    got: dict[str, np.ndarray],
    expected: candidates.Tensors,
    oracle: oracle_lib.Oracle,
    tiling: tiles.Tiling,
    progress: Progress,
) -> list[lanes.Result]:
  """Lanes bounded and standard: every stage, then the fused layer."""
  records = [standards.get(name) for name in request.standards]
  if 'standard' not in request.lanes:
    records = []
  bounded = 'bounded' in request.lanes
  stages = golden_lib.Golden(tiling, made.policy, made.arrays, got)
  layer = dataclasses.replace(stages, captured={})
  results = []
  for name in tensors.STAGES:
    progress(f'bounded, standard: {name}')
    mine = [r for r in records if name not in MOVEMENT or r.movement]
    missing = name if name not in got else _missing_source(name, got)
    if missing:
      results += [
          *([lanes.not_captured(name, 'bounded', lanes.BOUND_RULE, missing)]
            if bounded else []),
          *(lanes.not_captured(name, 'standard', r.name, missing)
            for r in mine),
      ]  # fmt: skip
      continue
    benchmark = None
    if mine:
      benchmark = _benchmark(name, got, expected, oracle)
    if name in MOVEMENT:
      results += [
          lanes.compare(
              name, 'standard', f'{r.name}: movement, bitwise', got[name],
              benchmark, tiling,
          )
          for r in mine
      ]  # fmt: skip
      mine = []
    results += lanes.tolerances(
        name, got[name], stages, benchmark, mine, bounded
    )
  progress('bounded, standard: layer')
  results += lanes.tolerances(
      lanes.LAYER,
      got['y'],
      layer,
      expected['y'],
      [r for r in records if r.layer],
      bounded,
  )
  return results


def _missing_source(name: str, got: candidates.Tensors) -> str | None:
  """A put can only be judged on the rows that it was given."""
  needs_source = name == 'returned' and 'expert_out' not in got
  return 'expert_out' if needs_source else None


def _benchmark(name, got, expected, oracle) -> np.ndarray:
  before = _BEFORE.get(name)
  return oracle.stage(name, got) if before in got else expected[name]
