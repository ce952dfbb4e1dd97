"""One check: inputs, candidate, lanes, verdict."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import sys
import time
from typing import Any

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.kernels.ascendc.twin.launch import twin_runtime
from hpmoe.backend_ascend.kernels.host.checks import faults
from hpmoe.backend_ascend.kernels.host.checks import modes as modes_lib
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking as checking_lib
from hpmoe.parity_tests.candidates import twin_candidate
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import isolation
from hpmoe.parity_tests.judge import judging
from hpmoe.parity_tests.judge import of_pass
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import sampling
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.kept import programs
from hpmoe.reference.contract import presets

# Ranks as threads' work in one process, or each in a process of its own.
LAUNCHERS = ('threads', 'mpi')
# What runs the image: the host's kernels, or the NPU's on their twin.
BACKENDS = ('host', twin_candidate.NAME)

Tensors = passes.Tensors
Progress = judging.Progress


class NothingToJudge(ValueError):
  """The lanes asked for have nothing that they could judge."""


@dataclasses.dataclass(frozen=True)
class Request:
  """What `hpmoe check` was asked for.

  Attributes:
    direction: one of `passes.DIRECTIONS`; 'backward' runs the candidate on the
      oracle's forward tensors, 'both' on its own.
    preset: name of the shape.
    ranks: R.
    tokens: T instead of the preset's.
    dtype: storage, as policies call it.
    routing: a name of `inputs.ROUTINGS` or a file.
    input: a .safetensors file that holds all inputs; its shapes win.
    text: a text file to embed.
    seed: of all values.
    placement: where the routing weight multiplies.
    accumulation_order: of the sums of our backend.
    isa: instruction sets of our backend: the launch's first, the serial run's
      last; none: the best.
    capacity: N; None is what the routing needs.
    lanes: some of `verdicts.LANES`.
    standards: names of records for lane 'standard'.
    options: granularity and cores of our backend.
    threads: OS threads of our backend.
    deadline_s: seconds without progress before our backend gives up.
    candidate: `pkg.module:function`, or None for our backend.
    frontend: one of `front_end.NAMES`, through which our backend is called, or
      None.
    device: 'cpu' or 'ascend', on which the front end runs.
    timeout_s: seconds that a user's candidate may take.
    fault: a fault for our backend to commit.
    checking: modes of our backend's launches; some are a candidate's too.
    launcher: one of LAUNCHERS: whether our backend's ranks share a process.
    backend: one of BACKENDS: which of our backends.
    twin: modes of the twin.
    tiles: tiles of each stage to judge, the others not; None: all.
    arguments: the command line without --lane, --json and --html, for replays.
  """

  direction: str = 'forward'
  preset: str = 'small'
  ranks: int = 4
  tokens: int | None = None
  dtype: str = 'float32'
  routing: str = 'text'
  input: str | None = None
  text: str | None = None
  seed: int = 0
  placement: str = 'combine'
  accumulation_order: str = 'ascending'
  isa: tuple[str, ...] = ()
  capacity: int | None = None
  lanes: tuple[str, ...] = verdicts.LANES
  standards: tuple[str, ...] = standards.DEFAULT
  options: flow_lib.Options = flow_lib.Options()
  threads: int | None = None
  deadline_s: float = 60.0
  candidate: str | None = None
  frontend: str | None = None
  device: str = 'cpu'
  timeout_s: float = 600.0
  fault: str | None = None
  checking: checking_lib.Checking = checking_lib.Checking()
  launcher: str = LAUNCHERS[0]
  backend: str = BACKENDS[0]
  twin: twin_runtime.Modes = twin_runtime.Modes()
  tiles: int | None = None
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
    wrong: in isolated replay, the tasks that are wrong.
    launches: of our backend.
  """

  config: Mapping[str, Any]
  results: tuple[verdicts.Result, ...]
  seconds: float
  wrong: tuple[isolation.WrongTask, ...] = ()
  launches: tuple[candidates.Launch, ...] = ()

  @property
  def verdict(self) -> str:
    fails = any(r.verdict == verdicts.FAIL for r in self.results)
    return verdicts.FAIL if fails or self.num_races else verdicts.PASS

  @property
  def num_races(self) -> int:
    return sum(launch.num_races for launch in self.launches)

  @property
  def races(self) -> tuple[modes_lib.Race, ...]:
    """The first races, each once: launches on other data repeat them."""
    return tuple(dict.fromkeys(r for one in self.launches for r in one.races))

  @property
  def first_failure(self) -> verdicts.Failure | None:
    """The failing tile that comes first in dependency order.

    In isolated replay nothing spreads: of the strictest lane that fails, for
    what breaks a bound alone is a small miss beside it.
    """
    found = [r.failure for r in self.results if r.failure is not None]
    key = verdicts.Failure.order
    if self.config.get('modes', {}).get('isolate'):
      key = verdicts.Failure.severity
    return min(found, key=key, default=None)


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
  return {
    'hyperparallel-moe': _version('hyperparallel-moe'),
    'sources': sources(),
    'python': platform.python_version(),
    **{name: _version(name) for name in ('jax', 'numpy', 'ml_dtypes')},
    'machine': f'{platform.system()} {platform.machine()}',
  }


@functools.cache
def sources() -> str:
  """Returns a digest of what judges and of what is judged, as it runs here.

  It is that of all Python of the three floors and of the machine code: a report
  can be tied to a tree, for two builds of one version may differ.
  """
  digest = hashlib.sha256(pathlib.Path(_native.__file__).read_bytes())
  for package in ('reference', 'backend_ascend', 'parity_tests'):
    digest.update(programs.texts(f'hpmoe.{package}').encode())
  return digest.hexdigest()[:16]


def _version(package: str) -> str:
  import importlib.metadata  # Takes long, and only a JSON report needs it.

  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return 'not installed'


def make_inputs(request: Request) -> inputs_lib.LayerInputs:
  """Returns the inputs of lanes bitwise, bounded and standard.

  Raises:
    ValueError: the request or a file is wrong.
  """
  return _made(request).in_order(request.accumulation_order)


def _made(request: Request) -> inputs_lib.LayerInputs:
  if request.input is not None:
    return inputs_lib.load_safetensors(
      request.input, request.placement, request.capacity, request.seed
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
  wanted = passes.of(request.direction)
  _refuse_isa(request)
  if request.backend != BACKENDS[0]:
    return _on_twin(request)
  if request.frontend is not None:
    return _through_front_end(request)
  if request.device != 'cpu':
    raise ValueError(
      f'device: expected --frontend=mindspore beside it, got {request.device}'
    )
  if request.launcher == 'mpi':
    return _over_mpi(request)
  if request.candidate is None:
    _refuse_unknown_fault(request)
    return candidates.Megakernel(
      request.options,
      request.threads,
      request.deadline_s,
      request.fault,
      request.checking,
      isa=request.isa,
    )
  if request.fault is not None:
    raise ValueError(
      f'fault: expected none with --candidate, got {request.fault!r}: faults '
      'are built into our own backend'
    )
  _refuse_modes(request, '--candidate', checking_lib.OF_CANDIDATES)
  return user_candidate.Subprocess(
    request.candidate,
    request.timeout_s,
    has_backward=passes.BACKWARD in wanted,
    checking=request.checking,
  )


def _refuse_unknown_fault(request: Request) -> None:
  wanted = passes.of(request.direction)
  known = {n: None for w in wanted for n in faults.specs(w.direction)}
  if request.fault is not None and request.fault not in known:
    raise ValueError(
      f'fault: expected one of {list(known)} in direction '
      f'{request.direction}, got {request.fault!r}'
    )


def _refuse_isa(request: Request) -> None:
  """Refuses instruction sets that would have no effect, or that are not here.

  Raises:
    ValueError: names them.
  """
  known = _native.isas()
  unknown = [isa for isa in request.isa if isa not in known]
  if unknown:
    raise ValueError(
      f'isa: expected some of {known} on this CPU, got {unknown[0]!r}'
    )
  own = (request.candidate, request.frontend) == (None, None)
  plain = (request.backend, request.launcher) == (BACKENDS[0], LAUNCHERS[0])
  if request.isa and not (own and plain):
    raise ValueError(
      'isa: expected none but with our own backend on the host, its ranks in '
      f'one process, got {list(request.isa)}'
    )


def _on_twin(request: Request) -> candidates.Candidate:
  if request.backend not in BACKENDS:
    raise ValueError(
      f'backend: expected one of {list(BACKENDS)}, got {request.backend!r}'
    )
  beside = f'--backend={request.backend}'
  for name, other in (
    ('candidate', request.candidate),
    ('frontend', request.frontend),
    ('launcher', None if request.launcher == LAUNCHERS[0] else 'mpi'),
    ('threads', request.threads),
  ):
    if other is not None:
      raise ValueError(
        f'{name}: expected none with {beside}, got {other}: the twin runs '
        "the device's source, all ranks in one process and one thread"
      )
  _refuse_modes(request, beside)
  _refuse_unknown_fault(request)
  return twin_candidate.Twin(
    request.options,
    deadline_s=request.deadline_s,
    fault=request.fault,
    checking=checking_lib.Checking(races=False),
    twin=request.twin,
  )


def _refuse_modes(
  request: Request, beside: str, allowed: tuple[str, ...] = ()
) -> None:
  """Refuses modes that would not do what they say.

  Raises:
    ValueError: one was asked for.
  """
  asked = request.checking.asked()
  wrong = {name: asked[name] for name in asked if name not in allowed}
  if wrong:
    raise ValueError(
      f'{", ".join(wrong)}: expected none with {beside}, got '
      f'{", ".join(map(str, wrong.values()))}: it steers the tasks of our '
      'own runtime in one process'
    )


def _through_front_end(request: Request) -> candidates.Candidate:
  from hpmoe.parity_tests.candidates import front_end

  beside = f'--frontend={request.frontend}'
  for name, other in (
    ('candidate', request.candidate),
    ('fault', request.fault),
    ('launcher', None if request.launcher == LAUNCHERS[0] else 'mpi'),
  ):
    if other is not None:
      raise ValueError(
        f'{name}: expected none with {beside}, got {other}: it calls our '
        "backend as a framework's users do"
      )
  if request.direction == 'backward':
    raise ValueError(
      f'direction: expected forward or both with {beside}, got backward: a '
      'gradient reads what its own forward pass saved'
    )
  _refuse_modes(request, beside)
  return front_end.FrontEnd(
    str(request.frontend),
    request.options,
    request.threads,
    request.deadline_s,
    request.device,
  )


def _over_mpi(request: Request) -> candidates.Candidate:
  from hpmoe.parity_tests.candidates import mpi_launcher

  if request.candidate is not None:
    raise ValueError(
      f'launcher: expected none with --candidate={request.candidate}, got '
      'mpi: it launches our own runtime'
    )
  _refuse_modes(request, '--launcher=mpi')
  for name in ('fault', 'threads'):
    if getattr(request, name) is not None:
      raise ValueError(
        f'launcher: expected threads beside {name}, got mpi with '
        f'{getattr(request, name)}: there each rank is a process with one '
        'thread, which launches as it would on a cluster'
      )
  mpi_launcher.find_mpiexec()
  return mpi_launcher.MpiMegakernel(request.options, request.deadline_s)


def tiling_of(
  request: Request, made: inputs_lib.LayerInputs, plan: Tensors
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
  has_serial = request.candidate is None and request.frontend is None
  return 1 + sum(
    judging.count_steps(request.lanes, which, has_serial)
    for which in passes.of(request.direction)
  )


@dataclasses.dataclass(frozen=True)
class Examined:
  """What the lanes said of a candidate.

  Attributes:
    results: every comparison.
    wrong: in isolated replay, the guilty tasks, each once.
  """

  results: list[verdicts.Result]
  wrong: list[isolation.WrongTask]


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
    self._passes = passes.of(request.direction)
    self.made = make_inputs(request)
    self._seed = request.seed
    self._keep = keep
    self._answers: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    self._exact: dict[str, inputs_lib.LayerInputs] = {}

  def inputs(self, data: str) -> inputs_lib.LayerInputs:
    """Returns data of that name (`inputs.DATA`) on the same routing."""
    if data == 'real':
      return self.made
    if data in self._exact:
      return self._exact[data]
    backward = passes.BACKWARD in self._passes
    made = inputs_lib.with_data(self.made, data, backward, self._seed)
    if self._keep:
      self._exact[data] = made
    return made

  @functools.cached_property
  def plan(self) -> dict[str, np.ndarray]:
    """The oracle's plan of the routing."""
    made = self.made
    return oracle_lib.Oracle(made.config, made.policy, made.arrays).plan()

  def answer(
    self,
    made: inputs_lib.LayerInputs,
    which: passes.Pass = passes.FORWARD,
  ) -> dict[str, np.ndarray]:
    """Returns the oracle's tensors of a pass; the caller may drop some.

    Args:
      made: this bench's real or exact inputs; for the backward pass with what
        the oracle's forward pass saved.
      which: the pass.
    """
    name = (made.data, which.name)
    if name not in self._answers:
      answer = _ask(made, which)
      if not self._keep:
        return answer
      self._answers[name] = answer
    return dict(self._answers[name])

  def case(
    self,
    request: Request,
    which: passes.Pass,
    made: inputs_lib.LayerInputs,
    own: Tensors | None = None,
  ) -> judging.Case:
    """Returns a pass on this bench's inputs, ready to be judged.

    Args:
      request: its granularity.
      which: the pass.
      made: real or exact inputs.
      own: what the candidate's forward pass returned, if it ran.  The backward
        pass reads it; what it did not return, or what is not finite and would
        say nothing of a backward pass, is the oracle's.
    """
    tiling = tiling_of(request, made, self.plan)
    arrays = dict(made.arrays)
    kept = {}
    if which is passes.BACKWARD:
      kept = _usable(own or {}, passes.saved(made.policy))
      arrays |= self._saved(made, kept)
    read = which.reads(made.policy)
    given = dataclasses.replace(made, arrays={n: arrays[n] for n in read})
    answer = functools.partial(_ask if kept else self.answer, given, which)
    relay = request.options.relay and request.frontend is None
    relay &= request.candidate is None
    return judging.Case(which, given, tiling, answer, relay)

  def _saved(self, made: inputs_lib.LayerInputs, kept: Tensors) -> Tensors:
    """Returns what a forward pass saved, `kept` where that is there."""
    names = passes.saved(made.policy)
    if set(names) <= set(kept):
      return self.plan | dict(kept)
    forward = self.answer(made)
    return self.plan | {name: forward[name] for name in names} | dict(kept)

  def judge(
    self,
    request: Request,
    candidate: candidates.Candidate,
    progress: Progress = lambda step: None,
  ) -> list[verdicts.Result]:
    """As `examine`, the comparisons only."""
    return self.examine(request, candidate, progress).results

  def examine(
    self,
    request: Request,
    candidate: candidates.Candidate,
    progress: Progress = lambda step: None,
  ) -> Examined:
    """Runs the lanes; see `run`.

    Raises:
      ValueError: the request asks for a pass that this bench was not made for.
    """
    wanted = passes.of(request.direction)
    if not set(wanted) <= set(self._passes):
      raise ValueError(
        f'direction: expected a pass of {[p.name for p in self._passes]}, '
        f'got {request.direction!r}'
      )
    asked = judging.Asked(
      request.lanes,
      tuple(
        standards.get(n, self.made.policy.storage) for n in request.standards
      ),
      progress,
    )
    results: list[verdicts.Result] = []
    wrong: list[isolation.WrongTask] = []
    real = judging.real_lanes
    if request.tiles is not None:
      sample = tiles.Sample(request.tiles, request.seed)
      real = functools.partial(sampling.lanes_of_sample, sample=sample)
    for judge, data, is_asked in (
      (judging.exact_lane, 'exact', 'exact' in request.lanes),
      (judging.exact_lane, 'wide', 'exact' in request.lanes),
      (real, 'real', {*request.lanes} - {'exact'}),
    ):
      if is_asked:
        made = self.inputs(data)
        turns = self._in_turn(request, made, judge, asked, candidate)
        del made
        for found in turns:
          results += found.results
          wrong += found.wrong
    if all(r.verdict == verdicts.NOT_JUDGED for r in results):
      raise NothingToJudge(
        f'lane: expected one that can judge what {candidate.name} returned, '
        f'got {list(request.lanes)}: {results[0].why}'
      )
    _refuse_idle_fault(request, candidate, results)
    verdicts.check_each_once(results)
    results.sort(key=_pass_then_lane)
    # A stage in isolation gains nothing from what others would have returned.
    isolated = request.checking.isolate
    hinted = results if isolated else with_hint(results)
    return Examined(
      list(with_replay(request, hinted)),
      _guilty(request, candidate, wrong),
    )

  def _in_turn(
    self, request, made, judge, asked, candidate
  ) -> Iterator[judging.Judged]:
    """Judges the passes in order, the second on what the first one saved.

    In a replay on what the oracle saved: nothing spreads.
    """
    saved: Tensors = {}
    for which in passes.of(request.direction):
      case = self.case(request, which, made, saved)
      found = judge(asked, case, candidate)
      # The rest is not held while the next pass runs.
      if not request.checking.replays:
        got, names = found.got, passes.saved(made.policy)
        saved = {n: got[n] for n in names if n in got}
        del got
      yield dataclasses.replace(found, got={})
      del found


def _guilty(
  request: Request,
  candidate: candidates.Candidate,
  wrong: Sequence[isolation.WrongTask],
) -> list[isolation.WrongTask]:
  if not request.checking.isolate:
    return []
  found = []
  for which in passes.of(request.direction):
    races = [
      race
      for launch in candidates.launches_of(candidate)
      if launch.which is which
      for race in launch.races
    ]
    mine = [one for one in wrong if one.direction == which.name]
    found += isolation.judged(mine, races, which.name)
  return found


def _ask(
  made: inputs_lib.LayerInputs, which: passes.Pass
) -> dict[str, np.ndarray]:
  oracle = oracle_lib.Oracle(made.config, made.policy, made.arrays)
  return of_pass.answer(oracle, which, made.arrays)


def _usable(own: Tensors, names: Sequence[str]) -> dict[str, np.ndarray]:
  return {n: own[n] for n in names if n in own and np.isfinite(own[n]).all()}


def _pass_then_lane(result: verdicts.Result) -> tuple[int, int]:
  backward = verdicts.pass_of(result.stage) is passes.BACKWARD
  return int(backward), verdicts.LANES.index(result.lane)


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
  _refuse_sample(request)
  candidate = make_candidate(request)
  progress('inputs')
  bench = Bench(request)
  try:
    examined = bench.examine(request, candidate, progress)
  except candidates.CandidateError as error:
    replay = request.replay(*request.lanes)
    told = _plan_of_launch(request, bench, error)
    told += f'; replay: {replay}' if error.diagnosis else ''
    raise candidates.CandidateError(
      f'{error}{told}',
      error.diagnosis,
      replay,
      time.perf_counter() - start,
      error.plan,
    ) from error
  return Report(
    config=describe(request, bench.made, candidate),
    results=tuple(examined.results),
    seconds=time.perf_counter() - start,
    wrong=tuple(examined.wrong),
    launches=tuple(candidates.launches_of(candidate)),
  )


def _refuse_idle_fault(request: Request, candidate, results) -> None:
  """Refuses to call a layer right because the fault asked for is not in it.

  Raises:
    NothingToJudge: no launch committed the fault.
  """
  if request.fault is None or candidate.committed:
    return
  why = next(r.why for r in results if r.verdict == verdicts.NOT_JUDGED)
  raise NothingToJudge(
    f'fault: expected one that changes a bit of this layer in some lane, got '
    f'{request.fault!r}: {why}'
  )


# A sample is judged by golden values alone: the oracle computes whole tensors.
OF_SAMPLE = ('bitwise', 'bounded')


def _refuse_sample(request: Request) -> None:
  """Refuses what a sample cannot judge.

  Raises:
    ValueError: such was asked for beside `tiles`.
  """
  if request.tiles is None:
    return
  if request.tiles < 1:
    raise ValueError(f'tiles: expected at least 1, got {request.tiles}')
  if request.direction != 'forward' or request.checking.replays:
    raise ValueError(
      'tiles: expected --direction=forward without --isolate, --start_at and '
      f'--stop_after, got {request.direction} {request.checking.asked()}'
    )
  if set(request.lanes) != set(OF_SAMPLE):
    raise ValueError(
      f'tiles: expected --lane={",".join(OF_SAMPLE)}, got '
      f'{",".join(request.lanes)}'
    )


def _plan_of_launch(
  request: Request, bench: Bench, error: candidates.CandidateError
) -> str:
  """Returns what is wrong with the plan of a launch that ended early, or ''."""
  plan = getattr(error, 'plan', None)
  if plan is None:
    return ''
  tiling = tiling_of(request, bench.made, bench.plan)
  rows = [
    judging.equality(
      name, 'bitwise', judging.ORACLE_RULE, plan, bench.plan, tiling
    )
    for name in bench.plan
  ]
  wrong = [row.stage for row in rows if row.verdict == verdicts.FAIL]
  if not wrong:
    return ''
  return f'; not as the oracle plans this routing: {", ".join(wrong)}'


def with_hint(results: Sequence[verdicts.Result]) -> list[verdicts.Result]:
  """Tells who returned only a pass's results how to have a failure located."""
  missing = {r.missing for r in results}
  hints: dict[str, str] = {}
  for which in (passes.FORWARD, passes.BACKWARD):
    wanted = [name for name in which.stages if name in missing]
    if wanted:
      hint = f'return {", ".join(wanted)} to locate it nearer'
      hints |= dict.fromkeys(which.results, hint)
  hinted = []
  for result in results:
    failure = result.failure
    told = hints.get(verdicts.tensor_of(result.stage))
    if failure is not None and told:
      failure = dataclasses.replace(failure, hint=failure.hint or told)
    hinted.append(dataclasses.replace(result, failure=failure))
  return hinted


def with_replay(
  request: Request, results: Sequence[verdicts.Result]
) -> Iterator[verdicts.Result]:
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
    direction=request.direction,
    layer=dataclasses.asdict(made.config),
    policy=dataclasses.asdict(made.policy),
    routing=made.routing,
    inputs=dict(made.facts),
    candidate=candidate.name,
    options=dataclasses.asdict(
      request.options.resolve(made.config, made.policy.accumulation_order)
    ),
    threads=request.threads,
    fault=request.fault,
    launcher=request.launcher,
    backend=request.backend,
    twin=dataclasses.asdict(request.twin),
    modes=dataclasses.asdict(request.checking),
    tiles=request.tiles,
    lanes=list(request.lanes),
    standards=list(request.standards),
    command=shlex.join([program(), 'check', *request.arguments]),
  )
