"""Exact lane: integer data on which every order of every sum is exact.

With the activation 'product' all stages are polynomials.  If the data are
integers and sum |a| |b| stays below 2^24 at every output, then each partial
sum, in any order and with any fused multiply-add, is an integer that float32
holds.  A stage's rounding to bfloat16 starts from that one exact value, and
yields an integer again.  So every correct implementation gives the same bits,
and a bit that differs is a fault of schedule, address or synchronisation.

`prove` shows this for given data with the values that are really stored.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import zlib

from jaxtyping import Float
from jaxtyping import Int
import ml_dtypes
import numpy as np

from parity_tests import stable_random
from reference.config import MoEConfig
from reference.precision import PrecisionPolicy

LIMIT = 2**24  # Integers up to here are exact in float32.

# Odd values, of which an odd number is summed, so that few results are zero:
# a fault that meets a zero leaves no trace.
X_MAX = 15
_GATE_MAX = 15
_MAX_TERMS = 5
_MAX_ROUTING_WEIGHT = 8
_ROWS = 256  # Rows that `prove` holds at once.

STORAGE = {
    'float32': np.dtype(np.float32),
    'bfloat16': np.dtype(ml_dtypes.bfloat16),
}


class ExactnessError(ValueError):
  """The data are not exact: names the stage, the place and the bound."""


@dataclasses.dataclass(frozen=True)
class Proof:
  """Largest sum |a| |b| of any output element, all below `LIMIT`.

  Attributes:
    bounds: stage name to that sum.
  """

  bounds: Mapping[str, int]


def make(
    config: MoEConfig,
    policy: PrecisionPolicy,
    topk_ids: Int[np.ndarray, 'R T K'],
    seed: int = 0,
    x_max: int = X_MAX,
) -> tuple[dict[str, np.ndarray], Proof]:
  """Returns the inputs of `tensors.INPUTS` and the proof that they are exact.

  Rows of x are distinct (they begin with the token's number), experts are
  distinct, and the weights of a token's first eight slots are.  A column of
  w_gate_up reads 3 to 5 columns of x, which together read all of them if
  D <= 10 F; likewise w_down reads all of `activation` if F <= 5 D.

  Args:
    config: sizes.
    policy: storage float32 or bfloat16, activation 'product'.
    topk_ids: `[R, T, K]` int32, a valid routing.
    seed: of the values.
    x_max: odd, largest |x|.

  Raises:
    ExactnessError: the data would not be exact, or rows or experts coincide.
    ValueError: the policy is not one that can be exact.
  """
  _check_policy(policy)
  arrays = dict(
      x=_labelled_rows(config, seed, x_max).astype(STORAGE[policy.storage]),
      topk_ids=topk_ids,
      topk_weights=_routing_weights(config, seed),
      **_weights(config, STORAGE[policy.storage], seed),
  )
  _check_distinct(config, arrays)
  return arrays, prove(config, policy, arrays)


def prove(
    config: MoEConfig,
    policy: PrecisionPolicy,
    arrays: Mapping[str, np.ndarray],
) -> Proof:
  """Proves that every sum is exact in float32 in any order.

  Works on a few hundred rows of one expert at a time; holds one `[R T, D]`
  float64 tensor besides.

  Raises:
    ExactnessError: an input is not integer, or a sum |a| |b| reaches `LIMIT`.
    ValueError: the policy is not one that can be exact.
  """
  _check_policy(policy)
  for name in ('x', 'topk_weights', 'w_gate_up', 'w_down'):
    _check_integers(name, arrays[name])
  bounds = dict.fromkeys(('gate_up', 'activation', 'expert_out', 'y'), 0)
  combined = np.zeros((config.num_ranks * config.num_tokens, config.d_model))
  for expert, tokens, slots in _row_chunks(config, arrays['topk_ids']):
    out = _prove_rows(config, policy, arrays, expert, tokens, slots, bounds)
    combined[tokens] += out
  _bound(bounds, 'y', combined, 'token')
  return Proof({stage: int(value) for stage, value in bounds.items()})


def _prove_rows(config, policy, arrays, expert, tokens, slots, bounds):
  """Bounds the stages of some rows of one expert; returns |w| |expert_out|."""
  where = f'expert {expert}, row'
  rank, local = divmod(expert, config.experts_per_rank)
  x = arrays['x'].reshape(-1, config.d_model)[tokens].astype(np.float64)
  weight = arrays['topk_weights'].reshape(-1, config.top_k)
  weight = weight[tokens, slots].astype(np.float64)[:, None]
  at_combine = policy.placement == 'combine'

  w_gate_up = arrays['w_gate_up'][rank, local].astype(np.float64)
  _bound(bounds, 'gate_up', np.abs(x) @ np.abs(w_gate_up), where)
  gate_up = _store(policy, x @ w_gate_up)

  gate, up = np.split(gate_up, 2, axis=-1)
  activation = gate * up * (1 if at_combine else weight)
  _bound(bounds, 'activation', np.abs(activation), where)
  activation = _store(policy, activation)

  w_down = arrays['w_down'][rank, local].astype(np.float64)
  _bound(bounds, 'expert_out', np.abs(activation) @ np.abs(w_down), where)
  expert_out = np.abs(_store(policy, activation @ w_down))
  return expert_out * np.abs(weight) if at_combine else expert_out


def _bound(bounds, stage, sums, where):
  largest = sums.max(initial=0)
  if not largest < LIMIT:
    row, column = np.unravel_index(sums.argmax(), sums.shape)
    raise ExactnessError(
        f'{stage}: expected sum |a| |b| < 2^24 = {LIMIT}, got {largest:.0f} '
        f'at {where} {row}, column {column}'
    )
  bounds[stage] = max(bounds[stage], largest)


def _row_chunks(
    config: MoEConfig, topk_ids: Int[np.ndarray, 'R T K']
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields (expert, tokens of all ranks, slots), a few hundred rows each."""
  ids = topk_ids.reshape(-1)
  order = np.argsort(ids, kind='stable')
  ends = np.cumsum(np.bincount(ids, minlength=config.num_experts))
  for expert, end in enumerate(ends):
    begin = ends[expert - 1] if expert else 0
    for first in range(begin, end, _ROWS):
      rows = order[first : min(first + _ROWS, end)]
      yield expert, rows // config.top_k, rows % config.top_k


def _store(policy, value) -> Float[np.ndarray, '...']:
  stored = value.astype(np.float32).astype(STORAGE[policy.storage])
  return stored.astype(np.float64)


def _check_policy(policy):
  for name, known in (
      ('storage', tuple(STORAGE)),
      ('accumulate', ('float32',)),
      ('activation', ('product',)),
  ):
    if getattr(policy, name) not in known:
      raise ValueError(
          f'{name}: expected one of {known} in the exact lane, got '
          f'{getattr(policy, name)!r}'
      )


def _check_integers(name, array):
  for rank, part in enumerate(array):
    bad = part != np.rint(part.astype(np.float32)).astype(part.dtype)
    if bad.any():
      index = tuple(int(i) for i in np.argwhere(bad)[0])
      raise ExactnessError(
          f'{name}: expected integers, got {part[index]} at '
          f'{[rank, *index]}'
      )


def _check_distinct(config, arrays):
  rows = arrays['x'].reshape(-1, config.d_model).astype(np.int8)
  distinct = len(np.unique(rows, axis=0))
  if distinct != len(rows):
    raise ExactnessError(
        f'x: expected {len(rows)} distinct rows, got {distinct}: d_model='
        f'{config.d_model} is too small to tell tokens apart'
    )
  for name in ('w_gate_up', 'w_down'):
    marks = {zlib.crc32(e) for rank in arrays[name] for e in rank}
    if len(marks) != config.num_experts:
      raise ExactnessError(
          f'{name}: expected {config.num_experts} distinct experts, got '
          f'{len(marks)}'
      )


def _labelled_rows(config, seed, x_max) -> Int[np.ndarray, 'R T D']:
  """Returns odd integers in [-x_max, x_max]; rows begin with their number."""
  shape = (config.num_ranks, config.num_tokens, config.d_model)
  levels = x_max + 1
  drawn = stable_random.integers(
      stable_random.seed_of('exact/x', seed), shape, levels
  )
  number = np.arange(shape[0] * shape[1]).reshape(shape[:2])
  for column in range(config.d_model):
    if levels**column >= number.size:
      break
    drawn[..., column] = number // levels**column % levels
  return 2 * drawn - x_max


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


def _weights(config, dtype, seed) -> dict[str, np.ndarray]:
  """Returns sparse w_gate_up and w_down: odd gate, and +-1 elsewhere."""
  ranks, local = config.num_ranks, config.experts_per_rank
  width, hidden = config.d_model, config.d_ff
  w_gate_up = np.zeros((ranks, local, width, 2 * hidden), dtype)
  w_down = np.zeros((ranks, local, hidden, width), dtype)
  for expert in range(config.num_experts):
    place = divmod(expert, local)
    name = f'exact/{expert}'
    gate_up = _sparse(f'{name}/w_gate_up', seed, width, 2 * hidden)
    gate = stable_random.integers(
        stable_random.seed_of(name, 'gate', seed), (hidden,), _GATE_MAX + 1
    )
    gate_up[:, :hidden] *= 2 * gate - _GATE_MAX
    w_gate_up[place] = gate_up
    w_down[place] = _sparse(f'{name}/w_down', seed, hidden, width)
  return dict(w_gate_up=w_gate_up, w_down=w_down)


def _sparse(name, seed, rows, columns) -> Int[np.ndarray, 'rows columns']:
  """Returns +-1 in an odd number of places of every column, zero elsewhere.

  Columns take their places in turn from one seeded order of the rows, so that
  rows up to `_MAX_TERMS` times the columns are all read.
  """
  seed = stable_random.seed_of(name, seed)
  terms = max(3, -(-rows // columns)) | 1
  terms = min(terms, _MAX_TERMS, rows - 1 + rows % 2 or 1)
  turn = np.arange(terms * columns).reshape(columns, terms) % rows
  places = stable_random.permutation(seed, rows)[turn]
  matrix = np.zeros((rows, columns), np.int64)
  signs = 2 * stable_random.integers(seed + 1, places.shape, 2) - 1
  matrix[places, np.arange(columns)[:, None]] = signs
  return matrix
