"""Precision policy as data: what is stored, accumulated and rounded where."""

from collections.abc import Iterable, Sequence
import dataclasses

from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

STORAGE_DTYPES = tuple(storage.FORMATS)
PLACEMENTS = ('combine', 'before_down')
ACTIVATIONS = ('swiglu', 'absolute')
ACCUMULATION_ORDERS = ('ascending', 'even_odd_32')
# What an order other than 'ascending' is defined for.
_EVEN_ODD_STORAGE = 'bfloat16'

# Tensors that the layer writes and therefore rounds to the storage dtype.
ROUNDING_POINTS = ('gate_up', 'activation', 'expert_out', 'y')
# Of these, the ones that a fused kernel may keep as they were summed.
INTERMEDIATES = ROUNDING_POINTS[:-1]
# z / (1 + exp(-z)) in float32, its exp within 2 units in the last place: with
# u = 2^-24, and a unit of at most 2 u, that is 4 u, and 3 u of sum, reciprocal
# and product.  Formulas that are off by more, s being the sigmoid:
#   exp2(-z log2(e)) rounds its argument: 2 |z| (1 - s) u more of the result, or
#     2 |z| s (1 - s) u <= 0.45 u of 1: sigmoid_ulp 0.25
#   (1 + tanh(z / 2)) / 2 cancels: 2 u of tanh and 1 u of the sum, halved, of 1:
#     sigmoid_ulp 0.75
ACTIVATION_ULP = 3.5
# Of the activation, beside its name.
FORM = ('alpha', 'limit', 'offset')
# Activations that models have, by a name of their own.
FORMS = {'gpt_oss': 'swiglu:alpha=1.702:limit=7:offset=1'}
_COPY_OF = {'returned': 'expert_out'}


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


def activation_of(form: str) -> dict[str, str | float]:
  """Returns fields of a policy; `swiglu:limit=10` has two of them.

  Raises:
    ValueError: no activation is called so.
  """
  name, *words = FORMS.get(form, form).split(':')
  fields: dict[str, str | float] = dict(activation=name)
  for word in words:
    key, _, value = word.partition('=')
    try:
      fields[key] = float(value)
    except ValueError:
      key = ''
    if key not in FORM:
      raise ValueError(
        f'activation: expected {list(FORM)}, each =NUMBER, after {name}:, got '
        f'{word!r}'
      )
  if name not in ACTIVATIONS:
    raise ValueError(
      f'activation: expected one of {[*ACTIVATIONS, *FORMS]}, got {form!r}'
    )
  return fields


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
    activation: 'swiglu', gate / (1 + exp(-alpha gate)) * (up + offset); or
      'absolute', |gate| * (up + offset), which has no exp and keeps integers
      exact, and tells gate from up.
    alpha, limit, offset: of it, as numbers of `accumulate`.  A limit that is
      not 0 comes first: gate becomes min(gate, limit), and up is clamped to
      [-limit, limit].  GPT-OSS has 1.702, 7 and 1.
    accumulation_order: of the sum that is an element of a GEMM, in backends;
      the reference sums in an order of its own, and bounds hold for all.
      'ascending': one chain of fused multiply-adds over the depth.
      'even_odd_32', of bfloat16 storage: 32 terms at a time, a chain over the
      even and one over the odd of them, their sum then added to the total; so
      do the matrix units of x86 CPUs (AMX).
    unrounded: those of `INTERMEDIATES` that stay in `accumulate`, as a fused
      kernel keeps them; whoever returns one returns it so.
    activation_ulp: how far silu may be off, in units in the last place of its
      float32 result: see `ACTIVATION_ULP`.
    sigmoid_ulp: how far its sigmoid may be off beside that, in units in the
      last place of 1: an error that does not shrink with the result.

  Raises:
    ValueError: a field is not one of the names above, or the order is not
      defined for the storage.
  """

  storage: str = 'float32'
  accumulate: str = 'float32'
  placement: str = 'combine'
  activation: str = 'swiglu'
  accumulation_order: str = 'ascending'
  unrounded: tuple[str, ...] = ()
  activation_ulp: float = ACTIVATION_ULP
  sigmoid_ulp: float = 0.0
  alpha: float = 1.0
  limit: float = 0.0
  offset: float = 0.0

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
    if not 0 < self.activation_ulp < float('inf'):
      raise ValueError(
        'activation_ulp: expected a positive number of units, got '
        f'{self.activation_ulp!r}'
      )
    if not 0 <= self.sigmoid_ulp < float('inf'):
      raise ValueError(
        'sigmoid_ulp: expected a number of units, none below 0, got '
        f'{self.sigmoid_ulp!r}'
      )
    self._check_form()
    object.__setattr__(self, 'unrounded', tuple(self.unrounded))
    if not set(self.unrounded) <= set(INTERMEDIATES):
      raise ValueError(
        f'unrounded: expected some of {INTERMEDIATES}, got {self.unrounded}'
      )
    if self.accumulation_order == 'ascending':
      return
    if self.storage != _EVEN_ODD_STORAGE:
      raise ValueError(
        "accumulation_order: expected 'ascending' for storage "
        f'{self.storage!r}, got {self.accumulation_order!r}, which is defined '
        f'for {_EVEN_ODD_STORAGE!r}'
      )

  def _check_form(self):
    for name, least in (('alpha', 0), ('limit', 0), ('offset', -float('inf'))):
      value = getattr(self, name)
      above = value > least or (name == 'limit' and value == 0)
      if not (above and value < float('inf')):
        what = 'positive' if name == 'alpha' else 'finite'
        what += ' number, 0 for none' if name == 'limit' else ' number'
        raise ValueError(f'{name}: expected a {what}, got {value!r}')
      # In a file 7 is as good as 7.0.
      object.__setattr__(self, name, float(value))

  @property
  def form(self) -> str:
    """How the activation is asked for, see `activation_of`."""
    default = PrecisionPolicy
    return ':'.join(
      [self.activation]
      + [
        f'{name}={getattr(self, name):.15g}'
        for name in FORM
        if getattr(self, name) != getattr(default, name)
      ]
    )

  def dtype(self, name: str) -> str:
    """Returns the dtype of a tensor of `tensors.SPECS`."""
    kind = tensors.SPECS[name].kind
    if kind != 'storage':
      return {'f32': 'float32', 'i32': 'int32'}[kind]
    kept = _COPY_OF.get(name, name) in self.unrounded
    return self.accumulate if kept else self.storage

  def storing(self, name: str) -> 'PrecisionPolicy':
    """Returns the policy of a stage that writes a tensor: its dtype stored."""
    if tensors.SPECS[name].kind != 'storage' or not self.unrounded:
      return self
    return dataclasses.replace(
      self,
      storage=self.dtype(name),
      accumulation_order='ascending',
      unrounded=(),
    )

  def golden(self) -> 'PrecisionPolicy':
    """Returns the same layer in float64 throughout."""
    return dataclasses.replace(
      self,
      storage='float64',
      accumulate='float64',
      accumulation_order='ascending',
      unrounded=(),
    )
