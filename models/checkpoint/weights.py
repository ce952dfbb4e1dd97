"""The parameters of one model, wherever they lie, read one at a time.

What reads a format returns `Weights`, what writes one takes them. So every
conversion holds one parameter in memory, and loading holds one beside what it
has loaded.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import Any

import jax
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters as parameters_lib
from hpmoe.models.checkpoint import safetensors_file

MAX_SHOWN = 2  # of each kind of fault
_LENGTH = 300  # of a message, without the path before it

Specs = dict[str, jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class Weights:
  """Parameters under their names, in the layout of the models.

  Attributes:
    fields: the contents of config.json.
    config: what they mean.
    specs: name -> shape and dtype, in the order of the layers.
    read: name -> the parameter; a ValueError if it is damaged or not finite.
    extras: name -> bytes of other files of the folder, such as tokenizer.json.
  """

  fields: Mapping[str, Any]
  config: config_lib.ModelConfig
  specs: Specs
  read: Callable[[str], np.ndarray]
  extras: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

  def load(
    self, step: Callable[[str], None] = lambda name: None
  ) -> dict[str, np.ndarray]:
    """Returns all parameters; calls `step` with each name before reading it."""
    arrays = {}
    for name in self.specs:
      step(name)
      arrays[name] = self.read(name)
    return arrays


def of_parameters(
  config: config_lib.ModelConfig,
  parameters: Mapping[str, Any],
  extras: Mapping[str, bytes] | None = None,
) -> Weights:
  """Returns parameters that are in memory.

  Args:
    config: sizes and options.
    parameters: name -> array, NumPy's or JAX's, all of a model's.
    extras: name -> bytes of files that belong to the model.

  Raises:
    ValueError: parameters are missing, unexpected or misshapen; lists them.
  """
  specs = {
    name: jax.ShapeDtypeStruct(array.shape, array.dtype)
    for name, array in parameters.items()
  }
  faults = Faults()
  expected = parameters_lib.parameter_shapes(config)
  faults.compare(expected, specs, any_dtype=True)
  faults.refuse('parameters')

  def read(name: str) -> np.ndarray:
    array = np.asarray(parameters[name])
    check_finite('parameters', name, array)
    return array

  ordered = {name: specs[name] for name in expected}
  return Weights(config.to_hf(), config, ordered, read, extras or {})


def without_absent_head(
  config: config_lib.ModelConfig, index: Mapping[str, Any]
) -> config_lib.ModelConfig:
  """Returns the config without an MTP head of which no file holds anything.

  transformers writes that there is one, and does not write it.
  """
  for layer in parameters_lib.mtp_layers(config):
    if any(name.startswith(f'model.layers.{layer}.') for name in index):
      return config
  return dataclasses.replace(config, num_nextn_predict_layers=0)


def num_bytes(spec: Any) -> int:
  """Returns the bytes of an array of a shape and dtype."""
  return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize


def shards(
  specs: Mapping[str, Any], max_bytes: int, suffix: str
) -> dict[str, list[str]]:
  """Returns names by file, split in order into files of at most `max_bytes`.

  A name that is larger has a file of its own.

  Args:
    specs: name -> something with `shape` and `dtype`.
    max_bytes: of one file.
    suffix: of the files' names.
  """
  parts: list[list[str]] = []
  room = 0
  for name, spec in specs.items():
    size = num_bytes(spec)
    if not parts or size > room:
      parts.append([])
      room = max_bytes
    parts[-1].append(name)
    room -= size
  if len(parts) == 1:
    return {f'model{suffix}': parts[0]}
  return {
    shard_name(number, len(parts), suffix): names
    for number, names in enumerate(parts, 1)
  }


def shard_name(number: int, count: int, suffix: str) -> str:
  """Returns the name of a file of several, from 1."""
  return f'model-{number:05d}-of-{count:05d}{suffix}'


@dataclasses.dataclass
class Faults:
  """What keeps a set of tensors from being a model's.

  Attributes:
    missing: names that the model has and the files lack.
    unexpected: names that the files have and the model lacks.
    misshapen: lines that name a tensor and both shapes.
    mistyped: lines that name a tensor and both dtypes.
  """

  missing: list[str] = dataclasses.field(default_factory=list)
  unexpected: list[str] = dataclasses.field(default_factory=list)
  misshapen: list[str] = dataclasses.field(default_factory=list)
  mistyped: list[str] = dataclasses.field(default_factory=list)

  def compare(
    self,
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    any_dtype: bool = False,
  ) -> None:
    """Records how the actual tensors differ from the expected ones."""
    self.missing += [name for name in expected if name not in actual]
    self.unexpected += [name for name in actual if name not in expected]
    for name in expected:
      if name in actual:
        self.check(name, expected[name], actual[name], any_dtype)

  def check(self, name: str, want: Any, actual: Any, any_dtype: bool) -> None:
    """Records a tensor of another shape, or one that would be rounded."""
    if tuple(actual.shape) != tuple(want.shape):
      self.misshapen.append(
        f'{name} (expected {list(want.shape)}, got {list(actual.shape)})'
      )
    if not is_exact(actual.dtype, want.dtype) and not (
      any_dtype and is_float(actual.dtype)
    ):
      self.mistyped.append(
        f'{name} (expected {want.dtype}, got {actual.dtype})'
      )

  def refuse(self, path: Any, reason: str = '') -> None:
    """Raises a ValueError of one line if there is any fault.

    Args:
      path: of the folder with the faults.
      reason: the common cause if it is known; if '', some faults are listed.
    """
    names_by_kind = {
      kind: names for kind, names in dataclasses.asdict(self).items() if names
    }
    if not names_by_kind:
      return
    if reason:
      raise ValueError(f'{path}: {reason}')
    parts = []
    for kind, names in names_by_kind.items():
      rest = (
        f' and {len(names) - MAX_SHOWN} more' if len(names) > MAX_SHOWN else ''
      )
      parts.append(f'{len(names)} {kind}: {", ".join(names[:MAX_SHOWN])}{rest}')
    text = f'expected the tensors of the model, got {"; ".join(parts)}'
    if len(text) > _LENGTH:
      text = f'{text[: _LENGTH - 4]} ...'
    raise ValueError(f'{path}: {text}')


_FLOATS = {
  # Bits of mantissa and of exponent.
  np.dtype(np.float64): (52, 11),
  np.dtype(np.float32): (23, 8),
  np.dtype(np.float16): (10, 5),
  safetensors_file.BFLOAT16: (7, 8),
  safetensors_file.FLOAT8: (3, 4),
  safetensors_file.DTYPES['F8_E5M2']: (2, 5),
  safetensors_file.SCALE8: (0, 8),
}


def is_float(dtype: Any) -> bool:
  """Returns whether weights may have this dtype in a file."""
  return np.dtype(dtype) in _FLOATS


def is_exact(narrow: Any, wide: Any) -> bool:
  """Returns whether every value of one dtype is a value of the other."""
  if not (is_float(narrow) and is_float(wide)):
    return np.dtype(narrow) == np.dtype(wide)
  a, b = _FLOATS[np.dtype(narrow)], _FLOATS[np.dtype(wide)]
  return a[0] <= b[0] and a[1] <= b[1]


def check_exact(
  path: Any, name: str, array: np.ndarray, dtype: np.dtype
) -> None:
  """Refuses a parameter that a narrower dtype would round.

  Raises:
    ValueError: says how to round it, or to keep it.
  """
  if is_exact(array.dtype, dtype):
    return
  rounded = array.astype(dtype).astype(array.dtype)
  if not np.array_equal(rounded, array, equal_nan=True):
    raise ValueError(
      f"{path}: {name}: expected values that config.json's {dtype} has, got "
      f'{array.dtype}; --dtype={dtype} rounds them, --dtype={array.dtype} '
      'keeps them'
    )


def check_finite(path: Any, name: str, array: np.ndarray) -> None:
  """Refuses a parameter with NaN or infinity.

  Raises:
    ValueError: names the first one's place, and how many there are.
  """
  finite = np.isfinite(array)
  if finite.all():
    return
  flat = int(np.argmin(finite))
  index = [int(i) for i in np.unravel_index(flat, array.shape)]
  raise ValueError(
    f'{path}: {name}: expected finite weights, got {array.reshape(-1)[flat]} '
    f'at {index}, {array.size - int(finite.sum())} of {math.prod(array.shape)}'
  )
