"""Tensors under the names of Megatron-LM and MindFormers, as parameters here.

`framework_names.toml` has a row for each.  What is cut out of a tensor is read
when it is asked for.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import pathlib
import re
import tomllib
from typing import Any, Protocol

import numpy as np

from hpmoe.models import config as config_lib

_FILE = pathlib.Path(__file__).with_suffix('.toml')
_LAYER = re.compile(
  r'(?:model\.)?(decoder|mtp|model)\.layers\.(?:(\d+)\.)?'
  r'(?:transformer_layer\.|mtp_model_layer\.)?(.+)'
)


class Tensor(Protocol):
  """A tensor of a file: `safetensors_file.StoredTensor` is one."""

  @property
  def shape(self) -> tuple[int, ...]:
    """Its shape."""

  @property
  def dtype(self) -> np.dtype:
    """Its dtype."""

  def read(self) -> np.ndarray:
    """Returns it."""

  def row(self, index: int) -> 'Tensor':
    """Returns one row along the first axis."""

  def reshape(self, shape: tuple[int, ...]) -> 'Tensor':
    """Returns the same elements in another shape."""


@dataclasses.dataclass(frozen=True)
class View:
  """A part of a tensor, or its transpose.

  Attributes:
    source: the tensor.
    shape: of the part.
    change: returns the part of an array.
    by_row: whether `change` of a row is the row of the part.
  """

  source: Tensor
  shape: tuple[int, ...]
  change: Callable[[np.ndarray], np.ndarray]
  by_row: bool = False

  @property
  def dtype(self) -> np.dtype:
    return self.source.dtype

  def read(self) -> np.ndarray:
    """Returns the part."""
    return self.change(self.source.read())

  def row(self, index: int) -> 'Tensor':
    """Returns one row of the part."""
    if self.by_row:
      row = self.source.row(index)
      return View(row, self.shape[1:], self.change, self.by_row)
    return View(self, self.shape[1:], lambda array: array[index])

  def reshape(self, shape: tuple[int, ...]) -> 'Tensor':
    """Returns the same elements in another shape."""
    return View(self, shape, lambda array: array.reshape(shape))


Parts = Iterator[tuple[str, Tensor]]
Index = Mapping[str, Tensor]


def rename(
  config: config_lib.ModelConfig, index: Index, *, by_turns: bool
) -> dict[str, Tensor]:
  """Returns tensors under our names; others keep theirs.

  Args:
    config: of the model.
    index: tensors by the name that a framework gives them.
    by_turns: whether rows of gate and up lie by turns outside of experts, as in
      MindFormers.

  Raises:
    ValueError: a tensor has not the shape of what its name says, or two are the
      same parameter.
  """
  tensors: dict[str, Tensor] = {}
  table = _fill_names(config, 'gate_up_by_turns' if by_turns else 'gate_up')
  for name, tensor in index.items():
    if any(re.fullmatch(pattern, name) for pattern in _TABLE['ignored']):
      continue
    for own_name, part in _rename_tensor(config, table, name, tensor):
      if own_name in tensors:
        raise ValueError(
          f'{name}: expected one tensor for {own_name}, got another before it'
        )
      tensors[own_name] = part
  return tensors


def _fill_names(
  config: config_lib.ModelConfig, gate_up: str
) -> dict[str, list[str]]:
  """Returns rows of layers with the family's names in them."""
  family = config.family
  fill = functools.partial(
    str.format,
    block=family.block,
    gate=family.gate,
    shared=family.shared,
    shared_gate=family.shared_gate,
  )
  rows = {fill(n): [*map(fill, row)] for n, row in _TABLE['layer'].items()}
  return {
    name: [gate_up if parts == 'gate_up' else parts, *names]
    for name, (parts, *names) in rows.items()
  }


def _rename_tensor(
  config: config_lib.ModelConfig,
  table: Mapping[str, list[str]],
  name: str,
  tensor: Tensor,
) -> Parts:
  match = _LAYER.fullmatch(name)
  if match is None or match[3] not in table:
    parts, *names = _TABLE['model'].get(name, ('whole', name))
    yield from _PARTS[parts](config, names, tensor)
    return
  first = config.num_hidden_layers if match[1] == 'mtp' else 0
  layers: Mapping[int, Tensor]
  if match[2] is not None:
    layers = {int(match[2]): tensor}
  else:  # Megatron-LM stacks layers that are alike
    layers = {n: tensor.row(n) for n in range(tensor.shape[0])}
  parts, *names = table[match[3]]
  for layer, of_layer in layers.items():
    own_names = [f'model.layers.{first + layer}.{n}' for n in names]
    yield from _PARTS[parts](config, own_names, of_layer)


def _take_whole(
  config: config_lib.ModelConfig, names: list[str], tensor: Tensor
) -> Parts:
  del config
  yield names[0], tensor


def _take_rows(
  config: config_lib.ModelConfig, names: list[str], tensor: Tensor
) -> Parts:
  """Yields the vocabulary's rows; more were added to divide them evenly."""
  rows = min(config.vocab_size, tensor.shape[0])
  shape = (rows, *tensor.shape[1:])
  yield names[0], View(tensor, shape, lambda array: array[:rows])


def _take_query_norm(
  config: config_lib.ModelConfig, names: list[str], tensor: Tensor
) -> Parts:
  is_compressed = config.family.attention == 'mla'
  name = 'q_a_layernorm' if is_compressed else 'q_norm'
  yield f'{names[0]}{name}.weight', tensor


def _split_qkv(
  config: config_lib.ModelConfig, names: list[str], tensor: Tensor
) -> Parts:
  """Yields queries, keys and values, which lie together for each key head."""
  groups, rows = config.num_key_value_heads, tensor.shape[0]
  queries = config.num_attention_heads // groups
  if rows % (groups * (queries + 2)):
    raise ValueError(
      f'{names[0]}: expected rows of {groups} groups of {queries} queries, a '
      f'key and a value, got {rows} rows'
    )
  width, rest = rows // (groups * (queries + 2)), tensor.shape[1:]

  def cut(begin: int, end: int, array: np.ndarray) -> np.ndarray:
    heads = array.reshape(groups, queries + 2, width, *rest)[:, begin:end]
    return heads.reshape(-1, *rest)

  edges = (0, queries, queries + 1, queries + 2)
  for name, begin, end in zip(names, edges, edges[1:], strict=False):
    shape = (groups * (end - begin) * width, *rest)
    yield name, View(tensor, shape, functools.partial(cut, begin, end))


def _split_gate_up(
  config: config_lib.ModelConfig, names: list[str], tensor: Tensor
) -> Parts:
  rows = tensor.shape[0] // 2
  parts = (slice(rows), slice(rows, None))
  yield from _take_halves(config, names, tensor, parts)


def _split_turns(
  config: config_lib.ModelConfig, names: list[str], tensor: Tensor
) -> Parts:
  parts = (slice(0, None, 2), slice(1, None, 2))
  yield from _take_halves(config, names, tensor, parts)


def _take_halves(
  config: config_lib.ModelConfig,
  names: list[str],
  tensor: Tensor,
  parts: tuple[slice, slice],
) -> Parts:
  del config
  shape = (tensor.shape[0] // 2, *tensor.shape[1:])
  for name, part in zip(names, parts, strict=True):
    yield name, View(tensor, shape, functools.partial(_take, part))


def _take(part: slice, array: np.ndarray) -> np.ndarray:
  return array[part]


def _turn_experts(
  config: config_lib.ModelConfig, names: list[str], tensor: Tensor
) -> Parts:
  """Yields experts `[E, out, in]` of `[E, in, out]` or `[E in, out]`."""
  if len(tensor.shape) == 2:
    count, columns = config.num_experts, tensor.shape[1]
    tensor = tensor.reshape((count, tensor.shape[0] // count, columns))
  count, rows, columns = tensor.shape
  yield (
    names[0],
    View(tensor, (count, columns, rows), _turn, by_row=True),
  )


def _turn(array: np.ndarray) -> np.ndarray:
  return array.swapaxes(-1, -2)


_PARTS: Mapping[str, Callable[..., Parts]] = {
  'whole': _take_whole,
  'rows': _take_rows,
  'query_norm': _take_query_norm,
  'qkv': _split_qkv,
  'gate_up': _split_gate_up,
  'gate_up_by_turns': _split_turns,
  'experts_in_out': _turn_experts,
}
_TABLE: Mapping[str, Any] = tomllib.loads(_FILE.read_text())
