"""What judges each pass: its golden rows, and the oracle's answer."""

from collections.abc import Mapping

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import golden_grad

# By `Pass.name`.
_GOLDEN: Mapping[str, type[golden_lib.Rows]] = dict(
  forward=golden_lib.Golden, backward=golden_grad.GoldenGrad
)


def golden(which: passes.Pass, *of) -> golden_lib.Rows:
  """Returns golden rows of a (tiling, policy, arrays, captured)."""
  return _GOLDEN[which.name](*of)


def answer(
  oracle: oracle_lib.Oracle, which: passes.Pass
) -> dict[str, np.ndarray]:
  """Returns the oracle's `plan` and `stages`."""
  if which.name == passes.FORWARD.name:
    return oracle.forward()
  return oracle.backward(oracle.inputs, oracle.inputs['dy'])
