"""Every activation: a right kernel passes, one with another does not."""

import dataclasses

import pytest

from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.reference.contract import precision

# 'swiglu' and 'absolute' are those of all other tests.
NAMES = precision.ACTIVATIONS[2:]


@dataclasses.dataclass(frozen=True)
class Fixed(numpy_testing.Numpy):
  """A kernel that has one activation, whatever it is form for."""

  own_form: str = 'swiglu'

  def run(self, config, policy, *arguments, **options):
    if policy.activation != 'absolute':
      policy = precision.with_form(policy, self.own_form)
    return super().run(config, policy, *arguments, **options)


@pytest.mark.parametrize('everything', [True, False], ids=['all', 'results'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('direction', ['forward', 'backward'])
@pytest.mark.parametrize('name', NAMES)
@pytest.mark.few(4)
def test_a_right_kernel_passes(name, direction, dtype, everything):
  candidate = numpy_testing.Numpy(everything=everything)
  case = dict(activation=name, direction=direction, dtype=dtype)
  assert not numpy_testing.list_failed_stages(candidate, **case)


@pytest.mark.parametrize('everything', [True, False], ids=['all', 'y'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize(
  'form, actual',
  [
    ('geglu_tanh', 'geglu'),
    ('geglu', 'geglu_tanh'),
    ('geglu_tanh', 'swiglu'),
    ('swiglu', 'geglu'),
    ('relu2', 'reglu'),
    ('bilinear', 'glu'),
    ('gpt_oss', 'swiglu:limit=7:offset=1'),
    ('swiglu:limit=7', 'swiglu'),
  ],
)
@pytest.mark.few(2)
def test_another_activation_is_named(form, actual, dtype, everything):
  # Given a kernel that has another activation than it is form for,
  candidate = Fixed(everything=everything, own_form=actual)
  lanes = ('bounded',)
  # when it is judged,
  case = dict(activation=form, dtype=dtype)
  results = numpy_testing.check_rows(candidate, lanes, **case)
  # then the stage where it is fails, and the activation is named.
  stage = 'activation' if everything else 'y'
  pattern_by_stage = {r.stage: r.failure.pattern for r in results if r.failure}
  assert f'as if the activation was {actual}' in pattern_by_stage[stage]


@pytest.mark.slow
def test_a_slope_alone_is_told_from_an_activation():
  candidate = Fixed(own_form='geglu')
  results = numpy_testing.check_rows(
    candidate, ('bounded',), activation='swiglu', direction='backward'
  )
  failure = next(r.failure for r in results if r.stage == 'd_gate_up')
  assert 'the slope of the activation was that of geglu' in failure.pattern
