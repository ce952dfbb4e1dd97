"""The mistake of one expert is named from y alone."""

import numpy as np
import pytest

from hpmoe.parity_tests import api
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import trial_testing as trial

KERNEL = trial.Kernel()


def _swap_halves(w_gate_up, expert):
  gate, up = np.split(w_gate_up[expert], 2, axis=-1)
  w_gate_up[expert] = np.concatenate([up, gate], axis=-1)


def _take_next(w_gate_up, expert):
  w_gate_up[expert] = w_gate_up[(expert + 1) % len(w_gate_up)]


def _transpose(w_gate_up, expert):
  rows, columns = w_gate_up.shape[1:]
  w_gate_up[expert] = w_gate_up[expert].reshape(columns, rows).T


# By mistake: what is said.
MISTAKES = {
  _swap_halves: 'as if gate_up had its column halves swapped',
  _take_next: 'as if w_gate_up was that of the next expert',
  _transpose: 'as if w_gate_up was transposed',
}


def find_pattern(change, dtype):
  """Returns the pattern of a kernel that returns y alone.

  Args:
    change: changes w_gate_up `[E, D, 2F]` in place.
    dtype: of the layer.
  """

  def function(inputs, config, policy):
    weight = inputs['w_gate_up'].copy()
    change(weight.reshape(-1, *weight.shape[2:]))
    arrays = {**inputs, 'w_gate_up': weight}
    return {'y': KERNEL.forward(config, policy, arrays)['y']}

  function.activations = ('swiglu',)
  case = case_lib.Case(preset='small', dtype=dtype)
  report = api.check(function, case, lanes=('bounded',), repeat=1)
  return report.first_failure.pattern


@pytest.mark.parametrize('expert', [0, 15], ids=['first', 'last'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('mistake', MISTAKES)
@pytest.mark.few(1)
def test_the_mistake_of_one_expert_is_named(mistake, dtype, expert):
  pattern = find_pattern(lambda w: mistake(w, expert), dtype)

  assert pattern.startswith(f'expert {expert}: {MISTAKES[mistake]}')


@pytest.mark.parametrize('experts', [[2], [2, 9]], ids=['one', 'two'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.few(1)
def test_noise_is_no_bug_of_an_expert(experts, dtype):
  noise = np.random.default_rng(3).normal(size=256).astype(np.float32)

  def disturb(w):
    w[experts] = (w[experts].astype(np.float32) * noise).astype(w.dtype)

  assert 'expert 2: ' not in find_pattern(disturb, dtype)


@pytest.mark.parametrize('mistake', MISTAKES)
@pytest.mark.few(1)
def test_a_mistake_in_all_experts_is_blamed_on_none(mistake):
  def change(w):
    right = w.copy()
    for expert in range(len(w)):
      other = right.copy()
      mistake(other, expert)
      w[expert] = other[expert]

  pattern = find_pattern(change, 'float32')

  assert pattern.startswith('as if ') and 'expert 0: ' not in pattern
