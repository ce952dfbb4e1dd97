"""Generation in MindSpore: as `models/jax/stepper_test.py`."""

import pytest

from hpmoe.models import generation_testing
from hpmoe.models.mindspore import stepper
from hpmoe.reference.contract import halved_testing


# `make test` has each family in one framework.
@pytest.mark.parametrize(
  'name', halved_testing.halved(generation_testing.FAMILIES, odd=True)
)
def test_a_batch_is_one_at_a_time(name):
  generation_testing.check_batch_is_one_at_a_time(name, stepper.Stepper)
