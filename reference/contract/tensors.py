"""Names of the tensors of one MoE layer, in dependency order.

Dumps, reports, tasks and functions all use these names.  Every tensor has a
leading rank axis R, because the oracle computes all ranks at once.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Protocol

# What a router computes.
ROUTING = ('topk_ids', 'topk_weights')
# In topk_ids: no expert serves this slot.  It has no row (-1 in row_of_slot),
# comes back as zeros, and its routing weight, which is finite like all of them,
# has no effect and gradient 0.
UNUSED = -1


class Layer(Protocol):
  """The fields of a `config.MoEConfig` that decide which tensors exist."""

  @property
  def bias(self) -> bool: ...

  @property
  def d_shared(self) -> int: ...

  @property
  def sublayer(self) -> bool: ...


@dataclasses.dataclass(frozen=True)
class Parts:
  """A `Layer` without sizes."""

  bias: bool = False
  d_shared: int = 0
  sublayer: bool = False


def require_layer(layer: Layer, purpose: str) -> None:
  """Raises ValueError for a sub-layer; `purpose` says what needs a layer."""
  if layer.sublayer:
    raise ValueError(
      f'preset: expected a whole layer {purpose}, got a sub-layer'
    )


EVERY_PART = Parts(bias=True, d_shared=1)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
  """Shape (in the letters of `array_typing`) and kind of one tensor.

  Attributes:
    name: the name in every dump, report and function.
    shape: axes, separated by spaces, in the letters of `array_typing`.
    kind: 'storage' (the policy's storage dtype), 'f32' or 'i32'; of role
      'codes': the part of the form.
    role: 'input', 'weight', 'plan', 'movement', 'compute' or 'codes'.
    part: the optional part of a layer that has the tensor; '': every layer.
  """

  name: str
  shape: str
  kind: str
  role: str
  part: str = ''

  def dims(self, **sizes: int) -> tuple[int, ...]:
    """Returns the shape as integers, given R, T, E, L, K, D, F, N and S."""
    return tuple(
      sizes[axis[-1]] * (1 + axis.startswith('2'))
      for axis in self.shape.split()
    )


FORWARD = (
  TensorSpec('x', 'R T D', 'storage', 'input'),
  TensorSpec('topk_ids', 'R T K', 'i32', 'input'),
  TensorSpec('topk_weights', 'R T K', 'f32', 'input'),
  TensorSpec('w_gate_up', 'R L D 2F', 'storage', 'weight'),
  TensorSpec('w_down', 'R L F D', 'storage', 'weight'),
  TensorSpec('b_gate_up', 'R L 2F', 'storage', 'weight', 'bias'),
  TensorSpec('b_down', 'R L D', 'storage', 'weight', 'bias'),
  TensorSpec('w_shared_gate_up', 'R D 2S', 'storage', 'weight', 'shared'),
  TensorSpec('w_shared_down', 'R S D', 'storage', 'weight', 'shared'),
  TensorSpec('w_norm', 'R D', 'storage', 'weight', 'norm'),
  TensorSpec('counts', 'R E', 'i32', 'plan'),
  TensorSpec('row_base', 'R E', 'i32', 'plan'),
  TensorSpec('row_of_slot', 'R T K', 'i32', 'plan'),
  TensorSpec('expert_in', 'R N D', 'storage', 'movement'),
  TensorSpec('gate_up', 'R N 2F', 'storage', 'compute'),
  TensorSpec('activation', 'R N F', 'storage', 'compute'),
  TensorSpec('expert_out', 'R N D', 'storage', 'compute'),
  TensorSpec('returned', 'R T K D', 'storage', 'movement'),
  TensorSpec('shared_gate_up', 'R T 2S', 'storage', 'compute', 'shared'),
  TensorSpec('shared_activation', 'R T S', 'storage', 'compute', 'shared'),
  TensorSpec('shared_out', 'R T D', 'storage', 'compute', 'shared'),
  TensorSpec('y', 'R T D', 'storage', 'compute'),
)

# In dependency order; FORWARD's tensors are its other inputs.
BACKWARD = (
  TensorSpec('dy', 'R T D', 'storage', 'input'),
  TensorSpec('d_expert_out', 'R N D', 'storage', 'compute'),
  TensorSpec('d_activation', 'R N F', 'storage', 'compute'),
  TensorSpec('d_w_down', 'R L F D', 'storage', 'compute'),
  TensorSpec('d_b_down', 'R L D', 'storage', 'compute', 'bias'),
  TensorSpec('d_gate_up', 'R N 2F', 'storage', 'compute'),
  TensorSpec('d_expert_in', 'R N D', 'storage', 'compute'),
  TensorSpec('d_w_gate_up', 'R L D 2F', 'storage', 'compute'),
  TensorSpec('d_b_gate_up', 'R L 2F', 'storage', 'compute', 'bias'),
  TensorSpec('d_returned', 'R T K D', 'storage', 'movement'),
  TensorSpec('d_topk_weights', 'R T K', 'f32', 'compute'),
  TensorSpec('d_shared_activation', 'R T S', 'storage', 'compute', 'shared'),
  TensorSpec('d_w_shared_down', 'R S D', 'storage', 'compute', 'shared'),
  TensorSpec('d_shared_gate_up', 'R T 2S', 'storage', 'compute', 'shared'),
  TensorSpec('d_shared_in', 'R T D', 'storage', 'compute', 'shared'),
  TensorSpec('d_w_shared_gate_up', 'R D 2S', 'storage', 'compute', 'shared'),
  TensorSpec('dx', 'R T D', 'storage', 'compute'),
  TensorSpec('d_w_norm', 'R D', 'f32', 'compute', 'norm'),
)

# With relay: what crossed to a rank, each token once, by pass.
RELAYED = (
  TensorSpec('x_relayed', 'R N D', 'storage', 'movement'),
  TensorSpec('dy_relayed', 'R N D', 'storage', 'movement'),
)

# Of a kernel that computes its router's logits too, of x and router_w `[D, E]`.
ROUTER_GEMM = (TensorSpec('router_logits', 'R T E', 'storage', 'compute'),)
# Of a kernel that routes by itself: the gradient of its logits through weights;
# and, if it computes them, that of its weights, and its part of dx.
ROUTER_GRADS = (
  TensorSpec('d_router_logits', 'R T E', 'f32', 'compute'),
  TensorSpec('d_router_in', 'R T D', 'storage', 'compute'),
  TensorSpec('d_router_w', 'D E', 'storage', 'compute'),
)
# And that of a bias of its logits, a sum over the tokens of all ranks; a bias
# that decides the choice alone has none.
ROUTER_BIAS_GRAD = TensorSpec('d_router_bias', 'E', 'f32', 'compute')

# What a GEMM that quantises its rows makes of them, if a kernel returns it: the
# scales of a row's groups, along the last axis, and codes in the element of the
# form.  No pass has them as stages of its own.
ROW_CODES = tuple(
  TensorSpec(f'{name}_{part}', f'R N {width}', part, 'codes')
  for name, width in (('expert_in', 'D'), ('activation', 'F'))
  for part in ('scales', 'codes')
)
# The same of tokens that a kernel quantises before it sends them; codes of
# expert_in are then copies.
TOKEN_CODES = tuple(
  TensorSpec(f'x_{part}', 'R T D', part, 'codes')
  for part in ('scales', 'codes')
)
# What comes in place of a quantised weight, where its form has that part.
WEIGHT_CODES = tuple(
  dataclasses.replace(spec, name=f'{spec.name}_{part}', kind=part, role='codes')
  for spec in FORWARD
  if spec.role == 'weight' and spec.part in ('', 'shared')
  for part in ('scales', 'codes', 'zeros', 'tensor_scales')
)
# What scales are of rows whose form has them as inputs, one for each expert.
STATIC_SCALES = tuple(
  TensorSpec(f'{name}_scale', 'R L', 'f32', 'input')
  for name in ('expert_in', 'activation')
)

_BESIDE_A_LAYER = (
  *ROUTER_GRADS,
  ROUTER_BIAS_GRAD,
  *ROW_CODES,
  *TOKEN_CODES,
  *STATIC_SCALES,
  *ROUTER_GEMM,
)
_PARTS = ('', 'bias', 'shared', 'norm')
# Those of every layer first: a place here does not depend on parts.
SPECS = {
  spec.name: spec
  for part in _PARTS
  for spec in FORWARD + BACKWARD + RELAYED
  if spec.part == part
} | {spec.name: spec for spec in _BESIDE_A_LAYER}
# All that a kernel or a file may have, each with a layout.
IN_FILES = SPECS | {spec.name: spec for spec in WEIGHT_CODES}


def parts(layer: Layer) -> tuple[str, ...]:
  """Returns '' and the optional parts that a layer has."""
  is_present = True, layer.bias, layer.d_shared > 0, layer.sublayer
  return tuple(part for part, present in zip(_PARTS, is_present) if present)


# A sub-layer of tensor parallelism is the layer from `activation` on, a norm
# that makes x of its y, and then the layer up to `gate_up`.  Its tensors in
# dependency order, and those that have another role in it.
_SUBLAYER = (
  *('activation', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down', 'w_norm'),
  *('counts', 'row_base', 'row_of_slot'),
  *('expert_out', 'returned', 'y', 'x', 'expert_in', 'gate_up'),
  *('d_gate_up', 'd_expert_in', 'd_w_gate_up', 'd_returned', 'dx'),
  *('dy', 'd_w_norm', 'd_expert_out', 'd_activation', 'd_w_down'),
)
_SUBLAYER_ROLES = {
  'activation': 'input',
  'x': 'compute',
  'd_gate_up': 'input',
  'dy': 'compute',
}


def select_specs(
  specs: Sequence[TensorSpec], layer: Layer
) -> tuple[TensorSpec, ...]:
  """Returns the tensors of `FORWARD` or `BACKWARD` in a layer, in order."""
  if layer.sublayer:
    specs_known = (SPECS[name] for name in _SUBLAYER)
    return tuple(
      dataclasses.replace(s, role=_SUBLAYER_ROLES.get(s.name, s.role))
      for s in specs_known
      if s in specs
    )
  own_parts = parts(layer)
  return tuple(s for s in specs if s.part in own_parts)


def inputs(layer: Layer) -> tuple[str, ...]:
  """Returns the inputs of a layer: `INPUTS`, then those of its parts."""
  specs = select_specs(FORWARD, layer)
  return tuple(s.name for s in specs if s.role in ('input', 'weight'))


def stages(layer: Layer) -> tuple[str, ...]:
  """Returns the stages of a layer's forward pass, in dependency order."""
  specs = select_specs(FORWARD, layer)
  return tuple(s.name for s in specs if s.role in ('movement', 'compute'))


def grads(layer: Layer) -> tuple[str, ...]:
  """Returns the stages of a layer's backward pass, in order."""
  return tuple(
    s.name for s in select_specs(BACKWARD, layer) if s.role != 'input'
  )


def grad_given(layer: Layer) -> str:
  """Returns the gradient that the backward pass of a layer begins with."""
  return next(
    s.name for s in select_specs(BACKWARD, layer) if s.role == 'input'
  )


# Of a layer without parts.
INPUTS, STAGES, GRADS = inputs(Parts()), stages(Parts()), grads(Parts())
PLAN = tuple(s.name for s in FORWARD if s.role == 'plan')

# What a stage is computed from, routing and its weights apart; a GEMM's left
# and right.
READS = {
  'counts': ('topk_ids',),
  'row_base': ('counts',),
  'row_of_slot': ('topk_ids', 'counts', 'row_base'),
  'x_relayed': ('x',),
  'dy_relayed': ('dy',),
  'expert_in': ('x',),
  'gate_up': ('expert_in', 'w_gate_up'),
  'activation': ('gate_up',),
  'expert_out': ('activation', 'w_down'),
  'returned': ('expert_out',),
  'y': ('returned',),
  'd_expert_out': ('dy',),
  'd_topk_weights': ('dy', 'returned'),
  'd_activation': ('d_expert_out', 'w_down'),
  'd_w_down': ('activation', 'd_expert_out'),
  'd_gate_up': ('d_activation', 'gate_up'),
  'd_expert_in': ('d_gate_up', 'w_gate_up'),
  'd_w_gate_up': ('expert_in', 'd_gate_up'),
  'd_returned': ('d_expert_in',),
  'dx': ('d_returned',),
  'd_router_logits': ('d_topk_weights',),
  'd_router_in': ('d_router_logits',),
}
# What a stage reads beside, if it is there.
MAY_READ = {'dx': ('d_router_in',)}
# The stage that multiplies a row by its routing weight, by placement.
WEIGHTED = {
  'combine': 'y',
  'before_down': 'activation',
  'epilogue': 'expert_out',
  'returned': 'returned',
  'input': 'expert_in',
}
# The placement at which weights multiply the rows of a token's sum, by sum.
WEIGHTED_SUMS = {'y': 'combine', 'dx': 'input'}
# Those stages that the expert's rank computes, and their placements.
OF_EXPERTS = ('activation', 'expert_out')
EARLY = tuple(name for name, stage in WEIGHTED.items() if stage in OF_EXPERTS)
# What differs from 'combine', by placement.
_READS_AT: dict[str, dict[str, tuple[str, ...]]] = {
  'combine': {},
  'before_down': {'d_topk_weights': ('d_activation', 'gate_up')},
  'epilogue': {'d_topk_weights': ('d_activation', 'activation')},
  'returned': {'d_topk_weights': ('dy', 'expert_out')},
  'input': {'d_topk_weights': ('x', 'd_returned')},
}
_ROLES_AT = {
  'combine': {},
  'before_down': {'d_expert_out': 'movement'},
  'epilogue': {'d_expert_out': 'movement'},
  'returned': {'returned': 'compute'},
  'input': {'expert_in': 'compute', 'd_expert_out': 'movement'},
}
# What tensors read beside, by part; and at placements of `EARLY`.
_MORE_READS: dict[str, dict[str, tuple[str, ...]]] = {
  'bias': {
    'gate_up': ('b_gate_up',),
    'expert_out': ('b_down',),
    'd_b_down': ('d_expert_out',),
    'd_b_gate_up': ('d_gate_up',),
  },
  'shared': {
    'shared_gate_up': ('x', 'w_shared_gate_up'),
    'shared_activation': ('shared_gate_up',),
    'shared_out': ('shared_activation', 'w_shared_down'),
    'y': ('shared_out',),
    'd_shared_activation': ('dy', 'w_shared_down'),
    'd_w_shared_down': ('shared_activation', 'dy'),
    'd_shared_gate_up': ('d_shared_activation', 'shared_gate_up'),
    'd_shared_in': ('d_shared_gate_up', 'w_shared_gate_up'),
    'd_w_shared_gate_up': ('x', 'd_shared_gate_up'),
    'dx': ('d_shared_in',),
  },
  'norm': {
    'x': ('y', 'w_norm'),
    'dy': ('dx', 'y', 'w_norm'),
    'd_w_norm': ('dx', 'y'),
  },
}
_MORE_EARLY_READS: dict[str, dict[str, tuple[str, ...]]] = {
  'bias': {'d_topk_weights': ('d_expert_out', 'b_down')},
  'shared': {},
  'norm': {},
}
# What the shared experts' tensors are in the layer that `config.shared` is:
# its rows are the rank's tokens, in order.
AS_ROUTED = {
  'x': 'expert_in',
  'w_shared_gate_up': 'w_gate_up',
  'w_shared_down': 'w_down',
  'shared_gate_up': 'gate_up',
  'shared_activation': 'activation',
  'shared_out': 'expert_out',
  'dy': 'd_expert_out',
  'd_shared_activation': 'd_activation',
  'd_w_shared_down': 'd_w_down',
  'd_shared_gate_up': 'd_gate_up',
  'd_shared_in': 'd_expert_in',
  'd_w_shared_gate_up': 'd_w_gate_up',
}


def routed(name: str) -> str:
  """Returns the routed experts' name for a tensor of shared experts.

  Other tensors keep their name.
  """
  return AS_ROUTED[name] if SPECS[name].part == 'shared' else name


def as_routed(arrays: Mapping[str, Any]) -> dict[str, Any]:
  """Returns shared experts' arrays by routed names; weights get an axis L.

  Codes and scales of their weights too.
  """
  routed_arrays = {
    AS_ROUTED[name]: array[:, None] if _is_of_experts(name) else array
    for name, array in arrays.items()
    if name in AS_ROUTED
  }
  coded = {
    spec.name: f'{AS_ROUTED[weight]}_{spec.kind}'
    for spec in WEIGHT_CODES
    if (weight := spec.name.removesuffix(f'_{spec.kind}')) in AS_ROUTED
  }
  return routed_arrays | {
    routed: arrays[name][:, None]
    for name, routed in coded.items()
    if name in arrays
  }


def of_shared(arrays: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the arrays of `as_routed` by the names of the shared experts."""
  return {
    name: arrays[routed][:, 0] if _is_of_experts(name) else arrays[routed]
    for name, routed in AS_ROUTED.items()
    if SPECS[name].part and routed in arrays
  }


def _is_of_experts(name: str) -> bool:
  return 'L' in SPECS[AS_ROUTED[name]].shape


def _gemms(*names: str) -> dict[str, tuple[str, str]]:
  return {name: (READS[name][0], READS[name][1]) for name in names}


# (left, right) of each GEMM: left @ right, left @ right^T, left^T @ right.
GEMMS = _gemms('gate_up', 'expert_out')
TRANSPOSED_GEMMS = _gemms('d_activation', 'd_expert_in')
WEIGHT_GRADS = _gemms('d_w_down', 'd_w_gate_up')


def reads(layer: Layer, placement: str) -> dict[str, tuple[str, ...]]:
  """Returns `READS` of a layer, for a placement of the routing weights."""
  early = placement in EARLY
  stages_read = READS | _READS_AT[placement]
  for part in parts(layer)[1:]:
    for extra_reads in (_MORE_READS, _MORE_EARLY_READS)[: 1 + early]:
      for name, read in extra_reads[part].items():
        stages_read[name] = (*stages_read.get(name, ()), *read)
  return stages_read


def needs(name: str, layer: Layer, placement: str) -> tuple[str, ...]:
  """Returns all tensors from which a tensor is computed, with the routing.

  Raises:
    KeyError: it is an input.
  """
  read = reads(layer, placement)[name]
  return read if name in PLAN else (*ROUTING, *PLAN, *read)


def role(name: str, placement: str) -> str:
  """Returns a tensor's role for a placement of the routing weights."""
  return _ROLES_AT[placement].get(name, SPECS[name].role)


def saved_stages(layer: Layer, placement: str) -> tuple[str, ...]:
  """Returns the forward stages that the backward pass reads."""
  read = _read_by_grads(layer, placement)
  return tuple(name for name in stages(layer) if name in read)


def read_again(layer: Layer, placement: str) -> tuple[str, ...]:
  """Returns the inputs that the backward pass reads, with the routing."""
  read = {*ROUTING} | _read_by_grads(layer, placement)
  return tuple(name for name in inputs(layer) if name in read)


def _read_by_grads(layer: Layer, placement: str) -> set[str]:
  stages_read = reads(layer, placement)
  return {before for name in grads(layer) for before in stages_read[name]}
