"""What a check tried: the range of each tensor, and the shape.

A check cannot detect a clamp outside these ranges.  For a large layer they are
of a sample.
"""

from collections.abc import Mapping

import numpy as np

from hpmoe.parity_tests.case import inputs as inputs_lib

# The most elements and products that are measured.
_MOST_ELEMENTS, _MOST_PRODUCTS = 1 << 20, 1 << 23
_NAMES = ('x', 'topk_weights', 'w_gate_up', 'w_down', 'dy')

Range = tuple[float, float]


def measure_ranges(inputs: inputs_lib.LayerInputs) -> dict[str, Range]:
  """Returns the ranges of a layer's inputs, of gate and of up."""
  arrays = inputs.arrays
  ranges = {n: _measure(arrays[n]) for n in _NAMES if n in arrays}
  if not inputs.config.sublayer:
    gate, up = _multiply_sample(arrays)
    ranges |= dict(gate=_measure(gate[None]), up=_measure(up[None]))
  return ranges


def _measure(array: np.ndarray) -> Range:
  """Returns the range of `[R, ...]`, which may lie in files."""
  smallest, largest, left = 0.0, 0.0, _MOST_ELEMENTS
  for rank in range(len(array)):
    part = array[rank].reshape(-1)[:left].astype(np.float32)
    left -= len(part)
    part = part[np.isfinite(part)]
    smallest = float(part.min(initial=smallest))
    largest = float(part.max(initial=largest))
  return smallest, largest


def _multiply_sample(
  arrays: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns gate and up `[rows, F]` float32 of some rows of some experts."""
  ids = np.stack([arrays['topk_ids'][r] for r in range(len(arrays['x']))])
  weights = arrays['w_gate_up']
  local, depth, columns = weights.shape[1:]
  num_rows = max(8, _MOST_PRODUCTS // (depth * columns))
  products = [np.zeros((0, columns), np.float32)]
  for expert in np.unique(ids[ids >= 0]):
    owner, place = divmod(int(expert), local)
    weight = weights[owner][place].astype(np.float32)
    for rank in np.unique(np.nonzero(ids == expert)[0]):
      tokens = np.flatnonzero((ids[rank] == expert).any(-1))[:num_rows]
      rows = arrays['x'][int(rank)][tokens].astype(np.float32)
      num_rows -= len(rows)
      with np.errstate(over='ignore', invalid='ignore'):
        products.append(rows @ weight)
    if num_rows <= 0:
      break
  gate, up = np.split(np.concatenate(products), 2, axis=1)
  return gate, up


def describe_shape(inputs: inputs_lib.LayerInputs) -> str:
  """Returns the shape that a check tried, as sizes that matter to kernels."""
  config, ids = inputs.config, inputs.arrays['topk_ids']
  counts = np.zeros(config.num_experts, int)
  for rank in range(len(ids)):
    served = ids[rank][ids[rank] >= 0]
    counts += np.bincount(served, minlength=config.num_experts)
  even = dict(D=config.d_model, F=config.d_ff)
  sizes = ', '.join(
    f'{"odd" if size % 2 else "even"} {name}' for name, size in even.items()
  )
  return (
    f'T {config.num_tokens}, {counts.min()} to {counts.max()} rows an expert, '
    f'K {config.top_k} of {config.num_experts}, {sizes}, R {config.num_ranks}'
  )
