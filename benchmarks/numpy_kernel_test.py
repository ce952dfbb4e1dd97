"""The kernel that is timed is right, on other data between two calls too."""

import pytest

from benchmarks import numpy_kernel
import hpmoe


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.few(1)
def test_the_kernel_passes(dtype):
  case = hpmoe.Case(preset='small', ranks=2, tokens=128, dtype=dtype)
  report = hpmoe.check(numpy_kernel.layer, case)
  assert report.is_pass, report
