"""Folders of Hugging Face: config.json and safetensors, in shards or not."""

from collections.abc import Callable, Mapping
import dataclasses
import os
import pathlib
from typing import Any

import jax
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import families
from hpmoe.models import parameters as parameters_lib
from hpmoe.models.checkpoint import block_scales
from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import expert_layout
from hpmoe.models.checkpoint import mxfp4
from hpmoe.models.checkpoint import packed_codes
from hpmoe.models.checkpoint import quantization
from hpmoe.models.checkpoint import safetensors_file
from hpmoe.models.checkpoint import weights as weights_lib

HELP = 'Hugging Face folder'
SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
# As transformers cuts its own.
MAX_SHARD_BYTES = 5 * 10**9

# Not written: transformers makes it from the embeddings.
_TIED_HEAD = 'lm_head.weight'
# Buffers that old versions of transformers wrote; they follow from the config.
_BUFFERS = ('.rotary_emb.inv_freq',)


def is_one(folder: pathlib.Path) -> bool:
  """Returns whether a folder holds weights in this format."""
  return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def read(
  path: str | os.PathLike[str], dtype: str | None = None
) -> weights_lib.Weights:
  """Returns the weights of a folder; reads nothing but headers.

  Args:
    path: the folder.
    dtype: to round weights to; None takes the config's, and then no weight may
      be rounded: wider ones are read if their values are exact in it. float16
      is widened to float32, float8 to bfloat16.

  Raises:
    OSError: a file cannot be read.
    ValueError: the config is not one of a model here, a shard is missing or
      damaged, or tensors are missing, unexpected, misshapen or mistyped; lists
      them.
  """
  folder = pathlib.Path(path)
  fields, config = config_file.read(folder)
  files = Files(folder, fields, _index(folder), rounds=dtype is not None)
  config = weights_lib.without_absent_head(config, files.index)
  specs = dict(parameters_lib.parameter_shapes(config, dtype))
  pieces = files.resolve(config, specs)

  def read_one(name: str) -> np.ndarray:
    out = np.empty(specs[name].shape, specs[name].dtype)
    for piece in pieces[name]:
      files.copy(piece, piece.view(out))
    weights_lib.check_finite(folder, name, out)
    return out

  stored_fields = config_file.describe(fields, dtype or config.dtype)
  extras = config_file.extras(folder)
  return weights_lib.Weights(stored_fields, config, specs, read_one, extras)


def _index(folder: pathlib.Path) -> safetensors_file.Index:
  """Returns where each tensor of a folder lies."""
  if not (folder / INDEX).is_file():
    if not (folder / SINGLE).is_file():
      raise ValueError(f'{folder}: expected {SINGLE} or {INDEX}, got neither')
    return safetensors_file.read_index(folder / SINGLE)[0]
  shard_of = config_lib.read_json(folder / INDEX).get('weight_map')
  if not isinstance(shard_of, dict) or not all(
    isinstance(shard, str) and pathlib.Path(shard).name == shard
    for shard in shard_of.values()
  ):
    raise ValueError(
      f'{folder / INDEX}: expected weight_map, of names to names of files'
    )
  shards = sorted(set(shard_of.values()))
  absent = [shard for shard in shards if not (folder / shard).is_file()]
  if absent:
    raise ValueError(
      f'{folder}: expected {len(shards)} shards, got none of {absent[:10]}'
    )
  index: safetensors_file.Index = {}
  for shard in shards:
    shard_index = safetensors_file.read_index(folder / shard)[0]
    listed_names = {name for name, file in shard_of.items() if file == shard}
    if listed_names != set(shard_index):
      raise ValueError(
        f'{folder / shard}: expected the tensors that {INDEX} lists, got '
        f'others, such as {sorted(listed_names ^ set(shard_index))[0]}'
      )
    index |= shard_index
  return index


def open_files(path: str | os.PathLike[str]) -> 'Files':
  """Returns the tensors of a folder, whether or not they are a model's.

  Raises:
    OSError: a file cannot be read.
    ValueError: the config is not one of a model here, or a shard is missing or
      damaged.
  """
  folder = pathlib.Path(path)
  fields, _ = config_file.read(folder)
  return Files(folder, fields, _index(folder), rounds=True)


@dataclasses.dataclass(frozen=True)
class Files:
  """The tensors of a folder, under the names of the files."""

  folder: pathlib.Path
  fields: Mapping[str, Any]
  index: safetensors_file.Index
  rounds: bool  # whether weights may be rounded

  def resolve(
    self, config: config_lib.ModelConfig, specs: weights_lib.Specs
  ) -> dict[str, list[expert_layout.Piece]]:
    """Returns the pieces of each parameter; refuses what does not fit."""
    pieces, faults = self.find_faults(config, specs)
    left = set(faults.unexpected) - self._find_repeats(config)
    faults.unexpected = sorted(left)
    reason = quantization.explain_refusal(
      self.folder, self.fields, faults.unexpected
    )
    faults.refuse(self.folder, reason)
    return pieces

  def find_faults(
    self, config: config_lib.ModelConfig, specs: weights_lib.Specs
  ) -> tuple[dict[str, list[expert_layout.Piece]], weights_lib.Faults]:
    """Returns the pieces of each parameter, and what does not fit.

    Repeated tensors count as unexpected.
    """
    faults = weights_lib.Faults()
    left = set(self.index)
    pieces = {n: self.pieces(config, n, s.shape) for n, s in specs.items()}
    for name, spec in specs.items():
      for piece in pieces[name]:
        left -= self._check(piece, spec.dtype, faults)
    # transformers saves the weights of no shared experts: `[0, D]`.
    faults.unexpected += sorted(
      name
      for name in left
      if not name.endswith(_BUFFERS)
      and not name.startswith(self.family.ignored)
      and 0 not in self.index[name].shape
    )
    return pieces, faults

  def pieces(
    self, config: config_lib.ModelConfig, name: str, shape: tuple[int, ...]
  ) -> list[expert_layout.Piece]:
    """Returns a parameter's pieces under the names that the files use."""
    pieces = expert_layout.pieces(config, name, shape)
    choices = [pieces]
    if expert_layout.is_stacked(name):
      # Those of one expert at a time first.
      stacked = expert_layout.stacked_pieces(config, name, shape)
      if self.family.stacked_in_out and not self._has_shape(stacked[0]):
        stacked = expert_layout.stacked_pieces(config, name, shape, in_out=True)
      choices.insert(0, stacked)
    block = f'.{config.family.block}.'
    changes: tuple[Callable[[str], str], ...] = (
      lambda n: expert_layout.rename(self.family, n),
      lambda n: expert_layout.rename_saved(self.family, n),
      # Newer transformers calls every family's block of experts mlp.
      lambda n: n.replace(block, '.mlp.', 1),
      str,
    )
    for choice in choices:
      for change in changes:
        names = [dataclasses.replace(p, name=change(p.name)) for p in choice]
        if any(self._is_held(piece.name) for piece in names):
          return names
    return pieces

  @property
  def family(self) -> families.Family:
    """The family of the files; the model that is read may be of another."""
    return families.FAMILIES[families.unwrap(self.fields)['model_type']]

  def _has_shape(self, piece: expert_layout.Piece) -> bool:
    names = (expert_layout.rename(self.family, piece.name), piece.name)
    tensors = [self.index[name] for name in names if name in self.index]
    return any(tensor.shape == piece.shape for tensor in tensors)

  def _is_held(self, name: str) -> bool:
    ends = '', mxfp4.BLOCKS, packed_codes.CODES_END, packed_codes.QWEIGHT
    return any(packed_codes.join_name(name, end) in self.index for end in ends)

  def _check(self, piece, dtype, faults) -> set[str]:
    """Records the faults of a piece; returns the tensors that it uses."""
    if piece.name + mxfp4.BLOCKS in self.index:
      return self._check_mxfp4(piece, faults)
    packing = self.find_packing(piece)
    if packing is not None:
      fault = packed_codes.find_fault(
        packing, self.index, piece.name, piece.shape
      )
      if fault is not None:
        faults.misshapen.append(fault)
      return packed_codes.list_names(packing, self.index, piece.name)
    tensor = self.index.get(piece.name)
    if tensor is None:
      faults.missing.append(piece.name)
      return set()
    if piece.row:  # the first row was checked for all
      return set()
    want = jax.ShapeDtypeStruct(piece.shape, dtype)
    faults.check(piece.name, want, tensor, any_dtype=True)
    if tensor.dtype != safetensors_file.FLOAT8:
      return {piece.name}
    block = block_scales.block_size(self.fields)
    scale_name = piece.name + block_scales.SUFFIX
    scales = self.index.get(scale_name)
    if scales is None:
      faults.missing.append(scale_name)
    else:
      shape = block_scales.scale_shape(piece.shape, block)
      expected = jax.ShapeDtypeStruct(shape, np.float32)
      faults.check(scale_name, expected, scales, any_dtype=False)
    return {piece.name, scale_name}

  def find_packing(
    self, piece: expert_layout.Piece
  ) -> packed_codes.Packing | None:
    """Returns how a tensor of codes is stored; None: in no such way."""
    if piece.row is not None or len(piece.shape) != 2:
      return None
    options = self.fields.get('quantization_config') or {}
    word = str(options.get('checkpoint_format', ''))
    return packed_codes.find_packing(self.index, piece.name, word)

  def _check_mxfp4(self, piece, faults) -> set[str]:
    expected = {
      piece.name + suffix: jax.ShapeDtypeStruct(shape, np.uint8)
      for suffix, shape in mxfp4.shapes(piece.shape).items()
    }
    if not piece.row:
      present = {
        name: self.index[name] for name in expected if name in self.index
      }
      faults.compare(expected, present)
    return set(expected)

  def _find_repeats(self, config) -> set[str]:
    """Returns tensors that repeat a shared parameter.

    Raises:
      ValueError: a tensor differs from the parameter that it repeats.
    """
    repeats = set()
    shared = parameters_lib.shared_parameters(config)
    for name, parameter in shared.items():
      original = expert_layout.rename(self.family, parameter)
      if name in self.index and original in self.index:
        if not _equal(self.index[name], self.index[original]):
          raise ValueError(
            f'{self.folder}: {name}: expected the bits of {original}, which it '
            'is shared with, got others'
          )
        repeats.add(name)
    return repeats

  def copy(self, piece: expert_layout.Piece, out: np.ndarray) -> None:
    """Copies a tensor of the files into a part of a parameter."""
    tensor = self.read_piece(piece)
    if not self.rounds and not self.find_codes(piece):
      weights_lib.check_exact(self.folder, piece.name, tensor, out.dtype)
    out[...] = tensor.reshape(out.shape).astype(out.dtype, copy=False)

  def find_codes(self, piece: expert_layout.Piece) -> str:
    """Returns what a tensor of codes is, such as 'mxfp4'; '' of another."""
    if piece.name + mxfp4.BLOCKS in self.index:
      return 'mxfp4'
    packing = self.find_packing(piece)
    if packing is not None:
      return packed_codes.name_element(packing, self.index, piece.name)
    entry = self.index.get(piece.name)
    is_codes = entry is not None and entry.dtype == safetensors_file.FLOAT8
    return 'float8' if is_codes else ''

  def read_piece(self, piece: expert_layout.Piece) -> np.ndarray:
    """Returns a tensor in the file's shape; codes are dequantised."""
    codes = self.find_codes(piece)
    if codes == 'mxfp4':
      assert piece.row is not None
      names = (piece.name + mxfp4.BLOCKS, piece.name + mxfp4.SCALES)
      return mxfp4.dequantised(*(self._read(n, piece.row) for n in names))
    packing = self.find_packing(piece)
    if packing is not None:
      read = lambda name: self._read(name, None)
      return packed_codes.dequantise(packing, read, piece.name, piece.shape)
    tensor = self._read(piece.name, piece.row)
    if not codes:
      return tensor
    if piece.name + block_scales.SUFFIX not in self.index:
      return tensor
    block = block_scales.block_size(self.fields)
    scales = self._read(piece.name + block_scales.SUFFIX, piece.row)
    return block_scales.dequantised(tensor, scales, block)

  def _read(self, name: str, row: int | None) -> np.ndarray:
    tensor = self.index[name]
    return (tensor if row is None else tensor.row(row)).read()


def _equal(
  a: safetensors_file.StoredTensor, b: safetensors_file.StoredTensor
) -> bool:
  if (a.shape, a.dtype) != (b.shape, b.dtype):
    return False
  return all(
    a.row(i).read().tobytes() == b.row(i).read().tobytes()
    for i in range(a.shape[0])
  )


def write(
  folder: pathlib.Path,
  weights: weights_lib.Weights,
  max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
  """Writes weights into an empty folder, without its config.json.

  Args:
    folder: where; see `convert.write` for one that appears at once.
    weights: what.
    max_shard_bytes: a shard is no larger, if its tensors allow.

  Raises:
    ValueError: a parameter is damaged or not finite.
  """
  parts = _Parts(weights)
  shards = weights_lib.shards(parts.specs, max_shard_bytes, '.safetensors')
  for file, names in shards.items():
    specs = {name: parts.specs[name] for name in names}
    # The format is what transformers asks for.
    safetensors_file.write(folder / file, specs, parts.read, {'format': 'pt'})
  if len(shards) > 1:
    size = sum(map(weights_lib.num_bytes, parts.specs.values()))
    shard_of = {name: file for file, names in shards.items() for name in names}
    index = {'metadata': {'total_size': size}, 'weight_map': shard_of}
    config_file.write_json(folder / INDEX, index)


class _Parts:
  """The tensors of a file, each cut out of a parameter.

  Caches the last parameter, because its pieces follow each other.
  """

  def __init__(self, weights: weights_lib.Weights):
    self._weights = weights
    self._sources = {}
    self.specs: weights_lib.Specs = {}
    for name, spec in weights.specs.items():
      for piece in expert_layout.pieces(weights.config, name, spec.shape):
        file_name = expert_layout.rename(weights.config.family, piece.name)
        self._sources[file_name] = (name, piece)
        self.specs[file_name] = jax.ShapeDtypeStruct(piece.shape, spec.dtype)
    for name, source in parameters_lib.shared_parameters(
      weights.config
    ).items():
      if name != _TIED_HEAD:
        self._sources[name] = (
          source,
          expert_layout.Piece(name, self.specs[source].shape),
        )
        self.specs[name] = self.specs[source]
    self._cache: tuple[str, np.ndarray | None] = ('', None)

  def read(self, name: str) -> np.ndarray:
    parameter, piece = self._sources[name]
    if self._cache[0] != parameter:
      self._cache = ('', None)  # first let the last one go
      self._cache = (parameter, self._weights.read(parameter))
    cached = self._cache[1]
    assert cached is not None
    return piece.view(cached).reshape(piece.shape)
