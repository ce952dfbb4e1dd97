"""Generation in MindSpore: as `models/jax/stepper_test.py`."""

import mindspore as ms
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import generation_testing
from hpmoe.models.mindspore import attention
from hpmoe.models.mindspore import ops
from hpmoe.models.mindspore import stepper

# `make test` has half of the families in JAX, and here the one with the most
# kinds of attention.
_EACH = pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if 'gpt' in name else pytest.mark.slow)
    for name in generation_testing.FAMILIES
  ],
)


@_EACH
def test_a_batch_is_one_at_a_time(name):
  generation_testing.check_batch_is_one_at_a_time(name, stepper.Stepper)


@_EACH
@pytest.mark.slow
def test_greedy_is_the_reference(name):
  generation_testing.check_greedy_is_the_reference(name, stepper.Stepper)


def test_padding_counts_no_position():
  config = config_lib.load('mixtral_tiny')
  starts = np.array([0, 2], np.int32)
  seen = attention.seen(config, 0, 4, 4, ms.float32, starts)
  cos = ops.to_numpy(seen.rope.cos)
  np.testing.assert_array_equal(cos[1, 2:], cos[0, :2])
  assert (cos[0, 2:] != cos[0, :2]).any()
