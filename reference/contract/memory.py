"""How much memory a layer needs, computed before any is allocated."""

import math
import pathlib

from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

# Copies of the inputs and of all stages that each holds at least: a check holds
# those of the candidate and of the oracle, for two kinds of data.
COPIES = dict(launch=1, check=2)
_BYTES = dict(float64=8, float32=4, int32=4, bfloat16=2, float16=2)


def bytes_needed(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  direction: str,
  purpose: str = 'check',
) -> int:
  """Returns a lower bound of the bytes needed, from shapes alone.

  Args:
    config: sizes; all N rows count.
    policy: dtypes.
    direction: 'forward', or another that includes the backward pass.
    purpose: one of `COPIES`.
  """
  specs = [*tensors.select_specs(tensors.FORWARD, config)]
  if direction != 'forward':
    specs += tensors.select_specs(tensors.BACKWARD, config)
  elements = {s.name: math.prod(s.dims(**config.dims())) for s in specs}
  return COPIES[purpose] * sum(
    count * _BYTES[policy.dtype(name)] for name, count in elements.items()
  )


def weight_bytes(
  config: config_lib.MoEConfig, policy: precision.PrecisionPolicy
) -> int:
  """Returns the bytes of one copy of all weights."""
  specs = tensors.select_specs(tensors.FORWARD, config)
  dims = config.dims()
  return sum(
    math.prod(s.dims(**dims)) * _BYTES[policy.dtype(s.name)]
    for s in specs
    if s.role == 'weight'
  )


def available(proc: pathlib.Path = pathlib.Path('/proc/meminfo')) -> int | None:
  """Returns the bytes available without swapping; None if unknown."""
  try:
    lines = proc.read_text().splitlines()
    (free,) = (line for line in lines if line.startswith('MemAvailable:'))
    return int(free.split()[1]) << 10
  except (OSError, ValueError, IndexError):
    return None


def check(size: int, consumer: str, name: str = 'num_tokens') -> None:
  """Checks that a layer fits the available memory.

  Args:
    size: bytes that the layer needs.
    consumer: what needs them, for the message.
    name: the field of the layer that they grow with most.

  Raises:
    ValueError: more bytes are needed than available; the message has both.
  """
  free = available()
  if free is not None and size > free:
    raise ValueError(
      f'{name}: expected a layer whose {consumer} fits the memory available, '
      f'{free / 1e9:.1f} GB, got one that needs {size / 1e9:.1f} GB or more'
    )
