"""The operator on the host, on the twin and in JAX; see `operator_testing`.

That of MPI is in `mpi_launcher_test`, of MindSpore in its front end's test.
"""

import pytest

from hpmoe.parity_tests.ascend import front_end
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import operator_testing
from hpmoe.parity_tests.ascend import twin_candidate


class TestHost(operator_testing.OperatorTests):
  candidate = host.Megakernel(operator_testing.OPTIONS)
  is_host = False


class TestTwin(operator_testing.OperatorTests):
  candidate = twin_candidate.Twin(operator_testing.OPTIONS)
  # The device source has no kernels in float16, nor that weigh sums.
  lacks = ('one_expert_a_token', 'weights_in_the_epilogue')
  is_host = False


@pytest.mark.few(4)
class TestJax(operator_testing.OperatorTests):
  candidate = front_end.FrontEnd('jax', operator_testing.OPTIONS)
