"""Native part of backend_ascend.frontends.mindspore_layer."""

from typing import Annotated

from numpy.typing import NDArray

function: str = 'HpmoeMindSporeLaunch'

def register(
  digest: str,
  image: Annotated[NDArray, dict(order='C', device='cpu', writable=False)],
) -> tuple[list[str], list[str]]:
  """Keeps an image; returns the names of operands and results, in order."""
