"""Wide exact data: operands that use every bit of the storage dtype.

The integers of `exact_data` have a few bits, so operands cut to bfloat16 or
fp8 stay exact.  Here each operand of each GEMM of both passes has numbers that
fill the mantissa.  Every sum has one term that is not zero, a wide number times
+-1, so any order of it is exact; `exact_proof.prove` shows it.

Each column of a weight has one entry.  A token uses one of its slots: the
other routing weights are 0.  Its dy has one entry, in a column that no other
token of that expert uses, so that a weight's gradient has one term as well.
What is wide goes by turns, over features and over tokens, for two wide numbers
must not meet: where they would, up is 0.  No gate is.  A layer of fewer than 4
columns has room for wide routing weights only.  Biases are 0, and
so are weights of shared experts: a sum has no room for another number.
"""

from collections.abc import Iterator
import dataclasses
import itertools

import numpy as np

from hpmoe.parity_tests.cache import array_recipes
from hpmoe.parity_tests.case import shared_memory
from hpmoe.parity_tests.case.values import exact_data
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.case.values import exact_proof
from hpmoe.parity_tests.case.values import sparse
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.array_typing import Int
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy

# What a column of x is for; columns take turns.  'x': x is wide there for some
# tokens.  'up': features with a wide weight read it, and it may be 0.
_COLUMNS = ('x', 'up', 'one', 'one')


@dataclasses.dataclass(frozen=True)
class _Feature:
  """What a feature reads.

  Attributes:
    gate, up: the kind of column of x that each reads.
    wide: 'gate', 'up' or 'down', the weight that is wide; or None.
  """

  gate: str
  up: str
  wide: str | None = None


# Features take turns.
_FEATURES = (
  _Feature('one', 'one'),
  _Feature('x', 'one'),
  _Feature('one', 'up', 'gate'),
  _Feature('one', 'up', 'down'),
  _Feature('one', 'x'),
  _Feature('one', 'up', 'up'),
)


@dataclasses.dataclass(frozen=True)
class _Role:
  """What is wide of a token.

  Attributes:
    wide: 'x', 'dy' or 'topk_weights'; or None, where its experts' weights are.
    reads_up: whether x is not 0 in columns 'up': what they feed is wide too.
    features: one of them is what dy meets.
  """

  wide: str | None
  reads_up: bool
  features: tuple[_Feature, ...]


_X_FEATURES = tuple(f for f in _FEATURES if 'x' in (f.gate, f.up))
_ROLES = (
  _Role('x', True, _FEATURES[:1]),
  _Role(None, True, tuple(f for f in _FEATURES if f.wide)),
  _Role('dy', False, _X_FEATURES),
  _Role('topk_weights', False, _X_FEATURES),
)


def make(
  config: MoEConfig,
  policy: PrecisionPolicy,
  topk_ids: Int[np.ndarray, 'R T K'],
  seed: int = 0,
  backward: bool = True,
) -> tuple[dict[str, np.ndarray], exact_limits.Bounds]:
  """Returns the tensors of `tensors.inputs`, dy, and the proof.

  Args:
    config: sizes.
    policy: as for `exact_data.make`.
    topk_ids: `[R, T, K]` int32, a valid routing.
    seed: of the values.
    backward: whether the proof covers the backward pass too.

  Raises:
    exact_data.ExactnessError: the data are not exact.
    ValueError: the policy is not one that can be exact.
  """
  bits = _Bits.from_policy(policy)
  pattern = _Pattern.draw(config, seed)
  storage_dtype = exact_limits.STORAGE[policy.storage]
  arrays = dict(
    _draw_tokens(config, bits, pattern, topk_ids, seed),
    **_draw_weights(config, storage_dtype, bits, pattern, seed),
  )
  narrow = ('x', 'dy')
  arrays |= {name: arrays[name].astype(storage_dtype) for name in narrow}
  arrays['topk_ids'] = topk_ids
  for name in tensors.inputs(config):
    if name not in arrays:
      shape = tensors.SPECS[name].dims(**config.dims())
      arrays[name] = np.zeros(shape, storage_dtype)
  of_proof = {n: a for n, a in arrays.items() if backward or n != 'dy'}
  proof = exact_proof.recall_proof(config, policy, of_proof, ('wide', seed))
  return arrays, proof


@dataclasses.dataclass(frozen=True)
class _Bits:
  """Bits of wide numbers.

  Attributes:
    storage: of stored ones.
    x: of tokens.
    weights: of routing weights.
    matrix: of expert weights.
  """

  storage: int
  x: int
  weights: int
  matrix: int

  @classmethod
  def from_policy(cls, policy: PrecisionPolicy) -> '_Bits':
    digits = exact_limits.limiting_format(policy).digits
    # A routing weight is float32: in narrow storage it has more bits than the
    # activation, and yet is finite there.
    x, matrix = (
      exact_data.largest_whole(policy, name).bit_length()
      for name in ('x', 'w_gate_up')
    )
    weights = max(digits, 15)
    if policy.placement == 'input':
      # d_topk_weights has two terms: of a gate and of its up.
      most_bits = int(np.log2(exact_limits.LIMIT)) - 1
      digits, x, matrix = (min(most_bits, bits) for bits in (digits, x, matrix))
      # Of a weight's square, as gate and up have it, or of a gate of a wide
      # expert weight; in float32 there is no room.
      largest = min(exact_limits.largest_stored(policy), exact_limits.LIMIT)
      room = int(np.log2(largest))
      weights = max(1, min((room - 1) // 2, room - matrix))
    return cls(digits, x, weights, matrix)


@dataclasses.dataclass(frozen=True)
class _Pattern:
  """Who reads whom: the same for all experts.

  Attributes:
    columns: `[D]` kind of each column of x.
    features: `[F]`.
    reads: `[F, 2]` columns of x that gate and up of each feature read.
    down: `[D]` feature that each column of w_down reads.
  """

  columns: np.ndarray
  features: list[_Feature]
  reads: Int[np.ndarray, 'F 2']
  down: Int[np.ndarray, 'D']

  @classmethod
  def draw(cls, config: MoEConfig, seed: int) -> '_Pattern':
    width, hidden = config.d_model, config.d_ff
    places = stable_random.permutation(
      stable_random.seed_of('wide/columns', seed), width
    )
    columns = np.empty(width, object)
    kinds = _COLUMNS if width >= len(_COLUMNS) else ('one',)
    columns[places] = [kinds[i % len(kinds)] for i in range(width)]
    turns = {
      kind: itertools.cycle(places[columns[places] == kind]) for kind in kinds
    }
    features_in_use = [f for f in _FEATURES if {f.gate, f.up} <= set(kinds)]
    order = stable_random.permutation(
      stable_random.seed_of('wide/features', seed), hidden
    )
    features = [features_in_use[i % len(features_in_use)] for i in order]
    reads = [[next(turns[kind]) for kind in (f.gate, f.up)] for f in features]
    down = stable_random.permutation(
      stable_random.seed_of('wide/down', seed), width
    )
    return cls(columns, features, np.array(reads), down % hidden)


def _draw_weights(config, dtype, bits, pattern, seed) -> dict[str, np.ndarray]:
  ranks, local = config.num_ranks, config.experts_per_rank
  width, hidden = config.d_model, config.d_ff
  gate_up = shared_memory.zeros((ranks, local, width, 2 * hidden), dtype)
  down = shared_memory.zeros((ranks, local, hidden, width), dtype)
  wide = np.array([f.wide for f in pattern.features])
  wide_gate_up = np.stack([wide == 'gate', wide == 'up'], axis=1)
  wide_down = (wide == 'down')[pattern.down]
  columns = np.arange(2 * hidden).reshape(2, -1).T
  entries: dict[str, list[sparse.SparseWeight]] = dict(w_gate_up=[], w_down=[])
  for expert in range(config.num_experts):
    place, name = divmod(expert, local), f'wide/{expert}'
    values = _draw_odd((name, 'w_gate_up', seed), wide_gate_up, bits.matrix)
    gate_up[place][pattern.reads, columns] = values
    entries['w_gate_up'].append(_list_entries(pattern.reads.T, values.T))
    values = _draw_odd((name, 'w_down', seed), wide_down, bits.matrix)
    down[place][pattern.down, np.arange(width)] = values
    entries['w_down'].append(_list_entries(pattern.down, values))
  weights = dict(w_gate_up=gate_up, w_down=down)
  for name, array in weights.items():
    sparse.note(array, entries[name])
    array_recipes.note(array, 'wide', name, seed, bits)
  return weights


def _list_entries(rows: np.ndarray, values: np.ndarray) -> sparse.SparseWeight:
  """Returns a weight with one entry in each column, in order of columns."""
  values = values.reshape(-1, 1).astype(np.float32)
  return sparse.SparseWeight(rows.reshape(-1, 1), values)


def _draw_odd(names, wide: np.ndarray, bits: int) -> np.ndarray:
  """Returns +-1, and +-odd numbers of so many bits where `wide`."""
  seed = stable_random.seed_of(*names)
  if bits == 1:
    wide = np.zeros_like(wide)
  top = 1 << max(1, bits - 1)
  size = top + 2 * stable_random.integers(seed, wide.shape, top // 2) + 1
  signs = 2 * stable_random.integers(seed + 1, wide.shape, 2) - 1
  return signs * np.where(wide, size, 1)


def _draw_tokens(
  config, bits, pattern, topk_ids, seed
) -> dict[str, np.ndarray]:
  """Returns x, topk_weights and dy."""
  shape = (config.num_ranks * config.num_tokens, config.d_model)
  x_wide, x_read = np.zeros((2, *shape), bool)
  dy_wide, dy_met = np.zeros((2, *shape), bool)
  weights = np.zeros((len(x_wide), config.top_k), np.float32)
  wide_weight = _draw_odd(
    ('wide/topk_weights', seed), np.ones(len(weights), bool), bits.weights
  )
  ids = topk_ids.reshape(-1, config.top_k)
  free = _FreeColumns(config, pattern)
  of_x, not_up = pattern.columns == 'x', pattern.columns != 'up'
  for token, (role, turn) in enumerate(_iterate_roles(len(ids), config.top_k)):
    x_wide[token] = (role.wide == 'x') & of_x
    x_read[token] = role.reads_up | not_up
    slots = np.roll(np.flatnonzero(ids[token] >= 0), -turn)
    if not slots.size:
      continue
    slot, weighty = slots[0], role.wide == 'topk_weights'
    weights[token, slot] = abs(wide_weight[token]) if weighty else 1
    column = free.take(ids[token, slot], role)
    if column is not None:
      dy_met[token, column] = True
      dy_wide[token, column] = role.wide == 'dy'
  x = _draw_odd(('wide/x', seed), x_wide, bits.x) * x_read
  dy = _draw_odd(('wide/dy', seed), dy_wide, bits.storage) * dy_met
  home = (config.num_ranks, config.num_tokens, -1)
  tensors_by_name = dict(x=x, topk_weights=weights, dy=dy)
  return {name: value.reshape(home) for name, value in tensors_by_name.items()}


def _iterate_roles(tokens: int, top_k: int) -> Iterator[tuple[_Role, int]]:
  """Yields the role of each token and the slot that it uses."""
  for token in range(tokens):
    turn, role = divmod(token, len(_ROLES))
    yield _ROLES[role], turn % top_k


class _FreeColumns:
  """Columns of dy that an expert's rows have not used yet."""

  def __init__(self, config: MoEConfig, pattern: _Pattern):
    # One column for each feature, as each feature meets one row.
    column_of = dict(zip(pattern.down.tolist(), range(config.d_model)))
    free: dict[_Feature, list[int]] = {feature: [] for feature in _FEATURES}
    for feature, column in column_of.items():
      free[pattern.features[feature]].append(column)
    self._free = [
      {feature: [*columns] for feature, columns in free.items()}
      for _ in range(config.num_experts)
    ]

  def take(self, expert: int, role: _Role) -> int | None:
    """Returns a column whose feature suits the role, or None."""
    free = self._free[expert]
    feature = max(role.features, key=lambda feature: len(free[feature]))
    return free[feature].pop() if free[feature] else None
