"""A loaded image that is launched many times: the host's fast way.

`runtime.launch` is the way that checks: every tensor leaves it, filled with NaN
first.  A production launch makes the tensors that are asked for and keeps its
memory; bits are the same.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.kernels.host.launch import arrays
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import tensors

# What stands in for an input of the backward pass, where nobody kept that one.
SPARES = dict(expert_in='x', returned='expert_out')

# Gradients of the layer's inputs.
FINAL_GRADS = frozenset(['dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down'])


def _require_apart(
  read: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]
) -> None:
  """Refuses memory of one array for another: tasks have no order for it.

  Raises:
    ValueError: an array to write overlaps one that is read or written.
  """
  others = list(read.items())
  for name, array in given.items():
    for other, taken in others:
      # Of contiguous arrays the bounds tell.
      if np.may_share_memory(array, taken):
        raise ValueError(
          f'out: expected memory of its own for {name}, got an overlap with '
          f'{other}'
        )
    others.append((name, array))


def _names_asked(
  asked: Iterable[str] | None, known: tuple[str, ...], finals: tuple[str, ...]
) -> tuple[str, ...]:
  """Returns the names of tensors to make; None means the finals."""
  if asked is None:
    return finals
  # The letters of a string are no names.
  names = () if isinstance(asked, str) else tuple(asked)
  if isinstance(asked, str) or any(name not in known for name in names):
    raise ValueError(
      f'asked: expected a list of names of {known}, got {asked!r}'
    )
  return names


def _faults(given: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> str:
  """Returns why tasks cannot write into an array; empty if they can."""
  faults = []
  if given.shape != shape or given.dtype != dtype:
    faults.append(f'{given.dtype} {given.shape}')
  if not given.flags.writeable:
    faults.append('one that is read-only')
  if not given.flags.c_contiguous:
    faults.append(f'strides of {given.strides} bytes')
  if not given.flags.aligned:
    faults.append('one that is not aligned to its elements')
  return ', '.join(faults)


def _require_type(name: str, value, types: tuple[type, ...], said: str) -> None:
  if value is not None and not isinstance(value, types):
    raise TypeError(f'{name}: expected {said}, got {value!r}')


class Production:
  """One image, loaded once; see the module."""

  def __init__(
    self,
    image,
    *,
    threads: int | None = None,
    deadline_s: float = 60.0,
    isa: str | None = None,
    scan: bool = False,
  ):
    """Loads an image.

    Args:
      image: `compiler.compile_forward(...).image`, or of `compile_backward`;
        or its bytes.
      threads: OS threads of a launch; None means one per core.
      deadline_s: seconds without any task ending after which to give up.
      isa: instruction set of the tile kernels; None means the best one.
      scan: whether values that are not finite are looked for, and refused.
        Ids, routing weights and capacity always are.

    Raises:
      ValueError: the image is corrupt.
      TypeError: the image or an option is of another type.  Values are for
        `launch` to refuse.
    """
    _require_type('threads', threads, (int, np.integer), 'an integer')
    _require_type(
      'deadline_s', deadline_s, (int, float, np.number), 'a number of seconds'
    )
    _require_type('isa', isa, (str,), 'the name of an instruction set')
    self.image = image_lib.load(image)
    self._native = _native.Production(self.image)
    self._threads, self._deadline_s, self._isa = threads, deadline_s, isa
    self._scan = scan
    self._finals = (
      ('y',)
      if self.image.direction == layout.Direction.FORWARD
      else tuple(n for n in tensors.GRADS if n in FINAL_GRADS)
    )

  @property
  def arena_bytes(self) -> int:
    """What it keeps between launches, beside packing buffers."""
    return self._native.arena_bytes

  def launch(
    self,
    inputs: Mapping[str, np.ndarray],
    asked: Iterable[str] | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> dict[str, np.ndarray]:
    """Runs the image once.

    Args:
      inputs: by name, as for `runtime.launch`; backward, `x` may stand for
        expert_in and `expert_out` for returned.
      asked: names of tensors to make; None means y, or the gradients of the
        layer's inputs.
      out: arrays to make them in, for some of the names, none of which may
        overlap another or an input; others are new.

    Returns:
      The tensors asked for, by name.  Rows past a rank's last valid row are
      what was in the array before.

    Raises:
      ValueError: an input or output does not fit the image, outputs overlap, a
        name is not one that the image makes, or routing exceeds its capacity.
      WaitError: a task waited for an event that did not come.
    """
    image = self.image
    known = tuple(dict.fromkeys(tensors.PLAN + arrays.OUTPUTS[image.direction]))
    asked = _names_asked(asked, known, self._finals)
    backward = image.direction == layout.Direction.BACKWARD
    names = (
      *arrays.INPUTS[image.direction],
      *(SPARES.values() if backward else ()),
    )
    strange = [name for name in inputs if name not in names]
    if strange:
      raise ValueError(f'inputs: expected some of {names}, got {strange}')
    read = {n: arrays.fitting(image, n, a) for n, a in inputs.items()}
    for name, bits in read.items():
      if self._scan or name == 'topk_weights':
        arrays.require_finite(image, name, bits)
    out = {} if out is None else out
    if not set(out) <= set(asked):
      raise ValueError(
        f'out: expected some of {asked}, got {sorted(set(out) - set(asked))}'
      )
    made = {name: self._array(name, out.get(name)) for name in asked}
    _require_apart(read, {n: made[n] for n in out})
    found = self._native.launch(
      read,
      {n: arrays.bits(a) for n, a in made.items()},
      threads=self._threads,
      deadline_s=self._deadline_s,
      isa=self._isa,
    )
    if found.reason:
      raise runtime.WaitError(runtime.diagnosis(image, found), {})
    return made

  def _array(self, name: str, given: np.ndarray | None) -> np.ndarray:
    shape = arrays.shape(self.image, name)
    dtype = arrays.dtype(self.image, name)
    if given is None:
      return np.empty(shape, dtype)
    if not isinstance(given, np.ndarray):
      raise ValueError(
        f'out[{name!r}]: expected an array, got {type(given).__name__}'
      )
    if faults := _faults(given, shape, dtype):
      raise ValueError(
        f'out[{name!r}]: expected a writable, contiguous {dtype} {shape}, '
        f'got {faults}'
      )
    return given
