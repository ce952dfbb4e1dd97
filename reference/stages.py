"""The one table of what a layer computes: each tensor from those before it.

`layer.forward`, `layer_grad.backward` and `sharded_layer` run entries of it
and nothing beside.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses
import functools
from typing import NamedTuple

import jax.numpy as jnp

from hpmoe.reference import combine
from hpmoe.reference import dispatch_grad
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
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors
from hpmoe.reference.quantised import quantise

Known = Mapping[str, at.Array]


class Place(NamedTuple):
  """Where stages run: on all ranks at once, or on one.

  Attributes:
    config: sizes, as the expert GEMMs see them.
    policy: dtypes, placement of the weights, activation.
    plan: says the GEMMs which expert a row belongs to.
    moves: how rows travel.
  """

  config: config_lib.MoEConfig
  policy: precision.PrecisionPolicy
  plan: token_order.Plan
  moves: movement.Movement


def run(
  name: str,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  known: Known,
) -> at.Array:
  """Returns a tensor of `tensors.SPECS`, computed from others, on all ranks.

  Args:
    name: of a tensor that is no input.
    config: sizes.
    policy: dtypes, placement of the weights, activation.
    known: at least those that `tensors.needs` names.

  Raises:
    KeyError: one of those is missing, or `name` is an input.
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  needs = tensors.needs(name, config, policy.placement)
  known = {name: jnp.asarray(known[name]) for name in needs}
  if name in _PLANS:
    return _PLANS[name](config, known)
  plan = token_order.Plan(*(known[name] for name in tensors.PLAN))
  moves = movement.by_address(config, plan, known['topk_ids'])
  return at_place(name, Place(config, policy, plan, moves), known)


def at_place(name: str, place: Place, known: Known) -> at.Array:
  """Returns a tensor of `tensors.STAGES` or `GRADS`, however rows travel."""
  if tensors.SPECS[name].part == 'shared':
    return _of_shared(name, place, known)
  policy = place.policy.storing(name)
  return _STAGES[name](place._replace(policy=policy), known)


def _of_shared(name: str, place: Place, known: Known) -> at.Array:
  """Returns a tensor of the shared experts, whose layer `config.shared` is."""
  config = place.config.shared()
  policy = place.policy.of_shared()
  read = tensors.reads(place.config, 'combine')[name]
  held = tensors.as_routed({one: known[one] for one in read})
  shape = (*known[read[0]].shape[:2], 1)
  ids = jnp.arange(shape[0], dtype=jnp.int32)[:, None, None]
  plan = token_order.plan(config, jnp.broadcast_to(ids, shape))
  there = Place(config, policy, plan, place.moves)
  routed = tensors.AS_ROUTED[name]
  made = {routed: _STAGES[routed](there, held)}
  return tensors.of_shared(made)[name]


def _rows(name: str, place: Place, known: Known) -> at.Array:
  storage = numerics.storage_dtype(place.policy)
  return place.moves.dispatch(known[name].astype(storage))


def _home(name: str, place: Place, known: Known) -> at.Array:
  return place.moves.return_rows(known[name])


def _returned(place: Place, known: Known) -> at.Array:
  rows = _home('expert_out', place, known)
  weights = _weight_at({'returned'}, place, known)
  if weights is None:
    return rows
  rows = combine.weighted(place.policy, rows, weights)
  return numerics.store(place.policy, rows)


def _relayed(name: str, place: Place, known: Known) -> at.Array:
  return relay.relayed(place.config, known['topk_ids'], known[name])


def _gemm(function, left: str, right: str, place: Place, known: Known):
  config, policy, plan, _ = place
  rows = known[left]
  if name := quantised.row_forms(policy.rows).get(left):
    form = quantised.FORMS[name]
    rows = quantise.dequantise(form, quantise.quantise(form, rows))
  return function(config, policy, plan, rows, known[right])


def _biased(name: str, bias: str, place: Place, known: Known) -> at.Array:
  added = dict(after=_weight_at({name}, place, known))
  if place.config.bias:
    # Where the weight was applied before w_down, b_down has not had it.
    early = bias == 'b_down'
    scale = _weight_at({'activation'}, place, known) if early else None
    added |= dict(bias=known[bias], scale=scale)
  function = functools.partial(expert_gemm.expert_gemm, **added)
  return _gemm(function, *tensors.GEMMS[name], place, known)


def _bias_grad(bias: str, of: str, place: Place, known: Known) -> at.Array:
  config, policy, plan, _ = place
  scale = (
    _weight_at(tensors.OF_EXPERTS, place, known) if bias == 'b_down' else None
  )
  return expert_gemm_grad.bias_grad(config, policy, plan, known[of], scale)


def _weight_at(
  stages: Collection[str], place: Place, known: Known
) -> at.Array | None:
  """Returns what rows are multiplied by, if at one of these stages.

  `[R, N]` in the accumulate dtype, of a stage of tokens `[R, T, K]`.
  """
  stage = tensors.WEIGHTED[place.policy.placement]
  if stage not in stages:
    return None
  weights = known['topk_weights']
  if stage in tensors.OF_EXPERTS:
    weights = place.moves.row_weight(weights)
  weights = numerics.widen(place.policy, weights)
  return numerics.at_point(place.policy, 'routing_weight', weights)


def _activation(place: Place, known: Known) -> at.Array:
  weight = _weight_at({'activation'}, place, known)
  return swiglu.swiglu(place.policy, known['gate_up'], weight)


def _y(place: Place, known: Known) -> at.Array:
  in_order = functools.partial(
    combine.in_order, place.policy.sum_order, known['topk_ids']
  )
  weights = _weight_at({'y'}, place, known)
  weights = None if weights is None else in_order(weights)
  rows, last = in_order(known['returned']), known.get('shared_out')
  return combine.combine(place.policy, rows, weights, last)


def _d_expert_out(place: Place, known: Known) -> at.Array:
  dy = known['dy'].astype(numerics.storage_dtype(place.policy))
  weights = _weight_at({'returned', 'y'}, place, known)
  return dispatch_grad.dispatch_grad(place.policy, place.moves, weights, dy)


def _d_topk_weights(place: Place, known: Known) -> at.Array:
  """Returns `[R, T, K]` in the dtype of `topk_weights`."""
  dtype = known['topk_weights'].dtype
  home, of_rows = _DOTS[place.policy.placement]
  dots = of_rows(place, known)
  if home:
    return dots.astype(dtype)
  if place.config.bias:
    # Of each row its product with the one column that its expert's bias is.
    wide = dataclasses.replace(place.policy, storage=place.policy.accumulate)
    rows, column = known['d_expert_out'], known['b_down'][..., None]
    where = place.config, wide, place.plan
    dots += expert_gemm.expert_gemm(*where, rows, column)[..., 0]
  return place.moves.return_rows(dots.astype(dtype)[..., None])[..., 0]


# What gradients of routing weights are, by placement; whether at home, where
# tokens are.
_DOTS: dict[str, tuple[bool, Callable[[Place, Known], at.Array]]] = {
  'combine': (
    True,
    lambda place, known: dispatch_grad.combine_weight_grad(
      place.policy, known['dy'], known['returned']
    ),
  ),
  # Of what came home before it was weighted.
  'returned': (
    True,
    lambda place, known: dispatch_grad.combine_weight_grad(
      place.policy, known['dy'], _home('expert_out', place, known)
    ),
  ),
  'before_down': (
    False,
    lambda place, known: swiglu_grad.row_weight_grad(
      place.policy, known['gate_up'], known['d_activation']
    ),
  ),
  'epilogue': (
    False,
    lambda place, known: inner_product.inner_product(
      place.policy, known['d_activation'], known['activation']
    ),
  ),
}


def _d_gate_up(place: Place, known: Known) -> at.Array:
  return swiglu_grad.swiglu_grad(
    place.policy,
    known['gate_up'],
    known['d_activation'],
    _weight_at(tensors.OF_EXPERTS, place, known),
  )


def _d_w_down(place: Place, known: Known) -> at.Array:
  config, policy, plan, _ = place
  d_out = known['d_expert_out']
  weight = _weight_at({'expert_out'}, place, known)
  if weight is not None:
    # What was weighted were the sums: nobody stored rows that have it.
    weighted = combine.weighted(policy, d_out, weight)
    d_out = numerics.store(policy, weighted)
  rows = known['activation']
  return expert_gemm_grad.weight_grad(config, policy, plan, rows, d_out)


def _dx(place: Place, known: Known) -> at.Array:
  order, rows = place.policy.d_sum_order, known['d_returned']
  rows = combine.in_order(order, known['topk_ids'], rows)
  last = known.get('d_shared_in')
  return combine.combine_grad(place.policy, rows, last)


_PLANS: dict[str, Callable[[config_lib.MoEConfig, Known], at.Array]] = {
  'counts': lambda config, known: token_order.slot_counts(
    config, known['topk_ids']
  ),
  'row_base': lambda config, known: token_order.row_bases(
    config, known['counts']
  ),
  'row_of_slot': lambda config, known: token_order.slot_rows(
    known['topk_ids'], known['counts'], known['row_base']
  ),
}

_STAGES: dict[str, Callable[[Place, Known], at.Array]] = {
  'x_relayed': functools.partial(_relayed, 'x'),
  'expert_in': functools.partial(_rows, 'x'),
  'gate_up': functools.partial(_biased, 'gate_up', 'b_gate_up'),
  'activation': _activation,
  'expert_out': functools.partial(_biased, 'expert_out', 'b_down'),
  'returned': _returned,
  'y': _y,
  'dy_relayed': functools.partial(_relayed, 'dy'),
  'd_expert_out': _d_expert_out,
  'd_topk_weights': _d_topk_weights,
  'd_gate_up': _d_gate_up,
  'd_b_down': functools.partial(_bias_grad, 'b_down', 'd_expert_out'),
  'd_b_gate_up': functools.partial(_bias_grad, 'b_gate_up', 'd_gate_up'),
  'd_returned': functools.partial(_home, 'd_expert_in'),
  'dx': _dx,
  'x': lambda place, known: norm.norm(
    place.policy, known['y'], known['w_norm']
  ),
  'dy': lambda place, known: norm.norm_grad(
    place.policy, known['dx'], known['y'], known['w_norm']
  ),
  'd_w_norm': lambda place, known: norm.gain_grad(
    place.policy, known['dx'], known['y']
  ),
}
for _function, _gemms in (
  (expert_gemm_grad.rows_grad, tensors.TRANSPOSED_GEMMS),
  (expert_gemm_grad.weight_grad, tensors.WEIGHT_GRADS),
):
  _STAGES |= {
    name: functools.partial(_gemm, _function, *read)
    for name, read in _gemms.items()
  }
_STAGES['d_w_down'] = _d_w_down
