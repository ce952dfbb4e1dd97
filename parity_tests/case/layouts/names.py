"""The user's names and layouts of tensors: names.toml.

[tensors]                  # our name = the user's name
y = "Module.mlp.MoE.forward.0.output.0"

[layouts]                  # see `layouts`
gate_up = "R N 2F, interleaved"

[drop]                     # tensors that are not judged
names = ["bias", "Functional.*"]

[raw.gate_up]              # a file of bytes in a folder of tensors
file = "gate_up.bin"
dtype = "bfloat16"
shape = [-1, 32]           # -1: from the size of the file
offset = 0                 # bytes before the tensor
order = "C"                # or "F"
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
import tomllib

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.parity_tests.case.layouts import project_layouts
from hpmoe.reference.contract import messages
from hpmoe.reference.contract import tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Raw:
  """A tensor in a file without metadata.

  Attributes:
    file: its name, in a folder of tensors.
    dtype: numpy's or ml_dtypes' name.
    shape: one length may be -1, which then follows from the size of the file.
    offset: bytes before the tensor.
    order: 'C', or 'F' if the first axis is the innermost.

  Raises:
    ValueError: there is no such dtype, shape or order.
  """

  file: str
  dtype: str
  shape: Sequence[int]
  offset: int = 0
  order: str = 'C'

  def __post_init__(self):
    whole = all(isinstance(n, int) and n >= -1 for n in self.shape)
    if not whole or [*self.shape].count(-1) > 1:
      raise ValueError(
        f'shape: expected integers, at most one -1, got {self.shape}'
      )
    if self.order not in ('C', 'F'):
      raise ValueError(f"order: expected 'C' or 'F', got {self.order!r}")
    if not isinstance(self.offset, int) or self.offset < 0:
      raise ValueError(f'offset: expected bytes, got {self.offset!r}')
    self._numpy()

  def read(self, folder: pathlib.Path) -> np.ndarray:
    """Returns the tensor.

    Raises:
      ValueError: there is no such file, or its size is wrong.
    """
    path, dtype = folder / self.file, self._numpy()
    try:
      size = path.stat().st_size - self.offset
    except OSError as error:
      raise ValueError(f'{path}: expected a file, got {error}') from error
    element_bytes = math.prod(n for n in self.shape if n >= 0) * dtype.itemsize
    count = size // element_bytes if -1 in self.shape and element_bytes else 1
    if size < 0 or count * element_bytes != size:
      raise ValueError(
        f'{path}: expected {self.dtype} {[*self.shape]} after {self.offset} '
        f'bytes, got {size} bytes'
      )
    shape = tuple(count if n < 0 else n for n in self.shape)
    if 0 in shape:
      return np.zeros(shape, dtype)
    memory = np.memmap(path, dtype, 'r', self.offset, (math.prod(shape),))
    return memory.reshape(shape, order='F' if self.order == 'F' else 'C')

  def _numpy(self) -> np.dtype:
    try:
      return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))
    except TypeError as error:
      raise ValueError(f'dtype: expected a name, got {error}') from error


@dataclasses.dataclass(frozen=True)
class Names:
  """The user's names and layouts of tensors.

  Attributes:
    tensors: the user's names by ours.
    layouts: the user's layouts by our names.
    drop: the user's names that are not judged, or patterns with *.
    raw: files of bytes, by the user's name.
  """

  tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)
  layouts: Mapping[str, layouts_lib.Layout] = dataclasses.field(
    default_factory=dict
  )
  drop: tuple[str, ...] = ()
  raw: Mapping[str, Raw] = dataclasses.field(default_factory=dict)


def read(path: str | None, project: str = '') -> Names:
  """Returns the names and layouts of a file.

  Args:
    path: of the file; None: our names and layouts.
    project: a word of `project_layouts`; its layouts apply to tensors that the
      file does not name.

  Raises:
    ValueError: the file cannot be read, or has a name that is not ours.
  """
  layouts = project_layouts.read_layouts(project)
  if path is None:
    return Names(layouts=layouts)
  try:
    with open(path, 'rb') as file:
      tables = tomllib.load(file)
    unknown = {*tables} - {'tensors', 'layouts', 'drop', 'raw'}
    if unknown:
      raise ValueError(
        f'expected [tensors], [layouts], [drop] and [raw.NAME], got '
        f'{sorted(unknown)}'
      )
    strange = {*tables.get('tensors', {})} - {*tensors.IN_FILES}
    if strange:
      near = messages.suggest(tensors.IN_FILES, min(strange))
      raise ValueError(
        "tensors: expected the contract's names on the left, got "
        f'{sorted(strange)}{near}'
      )
    return Names(
      tables.get('tensors', {}),
      {**layouts, **layout_text.parse_all(tables.get('layouts', {}))},
      tuple(tables.get('drop', {}).get('names', ())),
      {name: Raw(**row) for name, row in tables.get('raw', {}).items()},
    )
  except (OSError, TypeError, ValueError) as error:
    raise ValueError(f'names: {path}: {error}') from error
