"""Seeded routings, each of which checks that it is what its name says."""

from collections.abc import Callable
import dataclasses
import os
import pathlib

import numpy as np

from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract.array_typing import Float
from hpmoe.reference.contract.array_typing import Int
from hpmoe.reference.contract.config import MoEConfig

_FAR = np.uint64(2**63)  # Sorts an expert behind every preferred one.


@dataclasses.dataclass(frozen=True)
class TokenRouting:
  """Experts and weights of every token.

  Attributes:
    topk_ids: `[R, T, K]` int32, distinct within a token; -1 is a slot that no
      expert serves.
    topk_weights: `[R, T, K]` float32.
    note: what a reader should know, or ''.
  """

  topk_ids: Int[np.ndarray, 'R T K']
  topk_weights: Float[np.ndarray, 'R T K']
  note: str = ''


def make(name: str, config: MoEConfig, seed: int = 0) -> TokenRouting:
  """Returns the routing of that name.

  Raises:
    ValueError: the name is unknown, the config cannot be routed so, or the
      generated ids are not what the name says.
  """
  generators = {**GENERATORS, **DROPPING}
  if name not in generators:
    raise ValueError(
      f'routing: expected one of {list(generators)}, got {name!r}'
    )
  seed = stable_random.seed_of('routing', name, seed)
  ids, note = generators[name](config, seed)
  ids = _shuffle_slots(ids, seed + 1)
  ids = ids.reshape(config.num_ranks, config.num_tokens, config.top_k)
  ids = ids.astype(np.int32)
  checks.check_ids(config, ids)
  return TokenRouting(ids, spread_weights(config, seed + 2), note)


def every_expert(config: MoEConfig) -> TokenRouting:
  """Returns all experts for every token, in order and with weight 1.

  Raises:
    ValueError: a token has fewer slots than there are experts.
  """
  if config.top_k != config.num_experts:
    raise ValueError(
      f'top_k: expected num_experts={config.num_experts}, as every token goes '
      f'to all, got {config.top_k}'
    )
  shape = (config.num_ranks, config.num_tokens, config.top_k)
  unit_weights = np.ones(shape, np.float32)
  return TokenRouting(
    unit_weights.cumsum(-1).astype(np.int32) - 1, unit_weights
  )


def starve_experts(routed: TokenRouting, config: MoEConfig) -> TokenRouting:
  """Returns a routing in which expert 1 has no row and the last one has one.

  Their slots go to the lowest expert that the token does not have.
  """
  empty, single = 1, config.num_experts - 1
  ids = routed.topk_ids.reshape(-1, config.top_k).copy()
  ids[0, 0] = single
  for token, slot in np.argwhere(np.isin(ids, (empty, single)))[1:]:
    excluded = {empty, single, *ids[token]}
    ids[token, slot] = min(set(range(config.num_experts)) - excluded)
  ids = ids.reshape(routed.topk_ids.shape)
  checks.check_ids(config, ids)
  return dataclasses.replace(routed, topk_ids=ids)


def load(
  path: str | os.PathLike[str], config: MoEConfig, seed: int = 0
) -> TokenRouting:
  """Returns the routing in a file with `topk_ids` and maybe `topk_weights`.

  Raises:
    ValueError: the file is unreadable, or a tensor has a wrong shape, dtype
      or value; the text names the file.
  """
  tensors_by_name = tensor_files.read(pathlib.Path(path))[0]
  tensors_by_name = {
    name: read_case.as_numpy(array) for name, array in tensors_by_name.items()
  }
  ids, weights = (
    tensors_by_name.get('topk_ids'),
    tensors_by_name.get('topk_weights'),
  )
  if ids is None:
    raise ValueError(
      f'{path}: expected topk_ids, got {", ".join(tensors_by_name)}'
    )
  try:
    checks.check_ids(config, ids)
    if weights is not None:
      name, policy = 'topk_weights', precision.PrecisionPolicy()
      checks.check_arrays(config, policy, {name: weights}, [name])
      checks.check_finite(name, weights)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  if weights is None:
    note = 'topk_weights are generated: the file has none'
    weights = spread_weights(config, stable_random.seed_of('weights', seed))
    return TokenRouting(ids, weights, note)
  return TokenRouting(ids, weights)


def spread_weights(config: MoEConfig, seed: int) -> Float[np.ndarray, 'R T K']:
  """Returns `[R, T, K]` float32, positive, sum 1, no two of a token close.

  A token's weights are 1..K in a seeded order, each with up to a half added,
  over their sum: slots differ by at least 1/2 of that sum's unit.
  """
  shape = (config.num_ranks, config.num_tokens, config.top_k)
  level = np.argsort(stable_random.raw(seed, shape), axis=-1) + 1
  units = level * 2**16 + stable_random.integers(seed + 1, shape, 2**15)
  return (units / units.sum(-1, keepdims=True)).astype(np.float32)


def measure_skew(
  config: MoEConfig, ids: Int[np.ndarray, 'R T K']
) -> dict[str, float | int]:
  """Returns how uneven a routing is: rows of experts and of ranks."""
  rows, unused = count_rows(config, ids), int((ids < 0).sum())
  ranks = rows.reshape(config.num_ranks, -1).sum(-1)
  return {
    'max_over_mean_expert': round(float(rows.max() / (rows.mean() or 1)), 3),
    'max_over_mean_rank': round(float(ranks.max() / (ranks.mean() or 1)), 3),
    'empty_experts': int((rows == 0).sum()),
    'max_rows_of_rank': int(ranks.max()),
    **({'unused_slots': unused} if unused else {}),
  }


def count_rows(
  config: MoEConfig, ids: Int[np.ndarray, '...']
) -> Int[np.ndarray, 'E']:
  """Returns `[E]` int64, rows that every expert receives from all ranks."""
  return np.bincount(ids[ids >= 0], minlength=config.num_experts)


def _balanced(config, seed):
  """Deals experts round, so that counts differ by at most one."""
  order = stable_random.permutation(seed, _tokens(config))[:, None]
  experts = stable_random.permutation(seed + 3, config.num_experts)
  deal = order * config.top_k + np.arange(config.top_k)
  ids = _mix(experts[deal % config.num_experts], seed + 4)
  rows = count_rows(config, ids)
  _expect('balanced', rows.max() - rows.min() <= 1, 'equal rows to one', rows)
  return ids, ''


def _mix(ids, seed):
  """Swaps experts between pairs of tokens; the number of rows stays."""
  half, top_k = len(ids) // 2, ids.shape[1]
  for turn in range(4 * top_k):
    order = stable_random.permutation(seed + turn, len(ids))
    first, second = order[:half], order[half : 2 * half]
    # Unlike slots, or an expert would never leave its place in the list.
    first_slot, second_slot = turn % top_k, (turn + turn // top_k) % top_k
    first_expert, second_expert = (
      ids[first, first_slot],
      ids[second, second_slot],
    )
    distinct = (ids[first] != second_expert[:, None]).all(-1)
    distinct &= (ids[second] != first_expert[:, None]).all(-1)
    ids[first[distinct], first_slot] = second_expert[distinct]
    ids[second[distinct], second_slot] = first_expert[distinct]
  return ids


def _draw_experts(config, seed, popularity, batch=0):
  """Returns experts by popularity, and `[tokens, K]` drawn so."""
  by_popularity = stable_random.permutation(seed, config.num_experts)
  left = np.tile(popularity, (_tokens(config), 1))
  choices = []
  if batch:
    words_seed = stable_random.seed_of('batch', seed, batch)
  else:
    words_seed = seed + 3
  words = stable_random.raw(words_seed, (config.top_k, _tokens(config)))
  for word in words:
    total = np.cumsum(left, axis=-1)
    point = (word % total[:, -1].astype(np.uint64)).astype(np.int64)
    choice = (total > point[:, None]).argmax(-1)
    np.put_along_axis(left, choice[:, None], 0, axis=-1)
    choices.append(choice)
  return by_popularity, by_popularity[np.stack(choices, axis=-1)]


def make_skewed(config: MoEConfig, seed: int = 0) -> Int[np.ndarray, 'R T K']:
  """Returns experts drawn without replacement; the n-th has popularity n^-1/2.

  A milder skew than 'zipf', of the kind that a balanced router leaves.
  """
  seed = stable_random.seed_of('routing', 'skewed', seed)
  popularity = POPULARITIES['skewed'](config.num_experts)
  _, ids = _draw_experts(config, seed, popularity)
  shape = (config.num_ranks, config.num_tokens, config.top_k)
  return _shuffle_slots(ids, seed + 1).reshape(shape).astype(np.int32)


def draw_batch(
  name: str, config: MoEConfig, seed: int, batch: int
) -> Int[np.ndarray, 'tokens K']:
  """Returns experts of other tokens, by the popularity of a routing.

  Args:
    name: of `POPULARITIES`.
    config: sizes.
    seed: of the routing.
    batch: its number, from 1.
  """
  seed = stable_random.seed_of('routing', name, seed)
  popularity = POPULARITIES[name](config.num_experts)
  return _draw_experts(config, seed, popularity, batch)[1]


# In 2^-20, of the first, second, ... expert.
POPULARITIES: dict[str, Callable[[int], np.ndarray]] = {
  'zipf': lambda experts: 2**20 // np.arange(1, experts + 1),
  'skewed': lambda experts: (2**20 / np.sqrt(np.arange(1, experts + 1))).astype(
    np.int64
  ),
}


def _zipf(config, seed):
  """Draws without replacement; the n-th expert has popularity 1/n."""
  popularity = POPULARITIES['zipf'](config.num_experts)
  by_popularity, ids = _draw_experts(config, seed, popularity)

  # A lower bound on the chance that a token has the first expert in its list,
  # less five standard deviations.
  chance = 1 - (1 - popularity[0] / popularity.sum()) ** config.top_k
  min_rows = _tokens(config) * chance - 5 * np.sqrt(
    _tokens(config) * chance * (1 - chance)
  )
  rows = count_rows(config, ids)
  first = rows[by_popularity[0]]
  _expect('zipf', first >= min_rows, f'first expert {min_rows:.0f} rows', rows)
  return ids, ''


def _hot(config, seed):
  """One expert is in every token's list."""
  hot = stable_random.integers(seed, (1,), config.num_experts)[0]
  keys = _keys(config, seed + 3) | _FAR
  keys[:, hot] = 0
  ids = _nearest(config, keys)
  rows = count_rows(config, ids)
  _expect('hot', rows[hot] == _tokens(config), f'all in expert {hot}', rows)
  return ids, f'expert {hot} is in every list'


def _one_rank(config, seed):
  """All rows, or as many as its experts allow, go to one rank."""
  local = config.experts_per_rank
  rank = stable_random.integers(seed, (1,), config.num_ranks)[0]
  keys = _keys(config, seed + 3) | _FAR
  keys[:, rank * local : (rank + 1) * local] ^= _FAR
  ids = _nearest(config, keys)
  rows = count_rows(config, ids)
  fit = min(config.top_k, local)
  rank_rows = rows[rank * local : (rank + 1) * local].sum()
  _expect(
    'one_rank', rank_rows == _tokens(config) * fit, f'all on rank {rank}', rows
  )
  note = f'rank {rank} gets every row'
  if fit < config.top_k:
    note = (
      f'rank {rank} gets {fit} of {config.top_k} rows of a token: '
      f'it has only {local} experts'
    )
  return ids, note


def _empty_experts(config, seed):
  """Every second expert gets nothing: half of every rank's, if L > 1."""
  live = (config.num_experts + 1) // 2
  if config.num_experts < 2 or config.top_k > live:
    raise ValueError(
      f'empty_experts: expected top_k <= {live} of num_experts='
      f'{config.num_experts} >= 2, so that half can be empty, got top_k='
      f'{config.top_k}'
    )
  keys = _keys(config, seed) & ~_FAR
  keys[:, 1::2] |= _FAR
  ids = _nearest(config, keys)
  rows = count_rows(config, ids)
  _expect('empty_experts', not rows[1::2].any(), 'odd experts empty', rows)
  if config.experts_per_rank == 1:
    return ids, 'one expert per rank: every second RANK gets nothing'
  return ids, ''


def _drop_slots(config, seed):
  """Every third token has lost a slot, and the last one all of them."""
  if _tokens(config) < 2:
    raise ValueError('dropped: expected 2 tokens, so that one has a row, got 1')
  ids, _ = _balanced(config, seed)
  tokens = np.arange(0, _tokens(config), 3)
  ids[tokens, tokens // 3 % config.top_k] = -1
  ids[-1] = -1
  return ids, 'every third token has lost a slot, the last one all'


GENERATORS: dict[str, Callable] = {
  'balanced': _balanced,
  'zipf': _zipf,
  'hot': _hot,
  'one_rank': _one_rank,
  'empty_experts': _empty_experts,
}
# Some of their slots no expert serves, which not every kernel can have.
DROPPING: dict[str, Callable] = {'dropped': _drop_slots}


def _tokens(config: MoEConfig) -> int:
  return config.num_ranks * config.num_tokens


def _keys(config: MoEConfig, seed: int) -> np.ndarray:
  return stable_random.raw(seed, (_tokens(config), config.num_experts))


def _nearest(config: MoEConfig, keys: np.ndarray) -> np.ndarray:
  return np.argsort(keys, axis=-1, kind='stable')[:, : config.top_k]


def _shuffle_slots(ids: np.ndarray, seed: int) -> np.ndarray:
  order = np.argsort(stable_random.raw(seed, ids.shape), axis=-1)
  return np.take_along_axis(ids, order, axis=-1)


def _expect(name, holds, expected, rows):
  if not holds:
    raise ValueError(
      f'routing {name}: expected {expected}, got rows per expert '
      f'{rows.tolist()}'
    )
