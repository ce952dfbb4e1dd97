"""Bugs are called by their names, and noise is called nothing."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests import api
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.explain import bugs_testing
from hpmoe.parity_tests.explain import explain
from hpmoe.parity_tests.explain import known_bugs
from hpmoe.reference.contract import stable_random

BUGS = bugs_testing.BUGS
CASE = case_lib.Case(preset='tiny', ranks=2)
# What a kernel does, and so whether it is judged on exact data.
REAL, REAL_AND_EXACT = ('swiglu',), ('swiglu', 'absolute')
REAL_ALONE = ('halves', 'expert_after', 'rounded_weights')


def pattern(kernel, case, names=(), activations=REAL_AND_EXACT):
  """Returns the first failure's stage and pattern."""

  def function(inputs, config, policy):
    computed = kernel(config, policy, inputs)
    return {name: computed[name] for name in names or computed}

  function.activations = activations
  failure = api.check(function, case).first_failure
  return (failure.stage, failure.pattern) if failure else ('', '')


@pytest.mark.parametrize(
  'bug, dtype, activations',
  [
    *((bug, 'float32', REAL_AND_EXACT) for bug in BUGS),
    *(
      (bug, 'bfloat16', REAL_AND_EXACT)
      for bug in ('tail', 'rounded_weights', 'turns')
    ),
    *((bug, 'float32', REAL) for bug in REAL_ALONE),
  ],
)
@pytest.mark.few(1)
def test_a_bug_is_named(bug, dtype, activations):
  # given
  kernel, stage, expected = BUGS[bug]

  # when
  case = dataclasses.replace(CASE, dtype=dtype)
  actual = pattern(kernel, case, activations=activations)

  # then
  assert actual[0] == stage
  assert expected in actual[1]
  assert explain.BESIDE not in actual[1]


@pytest.mark.parametrize('bug', bugs_testing.FROM_Y)
@pytest.mark.few(1)
def test_a_bug_is_named_from_y_alone(bug):
  # when
  actual = pattern(bugs_testing.KERNELS[bug], CASE, names=('y',))

  # then
  assert actual[0] == 'y'
  assert bugs_testing.FROM_Y[bug].split('; ')[-1] in actual[1]


def test_a_nan_says_of_which_gates():
  # given: exp of what is large, over itself
  def sigmoid(gate):
    with np.errstate(over='ignore', invalid='ignore'):
      return gate * (np.exp(gate) / (1 + np.exp(gate)))

  kernel = dataclasses.replace(bugs_testing.KERNEL, silu_of=sigmoid).forward

  # when
  stage, message = pattern(kernel, CASE, activations=REAL)

  # then
  assert stage == 'activation'
  assert 'NaN where gate is' in message and 'or more' in message


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
    _, message = pattern(
      bugs_testing.spoil_output('y', spoil), CASE, activations=REAL
    )

    # then
    assert 'as if' not in message, seed


def test_few_elements_have_no_name():
  # given: one element that another bug would have given as well
  def spoil(y):
    y[0, 2, 3] = y[0, 2, 2]

  # when / then
  assert 'as if' not in pattern(bugs_testing.spoil_output('y', spoil), CASE)[1]


def test_what_the_call_before_left_is_named():
  # given: a buffer that is written on the first call alone, and one that is
  # read so
  for name, kernel, place in (
    ('activation', bugs_testing.keep_output('activation'), ''),
    ('gate_up', bugs_testing.keep_input('w_gate_up'), ' where gate_up reads'),
  ):
    # when
    stage, message = pattern(kernel, CASE)

    # then
    tensor = 'w_gate_up' if place else name
    assert stage == name
    assert message.startswith(
      f'as if {tensor} was that of the previous call{place}'
    )


def test_other_bugs_of_other_ranks_are_named_too():
  # given
  def spoil(gate_up):
    gate_up[0] = bugs_testing.halves(gate_up[0])
    gate_up[1] = np.roll(gate_up[1], 1, axis=-1)

  # when
  _, message = pattern(bugs_testing.spoil_output('gate_up', spoil), CASE)
  first, second = message.split(explain.BESIDE)

  # then
  assert 'up_gate' in first
  assert 'shifted by one column; on rank 1' in second


def test_words_are_of_axes_that_a_tensor_has():
  # given
  weights = {
    c.says for c in known_bugs.select_changes('w_down', known_bugs.WEIGHTS)
  }
  rows = {
    c.says for c in known_bugs.select_changes('activation', known_bugs.COLUMNS)
  }

  # then
  assert len(weights) == 3
  assert not any('halves' in words for words in rows)
