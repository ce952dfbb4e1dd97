"""Embeds and gates the bytes of a real text, so that routing is skewed.

A token is a byte.  Its embedding is the sum of seeded vectors of the byte and
of the n-grams that end in it, plus its position (so that no two rows are
equal), normalised.  Everything up to the scores is integer arithmetic or
correctly rounded, so x and the scores have the same bits everywhere; only the
router's own exp is the oracle's.
"""

import dataclasses
import os
import pathlib

import numpy as np

from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.case import routings
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract.array_typing import Float
from hpmoe.reference.contract.array_typing import Int
from hpmoe.reference.contract.config import MoEConfig

DEFAULT_TEXT = pathlib.Path(__file__).parents[1] / 'data' / 'alice.txt'

# Of layers too large to compute: who goes where, and nothing else.
LARGE = ('text', 'skewed', *routings.GENERATORS)
_TEXT_WIDTH = 256  # of the embedding that text is routed by

_CONTEXT = 3  # Bytes before the token that its n-grams reach.
_BUCKETS = 1024  # Rows of the table of one n-gram length.
_BYTE_AMPLITUDE = 127
_CONTEXT_AMPLITUDE = 31
_POSITION_AMPLITUDE = 15
_X_GRID = 2**8  # The gate reads x rounded to 1 / _X_GRID.
_GATE_AMPLITUDE = 127


def _softmax(top_k, scores):
  from hpmoe.reference import routing

  return routing.softmax_topk(scores, top_k)._asdict()


def _sigmoid_group(top_k, num_groups, top_groups, scale, scores, bias):
  from hpmoe.reference import routing

  return routing.sigmoid_group_topk(
    scores, bias, top_k, num_groups, top_groups, scale=scale
  )._asdict()


# Operator by operator, XLA would compile more than ten functions.
_softmax_topk = programs.Program(_softmax, 1)
_sigmoid_group_topk = programs.Program(_sigmoid_group, 4)


def read_text(path: str | os.PathLike[str] | None = None) -> bytes:
  """Returns the bytes of a text file; None means the one shipped.

  Raises:
    ValueError: the file is unreadable or empty.
  """
  path = DEFAULT_TEXT if path is None else path
  try:
    data = pathlib.Path(path).read_bytes()
  except OSError as error:
    raise ValueError(f'text: expected a readable file, got {error}') from error
  if not data:
    raise ValueError(f'text: expected at least one byte in {path}, got none')
  return data


def embed(
  config: MoEConfig, text: bytes, seed: int = 0
) -> Float[np.ndarray, 'R T D']:
  """Returns `[R, T, D]` float32 of mean 0 and RMS 1 in every row.

  Rank r embeds the r-th run of T bytes; a short text starts again.
  """
  num_bytes = config.num_ranks * config.num_tokens
  if num_bytes > len(text):
    from absl import logging

    logging.info(
      'text has %d bytes, %d are needed: it starts again', len(text), num_bytes
    )
  data = np.frombuffer(text, np.uint8)
  x = np.empty(
    (config.num_ranks, config.num_tokens, config.d_model), np.float32
  )
  tables = _draw_tables(config.d_model, seed)
  for rank in range(config.num_ranks):
    first = rank * config.num_tokens
    position = first + np.arange(config.num_tokens)
    total = _draw_table(
      seed,
      'position',
      x[rank].shape,
      _POSITION_AMPLITUDE,
      skip=first * config.d_model,
    )
    for length, table in enumerate(tables):
      total += table[_bucket(data, position, length)]
    x[rank] = _normalize(total)
  return x


def gate_scores(
  config: MoEConfig, x: Float[np.ndarray, 'R T D'], seed: int = 0
) -> Float[np.ndarray, 'R T E']:
  """Returns `[R, T, E]` float32 scores of about unit variance.

  x and the gate are rounded to small integers, so a float64 product is exact
  in any order and ties do not depend on the BLAS.
  """
  gate = _draw_table(
    seed, 'gate', (config.d_model, config.num_experts), _GATE_AMPLITUDE
  ).astype(np.float64)
  scale = _X_GRID * _GATE_AMPLITUDE * np.sqrt(config.d_model / 3)
  scores = np.rint(x.astype(np.float64) * _X_GRID) @ gate
  return (scores / scale).astype(np.float32)


def route(
  config: MoEConfig,
  router: presets.Router,
  scores: Float[np.ndarray, 'R T E'],
  seed: int = 0,
) -> routings.TokenRouting:
  """Returns the choice of the preset's router, by the oracle's functions.

  Raises:
    ValueError: a score is NaN, or the router does not suit the config.
  """
  checks.check_scores(scores)
  if router.kind == 'all':
    return routings.every_expert(config)
  if router.kind == 'softmax':
    routed = _softmax_topk(config.top_k, scores)
  else:
    bias_seed = stable_random.seed_of('router_bias', seed)
    bias = 0.05 * stable_random.normal(bias_seed, (config.num_experts,))
    routed = _sigmoid_group_topk(
      config.top_k,
      router.num_groups,
      router.top_groups,
      router.scale,
      scores,
      bias.astype(np.float32),
    )
  return routings.TokenRouting(
    np.asarray(routed['topk_ids']), np.asarray(routed['topk_weights'])
  )


def topk_ids(
  name: str, preset: presets.Preset, config: MoEConfig, seed: int = 0
) -> np.ndarray:
  """Returns `[R, T, K]` i32: the experts of every token.

  'text' is routed by a narrow embedding: the layer's own would take gigabytes.

  Raises:
    ValueError: no such routing, or one that the layer cannot have.
  """
  if name == 'skewed':
    return routings.make_skewed(config, seed)
  if name != 'text':
    if name not in routings.GENERATORS:
      raise ValueError(f'routing: expected some of {list(LARGE)}, got {name!r}')
    return routings.make(name, config, seed).topk_ids
  return _route_bytes(read_text(), preset, config, seed)


def count_other_batches(
  name: str,
  preset: presets.Preset,
  config: MoEConfig,
  seed: int = 0,
  batches: int = 2,
) -> Int[np.ndarray, 'batches E']:
  """Returns rows of every expert in batches that `topk_ids` has none of.

  Of text they are what follows in it, as far as it goes; of a popularity other
  draws; of any other routing there is none.

  Args:
    name: as of `topk_ids`.
    preset: likewise.
    config: likewise.
    seed: likewise.
    batches: how many.
  """
  size = config.num_ranks * config.num_tokens
  rows = []
  for batch in range(1, batches + 1):
    text = read_text()[batch * size :]
    if name == 'text' and len(text) >= size:
      ids = _route_bytes(text, preset, config, seed)
    elif name in routings.POPULARITIES:
      ids = routings.draw_batch(name, config, seed, batch)
    else:
      break
    rows.append(routings.count_rows(config, ids))
  return np.array(rows, np.int64).reshape(-1, config.num_experts)


def _route_bytes(
  text: bytes, preset: presets.Preset, config: MoEConfig, seed: int
) -> np.ndarray:
  narrow = dataclasses.replace(config, d_model=min(_TEXT_WIDTH, config.d_model))
  x = embed(narrow, text, seed)
  scores = gate_scores(narrow, x, seed)
  return route(narrow, preset.router, scores, seed).topk_ids


def _draw_tables(width: int, seed: int) -> list[Int[np.ndarray, 'buckets D']]:
  """Returns one `[buckets, D]` int32 table per n-gram length, 1 first."""
  byte = _draw_table(seed, 'byte', (256, width), _BYTE_AMPLITUDE)
  return [byte] + [
    _draw_table(seed, f'context/{n}', (_BUCKETS, width), _CONTEXT_AMPLITUDE)
    for n in range(1, _CONTEXT + 1)
  ]


def _draw_table(seed, name, shape, amplitude, skip=0) -> Int[np.ndarray, '...']:
  seed = stable_random.seed_of('text', name, seed)
  values = stable_random.integers(seed, shape, 2 * amplitude + 1, skip)
  return (values - amplitude).astype(np.int32)


def _bucket(data, position, length) -> Int[np.ndarray, 'T']:
  """Returns the table row of the n-gram of `length` bytes before the token."""
  key = data[position % len(data)].astype(np.uint64)
  if not length:
    return key.astype(np.int64)
  for back in range(1, length + 1):
    # 257: the n-gram as a number; the odd factor below spreads it (Knuth).
    key = key * np.uint64(257) + data[(position - back) % len(data)]
  mixed = (key * np.uint64(2654435761)) & np.uint64(2**32 - 1)
  return (mixed >> np.uint64(22)).astype(np.int64)


def _normalize(total: Int[np.ndarray, 'T D']) -> Float[np.ndarray, 'T D']:
  """Returns rows less their mean over their deviation, float32.

  Sums are exact integers; division and square root round correctly.
  """
  total = total.astype(np.int64)
  width = total.shape[-1]
  centred = width * total - total.sum(-1, keepdims=True)
  # An all-equal row (D = 1) has no deviation and stays zero.
  square = np.maximum((centred**2).sum(-1), 1)
  return (centred / np.sqrt(square / width)[:, None]).astype(np.float32)
