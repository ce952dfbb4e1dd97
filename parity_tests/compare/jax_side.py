"""A side in JAX: the decoder, operator by operator.

Not under one jit: XLA would fuse a layer with its surroundings, and the bits of
two sides would differ before the first difference of their layers.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.models import routed as routed_lib
from hpmoe.models.jax import decoder
from hpmoe.models.jax import moe as moe_lib
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.compare import side_results
from hpmoe.parity_tests.compare import subject as subject_lib
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.reference.contract import tensors


def run(
  subject: subject_lib.Subject,
  moe: str,
  backward: bool,
  instead: Mapping[int, candidates.Candidate] = types.MappingProxyType({}),
  device: str = 'cpu',
  noise: Mapping[str, np.ndarray] = types.MappingProxyType({}),
) -> side_results.Raw:
  """Returns the results of the model with the layer `moe`.

  Args:
    subject: model and batch.
    moe: the layer of routed experts, by name.
    backward: whether to compute gradients of the loss.
    instead: by layer, the candidate that computes its experts instead.
    device: not used; for MindSpore.
    noise: by module, the noise that is added to its output, in units of its
      root mean square.

  Raises:
    ValueError: there is no such layer.
  """
  del device
  load_layer = functools.cache(lambda: _load_layer(moe))
  # In the order in which they run.
  layers = {
    number: _launch(number, instead[number])
    if number in instead
    else load_layer()
    for number in subject.moe_layers
  }
  if moe == 'host' or instead:
    layers = {number: _of_finite(layer) for number, layer in layers.items()}
  params = {n: jnp.asarray(value) for n, value in subject.params.items()}
  trainable = {n: params[n] for n in subject.trainable}
  taps, flows = _zeros(subject, params) if backward else ({}, {})
  tokens = jnp.asarray(subject.tokens)

  def total(params_trained, taps, flows):
    def between(name, x):
      if noise:
        size = jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))
        size = jax.lax.stop_gradient(size)
        x = (x.astype(jnp.float32) + size * noise[name]).astype(x.dtype)
      return x + flows[name] if flows else x

    logits, aux = decoder.forward(
      params | params_trained,
      subject.config,
      tokens,
      moe=_tap_layers(layers, taps),
      ranks=subject.ranks,
      mtp=subject.mtp,
      between=between,
    )
    loss = decoder.next_token_loss(logits, tokens)
    if aux.mtp_logits is not None:
      loss += decoder.next_token_loss(aux.mtp_logits, tokens[:, 1:])
    return loss, (logits, aux)

  grads: tuple[dict, dict, dict] = ({}, {}, {})
  if backward:
    (loss, (logits, aux)), grads = jax.value_and_grad(
      total, (0, 1, 2), has_aux=True
    )(trainable, taps, flows)
  else:
    loss, (logits, aux) = total(trainable, taps, flows)
  fields = dict(
    hidden_states=list(aux.hidden_states),
    routed={n: r._asdict() for n, r in aux.routed.items() if r is not None},
    logits=[logits, aux.mtp_logits] if subject.mtp else [logits],
    loss=loss,
    grads=grads[0],
    taps=grads[1],
    flows=grads[2],
  )
  return side_results.Raw(**jax.tree.map(np.asarray, fields))


def _load_layer(moe: str) -> Callable[..., jax.Array]:
  layer = moe_lib.find_layer(moe)
  if moe in moe_lib.LAYERS:
    return jax.jit(layer, static_argnums=5)
  return side_results.guarded(moe, layer)


def _zeros(
  subject, params
) -> tuple[dict[int, dict[str, jax.Array]], dict[str, jax.Array]]:
  """Returns the zeros whose gradients are recorded, as `Raw` names them."""
  dtype = params['model.embed_tokens.weight'].dtype
  wide = jnp.promote_types(dtype, jnp.float32)
  taps = {
    layer: {
      name: jnp.zeros(shape, wide if name == 'd_topk_weights' else dtype)
      for name, shape in subject.tap_shapes(layer).items()
    }
    for layer in subject.moe_layers
  }
  shapes = subject.flow_shapes()
  return taps, {n: jnp.zeros(shape, dtype) for n, shape in shapes.items()}


def _tap_layers(layers, taps) -> Callable[..., jax.Array]:
  """Returns a layer whose n-th call runs the n-th of `layers`, with taps."""
  turn = iter(layers)

  def layer(x, topk_ids, topk_weights, *rest):
    number = next(turn)
    tap = taps.get(number)
    if tap is None:
      return layers[number](x, topk_ids, topk_weights, *rest)
    x, topk_weights = x + tap['dx'], topk_weights + tap['d_topk_weights']
    return layers[number](x, topk_ids, topk_weights, *rest) + tap['dy']

  return layer


def _of_finite(layer: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """Returns a layer that propagates NaN, which a launch would refuse."""

  def run_finite(x, topk_ids, topk_weights, *rest):
    if not jnp.isfinite(x).all() or not jnp.isfinite(topk_weights).all():
      return x * jnp.nan
    return layer(x, topk_ids, topk_weights, *rest)

  return run_finite


def _launch(
  number: int, candidate: candidates.Candidate
) -> Callable[..., jax.Array]:
  """Returns a layer that a candidate of `hpmoe check` computes, eagerly."""

  def run(*arguments):
    try:
      return candidate.run(*arguments)
    except candidates.CandidateError as error:
      raise candidates.CandidateError(f'layer {number}: {error}') from error

  def layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy, *biases):
    config = routed_lib.config_of(x, topk_ids, w_down, biases)
    # As in the folder of a case.
    config = dataclasses.replace(config, capacity=config.num_rows)
    names = tensors.inputs(config)
    layer_passes = [
      pass_.of_layer(config) for pass_ in (passes.FORWARD, passes.BACKWARD)
    ]
    grads = {n: f'd_{n}' for n in names} | {'x': 'dx'}
    del grads['topk_ids']

    def forward(*arrays):
      inputs = dict(zip(names, map(np.asarray, arrays), strict=True))
      outputs = run(config, policy, inputs, layer_passes[0])
      return jnp.asarray(outputs['y']), inputs | outputs

    def backward(residuals, dy):
      residuals = {n: np.asarray(array) for n, array in residuals.items()}
      read = layer_passes[1].reads(config, policy)
      if not {*read} <= {*residuals, 'dy'}:  # the forward pass lacks some
        inputs = {n: residuals[n] for n in names}
        residuals = (
          oracle_lib.Oracle(config, policy, inputs).forward() | residuals
        )
      residuals |= dict(dy=np.asarray(dy))
      outputs = run(
        config, policy, {n: residuals[n] for n in read}, layer_passes[1]
      )
      if absent := [grad for grad in grads.values() if grad not in outputs]:
        raise ValueError(
          f'{candidate.name}: expected {absent[0]}, which the model needs, got '
          f'{sorted(outputs)}'
        )
      return tuple(
        jnp.asarray(outputs[grads[n]]) if n in grads else None for n in names
      )

    call = jax.custom_vjp(lambda *arrays: forward(*arrays)[0])
    call.defvjp(forward, backward)
    return call(x, topk_ids, topk_weights, w_gate_up, w_down, *biases)

  return layer
