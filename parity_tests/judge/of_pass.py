"""What judges each pass: its golden rows, and the oracle's stages."""

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


def stage(
  oracle: oracle_lib.Oracle,
  which: passes.Pass,
  name: str,
  inputs: passes.Tensors,
  captured: passes.Tensors,
) -> np.ndarray:
  """Returns a tensor that the oracle computes from captured ones."""
  if which is passes.FORWARD:
    return oracle.stage(name, captured)
  return oracle.stage_grad(name, inputs, captured)


def answer(
  oracle: oracle_lib.Oracle, which: passes.Pass, inputs: passes.Tensors
) -> dict[str, np.ndarray]:
  """Returns the oracle's `plan` and `stages`, made stage by stage.

  Single stages are judged anyway, so they are compiled anyway; the pass as
  one function, whose bits are the same, takes longer to compile than all.
  """
  plan = oracle.plan() if which.plan else {}
  made: dict[str, np.ndarray] = {}
  for name in which.stages:
    made[name] = stage(oracle, which, name, inputs, made)
  return plan | made
