"""A lost slot and a wrong factor of an addend are named from y and dx alone."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests import api
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.explain import added_terms
from hpmoe.parity_tests.explain import bugs_testing

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

CASE = case_lib.Case(preset='tiny', ranks=2, d_shared=24)


def _lose(*places):
  """A kernel whose sums lack the slots `(rank, token, slot)`."""

  def forward(config, policy, arrays):
    y = bugs_testing.KERNEL.forward(config, policy, arrays)['y'].copy()
    for rank, token, slot in places:
      weights = arrays['topk_weights'].copy()
      weights[rank, token, slot] = 0
      fewer = {**arrays, 'topk_weights': weights}
      y[rank, token] = bugs_testing.KERNEL.forward(config, policy, fewer)['y'][
        rank, token
      ]
    return y

  return forward


def _scale_shared(factor):
  """A kernel that multiplies what shared experts add."""

  def forward(config, policy, arrays):
    computed = bugs_testing.KERNEL.forward(config, policy, arrays)
    routed_arrays = {**arrays, 'w_shared_down': 0 * arrays['w_shared_down']}
    routed = bugs_testing.KERNEL.forward(config, policy, routed_arrays)['y']
    shared_out = computed['shared_out'].astype(np.float32)
    y = routed.astype(np.float32) + np.float32(factor) * shared_out
    return y.astype(routed.dtype)

  return forward


def _explain(kernel, case, lanes=('bounded',)):
  """Returns the pattern of the first failure, of y alone."""

  def function(inputs, config, policy):
    return {'y': kernel(config, policy, inputs)}

  report = api.check(function, case, lanes=lanes, repeat=1)
  return report.first_failure.pattern


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('lane', ['exact', 'bounded'])
@pytest.mark.few(1)
def test_one_lost_slot_is_named(dtype, lane):
  case = dataclasses.replace(CASE, dtype=dtype)
  expert = case.make().arrays['topk_ids'][0, 3, 1]

  pattern = _explain(_lose((0, 3, 1)), case, (lane,))

  words = f'as if slot 1 (expert {expert}) of token 3 was left out in y'
  assert pattern.startswith(words) and '%' not in pattern


def test_lost_slots_of_several_tokens_are_counted():
  pattern = _explain(_lose((1, 2, 1), (1, 7, 1), (1, 8, 1)), CASE)

  assert pattern.startswith('as if slot 1 of 3 tokens was left out in y')


@pytest.mark.parametrize('factor', [0.99, 2.5])
@pytest.mark.parametrize('lane', ['exact', 'bounded'])
@pytest.mark.few(1)
def test_a_factor_of_shared_experts_is_named(factor, lane):
  pattern = _explain(_scale_shared(factor), CASE, (lane,))

  assert pattern.startswith(f'as if shared_out was multiplied by {factor} in y')


def test_a_factor_of_all_is_none_of_one_addend():
  def kernel(config, policy, arrays):
    return (
      np.float32(1.5) * bugs_testing.KERNEL.forward(config, policy, arrays)['y']
    )

  pattern = _explain(kernel, CASE)

  assert 'got = 1.5 * expected' in pattern and 'shared_out' not in pattern


@pytest.mark.parametrize(
  ('factor', 'rounded'),
  [(0.98997, [0.99, 0.98997]), (1.0001, []), (None, []), (-0.37, [-0.37])],
)
def test_a_factor_is_told_as_people_write_it(factor, rounded):
  assert added_terms._round_factor(factor) == rounded
