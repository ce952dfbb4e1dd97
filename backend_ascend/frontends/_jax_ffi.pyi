"""Native part of backend_ascend.frontends.jax_layer."""

from typing import Annotated

from numpy.typing import NDArray
from typing_extensions import CapsuleType

api_version: tuple = (0, 1)

def register(
  digest: str,
  image: Annotated[NDArray, dict(order='C', device='cpu', writable=False)],
) -> list[list[str]]:
  """
  Keeps an image; returns the names of operands and results, in order,
  and of what a launch knows, by bit.
  """

def handler() -> CapsuleType: ...
