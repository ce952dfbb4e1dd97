"""Exact lane: integer data on which every order of every sum is exact.

With the activation 'absolute' no stage divides or calls exp.  If the data are
integers and sum |a| |b| stays below 2^24 at every output, then each partial
sum, in any order and with any fused multiply-add, is an integer that float32
holds.  A stage's rounding to narrow storage starts from that one exact value,
and yields an integer again, if the dtype reaches so far: float16 ends at 65504,
so there the integers are smaller.  So every correct implementation gives the
same bits, and a bit that differs is a fault of schedule, address or
synchronisation.

`prove` shows this for given data with the values that are really stored, with
dy for the backward pass as well.  It computes in float32 itself: a sum of
magnitudes that reached 2^24 never falls below it again, however it is rounded,
and below it nothing is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import zlib

import numpy as np

from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import storage as storage_lib
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.array_typing import Float
from hpmoe.reference.contract.array_typing import Int
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy

LIMIT = 2**24  # Integers up to here are exact in float32.

# Odd values, of which an odd number is summed, so that few results are zero:
# a fault that meets a zero leaves no trace.
X_MAX = 15
_MAX_TERMS = 5
_MAX_ROUTING_WEIGHT = 8
_ROWS = 256  # Rows that `prove` holds at once.
_PIECE = 1 << 15  # Elements of an input that are looked at together.

# What overflows is refused.
_OVERFLOWS: np.errstate = np.errstate(over='ignore', invalid='ignore')

STORAGE = {name: row.numpy for name, row in storage_lib.STORED.items()}


class ExactnessError(ValueError):
  """The data are not exact: names the stage, the place and the bound."""


class OverflowsError(ExactnessError):
  """A value is larger than the storage dtype holds."""


# By stage the largest sum |a| |b| of any output element, all below `LIMIT`: the
# proof that data are exact.
Bounds = dict[str, int]


def make(
  config: MoEConfig,
  policy: PrecisionPolicy,
  topk_ids: Int[np.ndarray, 'R T K'],
  seed: int = 0,
  x_max: int | None = None,
  backward: bool = False,
) -> tuple[dict[str, np.ndarray], Bounds]:
  """Returns the inputs of `tensors.inputs` and the proof that they are exact.

  Rows of x are distinct (they begin with the token's number), experts are
  distinct, and the weights of a token's first eight slots are.  A column of
  w_gate_up reads 3 to 5 columns of x, which together read all of them if
  D <= 10 F; likewise w_down reads all of `activation` if F <= 5 D.  A limit of
  the activation is exceeded by some values of gate and of up, and not by some.

  With `backward` dy is among them, whose rows are distinct and odd, and the
  proof is for both passes: magnitudes leave room for the longer sums, and most
  rows of the weights, too, have an odd number of terms, so that few gradients
  are zero.

  Args:
    config: sizes.
    policy: storage one of `STORAGE`, activation 'absolute'.
    topk_ids: `[R, T, K]` int32, a valid routing.
    seed: of the values.
    x_max: odd, largest |x|; None means the first of `_MAGNITUDES` with which
      storage does not overflow.
    backward: whether dy is drawn.

  Raises:
    ExactnessError: the data would not be exact, or rows or experts coincide.
    ValueError: the policy is not one that can be exact.
  """
  _check_policy(policy)
  if config.sublayer:
    return _of_sublayer(config, policy, topk_ids, seed)
  storage = STORAGE[policy.storage]
  turn = _odd_turn if backward else _even_turn
  sizes = _magnitudes(config, policy, topk_ids) if backward else _MAGNITUDES
  largest = most_of_weights(policy)
  sizes = tuple(m for m in sizes if m.gate <= largest) or _MAGNITUDES[-1:]
  if x_max is not None:
    sizes = (dataclasses.replace(sizes[0], x=x_max),)

  def drawn(most: _Magnitudes):
    arrays = dict(
      x=_labelled_rows(config, seed, most.x).astype(storage),
      topk_ids=topk_ids,
      topk_weights=_routing_weights(config, seed),
      **_weights(config, storage, seed, most.gate, turn),
      **_shared_weights(config, storage, seed, most.gate, turn),
      **_biases(config, policy, seed, most),
    )
    _check_distinct(config, arrays)
    if backward:
      dy = _labelled_rows(config, seed, most.dy, 'exact/dy')
      arrays['dy'] = dy.astype(storage)
      _check_distinct_rows(config, 'dy', arrays['dy'])
    return arrays, proved(config, policy, arrays, ('exact', seed, most))

  return _first_stored(drawn, sizes)


@dataclasses.dataclass(frozen=True)
class _Magnitudes:
  """Largest |x|, |gate weight| and |dy|, all odd."""

  x: int
  gate: int
  dy: int


# Best first: larger values tell more faults apart.
_MAGNITUDES = tuple(
  _Magnitudes(*most)
  for most in (
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


def most_of_weights(policy: PrecisionPolicy) -> int:
  """Returns the largest number up to which all are weights; it is odd."""
  if policy.quantised:
    form = quantised.FORMS[policy.quantised]
    return quantised.ELEMENTS[form.element].most_whole
  return 2 ** storage_lib.FORMATS[policy.storage].digits - 1


def _first_stored(drawn: Callable, sizes: Sequence, error=OverflowsError):
  """Returns the data of the first sizes with which storage does not overflow.

  Raises:
    ExactnessError: what the last sizes raise; or others, of another kind.
  """
  for most in sizes[:-1]:
    try:
      return drawn(most)
    except error:
      continue
  return drawn(sizes[-1])


def _magnitudes(config, policy, topk_ids) -> tuple[_Magnitudes, ...]:
  """Returns those that fit whatever the signs, or else the smallest."""
  rows = int(np.bincount(topk_ids[topk_ids >= 0], minlength=1).max())

  def largest(most: _Magnitudes) -> int:
    found = _largest_sum(config, policy, rows, most)
    if config.d_shared:
      found += _largest_sum(config.shared(), policy, config.num_tokens, most)
    return found

  # A sixteenth is for what rounding to narrow storage may add.
  fits = tuple(m for m in _MAGNITUDES if largest(m) < LIMIT - LIMIT // 16)
  return fits or _MAGNITUDES[-1:]


def _largest_sum(config, policy, rows: int, most: _Magnitudes) -> int:
  """Bounds every sum of |a| |b| if the fullest expert has so many rows."""
  width, hidden = config.d_model, config.d_ff
  up_terms, down_terms = _terms(width, 2 * hidden), _terms(hidden, width)
  # Terms of a weight's row, at most: `_odd_turn` adds 2 to their mean.
  up_row = -(-up_terms * 2 * hidden // width) + 2
  down_row = -(-down_terms * width // hidden) + 2
  bias = most.x + 1 if config.bias else 0
  gate = up_terms * most.x * most.gate + bias
  up = up_terms * most.x + bias
  if policy.limit:
    up = min(up, policy.limit)
  activation = gate * (up + abs(policy.offset))
  expert_out = down_terms * activation + bias * _MAX_ROUTING_WEIGHT
  # The routing weight counts once on the way down and once on the way back.
  d_row = _MAX_ROUTING_WEIGHT * most.dy
  d_gate_up = down_row * d_row * gate
  return max(
    config.top_k * _MAX_ROUTING_WEIGHT * expert_out,
    width * most.dy * expert_out,
    hidden * down_row * most.dy * activation,
    rows * activation * d_row,
    rows * most.x * d_gate_up,
    config.top_k * up_row * d_gate_up,
  )


_FORWARD = ('gate_up', 'activation', 'expert_out', 'y')
_BACKWARD = (
  'd_expert_out',
  'd_topk_weights',
  'd_activation',
  'd_w_down',
  'd_gate_up',
  'd_expert_in',
  'd_w_gate_up',
  'dx',
)
_BACKWARD_OF_BIAS = ('d_b_down', 'd_b_gate_up')


def proved(
  config: MoEConfig,
  policy: PrecisionPolicy,
  arrays: Mapping[str, np.ndarray],
  drawn_from: tuple,
) -> Bounds:
  """Returns what `prove` says of drawn data, or what is kept of that.

  Args:
    config: sizes.
    policy: as for `make`.
    arrays: the data.
    drawn_from: all that decides their bits beside routing, sizes and policy.

  Raises:
    ExactnessError: what `prove` raises, which is not kept.
  """
  bounds = programs.remembered(
    __package__,
    ('dy' in arrays, config, policy, drawn_from),
    [arrays['topk_ids']],
    lambda: {
      stage: np.array(bound)
      for stage, bound in prove(config, policy, arrays).items()
    },
  )
  return {stage: int(bound) for stage, bound in bounds.items()}


@_OVERFLOWS
def prove(
  config: MoEConfig,
  policy: PrecisionPolicy,
  arrays: Mapping[str, np.ndarray],
) -> Bounds:
  """Proves that every sum is exact in float32 in any order.

  Works on a few hundred rows of one expert at a time; holds one `[R T, D]`
  float32 tensor besides, for both passes two and an expert's gradients.

  Args:
    config: sizes.
    policy: storage one of `STORAGE`, activation 'absolute'.
    arrays: tensors of `tensors.inputs`; with dy `[R, T, D]` both passes count.

  Raises:
    ExactnessError: an input is not integer, a sum |a| |b| reaches `LIMIT`, or
      a gate is 0.
    ValueError: the policy is not one that can be exact.
  """
  _check_policy(policy)
  backward = 'dy' in arrays
  for name in (*_numbers(config), *['dy'] * backward):
    _check_integers(name, arrays[name])
  if config.sublayer:
    return _prove_sublayer(config, policy, arrays)
  one = _prove_both if backward else _prove_forward
  bounds, *sums = _with_shared(one, config, policy, arrays)
  for stage, magnitude in zip(('y', 'dx'), sums):
    _bound(bounds, stage, magnitude, 'token')
    _check_stored(policy, stage, magnitude)
  return {stage: int(bound) for stage, bound in bounds.items()}


def _with_shared(prove_one: Callable, config, policy, arrays):
  """Returns bounds of stages, and sums of tokens, shared experts among them.

  Where all their weights are 0, as wide data have them, so is all they make.
  """
  beyond = _Beyond(policy)
  bounds, *sums = prove_one(config, policy, arrays, beyond)
  beyond.check()
  shared = [a for n, a in arrays.items() if n.startswith('w_shared_')]
  if any(array.any() for array in shared):
    policy = dataclasses.replace(policy, placement='combine')
    given = passes.shared_layer(config, arrays)
    try:
      more, *others = prove_one(config.shared(), policy, given, beyond)
    except ExactnessError as error:
      raise type(error)(f'shared experts: {error}') from error
    for name, routed in tensors.AS_ROUTED.items():
      if tensors.SPECS[name].part and routed in more:
        bounds[name] = more[routed]
    sums = [one + other for one, other in zip(sums, others)]
  return bounds, *sums


def _prove_forward(config, policy, arrays, beyond: '_Beyond'):
  """Returns bounds of stages, and `[R T, D]` magnitudes of y."""
  bounds, combined = dict.fromkeys(_FORWARD, 0), _per_token(config)
  for expert, chunks in _experts(config, arrays['topk_ids']):
    weights = _Weights.of(config, arrays, expert)
    for tokens, slots in chunks:
      rows = _Rows.of(arrays, expert, tokens, slots)
      held = _prove_rows(policy, weights, rows, bounds)
      beyond.look(held.gate_up)
      combined[tokens] += _combined(policy, rows, held)
  return bounds, combined


def _prove_both(config, policy, arrays, beyond: '_Beyond'):
  """Returns bounds of stages, and `[R T, D]` magnitudes of y and of dx."""
  more = _BACKWARD_OF_BIAS if config.bias else ()
  bounds = dict.fromkeys(_FORWARD + _BACKWARD + more, 0)
  combined, dx = _per_token(config), _per_token(config)
  for expert, chunks in _experts(config, arrays['topk_ids']):
    weights = _Weights.of(config, arrays, expert)
    made = dict(d_w_down=weights.w_down, d_w_gate_up=weights.w_gate_up)
    if config.bias:
      made |= dict(d_b_down=made['d_w_down'][:1])
      made |= dict(d_b_gate_up=made['d_w_gate_up'][:1])
    of_expert = {n: _Gradient.zeros(policy, like) for n, like in made.items()}
    for tokens, slots in chunks:
      rows = _Rows.of(arrays, expert, tokens, slots)
      held = _prove_rows(policy, weights, rows, bounds)
      beyond.look(held.gate_up)
      combined[tokens] += _combined(policy, rows, held)
      dy = _of_tokens(arrays, 'dy', tokens)
      grads = _prove_rows_grad(policy, weights, rows, held, dy, bounds)
      dx[tokens] += np.abs(grads.d_expert_in)
      again = _weight(policy, rows, 'expert_out')
      ones = np.ones_like(rows.weight)
      early = ones * _weight(policy, rows, *_EARLY)
      factors = dict(
        d_w_down=(held.activation, grads.d_expert_out * again),
        d_w_gate_up=(rows.x, grads.d_gate_up),
        d_b_down=(early, grads.d_expert_out),
        d_b_gate_up=(ones, grads.d_gate_up),
      )
      for stage, grad in of_expert.items():
        grad.add(*factors[stage])
    for stage, grad in of_expert.items():
      _bound(bounds, stage, grad.magnitude, f'expert {expert}, row')
      if grad.value is not None:
        _check_stored(policy, stage, grad.value)
  return bounds, combined, dx


def _of_sublayer(config, policy, topk_ids, seed):
  """Returns the inputs of a sub-layer, d_gate_up, and their proof."""
  storage, dims = STORAGE[policy.storage], config.dims()

  def drawn(most: int):
    def odd(name: str) -> np.ndarray:
      shape = tensors.SPECS[name].dims(**dims)
      of = stable_random.seed_of('exact', name, seed)
      return (2 * stable_random.integers(of, shape, most + 1) - most) * 1.0

    gains = np.exp2(_signs('exact/w_norm', seed, (dims['R'], dims['D'])) > 0)
    gains *= _signs('exact/w_norm/sign', seed, gains.shape)
    arrays = dict(
      activation=odd('activation').astype(storage),
      topk_ids=topk_ids,
      topk_weights=_routing_weights(config, seed),
      **_weights(config, storage, seed, min(most, 3), _odd_turn),
      w_norm=gains.astype(storage),
      d_gate_up=odd('gate_up').astype(storage),
    )
    return arrays, _prove_sublayer(config, policy, arrays)

  return _first_stored(drawn, (7, 5, 3, 1), ExactnessError)


def _signs(name: str, seed: int, shape) -> np.ndarray:
  drawn = stable_random.integers(stable_random.seed_of(name, seed), shape, 2)
  return 2.0 * drawn - 1


def _prove_sublayer(config, policy, arrays) -> Bounds:
  """Bounds each sum by the largest factor times the most terms."""
  sizes = {n: np.abs(_wide(arrays[n])) for n in arrays if n != 'topk_ids'}
  most = {name: float(size.max(initial=0)) for name, size in sizes.items()}
  down, up = sizes['w_down'], sizes['w_gate_up']
  rows = config.num_ranks * config.num_tokens
  k, gain, weight = config.top_k, most['w_norm'], most['topk_weights']
  found = dict(expert_out=most['activation'] * down.sum(-2).max())
  found['y'] = k * weight * found['expert_out']
  found['x'] = found['y'] * gain
  found['gate_up'] = found['x'] * up.sum(-2).max()
  if 'd_gate_up' in most:
    found['d_expert_in'] = most['d_gate_up'] * up.sum(-1).max()
    found['dx'] = k * found['d_expert_in']
    found['dy'] = found['dx'] * gain
    found['d_w_norm'] = config.num_tokens * found['dx'] * found['y']
    found['d_expert_out'] = found['dy'] * weight
    found['d_activation'] = found['d_expert_out'] * down.sum(-1).max()
    found['d_w_down'] = rows * most['activation'] * found['d_expert_out']
    found['d_w_gate_up'] = rows * found['x'] * most['d_gate_up']
  for stage, size in found.items():
    # A rounding to narrow storage may add as much again, at the most.
    if not 2 * size < LIMIT:
      raise ExactnessError(
        f'{stage}: expected sum |a| |b| < 2^23, got up to {size:.0f}'
      )
    if stage != 'd_w_norm':
      _check_stored(policy, stage, np.float32(size))
  return {stage: int(size) for stage, size in found.items()}


def _numbers(config) -> tuple[str, ...]:
  """Returns the inputs that are no ids."""
  return tuple(name for name in tensors.inputs(config) if name != 'topk_ids')


class _Beyond:
  """Whether values lie on both sides of a limit: else nobody meets it."""

  def __init__(self, policy):
    self._limit, self._seen = policy.limit, set()

  def look(self, gate_up: np.ndarray) -> None:
    if not self._limit or len(self._seen) == 6:
      return
    halves = np.split(gate_up, 2, axis=-1)
    for name, half in zip(('gate', 'up'), halves):
      sides = np.sign(half) * (np.abs(half) > self._limit)
      self._seen |= {(name, int(side)) for side in np.unique(sides)}

  def check(self) -> None:
    """Raises an ExactnessError: on one side there is nothing."""
    for name in ('gate', 'up') if self._limit else ():
      sides = sorted(side for half, side in self._seen if half == name)
      if {-1, 1} - {*sides}:
        raise ExactnessError(
          f'limit: expected one that exact data of this layer exceed, got '
          f'{self._limit:g}, which no {name} does in both directions'
        )


def _per_token(config) -> np.ndarray:
  tokens = config.num_ranks * config.num_tokens
  return np.zeros((tokens, config.d_model), np.float32)


def _magnitude(a, b) -> np.ndarray:
  """Returns sum |a| |b| of integers, exact below `LIMIT`."""
  return np.abs(a) @ np.abs(b)


@dataclasses.dataclass(frozen=True)
class _Gradient:
  """A weight's gradient: sum |a| |b|, and where storage may overflow, itself.

  The sum over all rows of an expert may be far larger than the value.
  """

  magnitude: np.ndarray
  value: np.ndarray | None

  @classmethod
  def zeros(cls, policy, weight: np.ndarray) -> '_Gradient':
    overflows = _largest(policy) < LIMIT
    value = np.zeros_like(weight) if overflows else None
    return cls(np.zeros_like(weight), value)

  def add(self, rows: np.ndarray, d_out: np.ndarray) -> None:
    self.magnitude[...] += _magnitude(rows.T, d_out)
    if self.value is not None:
      self.value[...] += rows.T @ d_out


@dataclasses.dataclass(frozen=True)
class _Weights:
  """One expert's weights in float32."""

  w_gate_up: Float[np.ndarray, 'D 2*F']
  w_down: Float[np.ndarray, 'F D']
  b_gate_up: Float[np.ndarray, '2*F'] | float = 0.0
  b_down: Float[np.ndarray, 'D'] | float = 0.0

  @classmethod
  def of(cls, config, arrays, expert) -> '_Weights':
    place = divmod(expert, config.experts_per_rank)
    names = (f.name for f in dataclasses.fields(cls))
    return cls(
      *(_wide(arrays[name][place]) for name in names if name in arrays)
    )


@dataclasses.dataclass(frozen=True)
class _Rows:
  """Some rows of one expert in float32, and where they are."""

  where: str
  x: Float[np.ndarray, 'n D']
  weight: Float[np.ndarray, 'n 1']

  @classmethod
  def of(cls, arrays, expert, tokens, slots) -> '_Rows':
    weight = _of_tokens(arrays, 'topk_weights', tokens)
    weight = weight[np.arange(len(tokens)), slots, None]
    return cls(f'expert {expert}, row', _of_tokens(arrays, 'x', tokens), weight)


def _of_tokens(arrays, name, tokens) -> Float[np.ndarray, 'n columns']:
  """Returns a few tokens of an input `[R, T, columns]` in float32."""
  values = arrays[name]
  return _wide(values.reshape(-1, values.shape[-1])[tokens])


def _wide(stored: np.ndarray) -> Float[np.ndarray, '...']:
  return stored.astype(np.float32, copy=False)


@dataclasses.dataclass(frozen=True)
class _Held:
  """What some rows store in the forward pass."""

  gate_up: Float[np.ndarray, 'n 2*F']
  activation: Float[np.ndarray, 'n F']
  expert_out: Float[np.ndarray, 'n D']


def _prove_rows(policy, weights: _Weights, rows: _Rows, bounds) -> _Held:
  """Bounds the stages of some rows of one expert; returns what they store."""
  sums = _magnitude(rows.x, weights.w_gate_up) + np.abs(weights.b_gate_up)
  _bound(bounds, 'gate_up', sums, rows.where)
  gate_up = rows.x @ weights.w_gate_up + weights.b_gate_up
  gate_up = _store(policy, 'gate_up', gate_up)

  gate, up, _ = _gated(policy, gate_up)
  _check_gates(gate, rows.where)
  activation = np.abs(gate) * up * _weight(policy, rows, 'activation')
  _bound(bounds, 'activation', np.abs(activation), rows.where)
  activation = _store(policy, 'activation', activation)

  bias = weights.b_down * _weight(policy, rows, 'activation')
  sums = _magnitude(activation, weights.w_down) + np.abs(bias)
  _bound(bounds, 'expert_out', sums, rows.where)
  expert_out = activation @ weights.w_down + bias
  expert_out = expert_out * _weight(policy, rows, 'expert_out')
  _bound(bounds, 'expert_out', np.abs(expert_out), rows.where)
  expert_out = _store(policy, 'expert_out', expert_out)
  return _Held(gate_up, activation, expert_out)


def _gated(policy, gate_up: np.ndarray):
  """Returns gate, up + offset, both clamped, and what passes, `[n, 2F]`."""
  gate, up = np.split(gate_up, 2, axis=-1)
  limit = policy.limit or np.inf
  passes = np.concatenate([gate <= limit, np.abs(up) <= limit], axis=-1)
  up = np.clip(up, -limit, limit) + np.float32(policy.offset)
  return np.minimum(gate, limit).astype(np.float32), up, passes


def _check_gates(gate: np.ndarray, where: str) -> None:
  """Refuses gates of 0, where frameworks differ on the slope of |gate|."""
  if (gate == 0).any():
    row, column = np.argwhere(gate == 0)[0]
    raise ExactnessError(
      f'gate: expected none to be 0, where |gate| has no slope, got 0 at '
      f'{where} {row}, column {column}'
    )


def _weight(policy, rows, *stages: str):
  """Returns the routing weights, if one of some stages applies them, or 1."""
  applied = tensors.WEIGHTED[policy.placement] in stages
  return rows.weight if applied else 1


# Stages of placements that are not `tensors.EARLY`, and of those that are.
_LATE, _EARLY = ('y', 'returned'), ('activation', 'expert_out')


def _combined(policy, rows: _Rows, held: _Held) -> np.ndarray:
  """Returns |w| |expert_out|, as a token adds it."""
  return np.abs(held.expert_out * _weight(policy, rows, *_LATE))


@dataclasses.dataclass(frozen=True)
class _Grads:
  """What some rows store in the backward pass."""

  d_expert_out: Float[np.ndarray, 'n D']
  d_gate_up: Float[np.ndarray, 'n 2*F']
  d_expert_in: Float[np.ndarray, 'n D']


def _prove_rows_grad(
  policy, weights: _Weights, rows: _Rows, held: _Held, dy, bounds
) -> _Grads:
  """Bounds the gradients of some rows of one expert; returns what they store.

  Products of three factors are exact in any order: those of two are no larger
  where the third is not zero, and do not matter where it is.
  """
  d_expert_out = dy * _weight(policy, rows, *_LATE)
  _bound(bounds, 'd_expert_out', np.abs(d_expert_out), rows.where)
  d_expert_out = _store(policy, 'd_expert_out', d_expert_out)

  sums = _magnitude(d_expert_out, weights.w_down.T)
  _bound(bounds, 'd_activation', sums, rows.where)
  d_activation = _store(policy, 'd_activation', d_expert_out @ weights.w_down.T)

  gate, up, passes = _gated(policy, held.gate_up)
  sums = np.abs(dy * held.expert_out).sum(-1, keepdims=True)
  if policy.placement == 'before_down':
    sums = np.abs(d_activation * gate * up).sum(-1, keepdims=True)
  if policy.placement == 'epilogue':
    sums = np.abs(d_activation * held.activation).sum(-1, keepdims=True)
  if policy.placement in tensors.EARLY:
    sums = sums + np.abs(dy * weights.b_down).sum(-1, keepdims=True)
  _bound(bounds, 'd_topk_weights', sums, rows.where)

  g = d_activation * _weight(policy, rows, *_EARLY)
  d_gate_up = passes * np.concatenate(
    [g * np.sign(gate) * up, g * np.abs(gate)], axis=-1
  )
  _bound(bounds, 'd_gate_up', np.abs(d_gate_up), rows.where)
  d_gate_up = _store(policy, 'd_gate_up', d_gate_up)

  sums = _magnitude(d_gate_up, weights.w_gate_up.T)
  _bound(bounds, 'd_expert_in', sums, rows.where)
  d_expert_in = _store(policy, 'd_expert_in', d_gate_up @ weights.w_gate_up.T)
  return _Grads(d_expert_out, d_gate_up, d_expert_in)


def _bound(bounds, stage, sums, where):
  largest = np.max(sums, initial=0)
  if not largest < LIMIT:
    row, column = np.unravel_index(sums.argmax(), sums.shape)
    raise ExactnessError(
      f'{stage}: expected sum |a| |b| < 2^24 = {LIMIT}, got {largest:.0f} '
      f'at {where} {row}, column {column}'
    )
  bounds[stage] = max(bounds[stage], largest)


def _experts(
  config: MoEConfig, topk_ids: Int[np.ndarray, 'R T K']
) -> Iterator[tuple[int, Iterator[tuple[np.ndarray, np.ndarray]]]]:
  """Yields experts that have rows, with those as `_row_chunks` cuts them."""
  chunks = _row_chunks(config, topk_ids)
  for expert, group in itertools.groupby(chunks, lambda chunk: chunk[0]):
    yield expert, ((tokens, slots) for _, tokens, slots in group)


def _row_chunks(
  config: MoEConfig, topk_ids: Int[np.ndarray, 'R T K']
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields (expert, tokens of all ranks, slots), a few hundred rows each."""
  ids = topk_ids.reshape(-1)
  used = ids >= 0
  order = np.argsort(ids, kind='stable')[np.count_nonzero(~used) :]
  ends = np.cumsum(np.bincount(ids[used], minlength=config.num_experts))
  for expert, end in enumerate(ends):
    begin = ends[expert - 1] if expert else 0
    for first in range(begin, end, _ROWS):
      rows = order[first : min(first + _ROWS, end)]
      yield expert, rows // config.top_k, rows % config.top_k


def _store(policy, stage, value) -> Float[np.ndarray, '...']:
  """Returns a sum that `_bound` has passed, as the next stage reads it."""
  _check_stored(policy, stage, value)
  return _wide(value.astype(STORAGE[policy.storage], copy=False))


def _largest(policy) -> float:
  return storage_lib.FORMATS[policy.storage].largest


def _check_stored(policy, stage, value):
  """Refuses values `[...]` below `LIMIT` that overflow when they are stored."""
  if _largest(policy) >= LIMIT:
    return
  most = np.max(np.abs(value), initial=0)
  if not most <= _largest(policy):
    raise OverflowsError(
      f'{stage}: expected values that {policy.storage} holds, at most '
      f'{_largest(policy):.0f}, got {most:.0f}'
    )


def _check_policy(policy):
  for name, known in (
    ('storage', tuple(STORAGE)),
    ('accumulate', ('float32',)),
    ('activation', ('absolute',)),
  ):
    if getattr(policy, name) not in known:
      raise ValueError(
        f'{name}: expected one of {known} in the exact lane, got '
        f'{getattr(policy, name)!r}'
      )
  for name in ('limit', 'offset'):
    if getattr(policy, name) % 1:
      raise ValueError(
        f'{name}: expected an integer in the exact lane, got '
        f'{getattr(policy, name):g}'
      )


def _check_integers(name, array):
  flat = array.reshape(-1)
  for first in range(0, flat.size, _PIECE):
    piece = _wide(flat[first : first + _PIECE])
    bad = piece != np.rint(piece)
    if bad.any():
      at = np.unravel_index(first + int(bad.argmax()), array.shape)
      raise ExactnessError(
        f'{name}: expected integers, got {array[at]} at {[int(i) for i in at]}'
      )


def _check_distinct_rows(config, name, values):
  rows = values.reshape(-1, config.d_model).astype(np.int8)
  distinct = len({row.tobytes() for row in rows})
  if distinct != len(rows):
    raise ExactnessError(
      f'{name}: expected {len(rows)} distinct rows, got {distinct}: d_model='
      f'{config.d_model} is too small to tell tokens apart'
    )


def _check_distinct(config, arrays):
  _check_distinct_rows(config, 'x', arrays['x'])
  for name in _numbers(config):
    if name in ('x', 'topk_weights'):
      continue
    # Shared experts are one on each rank.
    lead = 1 if tensors.SPECS[name].part == 'shared' else 2
    shape = arrays[name].shape
    experts = arrays[name].reshape(-1, *shape[lead:])
    marks = {zlib.crc32(expert) for expert in experts}
    if len(marks) != len(experts):
      raise ExactnessError(
        f'{name}: expected {len(experts)} distinct experts, got {len(marks)}'
      )


def _labelled_rows(
  config, seed, x_max, name='exact/x'
) -> Int[np.ndarray, 'R T D']:
  """Returns odd integers in [-x_max, x_max]; rows begin with their number."""
  shape = (config.num_ranks, config.num_tokens, config.d_model)
  seed = stable_random.seed_of(name, seed)
  return 2 * _numbered(seed, shape, x_max + 1) - x_max


def _numbered(seed: int, shape, levels: int) -> Int[np.ndarray, 'R X Y']:
  """Returns integers below `levels`; rows begin with their number's digits."""
  drawn = stable_random.integers(seed, shape, levels)
  number = np.arange(shape[0] * shape[1]).reshape(shape[:2])
  for column in range(shape[2]):
    if levels**column >= number.size:
      break
    drawn[..., column] = number // levels**column % levels
  return drawn


def _routing_weights(config, seed) -> Float[np.ndarray, 'R T K']:
  """Returns 1 to 8, distinct over a token's first eight slots."""
  shape = (config.num_ranks, config.num_tokens, 1)
  first = stable_random.integers(
    stable_random.seed_of('exact/topk_weights', seed),
    shape,
    _MAX_ROUTING_WEIGHT,
  )
  level = (first + np.arange(config.top_k)) % _MAX_ROUTING_WEIGHT
  return (1 + level).astype(np.float32)


# Which rows the columns of a sparse weight read, one after another.
_Turn = Callable[[int, int], np.ndarray]


def _even_turn(count: int, rows: int) -> Int[np.ndarray, 'count']:
  return np.arange(count) % rows


def _odd_turn(count: int, rows: int) -> Int[np.ndarray, 'count']:
  """Names every row an odd number of times, if the count is enough."""
  each = count // rows
  if not each:
    return np.arange(count)
  whole = rows * (each - 1 + each % 2)
  pairs, single = divmod(count - whole, 2)
  parts = (np.arange(n) for n in (pairs, pairs, single))
  return np.concatenate([np.arange(whole) % rows, *parts])


def _shared_weights(
  config, dtype, seed, gate_max, turn: _Turn = _even_turn
) -> dict[str, np.ndarray]:
  """Returns those of the shared experts, others on each rank."""
  if not config.d_shared:
    return {}
  of = config.shared(), dtype, seed, gate_max, turn, 'exact/shared'
  return tensors.of_shared(_weights(*of))


def _weights(
  config, dtype, seed, gate_max, turn: _Turn = _even_turn, of: str = 'exact'
) -> dict[str, np.ndarray]:
  """Returns sparse w_gate_up and w_down: odd gate, and +-1 elsewhere."""
  ranks, local = config.num_ranks, config.experts_per_rank
  width, hidden = config.d_model, config.d_ff
  w_gate_up = np.zeros((ranks, local, width, 2 * hidden), dtype)
  w_down = np.zeros((ranks, local, hidden, width), dtype)
  for expert in range(config.num_experts):
    place = divmod(expert, local)
    name = f'{of}/{expert}'
    rows, signs = _entries(f'{name}/w_gate_up', seed, width, 2 * hidden, turn)
    gate = stable_random.integers(
      stable_random.seed_of(name, 'gate', seed), (hidden,), gate_max + 1
    )
    signs[:hidden] *= (2 * gate - gate_max)[:, None]
    w_gate_up[place][rows, np.arange(2 * hidden)[:, None]] = signs
    rows, signs = _entries(f'{name}/w_down', seed, hidden, width, turn)
    w_down[place][rows, np.arange(width)[:, None]] = signs
  return dict(w_gate_up=w_gate_up, w_down=w_down)


def _biases(config, policy, seed, most: _Magnitudes) -> dict[str, np.ndarray]:
  """Returns integers, of which none is 0, so that gates, too, stay odd.

  Those of b_gate_up are even.  So are those of b_down, but where an odd offset
  makes up, and so the sum that it is added to, even.
  """
  found = {}
  for name in ('b_gate_up', 'b_down') if config.bias else ():
    local = config.experts_per_rank
    columns = tensors.SPECS[name].dims(**config.dims())[-1]
    # As many levels as x has, on both sides of 0; an expert begins with its
    # number.
    levels = most.x + 1
    drawn = _numbered(
      stable_random.seed_of('exact', name, seed),
      (config.num_ranks, local, columns),
      levels,
    )
    size = 2 * drawn - most.x
    values = size + np.sign(size)
    if name == 'b_down' and policy.offset % 2:
      values = size
    found[name] = values.astype(STORAGE[policy.storage])
  return found


def _terms(rows: int, columns: int) -> int:
  """Returns how many rows a column of a sparse weight reads: an odd number."""
  terms = max(3, -(-rows // columns)) | 1
  return min(terms, _MAX_TERMS, rows - 1 + rows % 2 or 1)


def _entries(
  name, seed, rows, columns, turn: _Turn
) -> tuple[Int[np.ndarray, 'columns terms'], Int[np.ndarray, 'columns terms']]:
  """Returns the rows where each column has an entry, an odd number, and +-1.

  Columns take their places in turn from one seeded order of the rows, so that
  rows up to `_MAX_TERMS` times the columns are all read.
  """
  seed = stable_random.seed_of(name, seed)
  terms = _terms(rows, columns)
  taken = turn(terms * columns, rows).reshape(columns, terms)
  places = stable_random.permutation(seed, rows)[taken]
  return places, 2 * stable_random.integers(seed + 1, places.shape, 2) - 1
