"""The search: the model ranks, the simulator confirms, neighbours refine.

What is left out unseen is what a floor of the simulator's time excludes.

The search minimises the mean regret of forward and backward pass together over
equally likely routings.  The regret of a schedule is its extra time over the
best schedule known for that routing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import dataclasses
import functools

import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.orders import model
from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.backend_ascend.compiler.orders import select_scheduler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lower_backward
from hpmoe.backend_ascend.compiler.taskflow import lower_forward
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.tune import space
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Progress = Callable[[str], None]
_TILE = space.fields_of('tile')
_LOWER = {
  layout.Direction.FORWARD: lower_forward.lower_forward,
  layout.Direction.BACKWARD: lower_backward.lower_backward,
}


def simulate_stored(
  layer: 'Layer',
  direction: layout.Direction,
  image: image_lib.Image,
  topk_ids: np.ndarray,
) -> float:
  """Returns the seconds of a pass in the storage of its image.

  Args:
    layer: on whose machine.
    direction: the pass.
    image: of the pass.
    topk_ids: `[R, T, K]` i32.
  """
  del direction
  return simulate.simulate(image, layer.machine, topk_ids).total


@dataclasses.dataclass(frozen=True)
class Layer:
  """The layer to tune, and its machine.

  Attributes:
    config: sizes; N holds what every case sends.
    policy: precision.
    machine: on which.
    cases: `[R, T, K]` i32 experts of every token, by name of the routing.
    target: as `compiler.require_target`.
    seconds: of a pass; arguments as of `simulate_stored`.
    forward: precision of the forward pass, if another one than `policy`.
    loads: `[E]`, rows of every expert in batches that are not timed, by case;
      none are known of a case that is not there.
  """

  config: config_lib.MoEConfig
  policy: precision.PrecisionPolicy
  machine: machine_lib.Machine
  cases: Mapping[str, np.ndarray]
  target: str = 'host'
  seconds: Callable[..., float] = simulate_stored
  forward: precision.PrecisionPolicy | None = None
  loads: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  def policy_of(self, direction: layout.Direction) -> precision.PrecisionPolicy:
    """Returns the precision of a pass."""
    is_forward = direction == layout.Direction.FORWARD
    return self.forward if is_forward and self.forward else self.policy

  @property
  def cores(self) -> tuple[int, int]:
    """AIC and AIV of a rank: the machine's where an AIC has two AIVs.

    Elsewhere, on a host or a GPU, what an image calls so is a choice, and those
    of an A3 die are taken.
    """
    aic, aiv = int(self.machine['aic']), int(self.machine['aiv'])
    die = granularity.Options()
    return (aic, aiv) if aiv == 2 * aic else (die.num_aic, die.num_aiv)

  @property
  def expert_rows(self) -> int:
    """Rows that the fullest expert of any case receives."""
    return max(
      int(np.bincount(ids.ravel()).max()) for ids in self.cases.values()
    )


@dataclasses.dataclass(frozen=True)
class TimedSchedule:
  """A schedule in modelled time.

  Attributes:
    options: the schedule.
    predicted: s by case, of the analytical model.
    simulated_seconds: s by case and pass.
  """

  options: granularity.Options
  predicted: Mapping[str, float]
  simulated_seconds: Mapping[str, Mapping[str, float]]

  def total(self, case: str) -> float:
    return sum(self.simulated_seconds[case].values())

  def slower(self, other: 'TimedSchedule') -> float:
    """Returns by how much the mean case takes longer, 0.01 is 1 %."""
    cases = self.simulated_seconds
    return float(np.mean([self.total(c) / other.total(c) for c in cases])) - 1


@dataclasses.dataclass(frozen=True)
class Bound:
  """The roofline of one case: no schedule of a flow so cut ends before it.

  Attributes:
    seconds: of both passes.
    part: the busiest unit, memory or link of each pass.
  """

  seconds: float
  part: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Ablation:
  """What one choice is worth: the best schedule without it.

  Attributes:
    choice: name.
    option: the option of the best schedule.
    published_option: the option of the published system.
    seconds: by case.
    gain: how much longer it takes on average, 0.01 is 1 %; None: the published
      option does not go with the others.
  """

  choice: str
  option: str
  published_option: str
  seconds: Mapping[str, float]
  gain: float | None


@dataclasses.dataclass(frozen=True)
class Accuracy:
  """The analytical model against simulation of all points of a subspace.

  Attributes:
    points: how many.
    mean_error: of both passes' time, 0.01 is 1 %.
    worst_error: likewise.
    rank_correlation: Spearman's.
    regret: how much slower than the best point simulated the one is that the
      model takes for the best.
  """

  points: int
  mean_error: float
  worst_error: float
  rank_correlation: float
  regret: float


class Tuner:
  """Times schedules of one layer, each once."""

  def __init__(self, layer: Layer):
    tensors.require_layer(layer.config, 'to tune')
    self.layer = layer
    self.traffic = {
      name: model.traffic(layer.config, layer.machine, ids)
      for name, ids in layer.cases.items()
    }
    self._schedules: dict[granularity.Options, TimedSchedule] = {}
    self._runs = functools.cache(self._compiles)

  @functools.cached_property
  def base(self) -> granularity.Options:
    """What no choice changes: room for what the cases send, whose costs."""
    order = granularity.Order(machine=self._location)
    aic, aiv = self.layer.cores
    return granularity.Options(
      num_aic=aic,
      num_aiv=aiv,
      expert_capacity=self.layer.expert_rows,
      order=order,
    )

  @property
  def _location(self) -> str:
    """What loads the machine with whose costs a list scheduler plans."""
    return self.layer.machine.location or granularity.Order().machine

  @property
  def published(self) -> granularity.Options:
    aic, aiv = self.layer.cores
    order = dataclasses.replace(space.PUBLISHED.order, machine=self._location)
    return dataclasses.replace(
      space.PUBLISHED,
      order=order,
      num_aic=aic,
      num_aiv=aiv // 2,
      expert_capacity=self.layer.expert_rows,
    )

  def runs(self, fields: space.Fields) -> bool:
    """Whether the target runs GEMM tiles of such `granularity.Options`."""
    return self._runs(granularity.Options(**fields))

  def _compiles(self, options: granularity.Options) -> bool:
    # Of a small layer that has whole tiles: they decide, not its size.
    rows, cols = options.row_block, options.col_block
    small = config_lib.MoEConfig(
      num_ranks=1,
      num_tokens=rows,
      num_experts=1,
      top_k=1,
      d_model=2 * cols,
      d_ff=2 * cols,
    )
    try:
      for make in compiler.COMPILE.values():
        make(small, self.layer.policy, options, target=self.layer.target)
    except ValueError:
      return False
    return True

  def predict(self, table: np.ndarray) -> np.ndarray:
    """Returns `[cases, points]` f8 s of both passes, by the model."""
    return self._by_case(model.predict, layout.Direction, table)

  def bound_below(self, table: np.ndarray) -> np.ndarray:
    """Returns `[cases, points]` f8 s that simulated passes take at least.

    A pass whose rows are codes counts as zero: the model prices none.
    """
    plain = [d for d in _LOWER if not self.layer.policy_of(d).rows]
    return self._by_case(model.bound_below, plain, table)

  def _by_case(
    self, function, directions: Iterable[layout.Direction], table: np.ndarray
  ) -> np.ndarray:
    layer = self.layer
    passes = [
      function(layer.config, layer.policy, layer.machine, case, table)
      for case in self.traffic.values()
    ]
    zeros = np.zeros(len(table))
    return np.array(
      [sum((case[d] for d in directions), zeros) for case in passes]
    )

  def images(self, options: granularity.Options):
    """Yields (pass, image) without proofs; the result is compiled again."""
    for direction, lower in _LOWER.items():
      policy = self.layer.policy_of(direction)
      flow = lower(self.layer.config, policy, options)
      placement_ = placement.place(
        flow, select_scheduler.select_scheduler(options)(flow)
      )
      yield direction, image_lib.load(image_lib.serialize(placement_))

  def time(self, options: granularity.Options) -> TimedSchedule:
    """Returns a schedule, simulated in every case.

    Raises:
      ValueError: options that do not go together, or more cores than there are.
    """
    if options in self._schedules:
      return self._schedules[options]
    self._require(options)
    layer = self.layer
    seconds: dict[str, dict[str, float]] = {name: {} for name in layer.cases}
    for direction, image in self.images(options):
      for name, ids in layer.cases.items():
        pass_seconds = layer.seconds(layer, direction, image, ids)
        seconds[name][direction.name.lower()] = pass_seconds
    table = model.table(layer.config, [options])
    predicted = self.predict(table)[:, 0]
    schedule = TimedSchedule(
      options, dict(zip(layer.cases, predicted.tolist())), seconds
    )
    self._schedules[options] = schedule
    return schedule

  def _require(self, options: granularity.Options) -> None:
    """Raises ValueError if the target does not run them."""
    tile = {name: getattr(options, name) for name in (*_TILE, 'relay')}
    if not self.runs(tile):
      raise ValueError(
        f'options: expected some that {self.layer.target} runs, got '
        + ', '.join(f'{name} {value}' for name, value in tile.items())
      )

  def bound(
    self, options: granularity.Options, at_peak: bool = False
  ) -> dict[str, Bound]:
    """Returns the roofline of a schedule's flow, by case.

    Args:
      options: the schedule.
      at_peak: whether with no share that was fitted, and so with nothing that
        is known from the times that are to be beaten.
    """
    layer = self.layer
    machine = layer.machine.at_peak() if at_peak else layer.machine
    seconds = dict.fromkeys(layer.cases, 0.0)
    parts: dict[str, dict[str, str]] = {name: {} for name in layer.cases}
    for direction, image in self.images(options):
      for name, ids in layer.cases.items():
        bounds = simulate.bound(image, machine, ids)
        seconds[name] += bounds.seconds
        parts[name][direction.name.lower()] = bounds.name
    return {n: Bound(seconds[n], parts[n]) for n in layer.cases}


def regrets(seconds: np.ndarray) -> np.ndarray:
  """Returns `[cases, points]`: how much longer than the best of each case."""
  return seconds / seconds.min(axis=1, keepdims=True) - 1


def candidates(tuner: Tuner, grid: space.Grid, count: int) -> list[int]:
  """Returns the points of a grid that the model takes for the best."""
  cost = regrets(tuner.predict(grid.table)).mean(0)
  best = np.argpartition(cost, min(count, len(cost) - 1))[:count]
  return best[np.argsort(cost[best], kind='stable')].tolist()


class Pareto:
  """Schedules that were simulated, and which of them is the best."""

  def __init__(self, tuner: Tuner):
    self.tuner = tuner
    self.schedules: dict[granularity.Options, TimedSchedule] = {}

  def add(self, options: granularity.Options) -> None:
    """Simulates a schedule, if it can be."""
    # Refused are fields that do not go together.
    with contextlib.suppress(ValueError):
      self.schedules[options] = self.tuner.time(options)

  def _seconds(self) -> np.ndarray:
    cases = self.tuner.layer.cases
    return np.array(
      [
        [schedule.total(name) for schedule in self.schedules.values()]
        for name in cases
      ]
    )

  def best(self) -> TimedSchedule:
    """Returns the schedule with the least expected regret."""
    cost = regrets(self._seconds()).mean(0)
    return list(self.schedules.values())[int(cost.argmin())]

  def best_by_case(self) -> dict[str, TimedSchedule]:
    """Returns the fastest of each case."""
    schedules = list(self.schedules.values())
    fastest = self._seconds().argmin(1)
    return {n: schedules[i] for n, i in zip(self.tuner.layer.cases, fastest)}

  def regret(self, schedule: TimedSchedule) -> dict[str, float]:
    """Returns the extra time of a schedule over the fastest, by case."""
    best = self.best_by_case()
    return {n: schedule.total(n) / best[n].total(n) - 1 for n in best}

  def excludes(self, table: np.ndarray) -> np.ndarray:
    """Returns which points, `[points]` bool, no simulation can make the best.

    By its floor such a point is the fastest of no case, so that all regrets
    stay, and its own mean regret is no less than the best's.

    Args:
      table: `[points, len(model.COLUMNS)]` f8, of rows that are not relayed.
    """
    seconds = self._seconds()
    fastest = seconds.min(axis=1, keepdims=True)
    floors = self.tuner.bound_below(table)
    regret = (floors / fastest - 1).mean(0)
    return (floors >= fastest).all(0) & (
      regret >= regrets(seconds).mean(0).min()
    )


def _is_excluded(pareto: Pareto, options: granularity.Options) -> bool:
  """Returns whether a floor says that a schedule is not the best."""
  if options.relay:  # of whose puts the floor knows nothing
    return False
  table = model.table(pareto.tuner.layer.config, [options])
  return bool(pareto.excludes(table)[0])


def refine(
  pareto: Pareto,
  choices: Sequence[space.Choices],
  rounds: int,
  progress: Progress = lambda step: None,
) -> None:
  """Tries each option of each choice around the best, until none helps.

  Options whose floor excludes them are not simulated.
  """
  for _ in range(rounds):
    before = pareto.best()
    for among in choices:
      for name, options in among.items():
        best = pareto.best()
        for fields in options.values():
          progress(name)
          # Refused are fields that do not go together.
          with contextlib.suppress(ValueError):
            near = space.replace_fields(best.options, fields)
            if not _is_excluded(pareto, near):
              pareto.add(near)
    if pareto.best() is before:
      return


def ablate(
  tuner: Tuner, best: TimedSchedule, progress: Progress = lambda step: None
) -> list[Ablation]:
  """Returns what each choice of the best is worth, the dearest first."""
  rows = []
  for name in space.NAMES:
    fields = {
      field: space.value(tuner.published, field)
      for field in space.fields_of(name)
    }
    progress(f'without {name}')
    option = space.label(best.options, name)
    published_option = space.label(tuner.published, name)
    if option == published_option:
      continue
    try:
      schedule = tuner.time(space.replace_fields(best.options, fields))
    except ValueError:
      rows.append(Ablation(name, option, published_option, {}, None))
      continue
    seconds = {
      case: schedule.total(case) for case in schedule.simulated_seconds
    }
    rows.append(
      Ablation(name, option, published_option, seconds, schedule.slower(best))
    )
  return sorted(rows, key=lambda row: -(row.gain or 0))


def accuracy(
  tuner: Tuner, choices: space.Choices, progress: Progress = lambda step: None
) -> tuple[Accuracy, list[TimedSchedule]]:
  """Returns the model's errors over all points of choices, and the points."""
  choices = space.choose_cores(choices, tuner.base.num_aiv)
  grid = space.grid(tuner.layer.config, tuner.base, choices, tuner.runs)
  schedules = []
  for point in range(len(grid.table)):
    progress('subspace')
    schedules.append(tuner.time(grid.options(point)))
  cases = tuner.layer.cases
  predicted = np.array([[s.predicted[c] for s in schedules] for c in cases])
  simulated_seconds = np.array([[s.total(c) for s in schedules] for c in cases])
  error = np.abs(predicted / simulated_seconds - 1)
  ranks = [_spearman(*pair) for pair in zip(predicted, simulated_seconds)]
  regret = (
    simulated_seconds[np.arange(len(simulated_seconds)), predicted.argmin(1)]
    / simulated_seconds.min(1)
    - 1
  )
  return Accuracy(
    len(schedules),
    float(error.mean()),
    float(error.max()),
    float(np.mean(ranks)),
    float(regret.max()),
  ), schedules


def _spearman(first: np.ndarray, second: np.ndarray) -> float:
  """Returns the correlation of ranks; equal values share theirs."""
  ranks = []
  for values in (first, second):
    _, inverse, counts = np.unique(
      values, return_inverse=True, return_counts=True
    )
    last = np.cumsum(counts)
    ranks.append((last - (counts - 1) / 2)[inverse])
  return float(np.corrcoef(*ranks)[0, 1])


# All of whose points are simulated, to see how good the model is.
SUBSPACE: space.Choices = {
  name: {
    word: fields for word, fields in space.GRID[name].items() if word in words
  }
  for name, words in dict(
    event_grain=('expert', 'row_block'),
    tile=('128x128', '256x128'),
    put_rows=('32', '128'),
    aiv=('24', '48'),
    put_aiv=('0.0', '0.5'),
    lag=('all', '1.0'),
    row_order=('ascending', 'interleaved'),
  ).items()
}
