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

from collections.abc import Callable, Iterator
import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

import numpy as np

from hpmoe.parity_tests.candidates import self_routing
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.explain import routing_mistakes
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.router import grad_verdicts
from hpmoe.parity_tests.judge.router import local_experts
from hpmoe.parity_tests.judge.router import router_grads
from hpmoe.parity_tests.judge.router import router_logits
from hpmoe.parity_tests.judge.router import routing_task
from hpmoe.parity_tests.judge.router import routing_verdicts
from hpmoe.reference.contract import tensors as tensors_lib

# Lane exact needs routing weights that are whole numbers; a router's are not.
LANES = ('bitwise', 'bounded', 'standard')
_LOGITS = router_logits.LOGITS

Run = Callable[..., Any]


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
  task = routing_task.Task.from_case(case)
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
  results += routing_verdicts.judge_routing(task, candidate, request)
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


def _read_routing(case: case_lib.Case) -> routing_task.Routing:
  """Returns the routing of a case over all experts."""
  arrays = dataclasses.replace(case, local_experts='').make().arrays
  ids, weights = (np.array(arrays[name]) for name in tensors_lib.ROUTING)
  return routing_task.Routing(ids, weights, case.weight_ulp)


def _find_own_routing(
  task: routing_task.Task, routing: routing_task.Routing, outputs, results
) -> routing_task.Routing | None:
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
  # Weights of NaN fail by themselves; what follows needs those of the choice.
  is_finite = weights is not None and np.isfinite(weights).all()
  if is_finite and (has_failed or is_sharper):
    return routing_task.Routing(ids, weights.astype(np.float32), 0.0)
  if task.gemm is not None and _LOGITS in outputs:
    return task.weigh_float32(ids)
  return _unless_equal(task.weigh_float32(ids), routing)


def _unless_equal(
  own: routing_task.Routing, routing: routing_task.Routing
) -> routing_task.Routing | None:
  is_same = np.array_equal(own.ids, routing.ids) and np.array_equal(
    own.weights, routing.weights
  )
  return None if is_same else own


def _run_under(
  request, view, task: routing_task.Task | None, routing, progress, run_check
):
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
    beside = task and functools.partial(
      grad_verdicts.judge_grads, task, request
    )
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
  view: local_experts.LocalExperts | None,
  task: routing_task.Task | None,
  routing: routing_task.Routing,
) -> Iterator[routing_mistakes.OtherInputs]:
  """Yields the routings of kernels with known mistakes."""
  if task is not None:
    for says, weights in routing_task.list_wrong_weights(task, routing.ids):
      arrays = dict(topk_weights=weights.astype(np.float32))
      says = f'topk_weights: {says}'
      yield routing_mistakes.OtherInputs(says, arrays)
  for other in () if view is None else view.list_wrong_places():
    arrays = dict(topk_ids=other.number(routing.ids))
    says = f'the local experts began at expert {other.first}'
    yield routing_mistakes.OtherInputs(says, arrays)


def _list_router_inputs(
  view, task: routing_task.Task | None, routing: routing_task.Routing
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
