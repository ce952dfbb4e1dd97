"""Names of the tensors of one MoE layer, in dependency order.

Dumps, reports, tasks and functions all use these names.  Every tensor has a
leading rank axis R, because the oracle computes all ranks at once.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TensorSpec:
  """Shape (in the letters of `array_typing`) and kind of one tensor.

  Attributes:
    name: the design's name.
    shape: axes, space separated, in the notation's letters.
    kind: 'storage' (the policy's storage dtype), 'f32' or 'i32'.
    role: 'input', 'weight', 'plan', 'movement' or 'compute'.
  """

  name: str
  shape: str
  kind: str
  role: str

  def dims(self, **sizes: int) -> tuple[int, ...]:
    """Returns the shape as integers, given R, T, E, L, K, D, F and N."""
    return tuple(
      2 * sizes['F'] if axis == '2F' else sizes[axis]
      for axis in self.shape.split()
    )


FORWARD = (
  TensorSpec('x', 'R T D', 'storage', 'input'),
  TensorSpec('topk_ids', 'R T K', 'i32', 'input'),
  TensorSpec('topk_weights', 'R T K', 'f32', 'input'),
  TensorSpec('w_gate_up', 'R L D 2F', 'storage', 'weight'),
  TensorSpec('w_down', 'R L F D', 'storage', 'weight'),
  TensorSpec('counts', 'R E', 'i32', 'plan'),
  TensorSpec('row_base', 'R E', 'i32', 'plan'),
  TensorSpec('row_of_slot', 'R T K', 'i32', 'plan'),
  TensorSpec('expert_in', 'R N D', 'storage', 'movement'),
  TensorSpec('gate_up', 'R N 2F', 'storage', 'compute'),
  TensorSpec('activation', 'R N F', 'storage', 'compute'),
  TensorSpec('expert_out', 'R N D', 'storage', 'compute'),
  TensorSpec('returned', 'R T K D', 'storage', 'movement'),
  TensorSpec('y', 'R T D', 'storage', 'compute'),
)

# In dependency order; FORWARD's tensors are its other inputs.
BACKWARD = (
  TensorSpec('dy', 'R T D', 'storage', 'input'),
  TensorSpec('d_expert_out', 'R N D', 'storage', 'compute'),
  TensorSpec('d_topk_weights', 'R T K', 'f32', 'compute'),
  TensorSpec('d_activation', 'R N F', 'storage', 'compute'),
  TensorSpec('d_w_down', 'R L F D', 'storage', 'compute'),
  TensorSpec('d_gate_up', 'R N 2F', 'storage', 'compute'),
  TensorSpec('d_expert_in', 'R N D', 'storage', 'compute'),
  TensorSpec('d_w_gate_up', 'R L D 2F', 'storage', 'compute'),
  TensorSpec('d_returned', 'R T K D', 'storage', 'movement'),
  TensorSpec('dx', 'R T D', 'storage', 'compute'),
)

SPECS = {spec.name: spec for spec in FORWARD + BACKWARD}
INPUTS = tuple(s.name for s in FORWARD if s.role in ('input', 'weight'))
PLAN = tuple(s.name for s in FORWARD if s.role == 'plan')
STAGES = tuple(s.name for s in FORWARD if s.role in ('movement', 'compute'))

# What the backward pass computes, in dependency order.
GRADS = tuple(s.name for s in BACKWARD if s.role != 'input')
