"""A check of a kernel that routes by itself, from logits to y.

The kernel gets `router_logits` and `router_bias` in place of `topk_ids` and
`topk_weights`.  If it returns these two, they are judged: rounding must allow
the choice of experts, and a routing weight must be within its bound.  All other
stages are judged under the kernel's own choice, so an error of the router does
not spread to them.  A backward pass may return `d_router_logits`.

With `router_gemm` it gets `router_w` in place of logits.  If it returns its
logits, they are judged, and its choice is judged under them; otherwise a logit
may be anywhere within its bound.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

import numpy as np

from hpmoe.parity_tests.candidates import self_routing
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.explain import routing_mistakes
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import router_grad
from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.router import grad_mistakes
from hpmoe.parity_tests.judge.router import local_experts
from hpmoe.parity_tests.judge.router import router_data
from hpmoe.parity_tests.judge.router import router_grads
from hpmoe.parity_tests.judge.router import router_logits
from hpmoe.reference import routing as routing_lib
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import tensors as tensors_lib

# Lane exact needs routing weights that are whole numbers; a router's are not.
LANES = ('bitwise', 'bounded', 'standard')
CHOICE_RULE = 'a choice that rounding allows'
# Tokens of one tile row.
_TOKEN_BLOCK = 64
# Elements of the factors of logits' gradients that are computed at once.
_CHUNK = 1 << 22
_GRAD = tensors_lib.ROUTER_GRADS[0].name
_LOGITS = router_logits.LOGITS
_U = ulp.unit_roundoff('float32')
# A weight matches a mistake if it is within this many of its limits.
_NEAR_UNITS = 4

Run = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Routing:
  """Experts and weights.

  Attributes:
    ids: `[R, T, K]` int32.
    weights: `[R, T, K]` float32.
    weight_ulp: the largest error of a kernel's weights.
  """

  ids: at.Int32[np.ndarray, 'R T K']
  weights: at.Float[np.ndarray, 'R T K']
  weight_ulp: float


@dataclasses.dataclass(frozen=True)
class Task:
  """The routing task of a kernel.

  Attributes:
    router: the rule.
    inputs: logits and bias.
    layer: all other inputs by name; None: they are drawn.
    gemm: the GEMM of the logits, if the kernel computes them.
    spread: `[R, T, E]`, the largest errors of its logits; None: zero.
  """

  router: router_lib.Router
  inputs: router_data.RouterInputs
  layer: Mapping[str, np.ndarray] | None = None
  gemm: router_logits.RouterGemm | None = None
  spread: at.Float[np.ndarray, 'R T E'] | None = None

  @classmethod
  def from_case(cls, case: case_lib.Case) -> 'Task':
    """Returns the task of a case with a router.

    Raises:
      ValueError: the router does not suit the case.
    """
    if case.routing != 'text' and case.router_gemm:
      raise ValueError(
        'routing: expected text with --router_gemm, whose logits follow from '
        f'x, got {case.routing}'
      )
    if case.input is not None:
      return cls._from_inputs(case, _read_inputs(case.input))
    config, policy = case.estimate_sizes()
    router = router_lib.parse_router(case.router, config.top_k)
    plain = dataclasses.replace(case, router='', router_gemm=False)
    if not case.router_gemm:
      ids = None
      if case.routing != 'text':
        ids = _require_whole(case, plain.make().arrays['topk_ids'])
      return cls(router, router_data.draw(config, router, case.seed, ids))
    x = np.array(plain.make().arrays['x'])
    experts = config.num_experts
    weights_and_bias = router_data.draw_weights(
      policy, router, x, experts, case.seed
    )
    return cls._from_gemm(router, policy, x, *weights_and_bias)

  @classmethod
  def _from_inputs(
    cls, case: case_lib.Case, arrays: Mapping[str, np.ndarray]
  ) -> 'Task':
    layer = dict(arrays)
    read, axes = ('router_w', 2) if case.router_gemm else (_LOGITS, 3)
    array, bias = layer.pop(read, None), layer.pop('router_bias', None)
    if array is None or np.ndim(array) != axes:
      shape = '[D, E]' if case.router_gemm else '[R, T, E]'
      raise ValueError(
        f'input: expected {read} {shape} with --router, got {sorted(arrays)}'[
          :200
        ]
      )
    for name in (*tensors_lib.ROUTING, _LOGITS):
      if name in layer:
        raise ValueError(f'input: expected {read} in place of {name}, got both')
    router = router_lib.parse_router(case.router)
    router.check(array.shape[-1])
    own_bias = None if bias is None else np.asarray(bias, np.float32)
    if case.router_gemm:
      _, policy = case.estimate_sizes()
      x = layer['x']
      policy = dataclasses.replace(policy, storage=str(x.dtype))
      if x.shape[-1:] != array.shape[:1]:
        raise ValueError(
          f'router_w: expected {x.shape[-1]} rows, as x has columns, got '
          f'{list(array.shape)}'
        )
      return cls._from_gemm(router, policy, x, array, own_bias, layer)
    wide = np.asarray(array, np.float32)
    checks.check_scores(wide)
    return cls(router, router_data.RouterInputs(wide, own_bias), layer)

  @classmethod
  def _from_gemm(
    cls, router, policy, x, router_w, bias=None, layer=None
  ) -> 'Task':
    adds_bias = router.table.bias == 'logits'
    gemm = router_logits.RouterGemm(policy, x, router_w, bias, adds_bias)
    logits, spread = gemm.bound_logits()
    later_bias = None if adds_bias else bias
    inputs = router_data.RouterInputs(logits, later_bias)
    return cls(router, inputs, layer, gemm, spread)

  def follow(self, own_logits: np.ndarray | None) -> 'Task':
    """Returns the task of a kernel that computed logits `[R, T, E]`.

    If they are None or not finite, any kernel's choices stay possible.
    """
    if own_logits is None or not np.isfinite(own_logits).all():
      return self
    logits = own_logits.astype(np.float64)
    inputs = dataclasses.replace(self.inputs, logits=logits)
    return dataclasses.replace(self, inputs=inputs, spread=None)

  @functools.cached_property
  def undecided(self) -> dict[int, list[tuple[int, ...]]]:
    """The possible choices of each token `[R T]` that has several."""
    return router_limits.find_undecided(self.router, self.scores)

  @functools.cached_property
  def scores(self) -> router_limits.Scores:
    """The scores by which all tokens `[R T]` choose experts."""
    logits = self.inputs.logits
    flat = logits.reshape(-1, logits.shape[-1])
    spread = None if self.spread is None else self.spread.reshape(flat.shape)
    return router_limits.bound_scores(
      self.router, flat, self.inputs.bias, '', spread
    )

  @property
  def stored_logits(self) -> np.ndarray:
    """`[R, T, E]`, the logits as the GEMM stores them."""
    assert self.gemm is not None  # or nobody stores them
    dtype = self.gemm.policy.dtype(_LOGITS)
    return self.inputs.logits.astype(ulp.storage_dtype(dtype))

  @property
  def through_router(self) -> tuple[Any, ...]:
    """What `pass_case.PassCase.with_router` takes; (): no GEMM."""
    if self.gemm is None:
      return ()
    arrays = {'router_w': self.gemm.router_w, _LOGITS: self.stored_logits}
    if self.inputs.bias is not None:
      arrays['router_bias'] = self.inputs.bias
    return self.router, arrays

  def list_factors(
    self,
    case: pass_case.PassCase,
    d_weights: at.Float[np.ndarray, 'R T K'],
  ) -> grad_mistakes.Inputs:
    """Returns what gradients of logits are made of in a backward pass."""
    ids = case.inputs.arrays['topk_ids']
    logits, bias = self.inputs.logits, self.inputs.bias
    return grad_mistakes.Inputs(self.router, logits, bias, ids, d_weights)

  @property
  def weight_grads(self) -> tuple[str, ...]:
    """The gradients of weights of the router that a kernel may return."""
    if self.gemm is None:
      return (router_grads.OF_BIAS,) * self.bias_has_grad
    names = router_grads.OF_WEIGHTS, router_grads.OF_BIAS
    return names[: 1 + self.bias_has_grad]

  @property
  def bias_has_grad(self) -> bool:
    """Whether the bias is one of the logits, and not of the choice alone."""
    bias = self.inputs.bias if self.gemm is None else self.gemm.bias
    return bias is not None and self.router.table.bias == 'logits'

  @property
  def weight_ulp(self) -> float:
    """The largest error of routing weights, in float32 roundings."""
    unit = ulp.unit_roundoff(self.router.dtype) / _U
    logits = self.inputs.logits
    flat = logits.reshape(-1, logits.shape[-1])
    return 1 + unit * router_limits.count_weight_roundings(self.router, flat)

  def route(self) -> Routing:
    """Returns the right routing."""
    ids = routing_lib.route(
      self.router, self.inputs.logits, self.inputs.bias
    ).topk_ids
    return self.weigh_float32(ids)

  def weigh_float32(self, ids: np.ndarray) -> Routing:
    """Returns the routing to some experts `[R, T, K]`."""
    wide = self.weigh(ids)
    spread = self.spread_weights(ids) / np.where(
      wide == 0, np.inf, np.abs(wide)
    )
    units = self.weight_ulp + float(spread.max(initial=0.0)) / _U
    return Routing(ids.astype(np.int32), wide.astype(np.float32), units)

  def spread_weights(self, ids: np.ndarray) -> np.ndarray:
    """Returns the errors of weights `[R, T, K]` due to those of logits."""
    if self.spread is None:
      return np.zeros(ids.shape)
    bias = self.inputs.bias
    arguments = self.inputs.logits, bias, ids, self.spread
    return router_limits.spread_weights(self.router, *arguments)

  def weigh(self, ids: np.ndarray) -> np.ndarray:
    """Returns weights `[R, T, K]` float64 of some experts `[R, T, K]`."""
    bias = self.inputs.bias
    return routing_lib.weigh_choice(
      self.router,
      self.inputs.logits.astype(np.float64),
      None if bias is None else bias.astype(np.float64),
      ids,
    )

  def find_invalid(self, ids: np.ndarray) -> np.ndarray:
    """Returns bool, ids `[R, T, K]` that are no experts, or duplicates."""
    return router_limits.find_invalid(ids, self.inputs.logits.shape[-1])


def _require_whole(case: case_lib.Case, ids: np.ndarray) -> np.ndarray:
  """Returns ids if each slot has an expert, as a router's have."""
  if (ids < 0).any():
    raise ValueError(
      f'routing: expected one that uses every slot with --router={case.router},'
      f' got {case.routing}'
    )
  return np.array(ids)


def _read_inputs(source: str | Mapping) -> dict[str, np.ndarray]:
  """Returns inputs by name, of a file or as they are."""
  if isinstance(source, Mapping):
    return {n: np.asarray(a) for n, a in source.items()}
  bits = tensor_files.read(pathlib.Path(source))[0]
  return {name: read_case.as_numpy(array) for name, array in bits.items()}


def run(request: request_lib.Request, progress, run_check: Run):
  """Returns the report of a request with a router, or with some experts alone.

  Args:
    request: the request.
    progress: called with the name of each step as it begins.
    run_check: makes the report of a request with neither.

  Raises:
    ValueError: an option does not suit the case or the candidate.
    CandidateError: the kernel failed, or chose an id that is no expert.
  """
  case = request.case
  _refuse(case)
  view = local_experts.read(case)
  if not case.router:
    assert view is not None  # or `run_check` would be called
    routing = _read_routing(case)
    return _describe(
      request,
      view,
      _run_under(request, view, None, routing, progress, run_check)[0],
    )
  lanes = tuple(lane for lane in request.judgement.lanes if lane in LANES)
  if not lanes:
    raise ValueError(
      f'lanes: expected some of {", ".join(LANES)} with --router='
      f'{case.router}, got {", ".join(request.judgement.lanes)}'
    )
  narrow = request.but(lanes=lanes)
  task = Task.from_case(case)
  first = narrow
  if task.gemm is not None and case.direction == 'backward':
    task = task.follow(task.stored_logits)
  elif task.gemm is not None and case.direction == 'both':
    # The backward pass reads the logits that the forward pass saved.
    first = narrow.but(direction='forward')
  routing = task.route()
  report, candidate = _run_under(
    first, view, task, routing, progress, run_check
  )
  if not candidate.routings:  # A backward pass alone is told the routing.
    return _describe(request, view, report, task)
  results, outputs = [], candidate.routings[-1]
  if first is not narrow and _LOGITS not in outputs:
    raise ValueError(
      f'router_gemm: expected {_LOGITS} among the outputs of the forward pass, '
      f'as the backward pass reads them, got {sorted(outputs) or "none"}'
    )
  if task.gemm is not None:
    results = task.gemm.judge(outputs.get(_LOGITS))
    task = task.follow(outputs.get(_LOGITS))
  results += _judge_routing(task, candidate, request)
  own = _find_own_routing(task, routing, outputs, results)
  if own is None and first is not narrow:
    own = task.route()
  if own is not None:
    report, _ = _run_under(narrow, view, task, own, progress, run_check)
  return _describe(request, view, report, task, results)


def _refuse(case: case_lib.Case) -> None:
  flag = 'router' if case.router else 'local_experts'
  if case.router_gemm:
    unsuitable = dict(
      local_experts=case.local_experts,
      x_form=case.x_form,
    )
    for name, value in unsuitable.items():
      if value:
        raise ValueError(
          f'{name}: expected none with --router_gemm, got {value}'
        )
    if not case.router:
      raise ValueError('router_gemm: expected --router with it, got none')
  if case.direction != 'forward' and case.local_experts:
    raise ValueError(
      f'direction: expected forward with --local_experts, got {case.direction}'
    )
  if case.folder is not None:
    raise ValueError(
      f'{flag}: expected none with an exported case, whose topk_ids are '
      f'inputs, got {getattr(case, flag)}'
    )


def _read_routing(case: case_lib.Case) -> Routing:
  """Returns the routing of a case over all experts."""
  arrays = dataclasses.replace(case, local_experts='').make().arrays
  ids, weights = (np.array(arrays[name]) for name in tensors_lib.ROUTING)
  return Routing(ids, weights, case.weight_ulp)


def _find_own_routing(
  task: Task, routing: Routing, outputs, results
) -> Routing | None:
  """Returns the routing under which stages are judged; None: the right one."""
  ids, weights = (outputs.get(name) for name in tensors_lib.ROUTING)
  if ids is None:
    if task.undecided:
      token, choices = next(iter(task.undecided.items()))
      raise ValueError(
        'router: expected topk_ids among the outputs, as rounding leaves '
        f'{len(task.undecided)} tokens undecided, got none; token {token} may '
        f'go to {" or ".join(map(str, choices[:2]))}'
      )
    return _unless_equal(task.route(), routing)
  if task.find_invalid(ids).any():
    return None
  has_failed = any(
    row.stage == 'topk_weights' and row.verdict == verdicts.FAIL
    for row in results
  )
  # Limits under its own logits are sharper than for all possible logits.
  is_sharper = task.gemm is not None and weights is not None
  if has_failed or is_sharper:
    return Routing(ids, weights.astype(np.float32), 0.0)
  if task.gemm is not None and _LOGITS in outputs:
    return task.weigh_float32(ids)
  return _unless_equal(task.weigh_float32(ids), routing)


def _unless_equal(own: Routing, routing: Routing) -> Routing | None:
  is_same = np.array_equal(own.ids, routing.ids) and np.array_equal(
    own.weights, routing.weights
  )
  return None if is_same else own


def _run_under(request, view, task: Task | None, routing, progress, run_check):
  """Returns the report under a routing, and the kernel that ran."""
  ids = routing.ids if view is None else view.number(routing.ids)
  tensors = dict(topk_ids=ids, topk_weights=routing.weights)
  fields: dict[str, Any] = dict(
    router='', router_gemm=False, weight_ulp=routing.weight_ulp
  )
  if view is not None:
    fields |= view.fields(request.case)
  with tempfile.TemporaryDirectory(prefix='hpmoe-') as folder:
    if task is not None and task.layer is not None:
      fields['input'] = {**task.layer, **tensors}
    else:
      fields['routing'] = str(pathlib.Path(folder) / 'routing.safetensors')
      read_case.save(fields['routing'], tensors, {})
    case = dataclasses.replace(request.case, **fields)
    router_inputs = _list_router_inputs(view, task, routing)
    candidate = self_routing.SelfRouting(
      request.candidate,
      router_inputs,
      task is not None and task.bias_has_grad,
    )
    candidate = candidate.ready(case)
    beside = task and functools.partial(_judge_grads, task, request)
    inner = dataclasses.replace(
      request,
      case=case,
      candidate=candidate,
      beside=beside,
      other_inputs=tuple(_list_other_inputs(view, task, routing)),
      list_others=router_grads.list_mistakes,
      through_router=() if task is None else task.through_router,
    )
    return run_check(inner, progress), candidate


def _list_other_inputs(
  view: local_experts.LocalExperts | None, task: Task | None, routing: Routing
) -> Iterator[routing_mistakes.OtherInputs]:
  """Yields the routings of kernels with known mistakes."""
  if task is not None:
    for says, weights in _list_wrong_weights(task, routing.ids):
      arrays = dict(topk_weights=weights.astype(np.float32))
      says = f'topk_weights: {says}'
      yield routing_mistakes.OtherInputs(says, arrays)
  for other in () if view is None else view.list_wrong_places():
    arrays = dict(topk_ids=other.number(routing.ids))
    says = f'the local experts began at expert {other.first}'
    yield routing_mistakes.OtherInputs(says, arrays)


def _list_wrong_weights(
  task: Task, ids: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields known mistakes of weights `[R, T, K]`, with a description."""
  return routing_mistakes.list_wrong_weights(
    task.router, task.inputs.logits, task.inputs.bias, ids
  )


def _list_router_inputs(
  view, task: Task | None, routing: Routing
) -> dict[str, np.ndarray]:
  """Returns the inputs that a kernel gets in place of its routing."""
  inputs = {} if view is None else {'local_experts': view.array}
  if task is None:
    return inputs | {'topk_ids': routing.ids}
  if task.gemm is not None:
    return inputs | task.gemm.inputs
  if task.inputs.bias is not None:
    inputs['router_bias'] = task.inputs.bias
  return inputs | {'router_logits': task.inputs.logits}


def _judge_routing(
  task: Task, candidate: self_routing.SelfRouting, request
) -> list[verdicts.Result]:
  """Returns a row for the experts, and a row for the weights, of a kernel."""
  outputs = candidate.routings[-1]
  results = []
  for name, lane, rule, compare in (
    ('topk_ids', 'bitwise', CHOICE_RULE, _compare_ids),
    ('topk_weights', 'bounded', verdicts.BOUND_RULE, _compare_weights),
  ):
    lacking = [n for n in tensors_lib.ROUTING[:1] + (name,) if n not in outputs]
    if lacking:
      results.append(
        verdicts.Result(
          name,
          lane,
          rule,
          verdict=verdicts.NOT_JUDGED,
          reason=f'{lacking[0]} was not returned',
          missing=lacking[0],
        )
      )
    else:
      results.append(compare(task, outputs, lane, rule, request))
  return results


def _compare_ids(task, outputs, lane, rule, request) -> verdicts.Result:
  ids, expected = outputs['topk_ids'], task.route().ids
  is_bad = task.find_invalid(ids)
  if is_bad.any():
    pattern = _describe_invalid(task, ids, is_bad)
  else:
    expected, is_bad, pattern = _compare_experts(task, ids, expected)
  tensors = _Tensors(ids, expected, is_bad, pattern)
  return tensors.make_result('topk_ids', lane, rule, request)


def _describe_invalid(task, ids: np.ndarray, is_bad: np.ndarray) -> str:
  rank, token, _ = np.argwhere(is_bad)[0]
  return (
    f'token {rank * ids.shape[1] + token}: {ids.shape[-1]} different experts '
    f'of the whole layer, 0 to {task.inputs.logits.shape[-1] - 1}, were '
    f'expected, got {ids[rank, token].tolist()}'
  )


def _compare_experts(
  task, ids: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, str]:
  """Returns the expected ids `[R, T, K]`, the bad ones, and a reason."""
  flat, expected = (a.reshape(-1, a.shape[-1]) for a in (ids, right.copy()))
  is_bad = np.zeros(flat.shape, bool)
  wrong_tokens = router_limits.list_wrong_tokens(task.router, task.scores, flat)
  for token in wrong_tokens:
    is_bad[token] = ~np.isin(flat[token], expected[token])
  pattern = ''
  if wrong_tokens:
    first = wrong_tokens[0]
    wrong = router_limits.explain_wrong(task.router, task.scores, first, flat)
    pattern = str(wrong)
    if wrong.unit == 'expert':
      is_bad[first] = flat[first] == wrong.chosen_id
      expected[first, is_bad[first]] = wrong.left_out_id
  return expected.reshape(ids.shape), is_bad.reshape(ids.shape), pattern


def _compare_weights(task, outputs, lane, rule, request) -> verdicts.Result:
  weights = outputs['topk_weights'].astype(np.float32)
  if task.find_invalid(outputs['topk_ids']).any():
    return verdicts.Result(
      'topk_weights',
      lane,
      rule,
      verdict=verdicts.NOT_JUDGED,
      reason='topk_ids are no experts',
    )
  expected = task.weigh(outputs['topk_ids'])
  limit = task.weight_ulp * _U * np.abs(expected)
  limit += ulp.smallest_normal(task.router.dtype)
  limit += task.spread_weights(outputs['topk_ids'])
  ratio = np.abs(weights - expected) / limit
  worst = float(np.max(ratio, initial=0.0))
  words = (
    f'{worst:.3g} times what its {task.weight_ulp:.3g} float32 roundings allow'
  )
  pattern = ''
  is_bad = ~(ratio <= 1.0)
  for says, other in _list_wrong_weights(task, outputs['topk_ids']):
    distance = np.abs(weights - other)[is_bad]
    nearest = np.maximum(limit, np.abs(other) * task.weight_ulp * _U)[is_bad]
    if is_bad.any() and (distance <= _NEAR_UNITS * nearest).all():
      pattern = f'as if {says}'
      break
  right = expected.astype(np.float32)
  tensors = _Tensors(weights, right, is_bad, pattern, words)
  result = tensors.make_result('topk_weights', lane, rule, request)
  return dataclasses.replace(result, values={'error_of_bound': worst})


def _judge_grads(
  task: Task,
  request,
  options: pass_case.LaneOptions,
  case: pass_case.PassCase,
  answer: pass_case.Answer,
) -> list[verdicts.Result]:
  """Returns the rows of a router's gradients, of a backward pass."""
  if case.layer_pass.name != passes.BACKWARD.name:
    return []
  records = options.records if 'standard' in options.lanes else ()
  results = []
  for name in task.weight_grads:
    results += _judge_weights_grad(task, case, answer, name, records)
  if _GRAD in answer.outputs:
    return [_judge_logits_grad(task, request, case, answer), *results]
  missing = verdicts.not_captured(_GRAD, 'bounded', verdicts.BOUND_RULE, _GRAD)
  return [missing, *results]


def _judge_weights_grad(
  task: Task,
  case: pass_case.PassCase,
  answer: pass_case.Answer,
  name: str,
  records: Sequence[standards.Standard],
) -> list[verdicts.Result]:
  """Returns the rows of a sum over tokens, of `Task.weight_grads`."""
  if name not in answer.outputs:
    rules = [('bounded', verdicts.BOUND_RULE)]
    rules += [('standard', record.name) for record in records]
    return [verdicts.not_captured(name, *rule, name) for rule in rules]
  own, golden = answer.outputs.get(_GRAD), case.golden(answer.sources)
  if own is None:
    d_weights = router_grads.read_weights_grad(case, answer.sources)
    mistakes = task.list_factors(case, d_weights)
    d_logits, _ = _bound_grads(task, golden, case.inputs.arrays['topk_ids'])
    own = mistakes.differentiate().astype(np.float32)
  else:
    mistakes = None
    d_logits = bounds.exact(own.reshape(-1, own.shape[-1]))
  grad = router_grads.WeightGrad(
    name,
    answer.outputs[name],
    router_grads.WeightRows.build(golden, name, d_logits),
    mistakes,
    case.inputs.config.num_ranks,
  )
  return grad.judge(records, own)


def _bound_grads(
  task: Task, golden, ids: at.Int[np.ndarray, 'R T K']
) -> tuple[bounds.Bounded, at.Float[np.ndarray, 'R T K']]:
  """Returns gradients of logits `[R T, E]`, and those of weights."""
  parts, d_weights = [], np.zeros(ids.shape)
  step = max(1, _CHUNK // (ids.shape[-1] * task.inputs.logits.shape[-1]))
  for rank in range(len(ids)):
    for lo in range(0, ids.shape[1], step):
      hi = min(lo + step, ids.shape[1])
      of_weights = golden.read_source('d_topk_weights', rank, lo, hi)
      parts.append(
        router_grad.bound_logits_grad(
          task.router,
          task.inputs.logits[rank, lo:hi],
          task.inputs.bias,
          ids[rank, lo:hi],
          of_weights,
        )
      )
      d_weights[rank, lo:hi] = of_weights.value
  return bounds.join(parts), d_weights


def _judge_logits_grad(
  task: Task, request, case: pass_case.PassCase, answer: pass_case.Answer
) -> verdicts.Result:
  actual, golden = answer.outputs[_GRAD], case.golden(answer.sources)
  ids = case.inputs.arrays['topk_ids']
  grads, d_weights = _bound_grads(task, golden, ids)
  value, limit = (
    part.reshape(actual.shape) for part in (grads.value, grads.bound())
  )
  inputs = task.list_factors(case, d_weights)
  return _compare_grads(inputs, actual, value, limit, request)


def _compare_grads(inputs, actual, value, limit, request) -> verdicts.Result:
  if not (limit < np.abs(value)).any() and value.any():
    return verdicts.Result(
      *(_GRAD, 'bounded', verdicts.BOUND_RULE),
      verdict=verdicts.NOT_JUDGED,
      reason=verdicts.NO_LIMIT,
    )
  ratio = np.abs(actual - value) / limit
  worst = float(np.max(ratio, initial=0.0))
  is_bad = ~(ratio <= 1.0)
  pattern = ''
  if is_bad.any():
    pattern = grad_mistakes.explain(inputs, actual, limit, is_bad)
  words = f'{worst:.3g} times what roundings of the rule allow'
  expected = value.astype(np.float32)
  tensors = _Tensors(actual, expected, is_bad, pattern, words)
  result = tensors.make_result(_GRAD, 'bounded', verdicts.BOUND_RULE, request)
  return dataclasses.replace(result, values={'error_of_bound': worst})


@dataclasses.dataclass(frozen=True)
class _Tensors:
  """A tensor of a kernel's routing, and the expected tensor.

  Attributes:
    actual: `[R, T, K]`, or `[R, T, E]` of logits.
    expected: in the same shape and dtype.
    is_bad: bool in the same shape.
    pattern: a description of the bad elements, or ''.
    excess: by how much they exceed their limits, in words; '': there is no
      limit.
  """

  actual: np.ndarray
  expected: np.ndarray
  is_bad: at.Bool[np.ndarray, 'R T *of_experts']
  pattern: str
  excess: str = ''

  def make_result(self, stage, lane, rule, request) -> verdicts.Result:
    """Returns the row of a stage."""
    grids = tuple(
      np.add.reduceat(bad.sum(-1), starts, axis=0)[:, None]
      for bad in self.is_bad
      for starts in [np.arange(0, len(bad), _TOKEN_BLOCK)]
    )
    failures = sum(int((grid > 0).sum()) for grid in grids)
    result = verdicts.Result(
      stage,
      lane,
      rule,
      tiles=sum(grid.size for grid in grids),
      grids=grids,
      experts=tuple(np.full(len(g), tiles.NO_EXPERT) for g in grids),
    )
    if not failures:
      return result
    replay = request.replay(lane)
    failure = self._make_failure(stage, lane, rule, replay)
    return dataclasses.replace(
      result,
      failed_tiles=failures,
      worst_ulp=failure.ulp,
      verdict=verdicts.FAIL,
      reason=self.excess or self.pattern,
      failure=failure,
    )

  def _make_failure(self, stage, lane, rule, replay) -> verdicts.Failure:
    rank, token, slot = (int(i) for i in np.argwhere(self.is_bad)[0])
    index, block = (rank, token, slot), token // _TOKEN_BLOCK
    rows = slice(block * _TOKEN_BLOCK, (block + 1) * _TOKEN_BLOCK)
    tile = self.is_bad[rank, rows]
    distance = ulp.distance(
      self.actual[rank, token], self.expected[rank, token]
    )[slot]
    return verdicts.Failure(
      stage=stage,
      lane=lane,
      rule=rule,
      rank=rank,
      expert=None,
      row_block=block,
      col_block=0,
      token=token,
      source_rank=rank,
      slot=None if stage == _GRAD else slot,
      index=index,
      actual=float(self.actual[index]),
      expected=float(self.expected[index]),
      ulp=int(distance),
      bad_rows=int(tile.any(-1).sum()),
      bad_cols=int(tile.any(0).sum()),
      rows=tile.shape[0],
      cols=tile.shape[1],
      pattern=self.pattern,
      replay=replay,
    )


def _describe(request, view, report, task=None, results=()):
  """Returns a report with the rows of the router, and the request as asked."""
  config = dict(report.config)
  case = request.case
  config['routing'] = case.routing
  if case.router:
    choice = '' if case.routing == 'text' else f' that chooses {case.routing}'
    config['routing'] = f'router {case.router}{choice}'
  if case.router_gemm:
    config['routing'] += ' and its GEMM'
  if view is not None:
    config['routing'] += f', {view}'
    # K are those of the whole layer.
    config['shape'] = str(config['shape']).replace(
      f' of {view.count},', f' of {view.num_experts},'
    )
  config['command'] = request.replay()
  if task is not None:
    config['notes'] = [
      f'token {token}: undecided between {" or ".join(map(str, choices[:3]))}'
      for token, choices in task.undecided.items()
    ]
  rows = tuple(_replay(request, row) for row in (*results, *report.results))
  missing = [row.missing for row in results if row.missing]
  if missing:
    rows = tuple(_ask_for_routing(row, missing) for row in rows)
  return dataclasses.replace(report, config=config, results=rows)


def _ask_for_routing(row: verdicts.Result, missing) -> verdicts.Result:
  """Returns a row whose failure names outputs that would show router errors."""
  if row.failure is None:
    return row
  stages = [*tensors_lib.ROUTING] * (missing != [_LOGITS])
  stages = [_LOGITS] * (_LOGITS in missing) + stages
  names = ', '.join(stages)
  hint = row.failure.hint
  words = hint.removeprefix('return ') if hint.startswith('return ') else ''
  hint = f'return {names}, {words}' if words else f'return {names}; {hint}'
  failure = dataclasses.replace(row.failure, hint=hint.rstrip('; '))
  return dataclasses.replace(row, failure=failure)


def _replay(request, row: verdicts.Result) -> verdicts.Result:
  """Returns a row whose failure names the command of the request."""
  if row.failure is None:
    return row
  replay = request.replay(row.lane)
  failure = dataclasses.replace(row.failure, replay=replay)
  return dataclasses.replace(row, failure=failure)
