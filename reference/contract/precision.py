"""Precision policy as data: what is stored, accumulated and rounded where."""

from collections.abc import Iterable, Sequence
import dataclasses

from hpmoe.reference.contract import storage

STORAGE_DTYPES = tuple(storage.FORMATS)
PLACEMENTS = ('combine', 'before_down')
ACTIVATIONS = ('swiglu', 'absolute')
ACCUMULATION_ORDERS = ('ascending', 'even_odd_32')
# What an order other than 'ascending' is defined for.
_EVEN_ODD_STORAGE = 'bfloat16'

# Tensors that the layer writes and therefore rounds to the storage dtype.
ROUNDING_POINTS = ('gate_up', 'activation', 'expert_out', 'y')


def sums(
  storages: Iterable[str], orders: Sequence[str]
) -> tuple[tuple[str, str], ...]:
  """Returns storage dtypes, each with those of some orders that it has.

  Raises:
    ValueError: a dtype has none of them.
  """
  found = []
  for dtype in storages:
    mine = [o for o in orders if o == 'ascending' or dtype == _EVEN_ODD_STORAGE]
    if not mine:
      raise ValueError(
        f"accumulation_orders: expected 'ascending' among them for {dtype}, "
        f'got {list(orders)}'
      )
    found += [(dtype, order) for order in mine]
  return tuple(found)


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
    accumulation_order: of the sum that is an element of a GEMM, in backends;
      the reference sums in an order of its own, and bounds hold for all.
      'ascending': one chain of fused multiply-adds over the depth.
      'even_odd_32', of bfloat16 storage: 32 terms at a time, a chain over the
      even and one over the odd of them, their sum then added to the total; so
      do the matrix units of x86 CPUs (AMX).

  Raises:
    ValueError: a field is not one of the names above, or the order is not
      defined for the storage.
  """

  storage: str = 'float32'
  accumulate: str = 'float32'
  placement: str = 'combine'
  activation: str = 'swiglu'
  accumulation_order: str = 'ascending'

  def __post_init__(self):
    for name, known in (
      ('storage', STORAGE_DTYPES),
      ('accumulate', ('float32', 'float64')),
      ('placement', PLACEMENTS),
      ('activation', ACTIVATIONS),
      ('accumulation_order', ACCUMULATION_ORDERS),
    ):
      if getattr(self, name) not in known:
        raise ValueError(
          f'{name}: expected one of {known}, got {getattr(self, name)!r}'
        )
    if self.accumulation_order == 'ascending':
      return
    if self.storage != _EVEN_ODD_STORAGE:
      raise ValueError(
        "accumulation_order: expected 'ascending' for storage "
        f'{self.storage!r}, got {self.accumulation_order!r}, which is defined '
        f'for {_EVEN_ODD_STORAGE!r}'
      )

  def golden(self) -> 'PrecisionPolicy':
    """Returns the same layer in float64 throughout."""
    return dataclasses.replace(
      self,
      storage='float64',
      accumulate='float64',
      accumulation_order='ascending',
    )
