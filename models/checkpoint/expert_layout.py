"""Hugging Face's tensors of an expert, as views of our stacked ones.

One table serves reading and writing: a piece says which tensor of a file is
which part of a parameter.  Reading copies the tensor into the view, writing
copies the view out.

Ours: `w_gate_up [E, D, 2F]`, gate columns first, and `w_down [E, F, D]`.
Theirs, in files: `7.gate_proj.weight [F, D]`, `7.up_proj.weight [F, D]`,
`7.down_proj.weight [D, F]` for each expert. Newer transformers holds them, and
writes them if asked, as `gate_up_proj [E, 2F, D]` and `down_proj [E, D, F]`.
GPT-OSS's files have `gate_up_proj [E, D, 2F]`, gate and up columns by turns,
`down_proj [E, F, D]`, and a bias of each; Qwen3-VL-MoE's have both in the
shapes of ours.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import families

# Ours -> that of a file of stacked experts.
_STACKED = {
  'w_gate_up': 'gate_up_proj',
  'w_down': 'down_proj',
  'b_gate_up': 'gate_up_proj_bias',
  'b_down': 'down_proj_bias',
}


@dataclasses.dataclass(frozen=True)
class Piece:
  """One tensor of a file, and its place in a parameter.

  Attributes:
    name: of the tensor in the file.
    shape: of the tensor in the file.
    expert: index along the parameter's first axis; None for all of it.
    columns: of the parameter's last axis; None for all.
    row: of the file's tensor that holds this expert; None for all.
    transposed: whether the file's tensor is the part's transpose.
    by_turns: whether the file's last axis has gates and ups by turns.
  """

  name: str
  shape: tuple[int, ...]
  expert: int | None = None
  columns: tuple[int, int] | None = None
  row: int | None = None
  transposed: bool = False
  by_turns: bool = False

  def view(self, parameter: np.ndarray) -> np.ndarray:
    """Returns the part of a parameter that has the elements of the tensor.

    They are in the tensor's order; `by_turns`, the last axis is two.
    """
    part = parameter if self.expert is None else parameter[self.expert]
    if self.columns is not None:
      part = part[:, slice(*self.columns)]
    if self.by_turns:
      return part.reshape(*part.shape[:-1], 2, -1).swapaxes(-1, -2)
    return part.swapaxes(-1, -2) if self.transposed else part


def rename(family: families.Family, name: str) -> str:
  """Returns a tensor's name as the files of a family have it."""
  return _replace_parts(family.file_names, name)


def rename_saved(family: families.Family, name: str) -> str:
  """Returns a tensor's name as files that transformers saved may have it."""
  return _replace_parts(family.saved_names, rename(family, name))


def _replace_parts(parts: Mapping[str, str], name: str) -> str:
  for part, other in parts.items():
    name = name.replace(part, other, 1)
  return name


def is_stacked(name: str) -> bool:
  """Returns whether a parameter is one of the stacked experts'."""
  return name.rpartition('.')[2] in _STACKED


def pieces(
  config: config_lib.ModelConfig, name: str, shape: tuple[int, ...]
) -> list[Piece]:
  """Returns the tensors of a file that make up a parameter.

  Args:
    config: sizes and options.
    name: of the parameter.
    shape: of the parameter.
  """
  prefix, _, last = name.rpartition('.')
  if last not in _STACKED:
    axes = config.family.file_axes.get(f'.{last}', 0)
    return [Piece(name, (1,) * axes + shape)]
  if config.family.files_stack:
    return [_whole_piece(config, name, shape)]
  if config.family.by_turns:
    by_turns = last.endswith('gate_up')
    return [Piece(f'{prefix}.{_STACKED[last]}', shape, by_turns=by_turns)]
  gate, up, down = config.family.experts
  experts, rows, columns = shape
  if last == 'w_down':
    return [
      Piece(f'{prefix}.{e}.{down}.weight', (columns, rows), e, transposed=True)
      for e in range(experts)
    ]
  half = columns // 2
  return [
    Piece(
      f'{prefix}.{e}.{part}.weight',
      (half, rows),
      e,
      (begin, begin + half),
      transposed=True,
    )
    for e in range(experts)
    for part, begin in ((gate, 0), (up, half))
  ]


def stacked_pieces(
  config: config_lib.ModelConfig,
  name: str,
  shape: tuple[int, ...],
  in_out: bool = False,
) -> list[Piece]:
  """Returns the pieces of a parameter in a file of stacked experts.

  Args:
    config: sizes and options.
    name: of the parameter.
    shape: of the parameter.
    in_out: whether the file has them as `[E, in, out]`.
  """
  whole = _whole_piece(config, name, shape, in_out)
  return [dataclasses.replace(whole, expert=e, row=e) for e in range(shape[0])]


def _whole_piece(
  config: config_lib.ModelConfig,
  name: str,
  shape: tuple[int, ...],
  in_out: bool = False,
) -> Piece:
  """Returns the experts of a layer as one tensor of a file."""
  if config.family.by_turns and not in_out:
    (whole,) = pieces(config, name, shape)
    return whole
  prefix, _, last = name.rpartition('.')
  file_name = f'{prefix}.{_STACKED[last]}'
  if in_out:
    return Piece(file_name, shape)
  return Piece(file_name, (shape[0], *shape[:0:-1]), transposed=True)
