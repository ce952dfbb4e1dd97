"""The function that computes a routed layer, by its name or its user's path."""

from collections.abc import Callable, Mapping
import importlib
import inspect
import os
import sys
from typing import Any

Layer = Callable[..., Any]

_ARGUMENTS = (
  *('x', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down'),
  'policy',
)


def found(name: str, layers: Mapping[str, Layer], *others: str) -> Layer:
  """Returns the layer `name` of `layers`, or `pkg.module:function` of a user.

  Args:
    name: what was asked for.
    layers: those of a framework, by name.
    others: names to tell of that are not in `layers`.

  Raises:
    ValueError: there is no such layer, or no such function.
  """
  if name in layers:
    return layers[name]
  module, colon, function = name.partition(':')
  if not (module and colon and function):
    raise ValueError(
      f'moe: expected one of {[*layers, *others]} or pkg.module:function, '
      f'got {name!r}'
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
  name = getattr(layer, '__name__', type(layer).__name__)
  _check_arguments(name, layer, (*_ARGUMENTS, 'b_gate_up', 'b_down'))


def _check_arguments(
  name: str, layer: Layer, arguments: tuple[str, ...] = _ARGUMENTS
) -> None:
  try:
    inspect.signature(layer).bind(*arguments)
  except TypeError as error:
    raise ValueError(
      f'moe: expected a layer({", ".join(arguments)}) -> y, got '
      f'{name}{inspect.signature(layer)}: {error}'
    ) from error
  except ValueError:  # a built-in keeps it to itself
    return
