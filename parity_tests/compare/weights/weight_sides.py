"""The weights of one side as stored in files, right or wrong.

Folders with missing or wrong tensors are read too, as their errors are the
subject.  A transposed tensor is transposed back, with a note.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.models.checkpoint import block_scales
from hpmoe.models.checkpoint import expert_layout
from hpmoe.models.checkpoint import hf_folder
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.parity_tests.compare.weights import weight_folders
from hpmoe.parity_tests.compare.weights import weight_pair

# Parts of an expert by name: gate and up side by side `[D, 2F]`, down `[F, D]`.
Expert = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class WeightSide:
  """The weights of a model in files.

  Attributes:
    name: the user's name for it.
    files: its tensors.
    config: parsed from its config.json.
    pieces: by parameter, its tensors.
    extra: tensors that belong to no parameter.
    absent: tensors that no file has.
  """

  name: str
  files: hf_folder.Files
  config: config_lib.ModelConfig
  pieces: Mapping[str, list[expert_layout.Piece]]
  extra: tuple[str, ...]
  absent: tuple[str, ...]

  @property
  def block(self) -> tuple[int, int] | None:
    """The block of elements under one scale, if config.json has one."""
    fields = self.files.fields
    if 'quantization_config' not in fields:
      return None
    try:
      return block_scales.block_size(fields)
    except ValueError:
      return None

  def find_shape(self, parameter: str) -> tuple[int, ...] | None:
    """Returns the shape of a parameter of one tensor; None: it is absent."""
    (piece,) = self.pieces.get(parameter, [None])[:1]
    if piece and self.files.find_packing(piece):
      return piece.shape
    entry = piece and self.files.index.get(piece.name)
    return entry.shape if entry else None

  def find_dtype(self, parameter: str) -> str:
    """Returns the dtype in which a parameter is stored; '': it is absent."""
    for piece in self.pieces.get(parameter, []):
      codes = self.files.find_codes(piece)
      if codes == 'mxfp4' or self.files.find_packing(piece):
        return codes
      if piece.name in self.files.index:
        return str(self.files.index[piece.name].dtype)
    return ''

  def find_codes(self, parameter: str) -> str:
    """Returns what a parameter in codes has, such as 'mxfp4'; '': none."""
    codes = (self.files.find_codes(p) for p in self.pieces.get(parameter, []))
    return next(filter(None, codes), '')

  def read_tensor(self, parameter: str) -> np.ndarray | None:
    """Returns a parameter of one tensor, as stored; None: it is absent."""
    if self.find_shape(parameter) is None:
      return None
    (piece,) = self.pieces[parameter]
    return weight_pair.widen(self.files.read_piece(piece))

  def count_experts(self, prefix: str) -> int:
    """Returns how many experts of a layer the files hold."""
    name = f'{prefix}w_down'
    for piece in self.pieces.get(name, [])[:1]:
      entry = self.files.index.get(piece.name)
      if piece.row is not None and entry is not None:
        return min(entry.shape[0], self.config.num_experts)
    return self.config.num_experts

  def read_expert(self, prefix: str, expert: int) -> tuple[Expert, list[str]]:
    """Returns the parts of an expert that exist, and notes on them.

    Args:
      prefix: of the layer's experts, see `parameters.experts_prefix`.
      expert: its place.
    """
    parts: dict[str, np.ndarray] = {}
    notes: list[str] = []
    for last in parameters.OF_EXPERTS:
      pieces = self.pieces.get(f'{prefix}{last}', [])
      columns = []
      for piece in pieces:
        if piece.expert == expert:
          part, note = self._read_part(piece)
          notes += [f'{last.removeprefix("w_")}: {note}'] if note else []
          columns.append(part)
      if columns and all(part is not None for part in columns):
        parts[last] = np.concatenate(columns, axis=-1)
    return parts, list(dict.fromkeys(notes))

  def _read_part(
    self, piece: expert_layout.Piece
  ) -> tuple[np.ndarray | None, str]:
    """Returns a tensor in the layout of the models, and a note on it."""
    index = self.files.index
    if not self.files.find_codes(piece) and piece.name not in index:
      return None, 'absent'
    try:
      tensor = weight_pair.widen(self.files.read_piece(piece))
    except (ValueError, IndexError) as error:
      return None, f'cannot be read: {error}'[:200]
    shape = piece.shape if piece.row is None else piece.shape[1:]
    note, is_turned = '', piece.transposed
    if tensor.shape != shape:
      if tensor.shape != shape[::-1] or tensor.ndim != 2:
        return None, f'shape {list(tensor.shape)}, expected {list(shape)}'
      note, is_turned = 'transposed', not is_turned
    if piece.by_turns:
      return np.concatenate([tensor[..., 0::2], tensor[..., 1::2]], -1), note
    return (tensor.swapaxes(-1, -2) if is_turned else tensor), note


def find_block(*sides: WeightSide) -> tuple[int, int]:
  """Returns the block of elements under one scale, or the usual one."""
  return next(filter(None, (side.block for side in sides)), (128, 128))


def open_side(name: str, path: str, other: str | None = None) -> WeightSide:
  """Returns the weights of a folder, see `weight_folders.open_folder`.

  Raises:
    OSError: a file cannot be read.
    ValueError: it is no folder of weights, or the model is unknown.
  """
  return open_files(path, weight_folders.open_folder(name, path, other))


def open_files(name: str, files: hf_folder.Files) -> WeightSide:
  """Returns the weights in files of any format."""
  config = weights_lib.without_absent_head(
    config_lib.from_hf(_widen_dtype(files.fields)), files.index
  )
  specs = dict(parameters.parameter_shapes(config))
  pieces, faults = files.find_faults(config, specs)
  duplicates = parameters.shared_parameters(config)
  extra = tuple(n for n in faults.unexpected if n not in duplicates)
  return WeightSide(name, files, config, pieces, extra, tuple(faults.missing))


def _widen_dtype(fields):
  return {
    name: 'float32' if value == 'float16' else value
    for name, value in fields.items()
  }
