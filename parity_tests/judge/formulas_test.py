"""Formulas of silu, and intermediates kept in float32, as the policy says.

A kernel is right or wrong by `policy.activation_ulp` and `policy.points`,
whether it returns y or every tensor.
"""

import numpy as np
import pytest

from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.reference.contract import precision

list_failed_stages = numpy_testing.list_failed_stages
Numpy = numpy_testing.Numpy


@pytest.mark.parametrize('everything', [True, False], ids=['all', 'y'])
@pytest.mark.parametrize(
  'points', [('gate_up=f32',), ('activation=f32', 'expert_out=f32')]
)
@pytest.mark.few(2)
def test_a_fused_kernel_is_right_under_its_policy(points, everything):
  candidate = Numpy(everything=everything)
  assert not list_failed_stages(candidate, dtype='bfloat16', policy=points)


def test_a_fused_kernel_is_wrong_under_the_default_policy():
  # Given gate_up, float32 in a policy that stores bfloat16, and so returned,
  candidate = Numpy(
    words=('gate_up=f32',), everything=False, returns=('gate_up',)
  )
  with pytest.raises(ValueError, match='gate_up: expected .*=gate_up=f'):
    list_failed_stages(candidate, dtype='bfloat16', lanes=('bounded',))


# See `precision.ACTIVATION_ULP`.
_NEEDS = dict(exp2=0.25, tanh=0.75)


def tanh(gate):
  half = np.float32(0.5)
  return gate * (half * (1 + np.tanh(half * gate)))


def exp2(gate):
  with np.errstate(over='ignore'):
    return gate / (1 + np.exp2(gate * np.float32(-np.log2(np.e))))


@pytest.mark.parametrize('everything', [True, False], ids=['all', 'y'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('formula', [exp2, tanh])
def test_a_formula_is_right_by_what_it_needs(formula, dtype, everything):
  candidate = Numpy(trial.Kernel(silu_of=formula), everything)
  needs = _NEEDS[formula.__name__]
  lanes = ('bounded',)
  assert not list_failed_stages(
    candidate, lanes, dtype=dtype, sigmoid_ulp=needs
  )


@pytest.mark.parametrize('formula', [exp2, tanh])
def test_a_sigmoid_off_by_four_times_what_may_be_is_wrong(formula):
  # Given a sigmoid that is off by four times what the formula needs,
  needs = _NEEDS[formula.__name__]
  error = np.float32(4 * needs * 2.0**-23)
  kernel = trial.Kernel(silu_of=lambda gate: formula(gate) + error * gate)
  # when it is judged, then it fails; with that much allowed it does not.
  lanes = ('bounded',)
  assert 'activation' in list_failed_stages(
    Numpy(kernel), lanes, sigmoid_ulp=needs
  )
  assert not list_failed_stages(Numpy(kernel), lanes, sigmoid_ulp=5 * needs)


@pytest.mark.parametrize('ulp', [precision.ACTIVATION_ULP, 50.0])
def test_four_times_the_error_allowed_is_wrong(ulp):
  # Given a silu that is off by four times what may be, beside its roundings,
  factor = np.float32(1 + 4 * ulp * 2.0**-23)
  kernel = trial.Kernel(silu=factor)
  # when it is judged, then it fails; with that much allowed it does not.
  lanes = ('bounded',)
  assert 'activation' in list_failed_stages(
    Numpy(kernel), lanes, activation_ulp=ulp
  )
  assert not list_failed_stages(Numpy(kernel), lanes, activation_ulp=5 * ulp)


@pytest.mark.parametrize('value', [0.0, -1.0, float('inf'), float('nan')])
def test_units_are_a_positive_number(value):
  with pytest.raises(ValueError, match='^activation_ulp: expected a positive'):
    precision.PrecisionPolicy(activation_ulp=value)


@pytest.mark.parametrize(
  'points, match',
  [
    (('tanh=bf16',), "expected some of .*, got 'tanh=bf16'"),
    (('silu=bf15',), 'expected silu=DTYPE, one of .*tf32.*, got'),
    (('y=tf32',), 'expected y=DTYPE'),
    (('silu=bf16', 'silu=f16'), 'expected silu once, got bfloat16 too'),
  ],
)
def test_points_are_those_of_the_table(points, match):
  with pytest.raises(ValueError, match=f'^points: {match}'):
    precision.PrecisionPolicy('bfloat16', points=points)
