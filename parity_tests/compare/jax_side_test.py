"""The JAX side: gradients between modules are those of the model."""

import pytest

from hpmoe.parity_tests.compare import flows_testing
from hpmoe.parity_tests.compare import jax_side


@pytest.mark.slow
def test_gradients_between_modules_are_those_beside_them():
  subject = flows_testing.subject()
  raw = jax_side.run(subject, 'framework', backward=True)
  flows_testing.check(subject, raw)
