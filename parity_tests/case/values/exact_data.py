"""Data of the exact lane: integers on which every order of every sum is exact.

With the activation 'absolute' no stage divides or calls exp.  If the data are
integers and sum |a| |b| stays below 2^24 at every output element, each partial
sum, in any order and with any fused multiply-add, is an integer that float32
holds.  Rounding to narrow storage starts from that exact value, and yields an
integer again if the dtype holds one of that size.  float16 ends at 65504, so
its integers are smaller.  Every correct implementation therefore gives the same
bits: a different bit is a fault of schedule, address or synchronisation.

`exact_proof.prove` proves this for the drawn data.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.cache import array_recipes
from hpmoe.parity_tests.case import shared_memory
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.case.values import exact_proof
from hpmoe.parity_tests.case.values import sparse
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.array_typing import Float
from hpmoe.reference.contract.array_typing import Int
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy

# Values are odd, and sums have an odd number of terms, so that few results are
# zero: a fault on a zero leaves no trace.
X_MAX = 15
_MAX_TERMS = 5
_ROUTING_WEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8)
# Where they multiply the input of both GEMMs, whose sums must stay odd.
_OF_INPUT = (1, 3, -1, -3)


def make(
  config: MoEConfig,
  policy: PrecisionPolicy,
  topk_ids: Int[np.ndarray, 'R T K'],
  seed: int = 0,
  x_max: int | None = None,
  backward: bool = False,
) -> tuple[dict[str, np.ndarray], exact_limits.Bounds]:
  """Returns the tensors of `tensors.inputs`, and the proof that they are exact.

  Rows of x are distinct (each begins with the token's number), and so are
  experts and the routing weights of a token's first eight slots.  A column of
  w_gate_up reads 3 to 5 columns of x; together the columns read all of x if
  D <= 10 F.  Likewise w_down reads all of `activation` if F <= 5 D.  If the
  activation has a limit, some values of gate and of up exceed it and some do
  not.

  With `backward`, dy is drawn too, with distinct odd rows, and the proof covers
  both passes.  Magnitudes then leave room for the longer sums, and most rows of
  the weights also have an odd number of terms, so that few gradients are zero.

  Args:
    config: sizes.
    policy: storage one of `exact_limits.STORAGE`, activation 'absolute'.
    topk_ids: `[R, T, K]` int32, a valid routing.
    seed: of the values.
    x_max: largest |x|, odd; None: the first of `_MAGNITUDES` with which storage
      does not overflow.
    backward: whether to draw dy and prove the backward pass.

  Raises:
    exact_limits.ExactnessError: the data would not be exact, or two rows or two
      experts are equal.
    ValueError: the policy cannot be exact.
  """
  exact_limits.check_policy(policy)
  if config.sublayer:
    return _make_sublayer(config, policy, topk_ids, seed)
  storage = exact_limits.STORAGE[policy.storage]
  cycle = _cycle_rows_oddly if backward else _cycle_rows
  sizes = _magnitudes(config, policy, topk_ids) if backward else _MAGNITUDES
  largest_gate = largest_whole(policy, 'w_gate_up')
  largest_x = largest_whole(policy, 'x')
  sizes = tuple(m for m in sizes if m.gate <= largest_gate and m.x <= largest_x)
  sizes = sizes or _MAGNITUDES[-1:]
  if x_max is not None:
    sizes = (dataclasses.replace(sizes[0], x=x_max),)

  def draw_arrays(magnitudes: _Magnitudes):
    arrays = dict(
      x=_draw_rows(config, seed, magnitudes.x).astype(storage),
      topk_ids=topk_ids,
      topk_weights=_draw_routing_weights(config, seed, _list_weights(policy)),
      **_draw_weights(config, storage, seed, magnitudes.gate, cycle),
      **_draw_shared_weights(config, storage, seed, magnitudes.gate, cycle),
      **_draw_biases(config, policy, seed, magnitudes),
    )
    exact_proof.check_distinct(config, arrays)
    if backward:
      dy = _draw_rows(config, seed, magnitudes.dy, 'exact/dy')
      arrays['dy'] = dy.astype(storage)
      exact_proof.check_distinct_rows(config, 'dy', arrays['dy'])
    return arrays, exact_proof.recall_proof(
      config, policy, arrays, ('exact', seed, magnitudes)
    )

  return _draw_largest_stored(draw_arrays, sizes)


@dataclasses.dataclass(frozen=True)
class _Magnitudes:
  """Largest |x|, |gate weight| and |dy|, all odd."""

  x: int
  gate: int
  dy: int


# Best first: larger values tell more faults apart.
_MAGNITUDES = tuple(
  _Magnitudes(*sizes)
  for sizes in (
    (15, 15, 15),
    (15, 7, 15),
    (7, 7, 7),
    (7, 3, 7),
    (3, 3, 3),
    (3, 1, 3),
    (1, 1, 3),
    (1, 1, 1),
  )
)


def largest_whole(policy: PrecisionPolicy, name: str) -> int:
  """Returns the largest n, odd, such that an input can hold all of 1 to n.

  Args:
    policy: the form of the input, or its storage.
    name: of `tensors.inputs`.
  """
  if name in policy.coded:
    form = quantised.FORMS[policy.coded[name]]
    return quantised.ELEMENTS[form.element].most_whole
  return 2 ** exact_limits.limiting_format(policy).digits - 1


def _draw_largest_stored(
  draw: Callable, sizes: Sequence, error=exact_limits.OverflowsError
):
  """Returns the data of the first sizes for which `draw` raises no `error`.

  Raises:
    ExactnessError: the last sizes fail too, or `draw` raised another kind.
  """
  for magnitudes in sizes[:-1]:
    try:
      return draw(magnitudes)
    except error:
      continue
  return draw(sizes[-1])


def _magnitudes(config, policy, topk_ids) -> tuple[_Magnitudes, ...]:
  """Returns the magnitudes that fit for any signs, or else the smallest."""
  rows = int(np.bincount(topk_ids[topk_ids >= 0], minlength=1).max())

  def bound_all_sums(magnitudes: _Magnitudes) -> int:
    largest_sum = _bound_sums(config, policy, rows, magnitudes)
    if config.d_shared:
      largest_sum += _bound_sums(
        config.shared(), policy, config.num_tokens, magnitudes
      )
    return largest_sum

  # Rounding to narrow storage may add up to a sixteenth.
  fits = tuple(
    m
    for m in _MAGNITUDES
    if bound_all_sums(m) < exact_limits.LIMIT - exact_limits.LIMIT // 16
  )
  return fits or _MAGNITUDES[-1:]


def _bound_sums(config, policy, rows: int, largest: _Magnitudes) -> int:
  """Bounds every sum of |a| |b| if the fullest expert has `rows` rows."""
  width, hidden = config.d_model, config.d_ff
  up_terms, down_terms = (
    _count_terms(width, 2 * hidden),
    _count_terms(hidden, width),
  )
  # Largest number of terms in a row of a weight: `_cycle_rows_oddly` adds 2 to
  # the mean.
  up_row = -(-up_terms * 2 * hidden // width) + 2
  down_row = -(-down_terms * width // hidden) + 2
  bias = largest.x + 1 if config.bias else 0
  # A routing weight counts once on the way down and once on the way back.
  weight, at_input = max(_list_weights(policy)), policy.placement == 'input'
  of_input, late = (weight, 1) if at_input else (1, weight)
  x = of_input * largest.x
  gate = up_terms * x * largest.gate + bias
  up = up_terms * x + bias
  if policy.limit:
    up = min(up, policy.limit)
  activation = gate * (up + abs(policy.offset))
  expert_out = down_terms * activation + bias * late
  d_row = late * largest.dy
  d_gate_up = down_row * d_row * gate
  return max(
    config.top_k * late * expert_out,
    width * largest.dy * expert_out,
    hidden * down_row * largest.dy * activation,
    rows * activation * d_row,
    rows * x * d_gate_up,
    config.top_k * of_input * up_row * d_gate_up,
    at_input * largest.x * up_terms * 2 * hidden * d_gate_up,
  )


def _make_sublayer(config, policy, topk_ids, seed):
  """Returns the inputs of a sub-layer, d_gate_up, and their proof."""
  storage, dims = exact_limits.STORAGE[policy.storage], config.dims()

  def draw_arrays(largest: int):
    def draw_odd(name: str) -> np.ndarray:
      shape = tensors.SPECS[name].dims(**dims)
      tensor_seed = stable_random.seed_of('exact', name, seed)
      return (
        2 * stable_random.integers(tensor_seed, shape, largest + 1) - largest
      ) * 1.0

    gains = np.exp2(
      _draw_signs('exact/w_norm', seed, (dims['R'], dims['D'])) > 0
    )
    gains *= _draw_signs('exact/w_norm/sign', seed, gains.shape)
    arrays = dict(
      activation=draw_odd('activation').astype(storage),
      topk_ids=topk_ids,
      topk_weights=_draw_routing_weights(config, seed),
      **_draw_weights(
        config, storage, seed, min(largest, 3), _cycle_rows_oddly
      ),
      w_norm=gains.astype(storage),
      d_gate_up=draw_odd('gate_up').astype(storage),
    )
    return arrays, exact_proof.prove_sublayer(config, policy, arrays)

  return _draw_largest_stored(
    draw_arrays, (7, 5, 3, 1), exact_limits.ExactnessError
  )


def _draw_signs(name: str, seed: int, shape) -> np.ndarray:
  bits = stable_random.integers(stable_random.seed_of(name, seed), shape, 2)
  return 2.0 * bits - 1


def _draw_rows(config, seed, x_max, name='exact/x') -> Int[np.ndarray, 'R T D']:
  """Returns odd integers in [-x_max, x_max]; a row begins with its number."""
  shape = (config.num_ranks, config.num_tokens, config.d_model)
  seed = stable_random.seed_of(name, seed)
  return 2 * _draw_numbered(seed, shape, x_max + 1) - x_max


def _draw_numbered(seed: int, shape, levels: int) -> Int[np.ndarray, 'R X Y']:
  """Returns integers below `levels`; a row begins with its number's digits."""
  digits = stable_random.integers(seed, shape, levels)
  number = np.arange(shape[0] * shape[1]).reshape(shape[:2])
  for column in range(shape[2]):
    if levels**column >= number.size:
      break
    digits[..., column] = number // levels**column % levels
  return digits


def _list_weights(policy) -> tuple[int, ...]:
  return _OF_INPUT if policy.placement == 'input' else _ROUTING_WEIGHTS


def _draw_routing_weights(
  config, seed, levels: Sequence[int] = _ROUTING_WEIGHTS
) -> Float[np.ndarray, 'R T K']:
  """Returns some of `levels`, each once before any of a token comes again."""
  shape = (config.num_ranks, config.num_tokens, 1)
  first = stable_random.integers(
    stable_random.seed_of('exact/topk_weights', seed),
    shape,
    len(levels),
  )
  level = (first + np.arange(config.top_k)) % len(levels)
  return np.array(levels, np.float32)[level]


# (count, rows) -> the rows that the columns of a sparse weight read, in order.
_RowCycle = Callable[[int, int], np.ndarray]


def _cycle_rows(count: int, rows: int) -> Int[np.ndarray, 'count']:
  return np.arange(count) % rows


def _cycle_rows_oddly(count: int, rows: int) -> Int[np.ndarray, 'count']:
  """Names every row an odd number of times, if the count is large enough."""
  repeats = count // rows
  if not repeats:
    return np.arange(count)
  whole = rows * (repeats - 1 + repeats % 2)
  pairs, single = divmod(count - whole, 2)
  parts = (np.arange(n) for n in (pairs, pairs, single))
  return np.concatenate([np.arange(whole) % rows, *parts])


def _draw_shared_weights(
  config, dtype, seed, gate_max, cycle: _RowCycle = _cycle_rows
) -> dict[str, np.ndarray]:
  """Returns the weights of the shared experts, equal on all ranks."""
  if not config.d_shared:
    return {}
  layer = config.shared()
  arguments = layer, dtype, seed, gate_max, cycle, 'exact/shared'
  first = [0] * layer.num_experts
  return tensors.of_shared(_draw_weights(*arguments, numbers=first))


def _draw_weights(
  config,
  dtype,
  seed,
  gate_max,
  cycle: _RowCycle = _cycle_rows,
  seed_prefix: str = 'exact',
  numbers: Sequence[int] | None = None,
) -> dict[str, np.ndarray]:
  """Returns sparse w_gate_up and w_down: odd gate entries, +-1 elsewhere.

  Experts of one number have equal weights; None: each has its own.
  """
  ranks, local = config.num_ranks, config.experts_per_rank
  width, hidden = config.d_model, config.d_ff
  w_gate_up = shared_memory.zeros((ranks, local, width, 2 * hidden), dtype)
  w_down = shared_memory.zeros((ranks, local, hidden, width), dtype)
  entries: dict[str, list[sparse.SparseWeight]] = dict(w_gate_up=[], w_down=[])

  def note_entries(name: str, rows: np.ndarray, values: np.ndarray) -> None:
    values = values.astype(np.float32)
    entries[name].append(sparse.SparseWeight(rows, values))

  numbers = range(config.num_experts) if numbers is None else numbers
  for expert, number in enumerate(numbers):
    place = divmod(expert, local)
    name = f'{seed_prefix}/{number}'
    rows, signs = _draw_entries(
      f'{name}/w_gate_up', seed, width, 2 * hidden, cycle
    )
    gate = stable_random.integers(
      stable_random.seed_of(name, 'gate', seed), (hidden,), gate_max + 1
    )
    signs[:hidden] *= (2 * gate - gate_max)[:, None]
    w_gate_up[place][rows, np.arange(2 * hidden)[:, None]] = signs
    note_entries('w_gate_up', rows, signs)
    rows, signs = _draw_entries(f'{name}/w_down', seed, hidden, width, cycle)
    w_down[place][rows, np.arange(width)[:, None]] = signs
    note_entries('w_down', rows, signs)
  weights = dict(w_gate_up=w_gate_up, w_down=w_down)
  for name, experts in entries.items():
    sparse.note(weights[name], experts)
  drawn_from = seed_prefix, seed, gate_max, cycle.__name__, tuple(numbers)
  return {
    name: array_recipes.note(array, name, *drawn_from)
    for name, array in weights.items()
  }


def _draw_biases(
  config, policy, seed, magnitudes: _Magnitudes
) -> dict[str, np.ndarray]:
  """Returns biases, integers without 0, such that gates stay odd.

  b_gate_up is even.  b_down is even too, unless the policy's offset is odd: an
  odd offset makes up even, and with it the sum that b_down is added to.
  """
  biases = {}
  for name in ('b_gate_up', 'b_down') if config.bias else ():
    local = config.experts_per_rank
    columns = tensors.SPECS[name].dims(**config.dims())[-1]
    # As many levels as x has, on both sides of 0; each expert's bias begins
    # with the expert's number.
    levels = magnitudes.x + 1
    level = _draw_numbered(
      stable_random.seed_of('exact', name, seed),
      (config.num_ranks, local, columns),
      levels,
    )
    size = 2 * level - magnitudes.x
    values = size + np.sign(size)
    if name == 'b_down' and policy.offset % 2:
      values = size
    biases[name] = values.astype(exact_limits.STORAGE[policy.storage])
  return biases


def _count_terms(rows: int, columns: int) -> int:
  """Returns how many rows a column of a sparse weight reads; it is odd."""
  terms = max(3, -(-rows // columns)) | 1
  return min(terms, _MAX_TERMS, rows - 1 + rows % 2 or 1)


def _draw_entries(
  name, seed, rows, columns, cycle: _RowCycle
) -> tuple[Int[np.ndarray, 'columns terms'], Int[np.ndarray, 'columns terms']]:
  """Returns the rows of each column's entries, and their signs +-1.

  Each column has an odd number of entries.  Columns take their rows in turn
  from one seeded order, so that all rows are read if there are at most
  `_MAX_TERMS` times as many rows as columns.
  """
  seed = stable_random.seed_of(name, seed)
  terms = _count_terms(rows, columns)
  positions = cycle(terms * columns, rows).reshape(columns, terms)
  places = stable_random.permutation(seed, rows)[positions]
  return places, 2 * stable_random.integers(seed + 1, places.shape, 2) - 1
