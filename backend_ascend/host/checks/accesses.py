"""What the tasks of a launch would access and signal, as native code has it."""

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib

ACCESS = np.dtype(
  [
    (name, '<i4')
    for name in (
      'task',
      'buffer',
      'write',
      'slab',
      'row_begin',
      'row_end',
      'col_begin',
      'col_end',
    )
  ]
)


def inspect(image, plan: _native.Routing) -> tuple[np.ndarray, np.ndarray]:
  """Returns what the tasks of a launch would access and signal.

  Args:
    image: a compiled image of either direction.
    plan: of a routing, as of `route`.

  Returns:
    `[a]` ACCESS by task: the rectangles that the kernels are given, in physical
    rows of a slab (a rank, or the expert of a weight).  Columns past the
    tensor's are what travels beside it, see `modes.Race.cols`.
    `[s, 2]` i32 of (task, event) by task, once for every time that it signals.

  Raises:
    ValueError: the plan is not of this image's sizes.
  """
  accesses, signals = _native.inspect(image_lib.load(image), plan)
  return (
    np.frombuffer(accesses, ACCESS),
    np.frombuffer(signals, np.int32).reshape(-1, 2),
  )
