"""How much memory a layer needs, before any is taken."""

import math
import pathlib

from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

# How often each holds the inputs and what is computed of them, at the least: a
# check has those of a candidate and of the oracle, and data of two kinds.
COPIES = dict(launch=1, check=2)
_BYTES = dict(float64=8, float32=4, int32=4, bfloat16=2, float16=2)


def bytes_needed(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  direction: str,
  of: str = 'check',
) -> int:
  """Returns the bytes that are needed at the least, by shapes alone.

  Args:
    config: sizes; N counts as rows that are held.
    policy: dtypes.
    direction: 'forward', or another that includes the backward pass.
    of: one of `COPIES`.
  """
  specs = [*tensors.of(tensors.FORWARD, config)]
  if direction != 'forward':
    specs += tensors.of(tensors.BACKWARD, config)
  elements = {s.name: math.prod(s.dims(**config.dims())) for s in specs}
  return COPIES[of] * sum(
    count * _BYTES[policy.dtype(name)] for name, count in elements.items()
  )


def weight_bytes(
  config: config_lib.MoEConfig, policy: precision.PrecisionPolicy
) -> int:
  """Returns the bytes of all weights, once."""
  specs = tensors.of(tensors.FORWARD, config)
  dims = config.dims()
  return sum(
    math.prod(s.dims(**dims)) * _BYTES[policy.dtype(s.name)]
    for s in specs
    if s.role == 'weight'
  )


def available(proc: pathlib.Path = pathlib.Path('/proc/meminfo')) -> int | None:
  """Returns bytes that can be taken without swapping; None: nobody says."""
  try:
    lines = proc.read_text().splitlines()
    (free,) = (line for line in lines if line.startswith('MemAvailable:'))
    return int(free.split()[1]) << 10
  except (OSError, ValueError, IndexError):
    return None


def check(needed: int, of: str, name: str = 'num_tokens') -> None:
  """Refuses what does not fit.

  Args:
    needed: bytes.
    of: what needs them.
    name: the size that they grow with most.

  Raises:
    ValueError: it is more than is available; says both.
  """
  free = available()
  if free is not None and needed > free:
    raise ValueError(
      f'{name}: expected a layer whose {of} fits the memory available, '
      f'{free / 1e9:.1f} GB, got one that needs {needed / 1e9:.1f} GB or more'
    )
