"""The layer with its gradient: `layer.forward`, `layer_grad.backward`."""

import functools

import jax

from hpmoe.reference import layer as layer_lib
from hpmoe.reference import layer_grad
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def layer(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  x: at.Float[at.Array, 'R T D'],
  topk_ids: at.Int32[at.Array, 'R T K'],
  topk_weights: at.Float[at.Array, 'R T K'],
  w_gate_up: at.Float[at.Array, 'R L D 2*F'],
  w_down: at.Float[at.Array, 'R L F D'],
) -> at.Float[at.Array, 'R T D']:
  """Returns `y` `[R, T, D]` of `layer.forward`, whose arguments it takes.

  Reverse mode runs `layer_grad.backward`; a gradient comes in the dtype of its
  argument.

  Raises:
    ValueError: as `layer.forward`.
  """
  outputs = layer_lib.forward(
    config, policy, x, topk_ids, topk_weights, w_gate_up, w_down
  )
  return outputs['y']


def _forward(config, policy, *arguments):
  inputs = dict(zip(tensors.INPUTS, arguments, strict=True))
  known = inputs | layer_lib.forward(config, policy, **inputs)
  kept = {name: known[name] for name in layer_grad.reads(policy)}
  # Residuals are arrays: an empty one carries the dtype of x.
  return known['y'], (kept, inputs['x'][:0])


def _backward(config, policy, saved, dy):
  kept, empty_x = saved
  out = layer_grad.backward(config, policy, kept, dy)
  return (
    out['dx'].astype(empty_x.dtype),
    None,
    out['d_topk_weights'],
    out['d_w_gate_up'].astype(kept['w_gate_up'].dtype),
    out['d_w_down'].astype(kept['w_down'].dtype),
  )


layer.defvjp(_forward, _backward)
