"""The table of a layer's stages: each computes one tensor from earlier ones.

`layer.forward`, `layer_grad.backward` and `sharded_layer` run only entries of
this table.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import functools
from typing import NamedTuple

import jax.numpy as jnp

from hpmoe.reference import combine
from hpmoe.reference import combine_grad
from hpmoe.reference import expert_gemm
from hpmoe.reference import expert_gemm_grad
from hpmoe.reference import inner_product
from hpmoe.reference import movement
from hpmoe.reference import norm
from hpmoe.reference import numerics
from hpmoe.reference import relay
from hpmoe.reference import swiglu
from hpmoe.reference import swiglu_grad
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import tensors
from hpmoe.reference.quantised import operands

Arrays = Mapping[str, at.Array]


class Place(NamedTuple):
  """The ranks that stages run on: all at once, or one.

  Attributes:
    config: sizes of the expert GEMMs.
    policy: dtypes, placement of the weights, activation.
    plan: the rows of each expert.
    moves: how rows move between ranks.
  """

  config: config_lib.MoEConfig
  policy: precision.PrecisionPolicy
  plan: token_order.Plan
  moves: movement.Movement


def run(
  name: str,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  arrays: Arrays,
) -> at.Array:
  """Returns a tensor of `tensors.SPECS`, computed from others, on all ranks.

  Args:
    name: of a tensor that is no input.
    config: sizes.
    policy: dtypes, placement of the weights, activation.
    arrays: tensors by name, with all of `tensors.needs`.

  Raises:
    KeyError: a needed tensor is missing, or `name` is an input.
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  needs = policy.needs(name, config)
  # Of a layer with its router's GEMM.
  needs += tuple(n for n in tensors.MAY_READ.get(name, ()) if n in arrays)
  arrays = {name: jnp.asarray(arrays[name]) for name in needs}
  if name in _PLANS:
    return _PLANS[name](config, arrays)
  plan = token_order.Plan(*(arrays[name] for name in tensors.PLAN))
  moves = movement.by_address(config, plan, arrays['topk_ids'])
  return at_place(name, Place(config, policy, plan, moves), arrays)


def at_place(name: str, place: Place, arrays: Arrays) -> at.Array:
  """Returns a tensor of `tensors.STAGES` or `GRADS`, computed at a place."""
  if tensors.SPECS[name].part == 'shared':
    return _of_shared(name, place, arrays)
  policy = place.policy.storing(name)
  return _STAGES[name](place._replace(policy=policy), arrays)


def _of_shared(name: str, place: Place, arrays: Arrays) -> at.Array:
  """Returns a tensor of the shared experts, the layer of `config.shared`."""
  config = place.config.shared()
  policy = place.policy.of_shared()
  read = tensors.reads(place.config, 'combine')[name]
  shared_inputs = tensors.as_routed({n: arrays[n] for n in read})
  shape = (*arrays[read[0]].shape[:2], 1)
  ids = jnp.arange(shape[0], dtype=jnp.int32)[:, None, None]
  plan = token_order.plan(config, jnp.broadcast_to(ids, shape))
  shared_place = Place(config, policy, plan, place.moves)
  routed = tensors.AS_ROUTED[name]
  outputs = {routed: _STAGES[routed](shared_place, shared_inputs)}
  return tensors.of_shared(outputs)[name]


def _dispatch(
  source: str, stages: Collection[str], place: Place, arrays: Arrays
) -> at.Array:
  """Returns tokens as rows, times weights that one of `stages` applies."""
  tokens, weights = arrays[source], _weight_at(stages, place, arrays)
  if weights is None:  # a copy; a product is rounded once, after it
    tokens = tokens.astype(numerics.storage_dtype(place.policy))
  return movement.dispatch_weighted(place.policy, place.moves, weights, tokens)


def _home(name: str, place: Place, arrays: Arrays) -> at.Array:
  return place.moves.return_rows(arrays[name])


def _weight_returned(place: Place, arrays: Arrays) -> at.Array:
  rows = _home('expert_out', place, arrays)
  weights = _weight_at({'returned'}, place, arrays)
  if weights is None:
    return rows
  rows = combine.weighted(place.policy, rows, weights)
  return numerics.store(place.policy, rows)


def _relayed(name: str, place: Place, arrays: Arrays) -> at.Array:
  return relay.relayed(place.config, arrays['topk_ids'], arrays[name])


def _gemm(name: str, function, place: Place, arrays: Arrays):
  left, right = recipes.OPERANDS[name]
  scale = arrays.get(f'{left}_scale')
  values = arrays[left], arrays[right]
  return _multiply(name, function, place, *values, scale=scale)


def _multiply(
  name: str,
  function,
  place: Place,
  *values: at.Array,
  scale: at.Float[at.Array, 'R L'] | None = None,
):
  """Returns a GEMM's output; the policy says how its operands are quantised.

  `scale` is the scale of its rows, if that is an input.
  """
  config, policy, plan, _ = place
  experts = operands.Experts(*token_order.expert_rows(config, plan.counts))
  coded = [
    operands.multiplied(name, operand, policy, experts, value, scale)
    for operand, value in zip(recipes.OPERANDS[name], values)
  ]
  return function(config, policy, plan, *coded)


def _biased(name: str, bias: str, place: Place, arrays: Arrays) -> at.Array:
  options = dict(after=_weight_at({name}, place, arrays))
  if place.config.bias:
    # If the weight was applied before w_down, b_down is not yet weighted.
    early = bias == 'b_down'
    scale = _weight_at({'activation'}, place, arrays) if early else None
    options |= dict(bias=arrays[bias], scale=scale)
  function = functools.partial(expert_gemm.expert_gemm, **options)
  return _gemm(name, function, place, arrays)


def _bias_grad(bias: str, grad: str, place: Place, arrays: Arrays) -> at.Array:
  config, policy, plan, _ = place
  scale = (
    _weight_at(tensors.OF_EXPERTS, place, arrays) if bias == 'b_down' else None
  )
  return expert_gemm_grad.bias_grad(config, policy, plan, arrays[grad], scale)


def _weight_at(
  stages: Collection[str], place: Place, arrays: Arrays
) -> at.Array | None:
  """Returns the weights of rows, if they are applied at one of these stages.

  `[R, N]` in the accumulate dtype; `[R, T, K]` for a stage of tokens.
  """
  stage = tensors.WEIGHTED[place.policy.placement]
  if stage not in stages:
    return None
  weights = arrays['topk_weights']
  if stage in tensors.OF_EXPERTS:
    weights = place.moves.row_weight(weights)
  weights = numerics.widen(place.policy, weights)
  return numerics.at_point(place.policy, 'routing_weight', weights)


def _activation(place: Place, arrays: Arrays) -> at.Array:
  weight = _weight_at({'activation'}, place, arrays)
  return swiglu.swiglu(place.policy, arrays['gate_up'], weight)


def _combine(
  name: str,
  source: str,
  last_names: Sequence[str],
  place: Place,
  arrays: Arrays,
) -> at.Array:
  """Returns the sum `name` of a token's rows `source`, and of `last_names`."""
  policy, placement = place.policy, tensors.WEIGHTED_SUMS[name]
  order = precision.order_of(name, policy)
  in_order = functools.partial(combine.in_order, order, arrays['topk_ids'])
  weights = _weight_at({tensors.WEIGHTED[placement]}, place, arrays)
  weights = None if weights is None else in_order(weights)
  lasts = [arrays[last] for last in last_names if last in arrays]
  return combine.combine(policy, name, in_order(arrays[source]), weights, lasts)


def _d_topk_weights(place: Place, arrays: Arrays) -> at.Array:
  """Returns `[R, T, K]`, without a point in the dtype of `topk_weights`."""
  point = place.policy.roundings.get('d_topk_weights')
  dtype = point or arrays['topk_weights'].dtype
  home, of_rows = _DOTS[place.policy.placement]
  dots = of_rows(place, arrays)
  if home:
    return dots.astype(dtype)
  if place.config.bias:
    rows = arrays['d_expert_out']
    bias = _spread_bias(place, arrays['b_down'], rows.shape[1])
    dots += inner_product.inner_product(place.policy, rows, bias, 'd_weighted')
  return place.moves.return_rows(dots.astype(dtype)[..., None])[..., 0]


def _spread_bias(place: Place, bias: at.Array, num_rows: int) -> at.Array:
  """Returns the bias `[R, N, D]` of each row's expert, of `[R, L, D]`."""
  wide = dataclasses.replace(
    place.policy,
    storage=place.policy.accumulate,
    accumulation_order='ascending',
    points=(),
  )
  unit = jnp.ones((len(bias), num_rows, 1), wide.accumulate)
  layer_args = place.config, wide, place.plan
  return expert_gemm.expert_gemm(*layer_args, unit, bias[:, :, None])


# Gradients of routing weights by placement; True: computed on the token's rank.
_DOTS: dict[str, tuple[bool, Callable[[Place, Arrays], at.Array]]] = {
  'combine': (
    True,
    lambda place, arrays: combine_grad.combine_weight_grad(
      place.policy, arrays['dy'], arrays['returned']
    ),
  ),
  'input': (
    True,
    lambda place, arrays: combine_grad.combine_weight_grad(
      place.policy, arrays['x'], arrays['d_returned']
    ),
  ),
  # From the returned rows before they are weighted.
  'returned': (
    True,
    lambda place, arrays: combine_grad.combine_weight_grad(
      place.policy, arrays['dy'], _home('expert_out', place, arrays)
    ),
  ),
  'before_down': (
    False,
    lambda place, arrays: swiglu_grad.row_weight_grad(
      place.policy, arrays['gate_up'], arrays['d_activation']
    ),
  ),
  'epilogue': (
    False,
    lambda place, arrays: inner_product.inner_product(
      place.policy,
      arrays['d_activation'],
      arrays['activation'],
      'd_weighted',
    ),
  ),
}


def _d_gate_up(place: Place, arrays: Arrays) -> at.Array:
  return swiglu_grad.swiglu_grad(
    place.policy,
    arrays['gate_up'],
    arrays['d_activation'],
    _weight_at(tensors.OF_EXPERTS, place, arrays),
  )


def _d_w_down(place: Place, arrays: Arrays) -> at.Array:
  policy, d_out = place.policy, arrays['d_expert_out']
  weight = _weight_at({'expert_out'}, place, arrays)
  if weight is not None:
    # The forward pass weighted sums and stored no weighted rows.
    weighted = combine.weighted(policy, d_out, weight)
    d_out = numerics.store(policy, weighted)
  rows, function = arrays['activation'], expert_gemm_grad.weight_grad
  return _multiply('d_w_down', function, place, rows, d_out)


_PLANS: dict[str, Callable[[config_lib.MoEConfig, Arrays], at.Array]] = {
  'counts': lambda config, arrays: token_order.slot_counts(
    config, arrays['topk_ids']
  ),
  'row_base': lambda config, arrays: token_order.row_bases(
    config, arrays['counts']
  ),
  'row_of_slot': lambda config, arrays: token_order.slot_rows(
    arrays['topk_ids'], arrays['counts'], arrays['row_base']
  ),
}

_STAGES: dict[str, Callable[[Place, Arrays], at.Array]] = {
  'x_relayed': functools.partial(_relayed, 'x'),
  'expert_in': functools.partial(_dispatch, 'x', {'expert_in'}),
  'gate_up': functools.partial(_biased, 'gate_up', 'b_gate_up'),
  'activation': _activation,
  'expert_out': functools.partial(_biased, 'expert_out', 'b_down'),
  'returned': _weight_returned,
  'y': functools.partial(_combine, 'y', 'returned', ['shared_out']),
  'dy_relayed': functools.partial(_relayed, 'dy'),
  'd_expert_out': functools.partial(_dispatch, 'dy', {'returned', 'y'}),
  'd_topk_weights': _d_topk_weights,
  'd_gate_up': _d_gate_up,
  'd_b_down': functools.partial(_bias_grad, 'b_down', 'd_expert_out'),
  'd_b_gate_up': functools.partial(_bias_grad, 'b_gate_up', 'd_gate_up'),
  'd_returned': functools.partial(_home, 'd_expert_in'),
  'dx': functools.partial(
    _combine, 'dx', 'd_returned', ['d_shared_in', 'd_router_in']
  ),
  'x': lambda place, arrays: norm.norm(
    place.policy, arrays['y'], arrays['w_norm']
  ),
  'dy': lambda place, arrays: norm.norm_grad(
    place.policy, arrays['dx'], arrays['y'], arrays['w_norm']
  ),
  'd_w_norm': lambda place, arrays: norm.gain_grad(
    place.policy, arrays['dx'], arrays['y']
  ),
}
for _function, _gemms in (
  (expert_gemm_grad.rows_grad, tensors.TRANSPOSED_GEMMS),
  (expert_gemm_grad.weight_grad, tensors.WEIGHT_GRADS),
):
  _STAGES |= {
    name: functools.partial(_gemm, name, _function) for name in _gemms
  }
_STAGES['d_w_down'] = _d_w_down
