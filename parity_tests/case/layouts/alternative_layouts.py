"""A tensor read under other layouts of the same shape."""

from collections.abc import Iterator, Sequence
import itertools

import numpy as np

from hpmoe.parity_tests.case.layouts import declaration
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.case.layouts import layouts
from hpmoe.reference.contract import tensors


def list_alternatives(
  name: str,
  array: np.ndarray,
  sizes: layouts.Sizes,
  ids: np.ndarray,
  bad_ranks: Sequence[int],
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields a description of another layout, and the tensor read under it.

  Args:
    name: of the tensor.
    array: `[R, ...]`, as it was read.
    sizes: of our axes, by letter.
    ids: `[R, T, K]` experts.
    bad_ranks: ranks that may be exchanged.
  """
  spec = tensors.SPECS[name].shape.split()
  for text in _texts(spec, array.shape):
    layout = layout_text.parse(name, text)
    elements = layout.map_elements(sizes, ids, shape=array.shape)
    yield f"layout '{layout}': is it declared?", elements.undo(array, None)
  for order in _orders(bad_ranks):
    reordered = array.copy()
    reordered[[*bad_ranks]] = array[[*order]]
    ranks = ' '.join(map(str, order))
    yield (
      f'rank {ranks} where {" ".join(map(str, bad_ranks))} should be: are '
      'files or ranks mixed up?',
      reordered,
    )


def _texts(spec: Sequence[str], shape: tuple[int, ...]) -> Iterator[str]:
  if {'2F', '2S'} & {*spec}:
    yield from (
      f'{" ".join(spec)}, {halves}' for halves in declaration.HALVES[1:]
    )
  if 'N' in spec and len(spec) == 3:
    yield f'{" ".join(spec)}, by_source'
  for i, j in itertools.combinations(range(len(spec)), 2):
    if shape[i] == shape[j] > 1:
      axes = [*spec]
      axes[i], axes[j] = spec[j], spec[i]
      yield ' '.join(axes)


def _orders(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
  """Yields likely orders of ranks: reversed, or shifted by one."""
  original = tuple(ranks)
  candidates = (
    original[::-1],
    (*original[1:], *original[:1]),
    (*original[-1:], *original[:-1]),
  )
  yield from dict.fromkeys(order for order in candidates if order != original)
