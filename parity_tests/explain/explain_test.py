"""Bugs are called by their names, and noise is called nothing."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests import api
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.explain import bugs_testing
from hpmoe.parity_tests.explain import explain
from hpmoe.reference.contract import stable_random

BUGS = bugs_testing.BUGS
CASE = case_lib.Case(preset='tiny', ranks=2)
# What a kernel does, and so whether it is judged on exact data.
REAL, BOTH = ('swiglu',), ('swiglu', 'absolute')
REAL_ALONE = ('halves', 'expert_after', 'rounded_weights')


def pattern(kernel, case, names=(), activations=BOTH):
  """Returns the first failure's stage and pattern."""

  def function(inputs, config, policy):
    made = kernel(config, policy, inputs)
    return {name: made[name] for name in names or made}

  function.activations = activations
  failure = api.check(function, case).first_failure
  return (failure.stage, failure.pattern) if failure else ('', '')


@pytest.mark.parametrize(
  'bug, dtype, activations',
  [
    *((bug, 'float32', BOTH) for bug in BUGS),
    *((bug, 'bfloat16', BOTH) for bug in ('tail', 'rounded_weights', 'turns')),
    *((bug, 'float32', REAL) for bug in REAL_ALONE),
  ],
)
@pytest.mark.few(6)
def test_a_bug_is_named(bug, dtype, activations):
  # given
  kernel, stage, said = BUGS[bug]

  # when
  case = dataclasses.replace(CASE, dtype=dtype)
  found = pattern(kernel, case, activations=activations)

  # then
  assert found[0] == stage
  assert said in found[1]
  assert explain.BESIDE not in found[1]


@pytest.mark.parametrize('bug', bugs_testing.FROM_Y)
@pytest.mark.few(4)
def test_a_bug_is_named_from_y_alone(bug):
  # when
  found = pattern(bugs_testing.KERNELS[bug], CASE, names=('y',))

  # then
  assert found[0] == 'y'
  assert bugs_testing.FROM_Y[bug].split('; ')[-1] in found[1]


def test_a_nan_says_of_which_gates():
  # given: exp of what is large, over itself
  def sigmoid(gate):
    with np.errstate(over='ignore', invalid='ignore'):
      return gate * (np.exp(gate) / (1 + np.exp(gate)))

  kernel = dataclasses.replace(bugs_testing.KERNEL, silu_of=sigmoid).forward

  # when
  stage, said = pattern(kernel, CASE, activations=REAL)

  # then
  assert stage == 'activation'
  assert 'NaN where gate is' in said and 'or more' in said


@pytest.mark.slow
def test_noise_has_no_name():
  # given
  for seed in range(12):
    noise = stable_random.normal(
      stable_random.seed_of('noise', seed), (2, 16, 32)
    )

    def spoil(y, noise=noise, size=4.0 ** (seed % 12 - 6)):
      y += (noise * size).astype(y.dtype)

    # when
    _, said = pattern(bugs_testing.written('y', spoil), CASE, activations=REAL)

    # then
    assert 'as if' not in said, seed


def test_few_elements_have_no_name():
  # given: one element that another bug would have given as well
  def spoil(y):
    y[0, 2, 3] = y[0, 2, 2]

  # when / then
  assert 'as if' not in pattern(bugs_testing.written('y', spoil), CASE)[1]


def test_what_the_call_before_left_is_named():
  # given: a buffer that is written on the first call alone, and one that is
  # read so
  for name, kernel, said in (
    ('activation', bugs_testing.held_output('activation'), ''),
    ('gate_up', bugs_testing.held_input('w_gate_up'), ' where gate_up reads'),
  ):
    # when
    stage, told = pattern(kernel, CASE)

    # then
    of = 'w_gate_up' if said else name
    assert stage == name
    assert told.startswith(f'as if {of} was that of the call before{said}')


def test_other_bugs_of_other_ranks_are_named_too():
  # given
  def spoil(gate_up):
    gate_up[0] = bugs_testing.halves(gate_up[0])
    gate_up[1] = np.roll(gate_up[1], 1, axis=-1)

  # when
  _, said = pattern(bugs_testing.written('gate_up', spoil), CASE)
  first, second = said.split(explain.BESIDE)

  # then
  assert 'up_gate' in first
  assert 'shifted by one column; on rank 1' in second


def test_words_are_of_axes_that_a_tensor_has():
  # given
  weights = {
    c.says for c in explain._select_changes('w_down', explain._WEIGHTS)
  }
  rows = {
    c.says for c in explain._select_changes('activation', explain._COLUMNS)
  }

  # then
  assert len(weights) == 3
  assert not any('halves' in said for said in rows)
