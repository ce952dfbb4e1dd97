"""A side in MindSpore, eagerly: as `jax_side.py`."""

from collections.abc import Callable, Mapping
import types
from typing import Any

import mindspore as ms
import numpy as np

from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import device as device_lib
from hpmoe.models.mindspore import moe as moe_lib
from hpmoe.models.mindspore import ops
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.compare import side_results
from hpmoe.parity_tests.compare import subject as subject_lib


def run(
  subject: subject_lib.Subject,
  moe: str,
  backward: bool,
  instead: Mapping[int, candidates.Candidate] = types.MappingProxyType({}),
  device: str = 'cpu',
  noise: Mapping[str, np.ndarray] = types.MappingProxyType({}),
) -> side_results.Raw:
  """As `jax_side.run`, on `device`, cpu or ascend; takes nothing `instead`."""
  assert not instead
  # An operator's error is raised where it runs, not at a later operator.
  device_lib.use(device, moe)
  ms.set_context(pynative_synchronize=True)
  layer = moe_lib.find_layer(moe)
  if moe not in moe_lib.LAYERS:
    layer = side_results.guarded(moe, layer)
  params = {n: ms.Tensor(value) for n, value in subject.params.items()}
  zeros = _zeros(subject, params) if backward else {}
  tokens = ms.Tensor(np.ascontiguousarray(subject.tokens))
  outputs: dict[str, Any] = {}

  # Positions: a gradient over a dict is an empty tuple, without an error.
  def total(*values):
    trainable = dict(zip(subject.trainable, values))
    taps_and_flows = dict(zip(zeros, values[len(trainable) :]))

    def between(name, x):
      if noise:
        wide = x.astype(ms.float32)
        size = ms.ops.stop_gradient(ms.ops.sqrt((wide * wide).mean()))
        x = (wide + size * ms.Tensor(noise[name])).astype(x.dtype)
      return x + taps_and_flows[name] if taps_and_flows else x

    logits, aux = decoder.forward(
      params | trainable,
      subject.config,
      tokens,
      moe=_tapped(subject, layer, taps_and_flows),
      ranks=subject.ranks,
      mtp=subject.mtp,
      between=between,
    )
    loss = decoder.next_token_loss(logits, tokens)
    if subject.mtp:
      loss += decoder.next_token_loss(aux.mtp_logits, tokens[:, 1:])
    outputs.update(_to_numpy(subject, logits, aux))
    return loss

  values = [params[n] for n in subject.trainable]
  values += zeros.values()
  grads: list[np.ndarray] = []
  if backward:
    loss, gradients = ms.value_and_grad(total, tuple(range(len(values))))(
      *values
    )
    grads = [ops.to_numpy(grad) for grad in gradients]
  else:
    loss = total(*values)
  flat = dict(zip(zeros, grads[len(subject.trainable) :]))
  return side_results.Raw(
    loss=ops.to_numpy(loss),
    grads=dict(zip(subject.trainable, grads)),
    taps={
      layer: {n: flat[layer, n] for n in subject.tap_shapes(layer)}
      for layer in subject.moe_layers
      if flat
    },
    flows={n: flat[n] for n in subject.flow_shapes() if flat},
    **outputs,
  )


def _to_numpy(subject, logits, aux) -> dict[str, Any]:
  """Returns the results of the forward pass as NumPy arrays."""
  heads = [logits, aux.mtp_logits] if subject.mtp else [logits]
  return dict(
    hidden_states=[ops.to_numpy(state) for state in aux.hidden_states],
    routed={
      number: {n: ops.to_numpy(value) for n, value in r._asdict().items()}
      for number, r in aux.routed.items()
      if r is not None
    },
    logits=[ops.to_numpy(head) for head in heads],
  )


def _zeros(subject, params) -> dict[tuple[int, str] | str, ms.Tensor]:
  """Returns the zeros whose gradients are recorded.

  By layer and name of `Raw.taps`, or by module of `Raw.flows`.
  """
  dtype = params['model.embed_tokens.weight'].dtype
  zeros: dict[tuple[int, str] | str, ms.Tensor] = {}
  for layer in subject.moe_layers:
    for name, shape in subject.tap_shapes(layer).items():
      wide = ops.wide(dtype) if name == 'd_topk_weights' else dtype
      zeros[layer, name] = ms.ops.zeros(shape, wide)
  for name, shape in subject.flow_shapes().items():
    zeros[name] = ms.ops.zeros(shape, dtype)
  return zeros


def _tapped(
  subject, layer, taps_and_flows: Mapping[tuple[int, str] | str, ms.Tensor]
) -> Callable[..., ms.Tensor]:
  """Returns a layer whose n-th call adds the zeros of the n-th MoE layer."""
  turn = iter(subject.moe_layers)

  def run_tapped(x, topk_ids, topk_weights, *rest):
    number = next(turn)
    if not taps_and_flows:
      return layer(x, topk_ids, topk_weights, *rest)
    x = x + taps_and_flows[number, 'dx']
    topk_weights = topk_weights + taps_and_flows[number, 'd_topk_weights']
    y = layer(x, topk_ids, topk_weights, *rest)
    return y + taps_and_flows[number, 'dy']

  return run_tapped
