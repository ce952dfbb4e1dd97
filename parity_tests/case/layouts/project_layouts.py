"""Layouts of projects, each under a word, from data/layouts.toml."""

from collections.abc import Mapping
import functools
import math

import numpy as np

from hpmoe.parity_tests.case import data_tables
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.parity_tests.case.layouts import part_layouts
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import messages
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

_DESCRIPTION = 'of'
# Axes of experts and their rows, and those of shared experts and theirs.
_SHARED_AXES = {'E': 'R', 'N': 'T', '2F': '2S', 'F': 'S'}
# Defaults of a project's row.
_TOKENS = dict(
  x='M D',
  y='M D',
  topk_ids='M K',
  topk_weights='M K',
  router_logits='M E',
)


def list_words() -> tuple[str, ...]:
  """Returns all words."""
  return tuple(data_tables.read('layouts'))


def describe(word: str) -> str:
  """Returns the name of a word's project."""
  return data_tables.read('layouts')[word][_DESCRIPTION]


@functools.cache
def read_layouts(word: str) -> Mapping[str, layouts_lib.Layout]:
  """Returns the layouts of a word, by tensor; '': there are none.

  Raises:
    ValueError: there is no such word.
  """
  if not word:
    return {}
  rows = data_tables.read('layouts')
  if word not in rows:
    raise ValueError(f'layout: {messages.refuse_choice(rows, word)}')
  texts = _TOKENS | {
    name: text for name, text in rows[word].items() if name != _DESCRIPTION
  }
  texts |= _find_shared(texts)
  for name, text in [*texts.items()]:
    gradient = f'd{name}' if name in ('x', 'y') else f'd_{name}'
    if gradient in tensors.SPECS:
      texts[gradient] = text
  return layout_text.parse_all(texts)


def _find_shared(texts: Mapping[str, str]) -> dict[str, str]:
  """Returns layouts of shared experts: those of experts, by our axes.

  Each rank holds a copy of their weights, so that an axis of experts becomes
  one of ranks.
  """
  shared_texts = {}
  for name, routed in tensors.AS_ROUTED.items():
    if tensors.SPECS[name].part != 'shared' or routed not in texts:
      continue
    axes, *words = texts[routed].split(', ')
    own_axes = [_SHARED_AXES.get(axis, axis) for axis in axes.split()]
    shared_texts[name] = ', '.join([' '.join(own_axes), *words])
  return shared_texts


def lay_out(
  word: str,
  inputs: Mapping[str, np.ndarray],
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
) -> dict[str, np.ndarray]:
  """Returns our tensors in a project's layouts.

  Raises:
    ValueError: there is no such word, or codes and scales cannot have them.
  """
  layouts, laid_out = read_layouts(word), {**inputs}
  for name, array in inputs.items():
    layout = part_layouts.find_layout(layouts, name, policy)
    if layout is not None:
      sizes = part_layouts.find_sizes(name, policy, config.dims())
      laid_out[name] = _apply(layout, array, sizes)
  return laid_out


def restore(
  word: str,
  outputs: Mapping[str, np.ndarray],
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
) -> dict[str, np.ndarray]:
  """Returns a project's tensors in our layouts.

  Args:
    word: of the project.
    outputs: tensors by name; those that the policy does not have are returned
      unchanged.
    config: sizes.
    policy: has the forms of codes.

  Raises:
    ValueError: a shape is wrong.
  """
  layouts, restored = read_layouts(word), {**outputs}
  row_names = quantised_inputs.list_row_names(policy)
  for name, array in outputs.items():
    if name not in tensors.IN_FILES or (
      tensors.IN_FILES[name].role == 'codes' and name not in row_names
    ):
      continue
    layout = part_layouts.find_layout(layouts, name, policy)
    if layout is not None:
      sizes = part_layouts.find_sizes(name, policy, config.dims())
      restored[name] = layout.undo(array, sizes)
  return restored


def _apply(
  layout: layouts_lib.Layout,
  array: np.ndarray,
  sizes: Mapping[str, int],
) -> np.ndarray:
  """Returns a tensor in a layout; weights move without a map of elements."""
  own_axes, axes = layout.own_axes, layout.split_axes
  moves_axes_only = layout == layouts_lib.Layout(layout.name, layout.axes)
  if not moves_axes_only or sorted(own_axes) != sorted(axes):
    return layout.apply(array, sizes)
  lengths = dict(zip(own_axes, array.shape))
  shape = [
    math.prod(lengths[part] for part in layout.parts(axis))
    for axis in layout.axes
  ]
  moved_axes = array.transpose([own_axes.index(axis) for axis in axes])
  return np.ascontiguousarray(moved_axes.reshape(shape))
