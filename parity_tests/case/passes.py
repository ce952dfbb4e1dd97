"""The two passes of a layer, as data."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import kinds
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Tensors = Mapping[str, np.ndarray]
Sources = Mapping[str, tuple[str, ...]]

# Stages of a backward pass through the router's GEMM, each from the one before.
ROUTER_ROWS = tuple(
  spec.name for spec in tensors.ROUTER_GRADS if spec.shape.startswith('R T')
)
# Of a check, in this order.  The first two are lane exact's.
DATA = ('exact', 'wide', 'real')
# The values of `--direction`, and their passes.
DIRECTIONS = ('forward', 'backward', 'both')


def _in_task_order(names: tuple[str, ...]) -> tuple[str, ...]:
  stages = dict.fromkeys(kinds.STAGE_OF_KIND.values())
  return tuple(stage for stage in stages if stage in names)


@dataclasses.dataclass(frozen=True)
class Pass:
  """One direction of a layer.

  `FORWARD` and `BACKWARD` are of a layer without parts, see `of_layer`.

  Attributes:
    name: 'forward' or 'backward'.
    direction: its name in a task image.
    plan: plan tensors that a candidate of this pass returns.
    stages: tensors that it computes, in the order of tasks.
    relayed: the tensor of relayed rows.
    results: of the fused layer; the first one must be returned.
    through_router: whether dx has a part from the router's GEMM.
  """

  name: str
  direction: kinds.Direction
  plan: tuple[str, ...]
  stages: tuple[str, ...]
  relayed: str
  results: tuple[str, ...]
  through_router: bool = False

  def with_router(self) -> 'Pass':
    """Returns the backward pass of a layer with its router's GEMM."""
    last = self.stages.index('dx')
    stages = *self.stages[:last], *ROUTER_ROWS, *self.stages[last:]
    return dataclasses.replace(self, stages=stages, through_router=True)

  def reads_of(
    self, layer: tensors.Layer, placement: str
  ) -> dict[str, tuple[str, ...]]:
    """Returns `tensors.reads` of this pass."""
    reads = tensors.reads(layer, placement)
    if self.through_router:
      reads['dx'] = (*reads['dx'], ROUTER_ROWS[-1])
    return reads

  def of_layer(self, layer: tensors.Layer) -> 'Pass':
    """Returns the pass of a layer, which may have other tensors."""
    if layer.sublayer:
      return _OF_SUBLAYER[self.name]
    forward = self.name == 'forward'
    names = tensors.stages(layer) if forward else tensors.grads(layer)
    stages, reads = [*self.stages], tensors.reads(layer, 'combine')
    new_names = [name for name in names if name not in stages]
    if not new_names:
      return self
    for name in new_names:
      after = (
        stages.index(source) + 1 for source in reads[name] if source in stages
      )
      stages.insert(max(after, default=0), name)
    of_inputs = {f'd_{name}' for name in tensors.inputs(layer)}
    results = (
      *self.results,
      *(name for name in new_names if name in of_inputs),
    )
    return dataclasses.replace(self, stages=tuple(stages), results=results)

  @property
  def outputs(self) -> tuple[str, ...]:
    """The names that a candidate may return."""
    return self.plan + self.stages

  def list_outputs(self, policy: precision.PrecisionPolicy) -> tuple[str, ...]:
    """Returns `outputs` and the codes of rows that a policy quantises."""
    is_forward = self.name == 'forward'
    return self.outputs + (
      quantised_inputs.list_row_names(policy) if is_forward else ()
    )

  def find_shape(
    self, policy: precision.PrecisionPolicy, name: str, **sizes: int
  ) -> tuple[int, ...]:
    """Returns the shape of one of `list_outputs`, from the sizes of axes."""
    if tensors.SPECS[name].role == 'codes':
      return quantised_inputs.find_row_shape(policy, name, **sizes)
    return tensors.SPECS[name].dims(**sizes)

  def sources(
    self, layer: tensors.Layer, policy: precision.PrecisionPolicy
  ) -> Sources:
    """Returns the stages of this pass that each of its tensors reads."""
    reads = self.reads_of(layer, policy.placement)
    return dict.fromkeys((*self.plan, self.relayed), ()) | {
      name: tuple(read for read in reads[name] if read in self.stages)
      for name in self.stages
    }

  def movement(self, policy: precision.PrecisionPolicy) -> tuple[str, ...]:
    """Returns the stages that only copy."""
    return tuple(
      name
      for name in self.stages
      if tensors.role(name, policy.placement) == 'movement'
    )

  def reads(
    self, layer: tensors.Layer, policy: precision.PrecisionPolicy
  ) -> tuple[str, ...]:
    """Returns the names of this pass's inputs."""
    inputs = tensors.inputs(layer)
    if self.name == 'forward':
      return (*inputs, *quantised_inputs.list_names(policy, layer))
    gradient = tensors.grad_given(layer)
    return (
      *inputs,
      *quantised_inputs.list_names(policy, layer),
      gradient,
      *tensors.PLAN,
      *tensors.saved_stages(layer, policy.placement),
    )


def shared_layer(
  config: config_lib.MoEConfig, arrays: Tensors
) -> dict[str, np.ndarray]:
  """Returns the inputs of the shared experts' layer, `config.shared`.

  Args:
    config: of the whole layer.
    arrays: its inputs, of one pass or both.
  """
  ranks, tokens = config.num_ranks, config.num_tokens
  ids = np.arange(ranks, dtype=np.int32)[:, None, None]
  tokens_by_name = {
    name: arrays[name] for name in ('x', 'dy') if name in arrays
  }
  return tokens_by_name | {
    **tensors.as_routed(arrays),
    'topk_ids': np.broadcast_to(ids, (ranks, tokens, 1)),
    'topk_weights': np.ones((ranks, tokens, 1), np.float32),
  }


FORWARD = Pass(
  name='forward',
  direction=kinds.Direction.FORWARD,
  plan=tensors.PLAN,
  stages=_in_task_order(tensors.STAGES),
  relayed=tensors.RELAYED[0].name,
  results=('y',),
)

BACKWARD = Pass(
  name='backward',
  direction=kinds.Direction.BACKWARD,
  plan=(),
  stages=_in_task_order(tensors.GRADS),
  relayed=tensors.RELAYED[1].name,
  results=('dx', 'd_w_down', 'd_w_gate_up', 'd_topk_weights'),
)

SUBLAYER = tensors.Parts(sublayer=True)
_OF_SUBLAYER = {
  full_pass.name: dataclasses.replace(full_pass, stages=stages, results=results)
  for full_pass, stages, results in (
    (FORWARD, tensors.stages(SUBLAYER), ('gate_up',)),
    (
      BACKWARD,
      tensors.grads(SUBLAYER),
      ('d_activation', 'd_w_down', 'd_w_gate_up', 'd_w_norm'),
    ),
  )
}


def from_direction(direction: str) -> tuple[Pass, ...]:
  """Returns the passes of a direction, in order.

  Raises:
    ValueError: the direction is not one of `DIRECTIONS`.
  """
  if direction not in DIRECTIONS:
    raise ValueError(
      f'direction: expected one of {list(DIRECTIONS)}, got {direction!r}'
    )
  return tuple(
    layer_pass
    for layer_pass in (FORWARD, BACKWARD)
    if direction in (layer_pass.name, 'both')
  )
