"""Verdicts on the experts and weights that a kernel chose by itself."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.candidates import self_routing
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.router import router_tensor
from hpmoe.parity_tests.judge.router import routing_task
from hpmoe.reference.contract import tensors as tensors_lib

CHOICE_RULE = 'a choice that rounding allows'
# A weight matches a mistake if it is within this many of its limits.
_NEAR_UNITS = 4


def judge_routing(
  task: routing_task.Task, candidate: self_routing.SelfRouting, request
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
  tensors = router_tensor.RouterTensor(ids, expected, is_bad, pattern)
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
  limit = task.weight_ulp * routing_task.U * np.abs(expected)
  limit += ulp.smallest_normal(task.router.dtype)
  limit += task.spread_weights(outputs['topk_ids'])
  ratio = np.abs(weights - expected) / limit
  worst = float(np.max(ratio, initial=0.0))
  words = (
    f'{worst:.3g} times what its {task.weight_ulp:.3g} float32 roundings allow'
  )
  pattern = ''
  is_bad = ~(ratio <= 1.0)
  for says, other in routing_task.list_wrong_weights(task, outputs['topk_ids']):
    distance = np.abs(weights - other)[is_bad]
    nearest = np.maximum(
      limit, np.abs(other) * task.weight_ulp * routing_task.U
    )[is_bad]
    if is_bad.any() and (distance <= _NEAR_UNITS * nearest).all():
      pattern = f'as if {says}'
      break
  right = expected.astype(np.float32)
  tensors = router_tensor.RouterTensor(weights, right, is_bad, pattern, words)
  result = tensors.make_result('topk_weights', lane, rule, request)
  return dataclasses.replace(result, values={'error_of_bound': worst})
