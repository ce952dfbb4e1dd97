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
  *parts: at.Array,
) -> at.Float[at.Array, 'R T D']:
  """Returns `y` `[R, T, D]` of `layer.forward`, whose arguments it takes.

  Reverse mode runs `layer_grad.backward`; a gradient has the dtype of its
  argument.  `parts` are the further tensors of `tensors.inputs`, in that order.

  Raises:
    ValueError: as `layer.forward`.
  """
  arrays = (x, topk_ids, topk_weights, w_gate_up, w_down, *parts)
  inputs = layer_lib.name_inputs(config, arrays)
  outputs = layer_lib.forward(config, policy, run=layer_lib.stage, **inputs)
  return outputs['y']


def _forward(config, policy, *arguments):
  inputs = layer_lib.name_inputs(config, arguments)
  arrays = inputs | layer_lib.forward(
    config, policy, run=layer_lib.stage, **inputs
  )
  residuals = {name: arrays[name] for name in layer_grad.reads(config, policy)}
  # Residuals are arrays: empty ones carry the dtypes of the other inputs.
  return arrays['y'], (residuals, {n: a[:0] for n, a in inputs.items()})


def _backward(config, policy, state, dy):
  residuals, empty = state
  out = layer_grad.backward(config, policy, residuals, dy)
  grads = {'x': out['dx'].astype(empty['x'].dtype), 'topk_ids': None}
  for name in tensors.inputs(config):
    if name not in grads:
      grads[name] = out[f'd_{name}'].astype(empty[name].dtype)
  return tuple(grads.values())


layer.defvjp(_forward, _backward)
