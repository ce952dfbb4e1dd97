"""Precision policy as data: dtypes of storage, accumulation and rounding."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

from hpmoe.reference.contract import messages
from hpmoe.reference.contract import quantised as quantised_lib
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

# A policy has a field by the name of the module.
Emulated = storage.Emulated
Format = storage.Format
STORAGE_DTYPES = tuple(storage.FORMATS)
PLACEMENTS = tuple(tensors.WEIGHTED)
# Those that differ in roundings alone, and those that own launches compute.
ALIKE_PLACEMENTS, LAUNCHED_PLACEMENTS = PLACEMENTS[:4], PLACEMENTS[:3]
# Fields of a policy with the order in which a token's rows are added -> the
# tensor that is their sum.
SUM_ORDERS = {'sum_order': 'y', 'd_sum_order': 'dx'}
ROW_ORDERS = ('slot', 'expert', 'expert_back')
# Of a gate, times up.  The project's own launches compute the first two.
ACTIVATIONS = (
  *('swiglu', 'absolute', 'geglu', 'geglu_tanh'),
  *('reglu', 'relu2', 'glu', 'bilinear'),
)
LAUNCHED_ACTIVATIONS = ACTIVATIONS[:2]
# Added to the mean square of a norm, as published models have it.
EPSILONS = (1e-6, 1e-5)
ACCUMULATION_ORDERS = ('ascending', 'even_odd_32')
# What an order other than 'ascending' is defined for.
_EVEN_ODD_STORAGE = 'bfloat16'


@dataclasses.dataclass(frozen=True)
class Point:
  """A place where a kernel may round, or keep float32 where others round.

  Attributes:
    name: its name in policies; for a stored tensor, the tensor's name.
    stages: the tensors whose computation passes through this place.
    says: what is rounded there.
  """

  name: str
  stages: tuple[str, ...]
  says: str


_GEMM_STAGES = (
  *tensors.GEMMS,
  *tensors.TRANSPOSED_GEMMS,
  *tensors.WEIGHT_GRADS,
  'router_logits',
  'd_router_in',
  'd_router_w',
)
# Terms of a sum between two roundings of an accumulator.
BLOCK_INNER = 128
# Inside a stage: in the accumulate dtype, unless a policy rounds it.
INSIDE = (
  Point('operands', _GEMM_STAGES, 'what a GEMM multiplies'),
  Point(
    'accumulator', _GEMM_STAGES, f'the sum of a GEMM, each {BLOCK_INNER} terms'
  ),
  Point(
    'silu',
    ('activation', 'd_gate_up', 'd_topk_weights'),
    'act(gate), before it is multiplied by up',
  ),
  Point(
    'product',
    ('activation', 'd_topk_weights'),
    'act(gate) times up, before the routing weight',
  ),
  Point(
    'routing_weight',
    (
      *('expert_in', 'activation', 'expert_out', 'returned', 'y'),
      *('d_expert_out', 'd_gate_up', 'd_w_down', 'd_b_down', 'dx'),
    ),
    'the routing weight, before it multiplies',
  ),
  Point('weighted', ('y', 'dx'), 'a row times its weight, before the sum'),
  Point('running_sum', ('y',), "the sum of a token's rows, after each"),
  Point(
    'routed_sum',
    ('y',),
    "the sum of a token's rows, before the shared experts' output is added",
  ),
  Point(
    'd_silu',
    ('d_gate_up',),
    'd_activation times up, before it is multiplied by the slope',
  ),
  Point(
    'd_weighted',
    ('d_topk_weights',),
    'each product of the sum that is d_topk_weights',
  ),
  Point('d_running_sum', ('dx',), 'the sum that is dx, after each row'),
  Point(
    'd_routed_sum',
    ('dx',),
    "the sum that is dx, before the shared experts' gradient is added",
  ),
)
# Points of the sum over a token's rows, by the tensor that is the sum: after
# each row, and once before what the shared experts add.
RUNNING_SUMS = {'y': 'running_sum', 'dx': 'd_running_sum'}
ROUTED_SUMS = {'y': 'routed_sum', 'dx': 'd_routed_sum'}
# Tensors, each in a dtype of its own; what a copy has is that of its source.
_COPY_OF = {
  'expert_in': 'x',
  'returned': 'expert_out',
  'd_expert_out': 'dy',
  'd_returned': 'd_expert_in',
  'x_relayed': 'x',
  'dy_relayed': 'dy',
}
TENSORS = tuple(
  Point(spec.name, (spec.name,), f'{spec.name}, as it is stored')
  for spec in tensors.SPECS.values()
  if (spec.kind == 'storage' or spec.name == 'd_topk_weights')
  and spec.part not in ('shared', 'norm')
  and (spec.role != 'movement' or spec.name in tensors.WEIGHTED.values())
)
POINTS = {point.name: point for point in TENSORS + INSIDE}
# Dtypes by another word: of a policy's own fields.
_OWN = ('storage', 'accumulate')
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
# Weights of experts, then those of shared experts.
EXPERT_WEIGHTS = tuple(weight for _, weight in tensors.GEMMS.values())
SHARED_WEIGHTS = tuple(
  name for name, routed in tensors.AS_ROUTED.items() if routed in EXPERT_WEIGHTS
)


def sums(
  storages: Iterable[str], orders: Sequence[str]
) -> tuple[tuple[str, str], ...]:
  """Returns pairs of a storage dtype and an order that is defined for it.

  Raises:
    ValueError: none of `orders` is defined for a dtype.
  """
  pairs = []
  for dtype in storages:
    supported = [
      o for o in orders if o == 'ascending' or dtype == _EVEN_ODD_STORAGE
    ]
    if not supported:
      raise ValueError(
        f"accumulation_orders: expected 'ascending' among them for {dtype}, "
        f'got {list(orders)}'
      )
    pairs += [(dtype, order) for order in supported]
  return tuple(pairs)


def activation_of(form: str) -> dict[str, str | float]:
  """Returns the policy fields of an activation such as `swiglu:limit=10`.

  Raises:
    ValueError: there is no such activation.
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
    names = (*ACTIVATIONS, *FORMS)
    expected = messages.refuse_choice(names, name, typed=form)
    raise ValueError(f'activation: {expected}')
  return fields


@dataclasses.dataclass(frozen=True)
class PrecisionPolicy:
  """Every choice that decides the bits of a layer.

  A stage reads stored values, computes in `accumulate` and rounds once, to
  `storage`, when it writes; `points` says where it does otherwise.

  Attributes:
    storage: dtype of x, weights and every intermediate.
    accumulate: dtype of sums and of the activation's arithmetic.
    placement: what the routing weight multiplies: 'before_down' (`activation`,
      before it is rounded), 'epilogue' (the sums of the second GEMM, before
      they are rounded), 'returned' (returned rows, which are rounded again),
      'combine' (returned rows, in the sum that is y) or 'input' (rows of x,
      which are rounded again; as Llama-4 does).  In narrow storage these
      differ, and 'input' does in every one.
    activation: 'swiglu', gate / (1 + exp(-alpha gate)) * (up + offset); or
      'absolute', |gate| * (up + offset), which has no exp, keeps integers
      exact, and distinguishes gate from up; or f(gate) * up, where f is the
      GELU with erf ('geglu') or with tanh ('geglu_tanh'), the ReLU ('reglu')
      or its square ('relu2'), the sigmoid ('glu') or the identity
      ('bilinear').
    alpha, limit, offset: parameters of the activation, in `accumulate`;
      'absolute' ignores alpha.  A limit other than 0 is applied first: gate
      becomes min(gate, limit), and up is clamped to [-limit, limit].  GPT-OSS
      has 1.702, 7 and 1.
    accumulation_order: order of the sum of a GEMM element in a backend; the
      oracle sums in its own order, and the bounds hold for every order.
      'ascending': one chain of fused multiply-adds over the depth.
      'even_odd_32' (bfloat16 storage): 32 terms at a time, one chain over the
      even terms and one over the odd terms; their sum is then added to the
      total, as the matrix units of x86 CPUs (AMX) do.
    points: words POINT=DTYPE: a name of `POINTS`, and a dtype of
      `storage.ROUNDED` or one of the words storage and accumulate.  Operands
      may also have a name of `storage.EMULATED`, which says how they are
      multiplied.  A tensor that a fused kernel does not round has the dtype
      accumulate, and is returned in it.
    sum_order: order in which a token's rows are added in y: 'slot'; 'expert',
      by ascending id; 'expert_back', by descending id, as autograd adds the
      gradients of a loop over experts.
    d_sum_order: the same for dx.
    activation_ulp: allowed error of silu, of the sigmoid in 'glu', or of erf or
      tanh in a GELU, in units in the last place of its float32 result; see
      `ACTIVATION_ULP`.
    sigmoid_ulp: further allowed error of the sigmoid, in units in the last
      place of 1: an error that does not shrink with the result.
    quantised: form of the expert weights, of `quantised.FORMS`; '': none.  A
      weight is then code times scale, in `accumulate`; a kernel may multiply
      each term by the scale, or the sum.
    rows: form, of `quantised.FORMS`, to which each expert GEMM quantises its
      rows; '': none.  `expert_in=FORM`, `activation=FORM`, or both with a
      comma, select single GEMMs.
    x_form: form of x, of `quantised.FORMS`; '': none.  Its values are then code
      times scale, in `accumulate`.
    weight_ulp: allowed relative error of routing weights, in units of the
      unit roundoff, for a kernel that computes its own routing.
    operand_forms: further operands that GEMMs quantise, words of
      `recipes.read_words`.
    epsilon: one of `EPSILONS`, for the norm of a sub-layer.  With the
      activation 'absolute' a norm does not divide: its rows are multiplied by
      the gain.

  Raises:
    ValueError: a field is not one of the names above, or the order is not
      defined for the storage.
  """

  storage: str = 'float32'
  accumulate: str = 'float32'
  placement: str = 'combine'
  activation: str = 'swiglu'
  accumulation_order: str = 'ascending'
  points: tuple[str, ...] = ()
  sum_order: str = 'slot'
  d_sum_order: str = 'slot'
  activation_ulp: float = ACTIVATION_ULP
  sigmoid_ulp: float = 0.0
  alpha: float = 1.0
  limit: float = 0.0
  offset: float = 0.0
  quantised: str = ''
  rows: str = ''
  epsilon: float = EPSILONS[0]
  x_form: str = ''
  weight_ulp: float = 0.0
  operand_forms: str = ''

  def __post_init__(self):
    for name, choices in (
      ('storage', STORAGE_DTYPES),
      ('accumulate', ('float32', 'float64')),
      ('placement', PLACEMENTS),
      ('activation', ACTIVATIONS),
      ('accumulation_order', ACCUMULATION_ORDERS),
      *((name, ROW_ORDERS) for name in SUM_ORDERS),
      ('quantised', ('', *quantised_lib.OF_VALUES)),
      ('x_form', ('', *quantised_lib.OF_X)),
      ('epsilon', EPSILONS),
    ):
      if getattr(self, name) not in choices:
        expected = messages.refuse_choice(choices, getattr(self, name))
        raise ValueError(f'{name}: {expected}')
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
    if not 0 <= self.weight_ulp < float('inf'):
      raise ValueError(
        'weight_ulp: expected a number of units, none below 0, got '
        f'{self.weight_ulp!r}'
      )
    quantised_lib.row_forms(self.rows)
    words = recipes.join_words(recipes.read_words(self.operand_forms))
    object.__setattr__(self, 'operand_forms', words)
    self._check_form()
    own = {name: getattr(self, name) for name in _OWN}
    object.__setattr__(self, 'points', sort_points(self.points, own))
    if self.accumulation_order == 'ascending':
      return
    if self.storage != _EVEN_ODD_STORAGE:
      raise ValueError(
        "accumulation_order: expected 'ascending' for storage "
        f'{self.storage!r}, got {self.accumulation_order!r}, which is defined '
        f'for {_EVEN_ODD_STORAGE!r}'
      )

  def _check_form(self):
    for name, minimum in (
      ('alpha', 0),
      ('limit', 0),
      ('offset', -float('inf')),
    ):
      value = getattr(self, name)
      above = value > minimum or (name == 'limit' and value == 0)
      if not (above and value < float('inf')):
        kind = 'positive' if name == 'alpha' else 'finite'
        kind += ' number, 0 for none' if name == 'limit' else ' number'
        raise ValueError(f'{name}: expected a {kind}, got {value!r}')
      # In a file 7 is as good as 7.0.
      object.__setattr__(self, name, float(value))
    if self.alpha != 1 and self.activation not in LAUNCHED_ACTIVATIONS:
      raise ValueError(
        f'alpha: expected 1 of {self.activation}, as it is a factor of the '
        f'sigmoid of swiglu, got {self.alpha:g}'
      )

  @property
  def form(self) -> str:
    """The activation as a word, see `activation_of`."""
    default = PrecisionPolicy
    return ':'.join(
      [self.activation]
      + [
        f'{name}={getattr(self, name):.15g}'
        for name in FORM
        if getattr(self, name) != getattr(default, name)
      ]
    )

  @functools.cached_property
  def roundings(self) -> Mapping[str, str]:
    """The dtype of each point that `points` names."""
    return dict(point.split('=') for point in self.points)

  @functools.cached_property
  def points_inside(self) -> tuple[str, ...]:
    """Those of `points` that lie inside stages, not at their tensors."""
    names = {point.name for point in INSIDE}
    return tuple(w for w in self.points if w.partition('=')[0] in names)

  def rounding(self, point: str) -> str | None:
    """Returns the dtype that a point inside a stage rounds to, or None."""
    dtype = self.roundings.get(point, self.accumulate)
    if dtype in storage.EMULATED:
      return None
    wide = storage.ROUNDED[self.accumulate].digits
    return dtype if storage.ROUNDED[dtype].digits < wide else None

  @functools.cached_property
  def smallest_range(self) -> Format:
    """The format with the smallest range of storage and all points."""
    dtypes = (self.storage, *self.roundings.values())
    formats = [storage.ROUNDED[n] for n in dtypes if n in storage.ROUNDED]
    return min(formats, key=lambda row: row.largest)

  @property
  def emulated(self) -> Emulated | None:
    """How GEMMs multiply if they use products of narrower parts."""
    return storage.EMULATED.get(self.roundings.get('operands', ''))

  def dtype(self, name: str) -> str:
    """Returns the dtype of a tensor of `tensors.IN_FILES`."""
    spec = tensors.IN_FILES[name]
    if spec.role == 'codes':
      return self.form_of(name).dtypes[spec.kind]
    if spec.kind != 'storage':
      default = {'f32': 'float32', 'i32': 'int32'}[spec.kind]
      return self.roundings.get(name, default)
    if tensors.role(name, self.placement) == 'movement':
      name = _COPY_OF[name]
    # Rows of x in codes have its dtype, weighted or not.
    is_coded = {name, _COPY_OF.get(name)} & {*self.coded}
    default = self.accumulate if is_coded else self.storage
    return self.roundings.get(name, default)

  def form_of(self, part: str) -> quantised_lib.Form:
    """Returns the form of a tensor of role 'codes', such as x_scales.

    Raises:
      KeyError: nothing has that part.
    """
    source = part.removesuffix(f'_{tensors.IN_FILES[part].kind}')
    # x may come in codes, or a kernel makes them.
    form = self.coded.get(source)
    if form is None:
      form = quantised_lib.output_forms(self.rows)[source]
    return quantised_lib.FORMS[form]

  @functools.cached_property
  def coded(self) -> Mapping[str, str]:
    """The form of each input that is passed as codes and scales, by name.

    Of weights of shared experts too, which not every layer has.
    """
    weights = EXPERT_WEIGHTS + SHARED_WEIGHTS
    forms = {'x': self.x_form} | dict.fromkeys(weights, self.quantised)
    return {name: form for name, form in forms.items() if form}

  def coded_inputs(self, layer: tensors.Layer) -> Mapping[str, str]:
    """Returns `coded` of the inputs that a layer has."""
    inputs = {*tensors.inputs(layer)}
    return {name: form for name, form in self.coded.items() if name in inputs}

  def multiplying(self, rows: str) -> 'PrecisionPolicy':
    """Returns the policy of one GEMM: its `rows` and `x_form` alone.

    Args:
      rows: the tensor whose rows it multiplies.
    """
    form = quantised_lib.row_forms(self.rows).get(rows, '')
    x_form = self.x_form if rows == 'expert_in' else ''
    if (form, x_form) == (self.rows, self.x_form):
      return self
    return dataclasses.replace(self, rows=form, x_form=x_form)

  @functools.cached_property
  def static_scales(self) -> tuple[str, ...]:
    """The inputs that are scales of rows, see `tensors.STATIC_SCALES`."""
    forms = quantised_lib.row_forms(self.rows)
    return tuple(
      f'{name}_scale'
      for name, form in forms.items()
      if quantised_lib.FORMS[form].reads_scale
    )

  def needs(self, name: str, layer: tensors.Layer) -> tuple[str, ...]:
    """Returns `tensors.needs` of a tensor, and scales that its GEMM reads."""
    rows, _ = tensors.GEMMS.get(name, ('', ''))
    scales = (n for n in self.static_scales if n == f'{rows}_scale')
    return (*tensors.needs(name, layer, self.placement), *scales)

  def reading(self, names: Iterable[str]) -> 'PrecisionPolicy':
    """Returns the policy of GEMMs that read returned codes of rows.

    Args:
      names: tensors that were returned, including some of `tensors.ROW_CODES`.
    """
    names, forms = {*names}, quantised_lib.row_forms(self.rows)
    left = {n: form for n, form in forms.items() if f'{n}_codes' not in names}
    if left == forms:
      return self
    rows = ','.join(f'{name}={form}' for name, form in left.items())
    return dataclasses.replace(self, rows=rows)

  def of_gemm(self, gemm: str) -> 'PrecisionPolicy':
    """Returns the policy of one GEMM: only the forms of its own operands.

    Args:
      gemm: the stage that it computes; other stages have no forms.  That of
        shared experts has the forms of the routed ones'.
    """
    gemm = tensors.routed(gemm)
    rows, _ = tensors.GEMMS.get(gemm, ('', ''))
    own_policy = self.multiplying(rows)
    operands = recipes.select_gemm(self.operand_forms, gemm)
    # Gradients of weights read no weights.
    quantised = '' if gemm in tensors.WEIGHT_GRADS else self.quantised
    if (operands, quantised) == (
      own_policy.operand_forms,
      own_policy.quantised,
    ):
      return own_policy
    return dataclasses.replace(
      own_policy, operand_forms=operands, quantised=quantised
    )

  def forms(self, gemm: str, operand: str) -> tuple[quantised_lib.Form, ...]:
    """Returns the forms that a GEMM quantises an operand to, in sequence."""
    forms = recipes.find_forms(self.operand_forms, gemm, operand)
    is_row = tensors.GEMMS.get(gemm, ('',))[0] == operand
    if forms or not is_row:
      return forms
    form = quantised_lib.row_forms(self.rows).get(operand)
    return (quantised_lib.FORMS[form],) if form else ()

  def storing(self, name: str) -> 'PrecisionPolicy':
    """Returns the policy of a stage that writes a tensor: its dtype stored."""
    if tensors.SPECS[name].kind != 'storage':
      return self
    own_storage = self.dtype(name)
    if own_storage == self.storage and not self.points:
      return self
    return dataclasses.replace(
      self,
      storage=own_storage,
      accumulation_order='ascending',
      points=self.points_inside,
    )

  def of_shared(self) -> 'PrecisionPolicy':
    """Returns the policy of shared experts, as a layer of one expert."""
    return dataclasses.replace(
      self, placement='combine', points=self.points_inside
    )

  def of_router(self) -> 'PrecisionPolicy':
    """Returns the policy of a router's GEMM, which reads no codes."""
    return dataclasses.replace(
      self, quantised='', rows='', x_form='', operand_forms=''
    )

  def golden(self) -> 'PrecisionPolicy':
    """Returns the same layer in float64 throughout."""
    return dataclasses.replace(
      self,
      storage='float64',
      accumulate='float64',
      accumulation_order='ascending',
      points=(),
    )


def with_form(policy: PrecisionPolicy, form: str) -> PrecisionPolicy:
  """Returns a policy with another activation, see `activation_of`."""
  plain = {name: getattr(PrecisionPolicy, name) for name in FORM}
  fields: dict[str, Any] = {**plain, **activation_of(form)}
  return dataclasses.replace(policy, **fields)


def list_other_forms(policy: PrecisionPolicy) -> list[str]:
  """Returns activations that a kernel may have in place of a policy's.

  Others with its limit and offset, and its own without one of its numbers.
  """
  names = [n for n in ACTIVATIONS if n not in (policy.activation, 'absolute')]
  forms = [
    dataclasses.replace(policy, activation=name, alpha=1.0) for name in names
  ]
  forms += [
    with_form(policy, policy.form.replace(f':{word}', ''))
    for word in policy.form.split(':')[1:]
  ]
  is_plain = policy.form == policy.activation
  gpt_oss = [with_form(policy, 'gpt_oss')] if is_plain else []
  return [other.form for other in (*forms, *gpt_oss)]


def points_of(name: str, policy: PrecisionPolicy) -> tuple[str, ...]:
  """Returns the points of a policy that affect a tensor.

  Those of a shared expert's tensor are those of the routed one.
  """
  names = {name, _COPY_OF.get(name), tensors.routed(name)}
  return tuple(word for word in policy.points if names & {*_point(word).stages})


def order_of(name: str, policy: PrecisionPolicy) -> str:
  """Returns the order, of `ROW_ORDERS`, in which a tensor's rows are added."""
  fields = (field for field, tensor in SUM_ORDERS.items() if tensor == name)
  return next((getattr(policy, field) for field in fields), 'slot')


def _point(word: str) -> Point:
  return POINTS[word.partition('=')[0]]


def sort_points(
  points: Iterable[str], own: Mapping[str, str], argument: str = 'points'
) -> tuple[str, ...]:
  """Returns points in the order of `POINTS`, dtypes by their names.

  Args:
    points: POINT=DTYPE each.
    own: dtypes by field of the policy, for points that name a field.
    argument: name of the points in error messages.

  Raises:
    ValueError: a word is not POINT=DTYPE, or a point has two dtypes.
  """
  dtypes: dict[str, str] = {}
  short = {row.short: name for name, row in storage.ROUNDED.items()}
  for word in points:
    name, _, dtype = word.partition('=')
    dtype = own.get(dtype, short.get(dtype, dtype))
    if name not in POINTS:
      expected = messages.refuse_choice(
        POINTS, name, quantity='some of', typed=word
      )
      raise ValueError(f'{argument}: {expected}')
    products = storage.EMULATED if name == 'operands' else ()
    dtype_names = [*_OWN, *storage.ROUNDED, *products]
    whole = POINTS[name] in TENSORS
    only_inside = dtype not in (*_OWN, *storage.FORMATS)
    if dtype not in dtype_names or (whole and only_inside):
      raise ValueError(
        f'{argument}: expected {name}=DTYPE, one of {dtype_names}, got {word!r}'
      )
    if dtypes.setdefault(name, dtype) != dtype:
      raise ValueError(
        f'{argument}: expected {name} once, got {dtypes[name]} too'
      )
  return tuple(f'{name}={dtypes[name]}' for name in POINTS if name in dtypes)
