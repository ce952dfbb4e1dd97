"""A run of a model as a dump holds it, by MoE layer and by token.

A call reads tokens `[B, S]`.  The rows of a tensor are those of all calls, one
after the other; where another engine has cut the same tokens into other calls,
such as a prefill and one call a token, the calls of each sequence continue each
other.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import re

import numpy as np

from hpmoe.parity_tests.case import msprobe_dump
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.dumps import dump_layers
from hpmoe.reference.contract import array_typing as at

# By token, and by layer.
OF_TOKENS = ('x', 'logits', 'topk_ids', 'topk_weights', 'y')
OF_LAYER = ('w_gate_up', 'w_down', 'router_weight', 'router_bias')
_EMBEDDING = re.compile(r'.*embed(?:_tokens|dings?)?|.*wte')
_HEAD = re.compile(r'(?:.*\.)?(?:lm_head|output_layer)')


@dataclasses.dataclass(frozen=True)
class Layer:
  """One MoE layer of a run.

  Attributes:
    name: of the block that holds router and experts.
    number: of the layer; -1: its name has none.
    tensors: by role, of `OF_TOKENS` one for each call, else one.
    layouts: by role.
  """

  name: str
  number: int
  tensors: Mapping[str, tuple[tensor_files.StoredTensor, ...]]
  layouts: Mapping[str, str]

  def read_rows(
    self, role: str, rows: at.Int[np.ndarray, 'N']
  ) -> np.ndarray | None:
    """Returns `[N, ...]` of a tensor of tokens; None: the dump has none.

    Args:
      role: one of `OF_TOKENS`.
      rows: which, counted over all calls.
    """
    if role not in self.tensors:
      return None
    parts = [read_case.as_numpy(t.read()) for t in self.tensors[role]]
    whole = np.concatenate([p.reshape(-1, p.shape[-1]) for p in parts])
    return whole[rows] if rows.max(initial=-1) < len(whole) else None

  def read_weight(self, role: str) -> np.ndarray | None:
    """Returns a tensor of the layer; None: the dump has none.

    It is `[E, D]` or `[E]` of a router, `[E, D, 2F]` or `[E, F, D]` of experts.
    """
    if role not in self.tensors:
      return None
    array = read_case.as_numpy(self.tensors[role][0].read())
    if role not in _AXES:
      return array
    layout = layout_text.parse(role, self.layouts[role])
    if len(layout.axes) != array.ndim:
      return None
    if ',' not in self.layouts[role] and 'E' in layout.axes:
      return array.transpose([layout.axes.index(axis) for axis in _AXES[role]])
    sizes = _find_sizes(layout.axes, array.shape)
    whole = layout.undo(array, sizes)
    return whole.reshape(-1, *whole.shape[-2:])


_AXES = {'w_gate_up': ('E', 'D', '2F'), 'w_down': ('E', 'F', 'D')}


def _find_sizes(axes: Sequence[str], shape: Sequence[int]) -> dict[str, int]:
  sizes = dict(zip(axes, shape, strict=True))
  if '2F' in sizes:
    sizes['F'] = sizes.pop('2F') // 2
  experts = sizes.get('E', sizes.get('L', 1) * sizes.get('R', 1))
  return {**sizes, 'E': experts, 'R': 1, 'L': experts}


@dataclasses.dataclass(frozen=True)
class Run:
  """What the dump of one step and rank holds.

  Attributes:
    place: the step and rank.
    tokens: what each call read, `[B, S]`; (): the dump has none.
    layers: the MoE layers, by number, or name.
    head: logits of the next token of each call.
  """

  place: str
  tokens: tuple[at.Int[np.ndarray, 'B S'], ...]
  layers: Mapping[int | str, Layer]
  head: tuple[tensor_files.StoredTensor, ...]

  @functools.cached_property
  def shapes(self) -> tuple[tuple[int, int], ...]:
    """B and S of each call."""
    if self.tokens:
      return tuple((len(t), t.shape[1]) for t in self.tokens)
    for layer in self.layers.values():
      parts = [t.read() for t in layer.tensors['topk_ids']]
      return tuple((1, p.size // p.shape[-1]) for p in parts)
    return ()


def open_runs(
  flag: str, folder: str, kinds: tuple[dump_layers.Kind, ...]
) -> tuple[Run, ...]:
  """Returns the run of each step and rank of a dump; reads tokens and names.

  Raises:
    ValueError: the folder holds no dump, or one without a MoE layer.
  """
  places = tensor_files.list_places(flag, folder)
  runs = tuple(read_run(p, tensors, kinds) for p, tensors in places.items())
  if not any(run.layers for run in runs):
    raise ValueError(
      f'{flag}: expected a dump with MoE layers, got none that is known in '
      f'{folder}; describe yours in a file of --names'
    )
  return runs


def read_run(
  place: str,
  tensors: tensor_files.RunTensors,
  kinds: tuple[dump_layers.Kind, ...],
) -> Run:
  """Returns the run that these tensors are of."""
  layers = {}
  calls = dump_layers.group_calls(place, tensors, kinds)
  for block, group in _group_blocks(calls).items():
    layer = _make_layer(block, group)
    if 'topk_ids' in layer.tensors:
      layers[layer.number if layer.number >= 0 else block] = layer
  tokens = []
  for tensor in _list_calls(tensors, _EMBEDDING, 'input.0'):
    array = tensor.read()
    tokens.append(np.atleast_2d(array).reshape(-1, array.shape[-1]))
  head = _list_calls(tensors, _HEAD, 'output.0')
  return Run(place, tuple(tokens), layers, tuple(head))


def _group_blocks(calls) -> dict[str, list[dump_layers.LayerCall]]:
  """Returns calls by the block that holds router and experts."""
  blocks: dict[str, list[dump_layers.LayerCall]] = {}
  for call in calls:
    block = call.path.rpartition('.')[0] or call.path
    blocks.setdefault(block, []).append(call)
  return blocks


def _make_layer(block: str, calls) -> Layer:
  tensors: dict[str, list[tensor_files.StoredTensor]] = {}
  layouts: dict[str, str] = {}
  for call in sorted(calls, key=lambda call: call.call):
    for role, tensor in call.files.items():
      own = role
      if call.kind.is_router:
        own = role if role in ('x', 'logits') else f'router_{role}'
        if role == 'x':
          continue  # what experts read
      tensors.setdefault(own, []).append(tensor)
      layouts[own] = call.kind.layouts[role]
  fixed = {r: tuple(t) for r, t in tensors.items()}
  return Layer(block, dump_layers.find_number(block), fixed, layouts)


def _list_calls(
  tensors: tensor_files.RunTensors, path: re.Pattern, rest: str
) -> list[tensor_files.StoredTensor]:
  """Returns a tensor of all forward calls of a module, in their order."""
  calls = {}
  for name, tensor in tensors.items():
    parts = msprobe_dump.parse_run_name(name)
    is_it = parts and (parts.part, parts.rest) == ('forward', rest)
    if parts and is_it and path.fullmatch(parts.path):
      calls[parts.call] = tensor
  return [calls[number] for number in sorted(calls)]


@dataclasses.dataclass(frozen=True)
class Rows:
  """The tokens that two runs both have.

  Attributes:
    left, right: `[N]` the row of each in either run.
    sequence: `[N]` a number for each sequence, whose tokens follow each other.
    position: `[N]` in it.
    tokens: `[N]`; None: a dump has none.
  """

  left: at.Int[np.ndarray, 'N']
  right: at.Int[np.ndarray, 'N']
  sequence: at.Int[np.ndarray, 'N']
  position: at.Int[np.ndarray, 'N']
  tokens: at.Int[np.ndarray, 'N'] | None

  def name(self, index: int) -> str:
    """Returns what reports call a token."""
    return (
      f'sequence {self.sequence[index]}, token {self.position[index]}'
      if self.sequence.any()
      else f'token {self.position[index]}'
    )


def align(left: Run, right: Run) -> Rows:
  """Returns the tokens that two runs have in common.

  Raises:
    ValueError: they read other tokens.
  """
  sides = [
    _number_rows(run, _continue_calls(left, right)) for run in (left, right)
  ]
  keys = [
    {(int(s), int(p)): row for row, (s, p) in enumerate(side)} for side in sides
  ]
  shared = sorted({*keys[0]} & {*keys[1]})
  places = np.array(shared, np.int64).reshape(-1, 2)
  rows = [np.array([k[key] for key in shared], np.int64) for k in keys]
  if not shared:
    raise ValueError('right: expected tokens that left has too, got none')
  tokens = None
  if left.tokens and right.tokens:
    flat = [
      np.concatenate([t.reshape(-1) for t in run.tokens])[r]
      for run, r in zip((left, right), rows, strict=True)
    ]
    tokens = flat[0]
    apart = np.flatnonzero(flat[0] != flat[1])
    if apart.size:
      sequence, position = places[apart[0]]
      raise ValueError(
        f'right: expected the tokens of left, got {flat[1][apart[0]]} for '
        f'{flat[0][apart[0]]}, token {position} of sequence {sequence}'
      )
  return Rows(rows[0], rows[1], places[:, 0], places[:, 1], tokens)


def _continue_calls(left: Run, right: Run) -> bool:
  """Says whether the calls of a run continue each other's sequences."""
  batches = {batch for run in (left, right) for batch, _ in run.shapes}
  decodes = any(length == 1 for _, length in left.shapes[1:])
  return len(batches) == 1 and (left.shapes != right.shapes or decodes)


def _number_rows(run: Run, is_continued: bool) -> np.ndarray:
  """Returns `[N, 2]` sequence and position of each row."""
  parts, sequences, begin = [], 0, 0
  for batch, length in run.shapes:
    sequence, position = np.indices((batch, length)).reshape(2, -1)
    parts.append(np.stack([sequence + sequences, position + begin], axis=1))
    if is_continued:
      begin += length
    else:
      sequences += batch
  return np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)
