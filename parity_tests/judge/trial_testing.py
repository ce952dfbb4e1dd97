"""A layer in numpy, right or wrong in a known way, on which tests try verdicts.

Its arithmetic is not the oracle's: GEMMs sum in another order, as a kernel
would.  Forward and backward, whole passes: a kernel that returns only results.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

Gemm = Callable[[np.ndarray, np.ndarray], np.ndarray]
Arrays = Mapping[str, np.ndarray]


def blas(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  return a @ b


def ascending(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Product by product: `[n, y]` of `[n, x]` and `[x, y]`, all float32."""
  total = np.zeros((len(a), b.shape[1]), np.float32)
  for k in range(b.shape[0]):
    total += a[:, k : k + 1] * b[k]
  return total


def descending(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  return ascending(a[:, ::-1], b[::-1])


def even_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  return ascending(a[:, ::2], b[::2]) + ascending(a[:, 1::2], b[1::2])


def in_blocks(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """In blocks of 32 terms, added up one after another."""
  total = np.zeros((len(a), b.shape[1]), np.float32)
  for k in range(0, b.shape[0], 32):
    total += ascending(a[:, k : k + 32], b[k : k + 32])
  return total


def pairwise(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """As a tree."""
  if b.shape[0] <= 1:
    return ascending(a, b)
  half = b.shape[0] // 2
  return pairwise(a[:, :half], b[:half]) + pairwise(a[:, half:], b[half:])


_ORDERS = (blas, ascending, descending, even_odd, in_blocks, pairwise)
ORDERS = {order.__name__: order for order in _ORDERS}


def plain_silu(gate: np.ndarray) -> np.ndarray:
  return gate / (1 + np.exp(-gate))


def begins_with(gemm: Gemm, a, b, factor, bias) -> np.ndarray:
  """A sum whose first term is a bias `[y]`, times `[n, 1]`."""
  return gemm(np.hstack([factor, a]), np.vstack([bias, b]))


def ends_with(gemm: Gemm, a, b, factor, bias) -> np.ndarray:
  return gemm(a, b) + factor * bias


def plain_slope(gate: np.ndarray) -> np.ndarray:
  """Returns the derivative of silu."""
  s = 1 / (1 + np.exp(-gate))
  return s * (1 + gate * (1 - s))


def cut_bits(a: np.ndarray, digits: int) -> np.ndarray:
  """Returns float32 `[...]` rounded to that many bits of the mantissa."""
  low = 23 - digits
  word = a.view(np.uint32)
  word = word + np.uint32((1 << (low - 1)) - 1) + (word >> low & 1)
  return (word & ~np.uint32((1 << low) - 1)).view(np.float32)


# What a kernel may get wrong of biases and clamps; the last ones of gradients.
WRONG = (
  'b_gate_up forgotten',
  'b_down forgotten',
  'b_gate_up of the next expert',
  'b_down of the next expert',
  'b_down after the weight',
  'gate not clamped',
  'gate clamped below',
  'up not clamped',
  'no offset',
  'no alpha',
)
WRONG_GRADS = (
  'gradient through clamps',
  'no gradient at the limit',
  'no offset',
  'no alpha',
  'b_down forgotten',
  'd_b_down unweighted',
)

# Of shared experts, in either pass.
WRONG_SHARED = (
  'shared experts forgotten',
  'shared experts twice',
  'shared experts weighted',
  'shared experts added to what was rounded',
)


def _read_formulas():
  # Not above: a test copies this file to where the package has no other test's.
  from hpmoe.parity_tests.judge import activations_testing

  return activations_testing.FORMULAS


def _round_at(policy, point: str, a: np.ndarray) -> np.ndarray:
  """Returns float32 values as a kernel that rounds them there has them."""
  dtype = policy.rounding(point)
  if dtype is None:
    return a
  if dtype == 'tf32':
    return cut_bits(np.ascontiguousarray(a), 10)
  if dtype == 'tf32_rz':
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)
  with np.errstate(over='ignore'):
    return a.astype(storage.FORMATS[dtype].numpy).astype(np.float32)


# Bits of the mantissa of each part, and which parts are multiplied, in order.
_OF_TWO_PARTS = ((0, 0), (0, 1), (1, 0))
_SIX = (*_OF_TWO_PARTS, (1, 1), (0, 2), (2, 0))
_PARTS = {
  'tf32x3': (10, _OF_TWO_PARTS),
  'bf16x3': (7, _OF_TWO_PARTS),
  'bf16x6': (7, _SIX),
  'bf16x9': (7, (*_SIX, (1, 2), (2, 1), (2, 2))),
}


def _side_by_side(products: str, a: np.ndarray, b: np.ndarray):
  """Returns parts `[n, p x]` and `[p x, y]` of `[n, x]` and `[x, y]`."""
  digits, pairs = _PARTS[products]

  def split(m: np.ndarray) -> list[np.ndarray]:
    parts = []
    for _ in range(3):
      parts.append(cut_bits(np.ascontiguousarray(m), digits))
      m = m - parts[-1]
    return parts

  of_a, of_b = split(a), split(b)
  return (
    np.hstack([of_a[i] for i, _ in pairs]),
    np.vstack([of_b[j] for _, j in pairs]),
  )


@dataclasses.dataclass(frozen=True)
class Kernel:
  """How a kernel computes.

  Attributes:
    gemm: sums of products, float32.
    operand_bits: of the mantissa that GEMMs read: TF32 has 10, bfloat16 7.
    silu: factor that silu is off by.
    slope: factor that its derivative is off by.
    silu_of: computes it.
    slope_of: computes its derivative.
    round_weights: routing weights are rounded to the storage dtype, in float32
      to bfloat16.
    truncate: stores cut a mantissa off instead of rounding.
    add_bias: adds one to a product of matrices.
    first_row_whole: the first row of a token is added as it is, whatever the
      policy rounds a running sum to.
    wrong: one of `WRONG`, `WRONG_GRADS` or `WRONG_SHARED`, what it gets wrong
      of parts; or ''.
  """

  gemm: Gemm = blas
  operand_bits: int = 23
  silu: float = 1.0
  slope: float = 1.0
  silu_of: Callable[[np.ndarray], np.ndarray] = plain_silu
  slope_of: Callable[[np.ndarray], np.ndarray] = plain_slope
  round_weights: bool = False
  truncate: bool = False
  add_bias: Callable[..., np.ndarray] = ends_with
  first_row_whole: bool = False
  wrong: str = ''

  def _store(self, policy, a: np.ndarray) -> np.ndarray:
    stored_format = storage.FORMATS[policy.storage]
    if self.truncate:
      low = np.uint32((1 << 24 - stored_format.digits) - 1)
      a = (a.view(np.uint32) & ~low).view(np.float32)
    return a.astype(stored_format.numpy)

  def _multiply(
    self, policy, a, b, bias=None, factor=None, after=None
  ) -> np.ndarray:
    a, b = (
      np.ascontiguousarray(m.astype(np.float32)).astype(np.float32)
      for m in (a, b)
    )
    if self.operand_bits < 23:
      a, b = (cut_bits(m, self.operand_bits) for m in (a, b))
    a, b = (_round_at(policy, 'operands', m) for m in (a, b))
    products = policy.roundings.get('operands')
    if products in _PARTS:
      a, b = _side_by_side(products, a, b)
    gemm = self.gemm
    if policy.rounding('accumulator'):
      gemm = functools.partial(self._in_blocks, policy)
    if bias is None:
      sums = gemm(a, b)
    else:
      if factor is None:
        factor = np.ones((len(a), 1), np.float32)
      sums = self.add_bias(gemm, a, b, factor, bias.astype(np.float32))
    return self._store(policy, sums if after is None else sums * after)

  def _expert(self, policy, a, arrays, name, expert, *beside) -> np.ndarray:
    """Returns rows times weights of one expert, see `_multiply`."""
    return self._multiply(policy, a, arrays[name][expert], *beside)

  def _in_blocks(self, policy, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for lo in range(0, len(b), precision.BLOCK_INNER):
      block = slice(lo, lo + precision.BLOCK_INNER)
      total = total + self.gemm(
        np.ascontiguousarray(a[:, block]), np.ascontiguousarray(b[block])
      )
      total = _round_at(policy, 'accumulator', total)
    return total

  def _bias(
    self, config, arrays: Arrays, name: str, expert
  ) -> np.ndarray | None:
    """Returns an expert's bias, `[y]`; None: the layer has none."""
    if not config.bias or self.wrong == f'{name} forgotten':
      return None
    if self.wrong == f'{name} of the next expert':
      rank, local = expert
      expert = rank, (local + 1) % config.experts_per_rank
    return arrays[name][expert]

  def _gated(self, policy, gate_up: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns gate and up `[n, F]`, clamped and moved, and what passes."""
    gate, up = np.split(gate_up.astype(np.float32), 2, axis=1)
    limit = np.float32(policy.limit or np.inf)
    passes = np.hstack([gate <= limit, np.abs(up) <= limit])
    if self.wrong == 'gradient through clamps':
      passes[:] = True
    if self.wrong == 'no gradient at the limit':
      passes = np.hstack([gate < limit, np.abs(up) < limit])
    if self.wrong != 'gate not clamped':
      gate = np.minimum(gate, limit)
    if self.wrong == 'gate clamped below':
      gate = np.maximum(gate, -limit)
    if self.wrong != 'up not clamped':
      up = np.clip(up, -limit, limit)
    offset = 0 if self.wrong == 'no offset' else policy.offset
    return gate, up + np.float32(offset), passes

  def _weights(self, policy, weights: np.ndarray) -> np.ndarray:
    if not self.round_weights:
      return _round_at(policy, 'routing_weight', weights.astype(np.float32))
    narrow = 'bfloat16' if policy.storage == 'float32' else policy.storage
    return cut_bits(weights, storage.FORMATS[narrow].digits - 1)

  def _act(self, policy, gate: np.ndarray) -> np.ndarray:
    if policy.activation == 'absolute':
      return np.abs(gate)
    if policy.activation != 'swiglu':
      return _read_formulas()[policy.activation][0](gate)
    with np.errstate(over='ignore', invalid='ignore'):
      alpha = self._alpha(policy)
      if alpha != 1:
        return gate / (1 + np.exp(-alpha * gate)) * np.float32(self.silu)
      return self.silu_of(gate) * np.float32(self.silu)

  def _alpha(self, policy) -> np.float32:
    return np.float32(1 if self.wrong == 'no alpha' else policy.alpha)

  def _slope(self, policy, gate: np.ndarray) -> np.ndarray:
    if policy.activation == 'absolute':
      return np.sign(gate)
    if policy.activation != 'swiglu':
      return _read_formulas()[policy.activation][1](gate)
    with np.errstate(over='ignore', invalid='ignore'):
      z = gate * self._alpha(policy)
      return self.slope_of(z) * np.float32(self.slope)

  def forward(
    self,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    arrays: Arrays,
  ) -> dict[str, np.ndarray]:
    """Returns the tensors of `tensors.stages` by name."""
    lay = _Layout.from_arrays(config, arrays)
    weights = self._weights(policy, arrays['topk_weights']).reshape(
      lay.row.shape
    )
    at_stage = tensors.WEIGHTED[policy.placement]
    early = at_stage == 'activation'
    computed = lay.empty(policy, tensors.stages(config))
    x = arrays['x'].reshape(-1, config.d_model)
    at_input = at_stage == 'expert_in'
    returned_rows = computed['returned'].reshape(*lay.row.shape, -1)
    for expert, rows, token, slot in lay.experts():
      rows_in = x[token]
      if at_input:
        rows_in = self._store(
          policy.storing('expert_in'),
          rows_in.astype(np.float32) * weights[token, slot, None],
        )
      storing = policy.storing('gate_up')
      bias = self._bias(config, arrays, 'b_gate_up', expert)
      gate_up = self._expert(
        storing, rows_in, arrays, 'w_gate_up', expert, bias
      )
      gate, up, _ = self._gated(policy, gate_up)
      hidden = self._unweighted(policy, gate, up)
      if early:
        hidden = hidden * weights[token, slot, None]
      hidden = self._store(policy.storing('activation'), hidden)
      storing = policy.storing('expert_out')
      bias = self._bias(config, arrays, 'b_down', expert)
      factor = weights[token, slot, None] if early else None
      if self.wrong == 'b_down after the weight':
        factor = None if early else 1 / weights[token, slot, None]
      after = weights[token, slot, None] if at_stage == 'expert_out' else None
      weight_of_expert = arrays, 'w_down', expert
      out = self._expert(
        storing, hidden, *weight_of_expert, bias, factor, after
      )
      computed['expert_in'][rows], computed['gate_up'][rows] = rows_in, gate_up
      computed['activation'][rows], computed['expert_out'][rows] = hidden, out
      if at_stage == 'returned':
        out = self._store(
          policy.storing('returned'),
          out.astype(np.float32) * weights[token, slot, None],
        )
      returned_rows[token, slot] = out
    computed |= self._of_shared(self.forward, config, policy, arrays)
    late = weights if at_stage == 'y' else None
    computed['y'][:] = self._sum(
      policy, 'y', returned_rows, late, computed.get('shared_out'), lay
    ).reshape(computed['y'].shape)
    return computed

  def _unweighted(self, policy, gate: np.ndarray, up: np.ndarray):
    act = _round_at(policy, 'silu', self._act(policy, gate))
    return _round_at(policy, 'product', act * up)

  def _of_shared(self, run, config, policy, arrays: Arrays) -> Arrays:
    """Returns what a pass makes of the shared experts, if there are any."""
    if not config.d_shared:
      return {}
    layer, arrays_of_shared = (
      config.shared(),
      passes.shared_layer(config, arrays),
    )
    # What comes home is of no interest, nor are gradients of weights of 1.
    arrays_of_shared['returned'] = np.zeros_like(arrays['x'])[:, :, None]
    return tensors.of_shared(run(layer, policy.of_shared(), arrays_of_shared))

  def _sum(self, policy, name, rows, weights, last, lay: '_Layout'):
    """Returns rows of slots summed by weights, and `last` `[R, T, D]`."""
    if last is None or self.wrong == 'shared experts forgotten':
      return self._combine(policy, name, lay.ids, rows, weights)
    last = last.reshape(rows[:, 0].shape).astype(np.float32)
    if self.wrong == 'shared experts twice':
      last = 2 * last
    if self.wrong == 'shared experts weighted':
      last = last * lay.weights[:, :1]
    last_in_sum = last
    if self.wrong == 'shared experts added to what was rounded':
      last_in_sum = None
    sums = self._combine(policy, name, lay.ids, rows, weights, last_in_sum)
    if last_in_sum is None:
      sums = self._store(policy, sums.astype(np.float32) + last)
    return sums

  def results(
    self, inputs: inputs_lib.LayerInputs, backward: bool = False
  ) -> dict[str, np.ndarray]:
    """Returns y, or the gradients, by name."""
    run, layer_pass = self.forward, passes.FORWARD
    if backward:
      run, layer_pass = self.backward, passes.BACKWARD
    all_ = run(inputs.config, inputs.policy, inputs.arrays)
    results = layer_pass.of_layer(inputs.config).results
    return {name: all_[name] for name in results}

  def _combine(
    self, policy, name: str, ids, rows: np.ndarray, weights, last=None
  ) -> np.ndarray:
    terms = rows.astype(np.float32)
    if weights is not None:
      terms = _round_at(policy, 'weighted', terms * weights[..., None])
    order = precision.order_of(name, policy)
    if order != 'slot':
      key = ids if order == 'expert' else -ids
      terms = np.take_along_axis(terms, np.argsort(key)[..., None], axis=1)
    total = np.zeros(rows[:, 0].shape, np.float32)
    point = precision.RUNNING_SUMS[name]
    for k in range(rows.shape[1]):
      total = total + terms[:, k]
      if k or not self.first_row_whole:
        total = _round_at(policy, point, total)
    if last is not None:
      total = _round_at(policy, precision.ROUTED_SUMS[name], total) + last
    return self._store(policy.storing(name), total)

  def backward(
    self,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    arrays: Arrays,
  ) -> dict[str, np.ndarray]:
    """Returns the tensors of `tensors.grads` by name.

    Args:
      config: sizes.
      policy: precision.
      arrays: what a backward pass reads.
    """
    lay = _Layout.from_arrays(config, arrays)
    weights = self._weights(policy, arrays['topk_weights']).reshape(
      lay.row.shape
    )
    early = policy.placement in tensors.EARLY
    at_stage = tensors.WEIGHTED[policy.placement]
    at_input = at_stage == 'expert_in'
    computed = lay.empty(policy, tensors.grads(config))
    dy = arrays['dy'].reshape(-1, config.d_model)
    d_weights = computed['d_topk_weights'].reshape(lay.row.shape)
    rows_back = computed['d_returned'].reshape(*lay.row.shape, config.d_model)
    if not (early or at_input):
      returned_rows = lay.home(arrays, policy)
      self._weight_grads(policy, dy, returned_rows, d_weights)
    for expert, rows, token, slot in lay.experts():
      w = weights[token, slot, None]
      d_out = dy[token]
      if not (early or at_input):
        storing = policy.storing('d_expert_out')
        d_out = self._store(storing, d_out.astype(np.float32) * w)
      storing = policy.storing('d_activation')
      d_act = self._multiply(storing, d_out, arrays['w_down'][expert].T)
      storing, weighed = policy.storing('d_w_down'), d_out
      if at_stage == 'expert_out':
        weighed = self._store(storing, d_out.astype(np.float32) * w)
      computed['d_w_down'][expert] = self._multiply(
        storing, arrays['activation'][rows].T, weighed
      )
      gate, up, passes = self._gated(policy, arrays['gate_up'][rows])
      act, grad = self._act(policy, gate), d_act.astype(np.float32)
      act = _round_at(policy, 'silu', act)
      if early:
        unweighted = self._unweighted(policy, gate, up)
        if at_stage == 'expert_out':
          unweighted = arrays['activation'][rows].astype(np.float32)
        bias = self._bias(config, arrays, 'b_down', expert)
        if bias is not None:
          bias = np.broadcast_to(bias.astype(np.float32), d_out.shape)
          unweighted = np.hstack([unweighted, bias])
          grad = np.hstack([grad, d_out.astype(np.float32)])
        d_weights[token, slot] = self._dots(policy, grad, unweighted)
        grad = grad[:, : act.shape[1]] * w
      d_silu = _round_at(policy, 'd_silu', grad * up)
      d_gate = d_silu * self._slope(policy, gate)
      d_gate_up = passes * np.hstack([d_gate, grad * act])
      d_gate_up = self._store(policy.storing('d_gate_up'), d_gate_up)
      if config.bias:
        unit_factor = np.ones_like(w)
        factor = (
          w if early and self.wrong != 'd_b_down unweighted' else unit_factor
        )
        storing = policy.storing('d_b_down')
        computed['d_b_down'][expert] = self._multiply(storing, factor.T, d_out)[
          0
        ]
        storing = policy.storing('d_b_gate_up')
        computed['d_b_gate_up'][expert] = self._multiply(
          storing, unit_factor.T, d_gate_up
        )[0]
      computed['d_w_gate_up'][expert] = self._multiply(
        policy.storing('d_w_gate_up'), arrays['expert_in'][rows].T, d_gate_up
      )
      storing = policy.storing('d_expert_in')
      d_in = self._multiply(storing, d_gate_up, arrays['w_gate_up'][expert].T)
      computed['d_expert_out'][rows], computed['d_activation'][rows] = (
        d_out,
        d_act,
      )
      computed['d_gate_up'][rows], computed['d_expert_in'][rows] = (
        d_gate_up,
        d_in,
      )
      rows_back[token, slot] = d_in
    computed |= self._of_shared(self.backward, config, policy, arrays)
    last = computed.get('d_shared_in')
    if at_input:
      x = arrays['x'].reshape(-1, config.d_model)
      self._weight_grads(policy, x, rows_back, d_weights)
    computed['dx'][:] = self._sum(
      policy, 'dx', rows_back, weights if at_input else None, last, lay
    ).reshape(computed['dx'].shape)
    return computed

  def _weight_grads(self, policy, tokens, rows, d_weights: np.ndarray) -> None:
    """Fills `[R T, K]`, products of tokens with rows at their slots."""
    wide = tokens.astype(np.float32)
    for k in range(rows.shape[1]):
      of_slot = rows[:, k].astype(np.float32)
      d_weights[:, k] = self._dots(policy, wide, of_slot)

  def _dots(self, policy, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns `[n]`, the inner products of rows `[n, x]`, both float32."""
    if self.operand_bits < 23:
      a, b = (cut_bits(m, self.operand_bits) for m in (a, b))
    terms = _round_at(policy, 'd_weighted', a * b)
    return self.gemm(terms, np.ones((a.shape[1], 1), np.float32))[:, 0]


@dataclasses.dataclass(frozen=True)
class _Layout:
  """Where rows lie.

  Attributes:
    config: sizes.
    ids: `[R T, K]` experts.
    row: `[R T, K]` packed row on the expert's rank.
    weights: `[R T, K]` routing weights.
  """

  config: config_lib.MoEConfig
  ids: np.ndarray
  row: np.ndarray
  weights: np.ndarray

  @classmethod
  def from_arrays(
    cls, config: config_lib.MoEConfig, arrays: Arrays
  ) -> '_Layout':
    ids = arrays['topk_ids'].reshape(-1, config.top_k)
    row = tiling(config, arrays).row_of_slot.reshape(ids.shape)
    return cls(config, ids, row, arrays['topk_weights'].reshape(ids.shape))

  def experts(self):
    """Yields (rank and local expert, its packed rows, tokens, slots)."""
    for expert in range(self.config.num_experts):
      place = divmod(expert, self.config.experts_per_rank)
      token, slot = np.nonzero(self.ids == expert)
      yield place, (place[0], self.row[token, slot]), token, slot

  def home(self, arrays: Arrays, policy) -> np.ndarray:
    """Returns `[R T, K, D]`, rows at their slots before they are weighted."""
    if policy.placement != 'returned':
      return arrays['returned'].reshape(*self.row.shape, -1)
    return arrays['expert_out'][
      self.ids // self.config.experts_per_rank, self.row
    ]

  def empty(self, policy, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns tensors of zeros."""
    dims = self.config.dims()
    return {
      name: np.zeros(
        tensors.SPECS[name].dims(**dims), ulp.storage_dtype(policy.dtype(name))
      )
      for name in names
    }


def tiling(config: config_lib.MoEConfig, arrays: Arrays) -> tiles.Tiling:
  """Returns the tiles of a routing, planned in numpy."""
  ids = arrays['topk_ids'].reshape(config.num_ranks, -1)
  num_experts = config.num_experts
  counts = [np.bincount(i[i >= 0], minlength=num_experts) for i in ids]
  everyone = ids.reshape(-1)
  order = np.argsort(everyone, kind='stable')
  place = np.empty_like(order)
  place[order] = np.arange(len(order))
  owner = everyone // config.experts_per_rank
  first = np.searchsorted(owner[order], np.arange(config.num_ranks))
  row = np.where(owner < 0, -1, place - first[owner])
  row = row.reshape(arrays['topk_ids'].shape)
  return tiles.Tiling(config, np.stack(counts), row, arrays['topk_ids'])
