"""Two layers of routed experts in one model, on one batch.

Every captured tensor gets msprobe's metrics.  They show where two sides differ,
but not whether a kernel is wrong: rounding errors accumulate over layers, and a
limit of 0.001 hides small gradients.  So each MoE layer of the candidate's side
whose bits differ is also judged alone, on its own inputs, by the rounding bound
of `hpmoe check`.
"""

from collections.abc import Callable
import dataclasses
import importlib
import pathlib
import shlex
import types

import numpy as np

from hpmoe.models import layer_lookup
from hpmoe.models import parameters
from hpmoe.models import routed as routed_lib
from hpmoe.models.checkpoint import atomic_folder
from hpmoe.parity_tests.candidates import backends
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.compare import layer_checks
from hpmoe.parity_tests.compare import metrics
from hpmoe.parity_tests.compare import routing_diff
from hpmoe.parity_tests.compare import side_results
from hpmoe.parity_tests.compare import subject as subject_lib
from hpmoe.parity_tests.compare import training
from hpmoe.parity_tests.judge import case_export
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import messages

_SIDES = dict(
  jax='hpmoe.parity_tests.compare.jax_side',
  mindspore='hpmoe.parity_tests.compare.mindspore_side',
)
FRAMEWORKS = tuple(_SIDES)
_GRADS = tuple(verdicts.LAYERS)[1:]

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Pair:
  """A framework, and the layer of routed experts in it.

  Attributes:
    framework: one of `FRAMEWORKS`.
    moe: a layer by name, or flags of `hpmoe check` that name a candidate.
    candidate: the candidate of these flags; None for a layer by name.
  """

  framework: str
  moe: str
  candidate: candidates.Candidate | None = None

  def __str__(self) -> str:
    return f'{self.framework}:{self.moe}'

  @property
  def kind(self) -> str:
    """The kind of its layer, if that can run alone."""
    return 'the kernel' if self.candidate is None else self.moe


@dataclasses.dataclass(frozen=True)
class Request:
  """A request of `hpmoe compare`.

  Attributes:
    left: the reference, msprobe's bench.
    right: the candidate, msprobe's NPU.
    backward: whether gradients are compared too.
    device: the device of a side in MindSpore, cpu or ascend.
    fault: the fault to inject into the candidate's megakernel, or None.
    fault_layer: the layer of the fault.
    out: folder for a layer's inputs.
    steps: of training, after the comparison; 0: none.
    cases: folder for a case of each layer with experts, with its inputs on the
      candidate's side; None: no cases.
    command: the arguments of `hpmoe` that repeat this.
  """

  left: Pair
  right: Pair
  backward: bool = False
  device: str = 'cpu'
  fault: str | None = None
  fault_layer: int | None = None
  out: str = 'out/compare'
  cases: str | None = None
  steps: int = 0
  command: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class JudgedLayer:
  """A MoE layer of the candidate's side, judged on its own inputs.

  Attributes:
    layer: its number.
    report: of `hpmoe check`; None if the layer could not be judged.
    reason: why it could not be judged; with a report, what was checked.
  """

  layer: int
  report: check.Report | None
  reason: str

  @property
  def is_wrong(self) -> bool:
    return self.report is not None and self.report.verdict == verdicts.FAIL


@dataclasses.dataclass(frozen=True)
class Result:
  """The answer.

  Attributes:
    rows: of every tensor, in the order of computation.
    choices: by layer, the tokens that are routed to other experts.
    judged: MoE layers in order, up to the first wrong one.
    steps: of training.
    trained: MoE layers of the last step, as `judged`.
  """

  rows: tuple[metrics.Row, ...]
  choices: dict[int, list[routing_diff.Choice]]
  judged_layers: tuple[JudgedLayer, ...]
  steps: tuple[training.Step, ...] = ()
  trained_layers: tuple[JudgedLayer, ...] = ()

  @property
  def later(self) -> JudgedLayer | None:
    """The first layer that is wrong in the last step of training."""
    return next(
      (layer for layer in self.trained_layers if layer.is_wrong), None
    )

  @property
  def wrong(self) -> JudgedLayer | None:
    """The first layer that is wrong on its own inputs."""
    return next((layer for layer in self.judged_layers if layer.is_wrong), None)

  @property
  def first(self) -> metrics.Row | None:
    """The first row with a difference beyond thresholds.

    The first that msprobe calls an error, or the first result of the wrong
    layer that exceeds its bound, whichever comes first.
    """
    bad = [i for i, r in enumerate(self.rows) if r.result == metrics.ERROR]
    if self.wrong is not None:
      bad += _places(self.rows, self.wrong)
    return self.rows[min(bad)] if bad else None

  @property
  def verdict(self) -> str:
    fine = self.first is None and self.later is None
    return verdicts.PASS if fine else verdicts.FAIL

  @property
  def is_rounding(self) -> bool:
    """Whether each MoE layer with different bits is right on its own inputs."""
    all_ = (*self.judged_layers, *self.trained_layers)
    right = [layer.report is not None and not layer.is_wrong for layer in all_]
    return bool(right) and all(right)


def _places(rows, wrong: JudgedLayer) -> list[int]:
  """Returns the index of the row with the wrong layer's first failure."""
  assert wrong.report is not None
  failed_tensors = {
    verdicts.tensor_of(r.stage)
    for r in wrong.report.results
    if r.verdict == verdicts.FAIL
  }
  # With a race, all values may still be right.
  backward = failed_tensors and not failed_tensors & set(passes.FORWARD.outputs)
  roles = failed_tensors if backward else {'y'}
  own_rows = [
    i for i, r in enumerate(rows) if r.layer == wrong.layer and r.role in roles
  ]
  # A stage that only the kernel's own replay shows belongs to this pass.
  pass_ = [
    i for i, r in enumerate(rows) if r.layer == wrong.layer and r.role in _GRADS
  ]
  return (own_rows or pass_)[:1]


def pair(name: str, text: str) -> Pair:
  """Returns the pair of `FRAMEWORK:MOE`.

  Raises:
    ValueError: the text is wrong; names the argument.
  """
  framework, colon, moe = text.partition(':')
  if framework not in FRAMEWORKS or not colon or not moe:
    raise ValueError(
      f'{name}: expected FRAMEWORK:MOE with a framework of '
      f'{list(FRAMEWORKS)}, or dump:DIR (a folder of weights: '
      f'--{name}_model), got {text!r}'
    )
  if moe.startswith('--') and framework != 'jax':
    raise ValueError(
      f'{name}: expected jax before flags of hpmoe check, got {framework}'
    )
  return Pair(framework, moe)


def check_request(request: Request, subject: subject_lib.Subject) -> None:
  """Checks a request.

  Raises:
    ValueError: names the argument.
  """
  frameworks = {request.left.framework, request.right.framework}
  if request.device != 'cpu' and 'mindspore' not in frameworks:
    raise ValueError(
      f'device: expected a side in mindspore with it, got {request.device}'
    )
  if request.cases is not None and any(pathlib.Path(request.cases).glob('*')):
    raise ValueError(
      f'cases: expected a folder that is empty, got {request.cases!r}'
    )
  if request.steps < 0 or (request.steps and not request.backward):
    raise ValueError(
      'steps: expected 0, or more with direction both, got '
      f'{request.steps} with {"both" if request.backward else "forward"}'
    )
  if request.fault is None:
    if request.fault_layer is not None:
      raise ValueError(
        f'fault_layer: expected --fault with it, got {request.fault_layer}'
      )
    return
  ways = passes.from_direction('both' if request.backward else 'forward')
  find_names = backends.require_backend('fault').find_fault_names
  names = dict.fromkeys(n for w in ways for n in find_names(w.direction))
  if request.fault not in names:
    raise ValueError(f'fault: {messages.refuse_choice(names, request.fault)}')
  if str(request.right) != 'jax:host':
    raise ValueError(
      f'fault: expected --right=jax:host with it, got {request.right}: '
      'faults are built into the megakernel'
    )
  if request.fault_layer not in subject.moe_layers:
    raise ValueError(
      f'fault_layer: expected one of {list(subject.moe_layers)}, which have '
      f'routed experts, got {request.fault_layer}'
    )


def run(
  request: Request,
  subject: subject_lib.Subject,
  progress: Progress = lambda step: None,
) -> Result:
  """Compares two sides.

  Args:
    request: the request.
    subject: model and batch.
    progress: called with the name of each step as it begins.

  Raises:
    OSError: a layer's inputs cannot be written.
    ValueError: the request was wrong.
    candidates.CandidateError: a launch ended early.
  """
  check_request(request, subject)
  pairs = (request.left, request.right)
  frameworks = [_framework(candidate, subject) for candidate in pairs]
  runs = [
    (candidate, side, _instead(request, subject, candidate))
    for candidate, side in zip(pairs, frameworks, strict=True)
  ]
  raws = []
  for candidate, side, instead in runs:
    progress(str(candidate))
    raws.append(
      side.run(subject, candidate.moe, False, instead, request.device)
    )
  # Launches compute no gradients of a loss that is not finite.
  if request.backward and all(np.isfinite(raw.loss).all() for raw in raws):
    raws = [
      side.run(subject, candidate.moe, True, instead, request.device)
      for candidate, side, instead in runs
    ]
  bench, npu = (side_results.list_tensors(subject, raw) for raw in raws)
  assert [t.name for t in npu] == [t.name for t in bench]
  rows = [
    metrics.compare(a.name, a.layer, a.role, a.array, b.array)
    for a, b in zip(npu, bench, strict=True)
  ]
  sides = [_by_layer(subject, side) for side in (npu, bench)]
  choices = {}
  for layer in subject.moe_layers:
    differences = list(routing_diff.choices(*(side[layer] for side in sides)))
    if differences:
      choices[layer] = differences
  rows = [_with_choices(row, choices) for row in rows]
  judged_layers = _judge(request, subject, rows, sides[0], progress)
  if request.cases is not None:
    _write_cases(request, subject, sides[0], progress)
  result = Result(tuple(rows), choices, tuple(judged_layers))
  if not request.steps or result.wrong is not None:
    return result
  return _train(request, subject, runs, result, progress)


def compute_logits(
  request: Request, subject: subject_lib.Subject, side: Pair
) -> Callable[[np.ndarray], np.ndarray]:
  """Returns a side as a function from tokens `[B, S]` to logits."""
  framework = _framework(side, subject)
  candidates_ = _instead(request, subject, side)

  def compute(tokens: np.ndarray) -> np.ndarray:
    part = dataclasses.replace(subject, tokens=tokens)
    raw = framework.run(part, side.moe, False, candidates_, request.device)
    return raw.logits[0]

  return compute


def _train(request, subject, sides, result, progress) -> Result:
  """Adds steps of training, up to one with a wrong layer."""
  judged_layers: list[JudgedLayer] = []

  def judge(number, subject_then, raw) -> bool:
    progress(f'step {number}')
    side = _by_layer(subject_then, side_results.list_tensors(subject_then, raw))
    judged_layers[:] = []
    for layer in subject.moe_layers:
      judged_layers.append(_judge_layer(request, subject, layer, side[layer]))
      if judged_layers[-1].is_wrong:
        return False
    return True

  def describe_side(candidate, side, instead):
    def run_(subject_then, noise):
      return side.run(
        subject_then, candidate.moe, True, instead, request.device, noise
      )

    return str(candidate), run_

  left, right = (describe_side(*entry) for entry in sides)
  steps = training.run(subject, request.steps, left, right, judge)
  return dataclasses.replace(
    result, steps=steps, trained_layers=tuple(judged_layers)
  )


def _instead(
  request: Request, subject: subject_lib.Subject, side: Pair
) -> dict[int, candidates.Candidate]:
  """Returns the candidates that replace the side's layers, by layer."""
  if side.candidate is not None:
    return dict.fromkeys(subject.moe_layers, side.candidate)
  if side is not request.right or request.fault_layer is None:
    return {}
  host = backends.require_backend('fault').default
  return {request.fault_layer: host.make(dict(fault=request.fault))}


def _framework(pair: Pair, subject: subject_lib.Subject) -> types.ModuleType:
  """Returns the side that runs a pair, if it knows the pair's layer.

  Raises:
    ImportError: the framework is not installed.
    ValueError: the framework has no such layer, or not one with the model's
      biases.
  """
  if pair.framework == 'mindspore':
    # It imports MindSpore without warnings about missing packages.
    importlib.import_module('hpmoe.models.mindspore.device')
  side = importlib.import_module(_SIDES[pair.framework])
  if pair.candidate is None:
    layer = side.moe_lib.find_layer(pair.moe)
    if subject.config.family.by_turns:
      layer_lookup.check_biased(layer)
      if pair.moe in ('host', 'ascend'):
        routed_lib.check_launched(parameters.OF_EXPERTS[2:])
  return side


def _by_layer(
  subject: subject_lib.Subject, side: list[side_results.Tensor]
) -> dict[int, dict[str, np.ndarray]]:
  """Returns the inputs and outputs of each MoE layer, as a check names them."""
  arrays_by_layer = {}
  for layer in subject.moe_layers:
    arrays = {t.role: t.array for t in side if t.layer == layer and t.role}
    weights = subject.experts(layer)
    arrays |= {n: subject.params[full] for n, full in weights.items()}
    for name in (*weights, *(f'd_{n}' for n in weights)):
      if name in arrays:
        array = arrays[name]
        arrays[name] = array.reshape(subject.ranks, -1, *array.shape[1:])
    arrays_by_layer[layer] = arrays
  return arrays_by_layer


def _with_choices(row: metrics.Row, choices) -> metrics.Row:
  """Adds the kind of difference to the row of ids."""
  if row.role != 'topk_ids' or row.layer not in choices:
    return row
  kinds = {choice.reason for choice in choices[row.layer]}
  count = len(choices[row.layer])
  message = f'{count} token{"s" * (count > 1)}: {"; ".join(sorted(kinds))}'
  return dataclasses.replace(row, values=row.values | {'Err_message': message})


def _judge(request, subject, rows, side, progress) -> list[JudgedLayer]:
  """Judges MoE layers in order until one is wrong."""
  judged_layers = []
  for layer in subject.moe_layers:
    layer_rows = [
      r for r in rows if r.layer == layer and r.role in verdicts.LAYERS
    ]
    if all(row.same_bits for row in layer_rows):
      continue
    progress(f'layer {layer} alone')
    judged_layers.append(_judge_layer(request, subject, layer, side[layer]))
    if judged_layers[-1].is_wrong:
      break
  return judged_layers


def _write_cases(request, subject, side, progress) -> None:
  """Writes a case folder of each MoE layer whose inputs are finite."""
  root = pathlib.Path(request.cases)
  root.mkdir(parents=True, exist_ok=True)
  for layer in subject.moe_layers:
    progress(f'case of layer {layer}')
    if layer_checks.not_finite(side[layer]):
      continue
    case = _save_case(request, subject, layer, side[layer])
    # As `hpmoe export`, for kernels that run elsewhere.
    with atomic_folder.writing(str(root / f'layer_{layer}')) as folder:
      case_export.write(str(folder), case, command=' '.join(request.command))


def _save_case(request, subject, layer: int, arrays) -> case_lib.Case:
  """Writes a layer's inputs to a file, and returns their case."""
  folder = pathlib.Path(request.out)
  folder.mkdir(parents=True, exist_ok=True)
  path = str(folder / f'layer_{layer}.safetensors')
  return layer_checks.save(path, arrays, subject.activation)


def _judge_layer(request: Request, subject, layer: int, arrays) -> JudgedLayer:
  if name := layer_checks.not_finite(arrays):
    return JudgedLayer(layer, None, f'{name} is not finite before it')
  case = _save_case(request, subject, layer, arrays)
  source = 'what the layer returned'
  if (alone := _alone(request, layer)) is not None:
    candidate, arguments = alone
    report, other = layer_checks.judge_candidate(
      case, arrays, candidate, arguments
    )
    if not other:
      return JudgedLayer(
        layer, report, f'{request.right.kind} on what the layer read'
      )
    source += f' ({request.right.kind} alone gives other bits of '
    source += f'{", ".join(other)})'
  report = layer_checks.judge_outputs(
    case, arrays, str(request.right), request.command
  )
  return JudgedLayer(layer, report, source)


def _alone(
  request: Request, layer: int
) -> tuple[candidates.Candidate, list[str]] | None:
  """Returns the candidate that computes a layer alone, and its flags."""
  if request.right.candidate is not None:
    return request.right.candidate, shlex.split(request.right.moe)
  if request.right.moe != 'host':
    return None
  fault = request.fault if layer == request.fault_layer else None
  host = backends.require_backend('moe').default
  return host.make(dict(fault=fault)), [f'--fault={fault}'] if fault else []


def count_steps(request: Request, subject: subject_lib.Subject) -> int:
  """Returns the most steps of `run`."""
  steps_per_layer = 1 + (request.cases is not None)
  return 2 + steps_per_layer * len(subject.moe_layers) + request.steps
