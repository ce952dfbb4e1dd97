"""Native part of backend_ascend.frontends.mindspore_layer."""

from typing import Annotated

import numpy
from numpy.typing import NDArray

function: str = 'HpmoeMindSporeLaunch'

def register(
  digest: str,
  image: Annotated[NDArray, dict(order='C', device='cpu', writable=False)],
) -> list[list[str]]:
  """
  Keeps an image; returns the names of operands and results, in order,
  and of what a launch knows, by bit.
  """

def npu_tables(
  image: Annotated[
    NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)
  ],
  topk_ids: Annotated[
    NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)
  ],
) -> bytes:
  """Operand `tables` of an NPU's operator, of `[R, T, K]` ids."""

def npu_state(
  image: Annotated[
    NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)
  ],
) -> bytes:
  """Operand `state` of an NPU's operator, for one launch."""

def npu_end(
  image: Annotated[
    NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)
  ],
  state: Annotated[
    NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)
  ],
) -> str:
  """What went wrong, out of `state` after a launch, or ''."""
