"""Precision policy as data: what is stored, accumulated and rounded where."""

import dataclasses

from hpmoe.reference.contract import storage

STORAGE_DTYPES = tuple(storage.FORMATS)
PLACEMENTS = ('combine', 'before_down')
ACTIVATIONS = ('swiglu', 'absolute')

# Tensors that the layer writes and therefore rounds to the storage dtype.
ROUNDING_POINTS = ('gate_up', 'activation', 'expert_out', 'y')


@dataclasses.dataclass(frozen=True)
class PrecisionPolicy:
  """Every choice that decides the bits of a layer.

  A stage reads stored values, computes in `accumulate` and rounds once, to
  `storage`, when it writes (the tensors of `ROUNDING_POINTS`).

  Attributes:
    storage: dtype of x, weights and every intermediate.
    accumulate: dtype of sums and of the activation's arithmetic.
    placement: where the routing weight multiplies: 'combine' (the owner of
      the token, after return) or 'before_down' (into `activation`, before it
      is rounded).  The two are not equal in narrow storage.
    activation: 'swiglu', silu(gate) * up; or 'absolute', |gate| * up, which has
      no exp and keeps integers exact, and tells gate from up.

  Raises:
    ValueError: a field is not one of the names above.
  """

  storage: str = 'float32'
  accumulate: str = 'float32'
  placement: str = 'combine'
  activation: str = 'swiglu'

  def __post_init__(self):
    for name, known in (
      ('storage', STORAGE_DTYPES),
      ('accumulate', ('float32', 'float64')),
      ('placement', PLACEMENTS),
      ('activation', ACTIVATIONS),
    ):
      if getattr(self, name) not in known:
        raise ValueError(
          f'{name}: expected one of {known}, got {getattr(self, name)!r}'
        )

  def golden(self) -> 'PrecisionPolicy':
    """Returns the same layer in float64 throughout."""
    return dataclasses.replace(self, storage='float64', accumulate='float64')
