"""What sums of codes mean: a view of a launch, as its vector tiles read it."""

from collections.abc import Mapping

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.reference.contract import storage

Tensors = Mapping[str, np.ndarray]
# Of each tensor of sums: whose rows and whose columns have the scales.
_SCALES = {
  'gate_up': ('expert_in', 'w_gate_up'),
  'expert_out': ('activation', 'w_down'),
}


def compute_values(
  image: image_lib.Image,
  plan: _native.Routing,
  inputs: Tensors,
  outputs: Tensors,
) -> dict[str, np.ndarray]:
  """Returns gate_up `[R, N, 2F]` and expert_out `[R, N, D]`, by the policy.

  Each is (sum * scale of its row) * scale of its column, rounded in float32
  each time and then to its dtype; zero past the last valid row.

  Args:
    image: of codes.
    plan: of the routing.
    inputs: scales of the weights among them.
    outputs: sums and scales of rows among them.
  """
  counts = plan.counts.sum(axis=0).reshape(image.config.num_ranks, -1)
  values = {}
  for name, (rows, weight) in _SCALES.items():
    dtype = storage.FORMATS[image.policy.dtype(name)].numpy
    sums, row_scales = outputs[f'{name}_sums'], outputs[f'{rows}_scales']
    values[name] = np.zeros(sums.shape, dtype)
    for rank, of_experts in enumerate(counts):
      valid = of_experts.sum()
      columns = inputs[f'{weight}_scales'][rank, :, 0]
      columns = np.repeat(columns, of_experts, axis=0)
      scaled = sums[rank, :valid].astype(np.float32) * row_scales[rank, :valid]
      values[name][rank, :valid] = (scaled * columns).astype(dtype)
  return values
