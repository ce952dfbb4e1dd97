"""Orders of a tensor's rows after wrong conversions, by name."""

from collections.abc import Iterator
import dataclasses

import numpy as np

from hpmoe.models import config as config_lib

Order = np.ndarray  # `[N]`: row i of the right is row order[i] of the left.
# The possible numbers of tensor-parallel parts of a fused tensor.
_SHARDS = (2, 4, 8, 16, 32, 64)
_MAX_PLACES = 4  # places of an order without a name


@dataclasses.dataclass(frozen=True)
class Heads:
  """The positions of heads in the rows of a tensor.

  Attributes:
    width: rows of a head.
    begin: first row of a head that rotates; None: none does.
    turning: the number of rows that rotate.
  """

  width: int
  begin: int | None = None
  turning: int = 0


def find_heads(config: config_lib.ModelConfig, name: str) -> Heads | None:
  """Returns the heads in a parameter's rows, or None if it has none."""
  module = name.split('.')[-2] if '.' in name else name
  if '.indexer.' in name or '.self_attn.' not in name:
    return None
  turning = config.rope_dim
  if config.family.attention == 'mla':
    if module in ('q_proj', 'q_b_proj'):
      return Heads(config.qk_head_dim, config.qk_nope_head_dim, turning)
    if module == 'kv_a_proj_with_mqa':
      return Heads(config.kv_lora_rank + turning, config.kv_lora_rank, turning)
    if module == 'kv_b_proj':
      return Heads(config.qk_nope_head_dim + config.v_head_dim)
    return None
  if module in ('q_proj', 'k_proj', 'q_norm', 'k_norm'):
    parts = 1 + (module == 'q_proj' and config.family.attention_gate)
    return Heads(parts * config.head_dim, 0, turning)
  return Heads(config.head_dim) if module == 'v_proj' else None


def list_rope_orders(heads: Heads, rows: int) -> Iterator[tuple[str, Order]]:
  """Yields the orders that exchange the pairs of rotary embedding, by name."""
  if heads.begin is None or rows % heads.width:
    return
  pairs = np.arange(heads.turning)
  half = heads.turning // 2
  orders = {
    'rope: rows of a pair are neighbours in left, half a head apart in right': (
      np.concatenate([pairs[0::2], pairs[1::2]])
    ),
    'rope: rows of a pair are half a head apart in left, neighbours in right': (
      pairs.reshape(2, half).T.reshape(-1)
    ),
    'rope: the halves of each head are exchanged': np.roll(pairs, half),
  }
  for words, inner in orders.items():
    order = np.arange(rows).reshape(-1, heads.width)
    rotary = slice(heads.begin, heads.begin + heads.turning)
    order[:, rotary] = order[:, rotary][:, inner]
    yield words, order.reshape(-1)


def list_half_orders(rows: int) -> Iterator[tuple[str, Order]]:
  """Yields orders of two stacked halves, gate and up, by name."""
  if rows % 2:
    return
  places = np.arange(rows)
  halves = places.reshape(2, -1)
  yield 'gate and up are exchanged', np.roll(places, rows // 2)
  yield 'gate and up by turns in right, not in left', halves.T.reshape(-1)
  by_turns = np.concatenate([places[0::2], places[1::2]])
  yield 'gate and up by turns in left, not in right', by_turns
  for shards in _SHARDS:
    if rows % (2 * shards) or rows == 2 * shards:
      continue
    blocks = places.reshape(2, shards, -1)
    order = blocks.swapaxes(0, 1).reshape(-1)
    yield f'gate and up of {shards} shards each by turns in right', order
    order = places.reshape(shards, 2, -1).swapaxes(0, 1).reshape(-1)
    yield f'gate and up of {shards} shards each by turns in left', order


def match_rows(left: np.ndarray, right: np.ndarray) -> Order | None:
  """Returns the left's row for each row of the right, or None if one has none.

  Equal rows of the left are matched in turn.
  """
  if left.shape != right.shape or not left.size:
    return None
  places: dict[bytes, list[int]] = {}
  for place, key in enumerate(_list_keys(left)):
    places.setdefault(key, []).append(place)
  order = []
  for key in _list_keys(right):
    if key not in places:
      return None
    matches = places[key]
    order.append(matches.pop(0) if len(matches) > 1 else matches[0])
  return np.array(order)


def _list_keys(rows: np.ndarray) -> Iterator[bytes]:
  # -0 is 0.
  return (np.ascontiguousarray(row + 0).tobytes() for row in rows)


def describe_order(order: Order, noun: str = 'row') -> str:
  """Describes an order in one line: the right's in terms of the left's."""
  changes = [(p, int(source)) for p, source in enumerate(order) if p != source]
  counts = np.bincount(order, minlength=len(order))
  twice, absent = np.flatnonzero(counts > 1), np.flatnonzero(counts == 0)
  if twice.size:
    return (
      f'{noun} {_list_places(twice)} of left more than once, '
      f'{noun} {_list_places(absent)} nowhere'
    )
  if len(changes) == 2:
    return f'{noun}s {changes[0][0]} and {changes[1][0]} are exchanged'
  shift, places = int(order[0]), np.arange(len(order))
  if np.array_equal(order, np.roll(places, -shift)):
    return f'{noun}s are shifted: {noun} 0 of right is {noun} {shift} of left'
  if np.array_equal(order, places[::-1]):
    return f'{noun}s are in reverse order'
  pairs = ', '.join(
    f'{place} is {source}' for place, source in changes[:_MAX_PLACES]
  )
  suffix = ', ...' if len(changes) > _MAX_PLACES else ''
  return f'{noun}s are in another order: of right {pairs}{suffix} of left'


def _list_places(places: np.ndarray) -> str:
  text = ', '.join(map(str, places[:_MAX_PLACES]))
  return f'{text}, ...' if len(places) > _MAX_PLACES else text
