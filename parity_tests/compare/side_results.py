"""The results of one side: tensors under msprobe's names, in order."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import jax
import numpy as np

from hpmoe.models import layer_lookup
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.compare import subject as subject_lib

Arrays = dict[str, np.ndarray]

# Of a MoE layer, as a pass of `hpmoe check` names them: what it reads from the
# model, and gradients at its outputs and inputs.
READ = ('x', 'topk_ids', 'topk_weights')
GRADS = ('dy', 'dx', 'd_topk_weights')


@dataclasses.dataclass(frozen=True)
class Raw:
  """The results of a framework.

  Attributes:
    hidden_states: `[B, S, D]` each, as `decoder.Aux`.
    routed: by layer, the fields of `moe.Routed` by name.
    logits: of the model, and of an MTP head.
    loss: `[]`.
    grads: by parameter; empty without a backward pass.
    taps: by layer, `GRADS` by name; empty without a backward pass.
    flows: `[B, S, D]`, gradients of modules' outputs, by module; empty without
      a backward pass.
  """

  hidden_states: list[np.ndarray]
  routed: dict[int, Arrays]
  logits: list[np.ndarray]
  loss: np.ndarray
  grads: Arrays
  taps: dict[int, Arrays]
  flows: Arrays


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One tensor of a side.

  Attributes:
    name: msprobe's name.
    layer: its layer; None outside of layers.
    role: its name in `hpmoe check`, or 'scores', for a tensor of a MoE layer;
      else ''.
    array: its values.
  """

  name: str
  layer: int | None
  role: str
  array: np.ndarray


def guarded(moe: str, layer: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a user's layer that reports its errors like a candidate.

  Its calls raise:
    candidates.CandidateError: the layer raised an error.
    jax.errors.TracerArrayConversionError: the layer takes numpy arrays, and a
      gradient was requested.
    ValueError: the layer returned no y.
  """

  def run_layer(x, *rest):
    try:
      y = layer(x, *rest)
    except jax.errors.TracerArrayConversionError:
      raise
    except Exception as error:
      raise candidates.CandidateError(
        f'{moe}: {type(error).__name__}: {error}; given {layer_lookup.SHAPES}'
      ) from error
    layer_lookup.check_returned(moe, x, y)
    return y

  return run_layer


def list_tensors(subject: subject_lib.Subject, raw: Raw) -> list[Tensor]:
  """Returns the tensors of a side in the order in which they are computed."""
  tensors = [
    Tensor(_io('model.embed_tokens', 'output'), None, '', raw.hidden_states[0])
  ]
  last = subject.config.num_hidden_layers
  for layer in range(last):
    tensors += _forward_of(subject, raw, layer)
    if layer + 1 < last:
      name = _io(f'model.layers.{layer}', 'output')
      tensors.append(Tensor(name, layer, '', raw.hidden_states[layer + 1]))
  tensors.append(
    Tensor(_io('model.norm', 'output'), None, '', raw.hidden_states[-1])
  )
  tensors.append(Tensor(_io('lm_head', 'output'), None, '', raw.logits[0]))
  for layer in subject.moe_layers:
    if layer >= last:
      tensors += _forward_of(subject, raw, layer)
      name = f'Module.model.layers.{layer}.shared_head.0.forward.output.0'
      tensors.append(Tensor(name, layer, '', raw.logits[1]))
  loss = np.asarray(raw.loss).reshape(1)
  name = 'Functional.cross_entropy.0.forward.output.0'
  return [*tensors, Tensor(name, None, '', loss), *_backward(subject, raw)]


def _io(
  module: str, way: str, index: int = 0, direction: str = 'forward'
) -> str:
  return f'Module.{module}.0.{direction}.{way}.{index}'


def _block(subject: subject_lib.Subject, layer: int) -> str:
  return f'model.layers.{layer}.{subject.config.family.block}'


def _forward_of(subject, raw: Raw, layer: int) -> list[Tensor]:
  if layer not in raw.routed:
    return []
  routed, block = raw.routed[layer], _block(subject, layer)
  gate = subject.config.family.gate
  tensors = [
    Tensor(_io(f'{block}.experts', 'input'), layer, 'x', routed['x']),
    Tensor(_io(f'{block}.{gate}', 'output'), layer, 'scores', routed['scores']),
  ]
  for index, role in enumerate(READ[1:], 1):
    name = _io(f'{block}.experts', 'input', index)
    tensors.append(Tensor(name, layer, role, routed[role]))
  name = _io(f'{block}.experts', 'output')
  return [*tensors, Tensor(name, layer, 'y', routed['y'])]


def _backward(subject, raw: Raw) -> list[Tensor]:
  """Returns gradients, those of the last layer first.

  Within a layer, the gradient of its output comes first, then the gradients at
  the outputs and at the inputs of its experts, then those of its parameters.
  """
  if not raw.grads:
    return []
  last = subject.config.num_hidden_layers
  tensors = _of_module(raw, 'lm_head')
  for layer in range(last, last + subject.mtp):
    tensors += _backward_of(subject, raw, layer)
    tensors += _flow(raw, f'model.layers.{layer}.eh_proj', layer)
  tensors += _of_module(raw, 'model.norm')
  for layer in reversed(range(last)):
    tensors += _backward_of(subject, raw, layer)
  tensors += _of_module(raw, 'model.embed_tokens')
  taps = sum(map(len, raw.taps.values()))
  assert len(tensors) == len(raw.flows) + len(subject.trainable) + taps
  return tensors


def _of_module(raw: Raw, module: str) -> list[Tensor]:
  name = f'{module}.weight'
  grads = [_grad(name, None, '', raw.grads)] if name in raw.grads else []
  return [*_flow(raw, module, None), *grads]


def _backward_of(subject, raw: Raw, layer: int) -> list[Tensor]:
  tensors = _flow(raw, f'model.layers.{layer}', layer)
  if layer in raw.taps:
    tensors += _taps(subject, raw.taps[layer], layer)
  experts = {v: f'd_{k}' for k, v in subject.experts(layer).items()}
  names = [
    n for n in subject.trainable if n.startswith(f'model.layers.{layer}.')
  ]
  names.sort(key=lambda name: name not in experts)
  return tensors + [
    _grad(n, layer, experts.get(n, ''), raw.grads) for n in names
  ]


def _flow(raw: Raw, module: str, layer: int | None) -> list[Tensor]:
  if module not in raw.flows:
    return []
  name = _io(module, 'input', 0, 'backward')
  return [Tensor(name, layer, '', raw.flows[module])]


def _grad(name: str, layer: int | None, role: str, grads: Arrays) -> Tensor:
  module, _, parameter = name.rpartition('.')
  return Tensor(
    f'Module.{module}.0.parameters_grad.{parameter}', layer, role, grads[name]
  )


def _taps(subject, taps: Mapping[str, np.ndarray], layer: int) -> list[Tensor]:
  module = f'{_block(subject, layer)}.experts'
  places = dict(dy=('input', 0), dx=('output', 0), d_topk_weights=('output', 2))
  return [
    Tensor(_io(module, *places[role], 'backward'), layer, role, taps[role])
    for role in GRADS
  ]
