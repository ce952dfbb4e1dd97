"""Candidates: what a check judges, the megakernel or the user's kernel."""

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
  """Returns a field that runs fill; it starts empty, also in copies."""
  return dataclasses.field(default_factory=kind, init=False, compare=False)


class CandidateError(RuntimeError):
  """The candidate crashed, hung or could not run.

  Attributes:
    diagnosis: the report of the megakernel's runtime, or None.
    replay: the command that reproduces the failure, or None.
    seconds: wall time until the failure, or None.
    plan: `tensors.PLAN`, if a launch of the megakernel had computed it.
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
  """The candidate wrote to its inputs, which no caller expects.

  Its outputs may still be right for these inputs.
  """


@dataclasses.dataclass(frozen=True)
class Capabilities:
  """What a kind of candidate can do.

  Attributes:
    directions, dtypes: of the cases that it runs.
    orders: its accumulation orders; None: it ignores the order that the case
      names, and sums in its own.
    modes: the fields of `Checking` that it supports.
    rounds: whether it supports rounding points, placements and orders of sums
      that the megakernel lacks, see `policies`.
    relays: whether it returns relayed rows where its options relay.
    sublayers: whether it runs parts of a layer, see `MoEConfig`.
    declares: whether it may declare the activations that it supports.
    parts: whether it may have biases, shared experts, slots that no expert
      serves, and other activations than swiglu.
    repeats: whether each check runs it twice, and compares the bits.
    keeps: whether a call may keep state that a later call reads.
    saves: whether its backward pass may read tensors that its forward pass
      saved and did not return.
    forms: the (weights, rows) that its forward pass multiplies, as names of
      `quantised.FORMS`; not read if `parts`.
    stages: whether it may return tensors of the stages before its results.
    description: of the kind; ends error messages about unsupported requests.
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
  description: str = ''


_OF_DTYPE = 'none with {}, which multiplies the dtype alone'
# The value that a case must have if a candidate lacks a capability; for other
# fields it is the default.
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
    capabilities: what its kind can do.
    name: what reports call it.
    options: how its tensors are cut into tiles; the megakernel's tasks.
    checking: its modes.
    launches: one for each run, if it is the megakernel.
    seconds: wall time of each run, if it repeats.
    fault: name of a fault to inject, or None.
    committed: for each run with a fault, the task that committed it.
    ranks: the ranks whose tensors it returns; None: all.
    serial: as `run`, the same tile kernels one after another; None if the
      candidate cannot.
    as_used: as `run`, but the fused launch that front ends make, which returns
      results only; None if that is `run` itself.
    alone_as_used: as `as_used`, in isolated replay: what its tasks wrote, and
      what they must have written; None if the candidate cannot.
  """

  capabilities: ClassVar[Capabilities] = Capabilities()
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
    """Whether its backward pass recomputes what the forward pass saved.

    Known after a run; None: its kind cannot tell.
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
    layer_pass: passes.Pass = passes.FORWARD,
    oracle_tensors: Tensors | None = None,
  ) -> dict[str, np.ndarray]:
    """Returns the pass's first result, and further outputs that it has.

    Args:
      config: sizes.
      policy: precision.
      inputs: the tensors of `layer_pass.reads(policy)`.
      layer_pass: the pass.
      oracle_tensors: the oracle's plan and stages, if `checking` replays.

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
    """Runs several inputs of one shape one after another.

    Args:
      config: sizes.
      policy: precision.
      data: the `inputs` of each `run`; some may be the same.
      layer_pass: the pass.

    Returns:
      The outputs of each run, as of `run`.
    """
    return [self.run(config, policy, arrays, layer_pass) for arrays in data]

  def ready(self, case: case_lib.Case, beside: str = '') -> Self:
    """Returns the candidate ready for a case, before anything slow runs.

    Args:
      case: the case that it will run.
      beside: the candidate's name in error messages; '': `name`.

    Raises:
      ValueError: it cannot run the case; names the argument.
      CandidateError: something that it needs is missing.
    """
    capabilities, beside = self.capabilities, beside or self.name
    _check_choices(capabilities, case, beside)
    if not (capabilities.sublayers or capabilities.parts):
      tensors.require_layer(case, f'with {beside}')
    _check_parts(capabilities, case, beside)
    for mode, value in self.checking.find_non_default().items():
      if mode not in capabilities.modes:
        raise ValueError(f'{mode}: expected none with {beside}, got {value}')
    return self

  def place(self, tensor: str, index: Sequence[np.ndarray]) -> str:
    """Returns where its own files hold elements of the last run, or ''.

    Args:
      tensor: its name.
      index: arrays that broadcast, one for each axis `[R, ...]`.
    """
    del tensor, index
    return ''

  def facts(self) -> dict[str, Any]:
    """Returns its fields except its modes, as plain data for reports."""
    fields = getattr(self, '__dataclass_fields__', {}).values()
    names = [f.name for f in fields if f.init and f.name != 'checking']
    return {
      _REPORT_KEYS.get(name, name): _to_plain_data(getattr(self, name))
      for name in names
    }


def _check_choices(
  capabilities: Capabilities, case: case_lib.Case, beside: str
) -> None:
  """Refuses a direction, dtype or order that a candidate lacks."""
  for name, choices in (
    ('direction', capabilities.directions),
    ('dtype', capabilities.dtypes),
    ('accumulation_order', capabilities.orders),
  ):
    value = getattr(case, name)
    if choices is not None and value not in choices:
      text = capabilities.description
      raise ValueError(
        f'{name}: expected {" or ".join(choices)} with {beside}, got {value}'
        f'{": " if text else ""}{text}'
      )


def _check_parts(
  capabilities: Capabilities, case: case_lib.Case, beside: str
) -> None:
  """Refuses parts, forms, roundings and placements that a candidate lacks."""
  has_forms = (case.quantised, case.rows) in capabilities.forms
  if has_forms and case.direction != 'forward':
    raise ValueError(
      f'direction: expected forward with rows={case.rows} and {beside}, got '
      f'{case.direction}'
    )
  for name, value, default, is_able in _list_parts(capabilities, case):
    if value != default and not is_able:
      expected = _EXPECTED.get(name, f'{default} with {{}}').format(beside)
      if name in ('weights', 'rows') and capabilities.forms:
        pairs = ' or '.join(f'{w} with rows={r}' for w, r in capabilities.forms)
        expected = f'weights={pairs}, or none, with {beside}'
      raise ValueError(f'{name}: expected {expected}, got {value}')


def _list_parts(
  capabilities: Capabilities, case: case_lib.Case
) -> tuple[tuple[str, Any, Any, bool], ...]:
  """Returns (field, value, default, whether other values are supported)."""
  has_parts, rounds = capabilities.parts, capabilities.rounds
  has_forms = (case.quantised, case.rows) in capabilities.forms
  routing = case.routing if case.routing in routings.DROPPING else ''
  is_launched = case.placement in precision.LAUNCHED_PLACEMENTS
  return (
    ('activation', case.activation, 'swiglu', has_parts),
    ('bias', case.bias, False, has_parts),
    ('d_shared', case.d_shared, 0, has_parts),
    ('routing', routing, '', has_parts),
    ('weights', case.quantised, '', has_parts or has_forms),
    ('rows', case.rows, '', has_parts or has_forms),
    ('x_form', case.x_form, '', has_parts),
    ('recipe', case.recipe, '', has_parts),
    # The backend itself refuses rounding points that it lacks between codes.
    ('policy', ','.join(case.policy), '', rounds or has_forms),
    ('placement', '' if is_launched else case.placement, '', rounds),
  )


# Keys of JSON reports for fields that have another name in Python.
_REPORT_KEYS = dict(capabilities='can', description='why')


def _to_plain_data(value: Any) -> Any:
  if not hasattr(value, '__dataclass_fields__'):
    return value
  fields = dataclasses.asdict(value)
  return {_REPORT_KEYS.get(name, name): v for name, v in fields.items()}


class CannotJudge(ValueError):
  """The candidate declares that it cannot run this request."""


class FaultDoesNothing(CannotJudge):
  """The fault changes no bit of any task's output."""


@dataclasses.dataclass(frozen=True)
class Launch(abc.ABC):
  """One launch of tile tasks, without its tensors.

  Attributes:
    layer_pass: the pass.
    races: the first races that the checking modes found.
    num_races: how many races they found.
    left_out: `[num_tasks]` bool, tasks that did not run: the oracle's tensors
      replace what they write; None: no task.
  """

  layer_pass: passes.Pass
  races: tuple[Any, ...] = ()
  num_races: int = 0
  left_out: np.ndarray | None = dataclasses.field(default=None, compare=False)

  @property
  @abc.abstractmethod
  def num_tasks(self) -> int:
    """How many tasks the launch has."""

  @property
  def tasks_run(self) -> int:
    """How many tasks were not left out."""
    left_out = 0 if self.left_out is None else int(self.left_out.sum())
    return self.num_tasks - left_out

  @abc.abstractmethod
  def find_wrong_tasks(self, lane: str, bad: Tensors) -> list[Any]:
    """Returns the tasks that wrote bad elements, in the image's order.

    Args:
      lane: the lane that judged.
      bad: by tensor name, bool in the tensor's shape.

    Returns:
      `isolation.WrongTask`s.
    """

  @abc.abstractmethod
  def find_left_out(self, like: Tensors) -> dict[str, np.ndarray]:
    """Returns which elements the tasks that were left out write last.

    Args:
      like: tensors by name.

    Returns:
      By the names of `like`, bool in the tensor's shape.
    """
