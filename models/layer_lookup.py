"""The function that computes a routed layer, by its name or its user's path."""

from collections.abc import Callable, Mapping
import importlib
import inspect
import os
import sys
from typing import Any

from hpmoe.reference.contract import messages

Layer = Callable[..., Any]

_ARGUMENTS = ('x', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down', 'policy')
# Of what a layer is given, in the letters of docs/contract.md.
SHAPES = (
  'x [R, T, D], topk_ids and topk_weights [R, T, K], w_gate_up [R, L, D, 2F], '
  'w_down [R, L, F, D]'
)


def find_layer(
  name: str, layers: Mapping[str, Layer], *unavailable: str
) -> Layer:
  """Returns the layer `name` of `layers`, or `pkg.module:function` of a user.

  Args:
    name: of the layer.
    layers: a framework's layers by name.
    unavailable: names that messages list besides those of `layers`.

  Raises:
    ValueError: there is no such layer, or no such function.
  """
  if name in layers:
    return layers[name]
  module, colon, function = name.partition(':')
  if not (module and colon and function):
    names, beside = (*layers, *unavailable), ' or pkg.module:function'
    raise ValueError(
      f'moe: {messages.refuse_choice(names, name, beside=beside)}'
    )
  return _imported(name, module, function)


def _imported(name: str, module: str, function: str) -> Layer:
  # As Python finds what it runs, wherever this command was installed.
  if os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())
  try:
    layer = getattr(importlib.import_module(module), function)
  except (ImportError, AttributeError) as e:
    raise ValueError(f'moe: expected to import {name!r}, got {e}') from e
  if not callable(layer):
    raise ValueError(
      f'moe: expected {name!r} to be a function, got {type(layer).__name__}'
    )
  _check_arguments(name, layer)
  return layer


def check_biased(layer: Layer) -> None:
  """Refuses a layer that does not take the biases of a model's experts.

  Raises:
    ValueError: it does not.
  """
  biased = (*_ARGUMENTS, 'b_gate_up', 'b_down')
  _check_arguments(name_of(layer), layer, biased)


def check_returned(name: str, x: Any, y: Any) -> None:
  """Checks that a layer returned an array like `x` `[R, T, D]`.

  Args:
    name: of the layer that returned it.
    x: what the layer read.
    y: what it returned.

  Raises:
    ValueError: it is no array, or of another shape or dtype.
  """
  dtype_and_shape = [
    getattr(y, attribute, None) for attribute in ('dtype', 'shape')
  ]
  if dtype_and_shape == [x.dtype, x.shape]:
    return
  is_array = all(value is not None for value in dtype_and_shape)
  actual = f'{y.dtype} {list(y.shape)}' if is_array else type(y).__name__
  raise ValueError(
    f'{name}: expected y {x.dtype} {list(x.shape)} of {SHAPES}, got {actual}'
  )


def name_of(layer: Layer) -> str:
  """Returns the name of a layer."""
  return getattr(layer, '__name__', type(layer).__name__)


def _check_arguments(
  name: str, layer: Layer, arguments: tuple[str, ...] = _ARGUMENTS
) -> None:
  try:
    inspect.signature(layer).bind(*arguments)
  except TypeError as error:
    own_arguments = ', '.join(inspect.signature(layer).parameters)
    raise ValueError(
      f'moe: expected a layer({", ".join(arguments)}) -> y, got '
      f'{name}({own_arguments}): {error}'
    ) from error
  except ValueError:  # a built-in keeps it to itself
    return
