"""Verdicts on a router's gradients, of a backward pass."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.limits import router_grad
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.router import grad_mistakes
from hpmoe.parity_tests.judge.router import router_grads
from hpmoe.parity_tests.judge.router import router_tensor
from hpmoe.parity_tests.judge.router import routing_task
from hpmoe.reference.contract import array_typing as at

_GRAD = router_tensor.GRAD
# Elements of the factors of logits' gradients that are computed at once.
_CHUNK = 1 << 22


def judge_grads(
  task: routing_task.Task,
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
  task: routing_task.Task,
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
    d_logits = bounded_values.exact(own.reshape(-1, own.shape[-1]))
  grad = router_grads.WeightGrad(
    name,
    answer.outputs[name],
    router_grads.WeightRows.build(golden, name, d_logits),
    mistakes,
    case.inputs.config.num_ranks,
  )
  return grad.judge(records, own)


def _bound_grads(
  task: routing_task.Task, golden, ids: at.Int[np.ndarray, 'R T K']
) -> tuple[bounded_values.Bounded, at.Float[np.ndarray, 'R T K']]:
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
  return bounded_values.join(parts), d_weights


def _judge_logits_grad(
  task: routing_task.Task,
  request,
  case: pass_case.PassCase,
  answer: pass_case.Answer,
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
  tensors = router_tensor.RouterTensor(actual, expected, is_bad, pattern, words)
  result = tensors.make_result(_GRAD, 'bounded', verdicts.BOUND_RULE, request)
  return dataclasses.replace(result, values={'error_of_bound': worst})
