"""The reference of each pass: its golden rows and the oracle's answer."""

from collections.abc import Mapping

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import golden_grad
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import tensors

# By `Pass.name`.
_GOLDEN: Mapping[str, type[golden_lib.Rows]] = dict(
  forward=golden_lib.Golden, backward=golden_grad.GoldenGrad
)


def build_golden(
  layer_pass: passes.Pass,
  tiling: tiles.Tiling,
  policy: precision.PrecisionPolicy,
  arrays: passes.Tensors,
  captured_tensors: passes.Tensors,
  router: router_lib.Router | None = None,
) -> golden_lib.Rows:
  """Returns golden rows; `router`: of a backward pass through its GEMM."""
  arguments = tiling, policy, arrays, captured_tensors
  if router is not None:
    return golden_grad.GoldenGrad(*arguments, router=router)
  return _GOLDEN[layer_pass.name](*arguments)


def run_oracle(
  oracle: oracle_lib.Oracle, layer_pass: passes.Pass
) -> dict[str, np.ndarray]:
  """Returns the oracle's plan and stages of a pass, by name."""
  if layer_pass.name == passes.FORWARD.name:
    return oracle.forward()
  grad_input = tensors.grad_given(oracle.config)
  return oracle.backward(oracle.inputs, oracle.inputs[grad_input])


def store_golden(
  name: str,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  sources: passes.Tensors,
) -> np.ndarray:
  """Returns a tensor like `stages.run`, computed from golden rows and stored.

  Stages need no compilation.  On exact data they equal the oracle's bit for
  bit; on other data they differ by rounding.
  """
  if name in tensors.PLAN:
    return oracle_lib.stage(name, config, policy, sources)
  tensor = np.zeros(
    tensors.SPECS[name].dims(**config.dims()),
    ulp.storage_dtype(policy.dtype(name)),
  )
  tiling = tiles.Tiling(
    config, *(sources[n] for n in ('counts', 'row_of_slot', 'topk_ids'))
  )
  # The golden of a weight's gradient needs the shape of the weight.
  arrays = {name.removeprefix('d_'): tensor, **sources}
  is_forward = name in tensors.stages(config)
  layer_pass = passes.FORWARD if is_forward else passes.BACKWARD
  rows = build_golden(layer_pass, tiling, policy, arrays, sources)
  for rank in range(config.num_ranks):
    rank_rows = tiling.rows(name, tensor, rank)
    with np.errstate(over='ignore', invalid='ignore'):
      rank_rows[...] = rows.rows(name, rank, 0, len(rank_rows)).value
  return tensor
