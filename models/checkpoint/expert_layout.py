"""Hugging Face's tensors of an expert, as views of our stacked ones.

One table serves reading and writing: a piece says which tensor of a file is
which part of a parameter.  Reading copies the tensor into the view, writing
copies the view out.

Ours: `w_gate_up [E, D, 2F]`, gate columns first, and `w_down [E, F, D]`.
Theirs, in files: `7.gate_proj.weight [F, D]`, `7.up_proj.weight [F, D]`,
`7.down_proj.weight [D, F]` for each expert. Newer transformers holds them, and
writes them if asked, as `gate_up_proj [E, 2F, D]` and `down_proj [E, D, F]`.
"""

import dataclasses

import numpy as np

from hpmoe.models import config as config_lib

_OURS = ('w_gate_up', 'w_down')
# What newer transformers calls Mixtral's block.
_NEW_BLOCK = 'mlp'


@dataclasses.dataclass(frozen=True)
class Piece:
  """One tensor of a file and the part of a parameter that it is.

  Attributes:
    name: of the tensor in the file.
    shape: of the tensor in the file.
    expert: index along the parameter's first axis; None for all of it.
    columns: of the parameter's last axis; None for all.
    row: of the file's tensor that holds this expert; None for all.
  """

  name: str
  shape: tuple[int, ...]
  expert: int | None = None
  columns: tuple[int, int] | None = None
  row: int | None = None

  def view(self, parameter: np.ndarray) -> np.ndarray:
    """Returns the part of a parameter that has the bytes of the tensor."""
    if self.expert is None:
      return parameter
    columns = slice(None) if self.columns is None else slice(*self.columns)
    return parameter[self.expert][:, columns].T


def is_stacked(name: str) -> bool:
  """Returns whether a parameter is one of the stacked experts'."""
  return name.rpartition('.')[2] in _OURS


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
  if last not in _OURS:
    return [Piece(name, shape)]
  gate, up, down = config.family.experts
  experts, rows, columns = shape
  if last == 'w_down':
    return [
      Piece(f'{prefix}.{e}.{down}.weight', (columns, rows), e)
      for e in range(experts)
    ]
  half = columns // 2
  return [
    Piece(f'{prefix}.{e}.{part}.weight', (half, rows), e, (begin, begin + half))
    for e in range(experts)
    for part, begin in ((gate, 0), (up, half))
  ]


def stacked_pieces(name: str, shape: tuple[int, ...]) -> list[Piece]:
  """Returns the pieces of a parameter in a file of stacked experts."""
  prefix, _, last = name.rpartition('.')
  experts, rows, columns = shape
  theirs = {'w_gate_up': 'gate_up_proj', 'w_down': 'down_proj'}[last]
  return [
    Piece(f'{prefix}.{theirs}', (experts, columns, rows), e, row=e)
    for e in range(experts)
  ]


def new_name(config: config_lib.ModelConfig, name: str) -> str:
  """Returns what newer transformers calls a tensor in memory."""
  return name.replace(f'.{config.family.block}.', f'.{_NEW_BLOCK}.', 1)
