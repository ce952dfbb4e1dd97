"""The arrays of a launch by name: what goes in, what comes out, checked.

A launch of all ranks has `[R, ...]`; a rank in a process of its own has its
slab of each, without the rank axis.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import ml_dtypes
import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

INPUTS = {
  layout.Direction.FORWARD: tensors.INPUTS,
  layout.Direction.BACKWARD: (
    'dy',
    *(name for name in tensors.INPUTS if name != 'x'),
    *tensors.saved_stages(tensors.Parts(), 'combine'),
  ),
}
OUTPUTS = {
  layout.Direction.FORWARD: tensors.PLAN + tensors.STAGES,
  layout.Direction.BACKWARD: tensors.GRADS,
}
# Of a sub-layer, likewise.
_SUBLAYER = tensors.Parts(sublayer=True)
_SUBLAYER_INPUTS = {
  layout.Direction.FORWARD: tensors.inputs(_SUBLAYER),
  layout.Direction.BACKWARD: (
    tensors.grad_given(_SUBLAYER),
    *tensors.inputs(_SUBLAYER),
    *tensors.saved_stages(_SUBLAYER, 'combine'),
  ),
}
_SUBLAYER_OUTPUTS = {
  layout.Direction.FORWARD: tensors.PLAN + tensors.stages(_SUBLAYER),
  layout.Direction.BACKWARD: tensors.grads(_SUBLAYER),
}
# What stands in for an input of the backward pass, where nobody kept that one.
SPARES = {
  layout.Direction.FORWARD: {},
  layout.Direction.BACKWARD: dict(expert_in='x', returned='expert_out'),
}
_RELAYED = dict(zip(layout.Direction, (s.name for s in tensors.RELAYED)))


# Of an image that quantises: shapes and dtypes of what takes the place of
# values, in the letters of `tensors.TensorSpec`.
_OF_CODES = {
  spec.name: spec
  for spec in (
    tensors.TensorSpec('w_gate_up_codes', 'R L D 2F', 'int8', 'weight'),
    tensors.TensorSpec('w_gate_up_scales', 'R L 1 2F', 'float32', 'weight'),
    tensors.TensorSpec('w_down_codes', 'R L F D', 'int8', 'weight'),
    tensors.TensorSpec('w_down_scales', 'R L 1 D', 'float32', 'weight'),
    tensors.TensorSpec('x_relayed_codes', 'R N D', 'int8', 'movement'),
    tensors.TensorSpec('x_relayed_scales', 'R N 1', 'float32', 'movement'),
    tensors.TensorSpec('expert_in_codes', 'R N D', 'int8', 'movement'),
    tensors.TensorSpec('expert_in_scales', 'R N 1', 'float32', 'movement'),
    tensors.TensorSpec('gate_up_sums', 'R N 2F', 'int32', 'compute'),
    tensors.TensorSpec('activation_codes', 'R N F', 'int8', 'compute'),
    tensors.TensorSpec('activation_scales', 'R N 1', 'float32', 'compute'),
    tensors.TensorSpec('expert_out_sums', 'R N D', 'int32', 'compute'),
  )
}


def _of_codes(names: Iterable[str]) -> tuple[str, ...]:
  """Returns names of codes, scales and sums in place of those of values."""
  replaced: list[str] = []
  for name in names:
    parts = (f'{name}_{part}' for part in ('codes', 'scales', 'sums'))
    replaced += [part for part in parts if part in _OF_CODES] or [name]
  return tuple(replaced)


def outputs(image: image_lib.Image) -> tuple[str, ...]:
  """Returns what a launch of an image returns: `OUTPUTS`, and relayed rows.

  Where it quantises, codes, scales and sums in place of values.
  """
  names = _list_outputs(image)
  return _of_codes(names) if image.policy.rows else names


def _list_outputs(image: image_lib.Image) -> tuple[str, ...]:
  if image.config.sublayer:
    return _SUBLAYER_OUTPUTS[image.direction]
  relayed = (_RELAYED[image.direction],) if image.options.relay else ()
  return (*OUTPUTS[image.direction], *relayed)


def inputs_of(image: image_lib.Image) -> tuple[str, ...]:
  """Returns the names of what a launch of an image may read."""
  input_table = _SUBLAYER_INPUTS if image.config.sublayer else INPUTS
  names = input_table[image.direction]
  return _of_codes(names) if image.policy.rows else names


def find_spec(name: str) -> tensors.TensorSpec:
  """Returns shape and kind of a tensor that a launch takes or makes."""
  return _OF_CODES.get(name) or tensors.SPECS[name]


def dtype(image: image_lib.Image, name: str) -> np.dtype:
  """Returns the dtype of a tensor."""
  if name in _OF_CODES:
    return np.dtype(_OF_CODES[name].kind)
  kind = tensors.SPECS[name].kind
  if kind == 'storage':
    return storage.FORMATS[image.policy.storage].numpy
  return np.dtype(np.int32 if kind == 'i32' else np.float32)


def shape(
  image: image_lib.Image, name: str, of_rank: bool = False
) -> tuple[int, ...]:
  """Returns the shape of a tensor, or of a rank's slab of it."""
  sizes = image.config.dims() | {'1': 1}
  return find_spec(name).dims(**sizes)[of_rank:]


def bits(array: np.ndarray) -> np.ndarray:
  """Returns bfloat16 as uint16, anything else as it is; never a copy."""
  return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def fitting(
  image: image_lib.Image,
  name: str,
  value,
  of_rank: bool = False,
  title: str | None = None,
) -> np.ndarray:
  """Returns a tensor's bits, contiguous and aligned.

  Raises:
    ValueError: not the tensor's dtype or shape; names it, or what it is called.
  """
  value, title = np.asarray(value), title or name
  expected = dtype(image, name)
  if value.dtype != expected:
    raise ValueError(f'{title}: expected dtype {expected}, got {value.dtype}')
  extents = shape(image, name, of_rank)
  if value.shape != extents:
    raise ValueError(f'{title}: expected shape {extents}, got {value.shape}')
  return bits(np.require(value, requirements=('C', 'A')))


def require_finite(
  image: image_lib.Image, name: str, value: np.ndarray
) -> None:
  """Looks through a tensor's bits.

  Raises:
    ValueError: a value of it is not finite.
  """
  # What a forward pass saved may have overflowed, and it is its user's.
  if value.dtype.kind != 'i' and name not in tensors.STAGES:
    position = _native.first_non_finite(value)
    if position >= 0:
      index = tuple(int(i) for i in np.unravel_index(position, value.shape))
      actual = value.reshape(-1)[position : position + 1].view(
        dtype(image, name)
      )[0]
      raise ValueError(
        f'{name}: expected finite values, got {actual} at {index}'
      )


def inputs(
  image: image_lib.Image,
  named_arrays: Mapping[str, np.ndarray],
  of_rank: bool = False,
  spares: Mapping[str, str] = MappingProxyType({}),
  scan: bool = True,
) -> dict[str, np.ndarray]:
  """Returns a launch's inputs as the native part takes them.

  Args:
    image: the pass.
    named_arrays: arrays by name.
    of_rank: whether they are a rank's slabs.
    spares: what may be given in place of which input.
    scan: whether more than routing weights must be finite.

  Raises:
    ValueError: a name, shape or dtype is not the image's, or a value is not
      finite.
  """
  names = inputs_of(image)
  # A weight that an expert's rank applies has its gradient there.
  unread = {'returned'} if image.policy.placement in tensors.EARLY else set()
  read = [n for n in names if n not in unread]
  required = [n for n in read if spares.get(n) not in named_arrays]
  spare = [spares[n] for n in names if n in spares]
  if not set(required) <= set(named_arrays) <= {*names, *spare}:
    raise ValueError(
      f'inputs: expected {sorted(read)}, got {sorted(named_arrays)}'
    )
  bits = {
    name: fitting(image, name, named_arrays[name], of_rank)
    for name in (*read, *spare)
    if name in named_arrays
  }
  for name, array in bits.items():
    if scan or name == 'topk_weights':
      require_finite(image, name, array)
  return bits


def zeros(
  image: image_lib.Image, names: Iterable[str], of_rank: bool = False
) -> dict[str, np.ndarray]:
  """Returns tensors of zeros, or ranks' slabs.

  The operating system zeroes them on first touch: rows past the last valid one
  cost nothing.
  """
  return {
    name: np.zeros(shape(image, name, of_rank), dtype(image, name))
    for name in dict.fromkeys(names)
  }
