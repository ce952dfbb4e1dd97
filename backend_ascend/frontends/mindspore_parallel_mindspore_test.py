"""Two processes of an msrun job compute what one does, bit for bit."""

import pytest

from hpmoe.backend_ascend.frontends import msrun_testing

_MAKE = """
from hpmoe.backend_ascend.frontends import mindspore_parallel

make = mindspore_parallel.ParallelMoELayer
"""


@pytest.mark.slow
def test_two_processes_have_the_bits_of_one(tmp_path):
  policies = ('float32-combine', 'bfloat16-before_down')
  msrun_testing.check_layer(_MAKE, policies, tmp_path)
