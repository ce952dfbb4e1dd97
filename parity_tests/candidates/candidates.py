"""Candidates: what a check puts to the test, ours or the user's."""

import abc
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, ClassVar, Self

import numpy as np

from hpmoe.parity_tests.candidates import checking as checking_lib
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import routings
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

Tensors = Mapping[str, np.ndarray]


def noted(kind: type) -> Any:
  """Returns a field of what was run, empty, which no copy takes along."""
  return dataclasses.field(default_factory=kind, init=False, compare=False)


class CandidateError(RuntimeError):
  """The candidate crashed, hung or could not run.

  Attributes:
    diagnosis: of our own runtime, or None.
    replay: the command that shows it again, or None.
    seconds: wall time until then, or None.
    plan: `tensors.PLAN`, where our own launch had made it, or None.
  """

  def __init__(
    self,
    text: str,
    diagnosis: Any = None,
    replay: str | None = None,
    seconds: float | None = None,
    plan: Tensors | None = None,
  ):
    super().__init__(text)
    self.plan = plan
    self.diagnosis = diagnosis
    self.replay = replay
    self.seconds = seconds


class InputsSpoilt(CandidateError):
  """The candidate wrote to what it was to read: no caller of it expects that.

  Its answer may be right for the inputs that it was given all the same.
  """


@dataclasses.dataclass(frozen=True)
class Can:
  """What may be asked of a kind of candidate.

  Attributes:
    directions, dtypes: of a case.
    orders: of accumulation; None: its sums have an order of its own, whatever
      is asked for.
    modes: fields of `Checking` that it has.
    rounds: whether it has other rounding points, placements and orders of
      sums than our launch, see `policies`.
    relays: whether it returns relayed rows where its options relay.
    sublayers: whether it runs what is no whole layer, see `MoEConfig`.
    declares: whether it may say which activations it knows.
    parts: whether it may have biases, shared experts, slots that no expert
      serves, and other activations than swiglu.
    repeats: whether it is run again, unasked, to see if it answers the same.
    keeps: whether a call may keep something that a later one reads.
    saves: whether its backward pass may read what its own forward pass saved
      and did not return.
    forms: (weights, rows) that it has, if not `parts`: what its products are
      of, by names of `quantised.FORMS`, in the forward pass.
    stages: whether it may return what lies between its inputs and results.
    why: what it is, for who asks for more.
  """

  directions: tuple[str, ...] = passes.DIRECTIONS
  dtypes: tuple[str, ...] = tuple(storage.KERNEL_FORMATS)
  orders: tuple[str, ...] | None = precision.ACCUMULATION_ORDERS
  modes: tuple[str, ...] = ()
  rounds: bool = False
  relays: bool = False
  sublayers: bool = False
  repeats: bool = False
  keeps: bool = False
  saves: bool = False
  declares: bool = False
  parts: bool = False
  forms: tuple[tuple[str, str], ...] = ()
  stages: bool = True
  why: str = ''


_OF_DTYPE = 'none with {}, which multiplies the dtype alone'
# What a case must have where a candidate lacks something, if not the default.
_EXPECTED = dict(
  routing='one that uses every slot with {}',
  weights=_OF_DTYPE,
  rows=_OF_DTYPE,
  x_form=_OF_DTYPE,
  recipe=_OF_DTYPE,
  policy='none with {}, which rounds what it stores and nothing else',
  placement=f'one of {precision.LAUNCHED_PLACEMENTS} with {{}}',
)


class Candidate(abc.ABC):
  """Runs a pass of one layer.  `table` has a row for each kind.

  Attributes:
    can: what may be asked of its kind.
    name: what reports call it.
    options: how its tensors are cut into tiles; ours are computed so.
    checking: its modes.
    launches: of each run, where it is ours.
    seconds: of each run, where it repeats.
    fault: name of a fault that it is to commit, or None.
    committed: for each run with a fault, the task that did it.
    ranks: whose tensors it returns, where that is not all.
    serial: as `run`, the same tile kernels one after another; None if the
      candidate cannot.
    as_used: as `run`, what is launched for users, who ask for results only;
      None if that is `run` itself.
    alone_as_used: as `as_used`, in isolated replay: what its tasks wrote, and
      what they must have written; None if the candidate cannot.
  """

  can: ClassVar[Can] = Can()
  name: str
  options: granularity.Options = granularity.Options()
  checking: checking_lib.Checking = checking_lib.Checking()
  launches: 'Sequence[Launch]' = ()
  seconds: Sequence[float] = ()
  fault: str | None = None
  committed: Sequence[np.void] = ()
  ranks: tuple[int, ...] | None = None
  alone_as_used: Callable[..., tuple[dict, dict]] | None = None

  @property
  def recomputes(self) -> bool | None:
    """Whether its backward pass computes again what the forward pass saved.

    Known once it has run; None: its kind cannot say.
    """
    return None

  @property
  def serial(self) -> Callable[..., dict[str, np.ndarray]] | None:
    return None

  @property
  def as_used(self) -> Callable[..., dict[str, np.ndarray]] | None:
    return None

  @abc.abstractmethod
  def run(
    self,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    inputs: Tensors,
    which: passes.Pass = passes.FORWARD,
    given: Tensors | None = None,
  ) -> dict[str, np.ndarray]:
    """Returns the pass's first result and what else of its outputs it captured.

    Args:
      config: sizes.
      policy: precision.
      inputs: those of `which.reads(policy)`.
      which: the pass.
      given: the oracle's tensors, if `checking` replays.

    Raises:
      ValueError: the request does not suit the candidate.
      CandidateError: it crashed, hung or could not run.
    """

  def run_in_turn(
    self,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    data: Sequence[Tensors],
    layer_pass: passes.Pass,
  ) -> list[dict[str, np.ndarray]]:
    """Returns what it answers to some data of one shape, one after another.

    Args:
      config: sizes.
      policy: precision.
      data: as `inputs` of `run`; some may be the same.
      layer_pass: the pass.
    """
    return [self.run(config, policy, arrays, layer_pass) for arrays in data]

  def ready(self, case: case_lib.Case, beside: str = '') -> Self:
    """Returns the candidate ready for a case, before what takes long.

    Args:
      case: what will be asked.
      beside: what errors call the candidate; its name, unless given.

    Raises:
      ValueError: it cannot do that; names the argument.
      CandidateError: what it needs is not here.
    """
    can, beside = self.can, beside or self.name
    for name, known in (
      ('direction', can.directions),
      ('dtype', can.dtypes),
      ('accumulation_order', can.orders),
    ):
      value = getattr(case, name)
      if known is not None and value not in known:
        raise ValueError(
          f'{name}: expected {" or ".join(known)} with {beside}, got {value}'
          f'{": " if can.why else ""}{can.why}'
        )
    if not (can.sublayers or can.parts):
      tensors.require_layer(case, f'with {beside}')
    routing = case.routing if case.routing in routings.DROPPING else ''
    has_forms = (case.quantised, case.rows) in can.forms
    if has_forms and case.direction != 'forward':
      raise ValueError(
        f'direction: expected forward with rows={case.rows} and {beside}, got '
        f'{case.direction}'
      )
    placed = (
      '' if case.placement in precision.LAUNCHED_PLACEMENTS else case.placement
    )
    for name, value, plain, is_able in (
      ('activation', case.activation, 'swiglu', can.parts),
      ('bias', case.bias, False, can.parts),
      ('d_shared', case.d_shared, 0, can.parts),
      ('routing', routing, '', can.parts),
      ('weights', case.quantised, '', can.parts or has_forms),
      ('rows', case.rows, '', can.parts or has_forms),
      ('x_form', case.x_form, '', can.parts),
      ('recipe', case.recipe, '', can.parts),
      # What is rounded between codes is the backend's to refuse.
      ('policy', ','.join(case.policy), '', can.rounds or has_forms),
      ('placement', placed, '', can.rounds),
    ):
      if value != plain and not is_able:
        expected = _EXPECTED.get(name, f'{plain} with {{}}').format(beside)
        if name in ('weights', 'rows') and can.forms:
          pairs = ' or '.join(f'{w} with rows={r}' for w, r in can.forms)
          expected = f'weights={pairs}, or none, with {beside}'
        raise ValueError(f'{name}: expected {expected}, got {value}')
    for mode, value in self.checking.asked().items():
      if mode not in can.modes:
        raise ValueError(f'{mode}: expected none with {beside}, got {value}')
    return self

  def place(self, tensor: str, index: Sequence[np.ndarray]) -> str:
    """Returns where elements of the last run are in its own files, or ''.

    Args:
      tensor: its name.
      index: arrays that broadcast, one for each axis `[R, ...]`.
    """
    del tensor, index
    return ''

  def facts(self) -> dict[str, Any]:
    """Returns what it was made with but its modes, as plain data."""
    fields = getattr(self, '__dataclass_fields__', {}).values()
    made_with = {f.name: getattr(self, f.name) for f in fields if f.init}
    return {
      name: dataclasses.asdict(value)
      if hasattr(value, '__dataclass_fields__')
      else value
      for name, value in made_with.items()
      if name != 'checking'
    }


class CannotJudge(ValueError):
  """The candidate has no answer to this request, and says so."""


class FaultDoesNothing(CannotJudge):
  """No task changes a bit if it commits the fault."""


@dataclasses.dataclass(frozen=True)
class Launch(abc.ABC):
  """One launch of tile tasks, but for its tensors.

  Attributes:
    which: the pass.
    races: what the checking modes found, the first ones.
    num_races: all of them.
    left_out: `[num_tasks]` bool, tasks for which the oracle's tensors stand in;
      None: no task.
  """

  which: passes.Pass
  races: tuple[Any, ...] = ()
  num_races: int = 0
  left_out: np.ndarray | None = dataclasses.field(default=None, compare=False)

  @property
  @abc.abstractmethod
  def num_tasks(self) -> int:
    """All tasks."""

  @property
  def tasks_run(self) -> int:
    """Tasks that were not left out."""
    left_out = 0 if self.left_out is None else int(self.left_out.sum())
    return self.num_tasks - left_out

  @abc.abstractmethod
  def find_wrong_tasks(self, lane: str, bad: Tensors) -> list[Any]:
    """Returns the tasks that wrote bad elements, in the image's order.

    Args:
      lane: that judged.
      bad: by tensor name, bool in the tensor's shape.

    Returns:
      Of `isolation.WrongTask`.
    """

  @abc.abstractmethod
  def find_left_out(self, like: Tensors) -> dict[str, np.ndarray]:
    """Returns which elements the tasks that were left out write last.

    Args:
      like: tensors by name.

    Returns:
      By the names of `like`, bool in the tensor's shape.
    """
