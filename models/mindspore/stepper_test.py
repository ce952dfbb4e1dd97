"""Generation in MindSpore: as `models/jax/stepper_test.py`."""

import pytest

from hpmoe.models import generation_testing
from hpmoe.models.mindspore import stepper

# `make test` has half of the families in JAX, and here the one with the most
# kinds of attention.
_each_family = pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if 'gpt' in name else pytest.mark.slow)
    for name in generation_testing.FAMILIES
  ],
)


@_each_family
def test_a_batch_is_one_at_a_time(name):
  generation_testing.check_batch_is_one_at_a_time(name, stepper.Stepper)


@_each_family
@pytest.mark.slow
def test_greedy_is_the_reference(name):
  generation_testing.check_greedy_is_the_reference(name, stepper.Stepper)
