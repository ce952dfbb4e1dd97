"""Two layers of routed experts in one model, on one batch.

Every captured tensor gets msprobe's metrics.  They say where two sides part,
but not whether a kernel is wrong: rounding adds up over layers, and a limit of
0.001 hides small gradients.  So each MoE layer of the candidate's side whose
results have other bits is also judged alone, on what it read there, by the
rounding bound of `hpmoe check`.
"""

from collections.abc import Callable
import dataclasses
import importlib
import pathlib
import shlex
import types

import numpy as np

from hpmoe.models import layer_names
from hpmoe.models import parameters
from hpmoe.models import routed as routed_lib
from hpmoe.models.checkpoint import atomic_folder
from hpmoe.parity_tests.candidates import backends
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.compare import capture
from hpmoe.parity_tests.compare import layers
from hpmoe.parity_tests.compare import metrics
from hpmoe.parity_tests.compare import routing_diff
from hpmoe.parity_tests.compare import subject as subject_lib
from hpmoe.parity_tests.compare import training
from hpmoe.parity_tests.judge import case_export
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts

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
    moe: a layer by name, or flags of `hpmoe check` that ask for a candidate.
    candidate: which they ask for; None for a layer by name.
  """

  framework: str
  moe: str
  candidate: candidates.Candidate | None = None

  def __str__(self) -> str:
    return f'{self.framework}:{self.moe}'

  @property
  def kind(self) -> str:
    """What computes its layers, where that can run alone."""
    return 'the kernel' if self.candidate is None else self.moe


@dataclasses.dataclass(frozen=True)
class Request:
  """What `hpmoe compare` was asked for.

  Attributes:
    left: the reference, msprobe's bench.
    right: the candidate, msprobe's NPU.
    backward: whether gradients are compared too.
    device: where a side in MindSpore computes, cpu or ascend.
    fault: for the candidate's megakernel to commit, or None.
    fault_layer: in which layer.
    out: folder for what a layer read.
    steps: of training, after the comparison; 0: none.
    cases: folder for a case of each layer with experts, on what the
      candidate's side gave it; None for none.
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
class Judged:
  """A MoE layer of the candidate's side, judged alone.

  Attributes:
    layer: its number.
    report: of `hpmoe check`; None if it could not be judged.
    why: then the reason; else what the report is of.
  """

  layer: int
  report: check.Report | None
  why: str

  @property
  def is_wrong(self) -> bool:
    return self.report is not None and self.report.verdict == verdicts.FAIL


@dataclasses.dataclass(frozen=True)
class Result:
  """The answer.

  Attributes:
    rows: of every tensor, in the order in which they are computed.
    choices: by layer, the tokens that go to other experts.
    judged: MoE layers in order; none after the first wrong one.
    steps: of training.
    trained: MoE layers of the last of them, as `judged`.
  """

  rows: tuple[metrics.Row, ...]
  choices: dict[int, list[routing_diff.Choice]]
  judged: tuple[Judged, ...]
  steps: tuple[training.Step, ...] = ()
  trained: tuple[Judged, ...] = ()

  @property
  def later(self) -> Judged | None:
    """The first layer that is wrong in the last step of training."""
    return next((one for one in self.trained if one.is_wrong), None)

  @property
  def wrong(self) -> Judged | None:
    """The first layer that is wrong on its own inputs."""
    return next((one for one in self.judged if one.is_wrong), None)

  @property
  def first(self) -> metrics.Row | None:
    """The first row with a difference beyond thresholds.

    The first that msprobe calls an error, or the first result of the wrong
    layer that is out of its bound, whichever was computed earlier.
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
    """Whether every layer of experts with other bits is right by itself."""
    all_ = (*self.judged, *self.trained)
    right = [one.report is not None and not one.is_wrong for one in all_]
    return bool(right) and all(right)


def _places(rows, wrong: Judged) -> list[int]:
  """Returns where the row of the wrong layer's first failing result is."""
  assert wrong.report is not None
  failed = {
    verdicts.tensor_of(r.stage)
    for r in wrong.report.results
    if r.verdict == verdicts.FAIL
  }
  # A race may leave every value right.
  backward = failed and not failed & set(passes.FORWARD.outputs)
  roles = failed if backward else {'y'}
  found = [
    i for i, r in enumerate(rows) if r.layer == wrong.layer and r.role in roles
  ]
  # A stage that only the kernel's own replay shows is one of this pass.
  pass_ = [
    i for i, r in enumerate(rows) if r.layer == wrong.layer and r.role in _GRADS
  ]
  return (found or pass_)[:1]


def pair(name: str, text: str) -> Pair:
  """Returns the pair that `FRAMEWORK:MOE` means.

  Raises:
    ValueError: it means none; names the argument.
  """
  framework, colon, moe = text.partition(':')
  if framework not in FRAMEWORKS or not colon or not moe:
    raise ValueError(
      f'{name}: expected FRAMEWORK:MOE with a framework of '
      f'{list(FRAMEWORKS)}, got {text!r}'
    )
  if moe.startswith('--') and framework != 'jax':
    raise ValueError(
      f'{name}: expected jax before flags of hpmoe check, got {framework}'
    )
  return Pair(framework, moe)


def check_request(request: Request, subject: subject_lib.Subject) -> None:
  """Refuses a request that cannot be met.

  Raises:
    ValueError: names the argument.
  """
  frameworks = {request.left.framework, request.right.framework}
  if request.device != 'cpu' and 'mindspore' not in frameworks:
    raise ValueError(
      f'device: expected a side in mindspore beside it, got {request.device}'
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
        f'fault_layer: expected --fault beside it, got {request.fault_layer}'
      )
    return
  ways = passes.from_direction('both' if request.backward else 'forward')
  find_names = backends.require_backend('fault').find_fault_names
  known = dict.fromkeys(n for w in ways for n in find_names(w.direction))
  if request.fault not in known:
    raise ValueError(
      f'fault: expected one of {list(known)}, got {request.fault!r}'
    )
  if str(request.right) != 'jax:host':
    raise ValueError(
      f'fault: expected --right=jax:host beside it, got {request.right}: '
      'faults are built into our own runtime'
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
    request: what.
    subject: model and batch.
    progress: called with the name of each step as it begins.

  Raises:
    OSError: a layer's inputs cannot be written.
    ValueError: the request was wrong.
    candidates.CandidateError: a launch ended early.
  """
  check_request(request, subject)
  pairs = (request.left, request.right)
  frameworks = [_framework(one, subject) for one in pairs]
  wanted = [
    (one, side, _instead(request, subject, one))
    for one, side in zip(pairs, frameworks, strict=True)
  ]
  raws = []
  for one, side, instead in wanted:
    progress(str(one))
    raws.append(side.run(subject, one.moe, False, instead, request.device))
  # Of a loss that is not finite no launch computes gradients.
  if request.backward and all(np.isfinite(raw.loss).all() for raw in raws):
    raws = [
      side.run(subject, one.moe, True, instead, request.device)
      for one, side, instead in wanted
    ]
  bench, npu = (capture.named(subject, raw) for raw in raws)
  assert [t.name for t in npu] == [t.name for t in bench]
  rows = [
    metrics.compare(a.name, a.layer, a.role, a.array, b.array)
    for a, b in zip(npu, bench, strict=True)
  ]
  sides = [_by_layer(subject, side) for side in (npu, bench)]
  choices = {}
  for layer in subject.moe_layers:
    found = list(routing_diff.choices(*(side[layer] for side in sides)))
    if found:
      choices[layer] = found
  rows = [_with_choices(row, choices) for row in rows]
  judged = _judge(request, subject, rows, sides[0], progress)
  if request.cases is not None:
    _write_cases(request, subject, sides[0], progress)
  result = Result(tuple(rows), choices, tuple(judged))
  if not request.steps or result.wrong is not None:
    return result
  return _train(request, subject, wanted, result, progress)


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


def _train(request, subject, wanted, result, progress) -> Result:
  """Adds steps of training, up to one with a wrong layer."""
  judged: list[Judged] = []

  def judge(number, given, raw) -> bool:
    progress(f'step {number}')
    side = _by_layer(given, capture.named(given, raw))
    judged[:] = []
    for layer in subject.moe_layers:
      judged.append(_judge_layer(request, subject, layer, side[layer]))
      if judged[-1].is_wrong:
        return False
    return True

  def of(one, side, instead):
    def run_(given, noise):
      return side.run(given, one.moe, True, instead, request.device, noise)

    return str(one), run_

  left, right = (of(*each) for each in wanted)
  steps = training.run(subject, request.steps, left, right, judge)
  return dataclasses.replace(result, steps=steps, trained=tuple(judged))


def _instead(
  request: Request, subject: subject_lib.Subject, side: Pair
) -> dict[int, candidates.Candidate]:
  """Returns the candidates that compute layers instead of the side's layer."""
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
    # It imports MindSpore so that it does not warn of what it does not find.
    importlib.import_module('hpmoe.models.mindspore.device')
  side = importlib.import_module(_SIDES[pair.framework])
  if pair.candidate is None:
    layer = side.moe_lib.find_layer(pair.moe)
    if subject.config.family.by_turns:
      layer_names.check_biased(layer)
      if pair.moe in ('host', 'ascend'):
        routed_lib.check_launched(parameters.OF_EXPERTS[2:])
  return side


def _by_layer(
  subject: subject_lib.Subject, side: list[capture.Tensor]
) -> dict[int, dict[str, np.ndarray]]:
  """Returns what each MoE layer read and returned, as a check names it."""
  found = {}
  for layer in subject.moe_layers:
    mine = {t.role: t.array for t in side if t.layer == layer and t.role}
    weights = subject.experts(layer)
    mine |= {n: subject.params[full] for n, full in weights.items()}
    for name in (*weights, *(f'd_{n}' for n in weights)):
      if name in mine:
        array = mine[name]
        mine[name] = array.reshape(subject.ranks, -1, *array.shape[1:])
    found[layer] = mine
  return found


def _with_choices(row: metrics.Row, choices) -> metrics.Row:
  """Says in the row of ids what kind of difference it is."""
  if row.role != 'topk_ids' or row.layer not in choices:
    return row
  kinds = {choice.why for choice in choices[row.layer]}
  count = len(choices[row.layer])
  message = f'{count} token{"s" * (count > 1)}: {"; ".join(sorted(kinds))}'
  return dataclasses.replace(row, values=row.values | {'Err_message': message})


def _judge(request, subject, rows, side, progress) -> list[Judged]:
  """Judges MoE layers in order until one is wrong."""
  judged = []
  for layer in subject.moe_layers:
    mine = [r for r in rows if r.layer == layer and r.role in verdicts.LAYERS]
    if all(row.same for row in mine):
      continue
    progress(f'layer {layer} alone')
    judged.append(_judge_layer(request, subject, layer, side[layer]))
    if judged[-1].is_wrong:
      break
  return judged


def _write_cases(request, subject, side, progress) -> None:
  """Writes a case folder of each MoE layer whose inputs are finite."""
  root = pathlib.Path(request.cases)
  root.mkdir(parents=True, exist_ok=True)
  for layer in subject.moe_layers:
    progress(f'case of layer {layer}')
    if layers.not_finite(side[layer]):
      continue
    asked = _saved(request, subject, layer, side[layer])
    # As `hpmoe export` does, for kernels elsewhere.
    with atomic_folder.writing(str(root / f'layer_{layer}')) as made:
      case_export.write(str(made), asked, command=' '.join(request.command))


def _saved(request, subject, layer: int, captured) -> case_lib.Case:
  """Returns the case of a file of what a layer read."""
  folder = pathlib.Path(request.out)
  folder.mkdir(parents=True, exist_ok=True)
  path = str(folder / f'layer_{layer}.safetensors')
  return layers.save(path, captured, subject.activation)


def _judge_layer(request: Request, subject, layer: int, captured) -> Judged:
  if name := layers.not_finite(captured):
    return Judged(layer, None, f'{name} is not finite before it')
  asked = _saved(request, subject, layer, captured)
  what = 'what the layer returned'
  if (alone := _alone(request, layer)) is not None:
    candidate, arguments = alone
    report, other = layers.judge_candidate(
      asked, captured, candidate, arguments
    )
    if not other:
      return Judged(
        layer, report, f'{request.right.kind} on what the layer read'
      )
    what += f' ({request.right.kind} alone gives other bits of '
    what += f'{", ".join(other)})'
  report = layers.judge_outputs(
    asked, captured, str(request.right), request.command
  )
  return Judged(layer, report, what)


def _alone(
  request: Request, layer: int
) -> tuple[candidates.Candidate, list[str]] | None:
  """Returns what computes a layer of the candidate's side, and its flags."""
  if request.right.candidate is not None:
    return request.right.candidate, shlex.split(request.right.moe)
  if request.right.moe != 'host':
    return None
  fault = request.fault if layer == request.fault_layer else None
  host = backends.require_backend('moe').default
  return host.make(dict(fault=fault)), [f'--fault={fault}'] if fault else []


def count_steps(request: Request, subject: subject_lib.Subject) -> int:
  """Returns the most steps of `run`."""
  each = 1 + (request.cases is not None)
  return 2 + each * len(subject.moe_layers) + request.steps
