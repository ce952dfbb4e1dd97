"""Numbers of two sides on a text: perplexity, top-1 agreement, KL divergence.

A text is cut into windows of a fixed number of tokens, which both sides read
independently.  Every token of a window but its first is predicted.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.models.jax import decoder
from hpmoe.parity_tests.compare import predictions
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import array_typing as at

# Tokens `[B, S]` -> logits `[B, S, V]`.
Logits = Callable[[np.ndarray], np.ndarray]
_LAYER = 'framework'


@dataclasses.dataclass(frozen=True)
class Scores:
  """How two sides predict the same tokens.

  Attributes:
    tokens: the number of predicted tokens.
    left_nats: mean cross-entropy of the left, nats per token.
    right_nats: the same of the right.
    agreement: the share of tokens with the same most probable prediction.
    divergence: mean KL(left, right), nats per token.
    largest: the largest KL(left, right) of a token.
    place: window and token of the largest.
  """

  tokens: int
  left_nats: float
  right_nats: float
  agreement: float
  divergence: float
  largest: float
  place: tuple[int, int]

  def to_json(self) -> dict[str, Any]:
    """Returns the scores as plain data, with perplexities."""
    perplexities = dict(
      left_perplexity=math.exp(self.left_nats),
      right_perplexity=math.exp(self.right_nats),
    )
    return dataclasses.asdict(self) | perplexities


def cut_windows(
  tokens: at.Int32[np.ndarray, 'N'], length: int, count: int
) -> at.Int32[np.ndarray, 'W S']:
  """Returns the first windows of a text, which do not overlap.

  Args:
    tokens: of the text.
    length: S.
    count: the most windows.

  Raises:
    ValueError: the text is shorter than a window.
  """
  whole = min(count, len(tokens) // length)
  if length < 2 or whole < 1:
    raise ValueError(
      f'score_windows: expected a text of at least one window of {length} '
      f'tokens, got {len(tokens)} tokens'
    )
  part = np.asarray(tokens[: whole * length], np.int32)
  return part.reshape(whole, length)


def measure(
  windows: at.Int32[np.ndarray, 'W S'],
  batch: int,
  left: Logits,
  right: Logits,
  progress: Callable[[str], None] = lambda step: None,
) -> Scores:
  """Returns the numbers of two sides on windows of a text.

  Args:
    windows: what they read.
    batch: windows that are read at once.
    left: the reference.
    right: the candidate.
    progress: called before each batch.
  """
  nats = np.zeros(2)
  agreeing, divergence, predicted = 0, 0.0, 0
  largest, place = -1.0, (0, 0)
  for begin in range(0, len(windows), batch):
    progress(f'window {begin}')
    tokens = windows[begin : begin + batch]
    shares = [
      predictions.find_log_shares(np.asarray(side(tokens))[:, :-1])
      for side in (left, right)
    ]
    targets = tokens[:, 1:, None]
    for number, logs in enumerate(shares):
      nats[number] -= np.take_along_axis(logs, targets, -1).sum()
    agreeing += predictions.count_agreeing(*shares)
    apart = predictions.measure_divergence(*shares)
    divergence += float(apart.sum())
    predicted += apart.size
    if apart.max() > largest:
      largest = float(apart.max())
      window, token = np.unravel_index(apart.argmax(), apart.shape)
      place = (begin + int(window), int(token) + 1)
  return Scores(
    predicted,
    float(nats[0]) / predicted,
    float(nats[1]) / predicted,
    agreeing / predicted,
    divergence / predicted,
    largest,
    place,
  )


def compute_logits(
  config: config_lib.ModelConfig, params: Mapping[str, np.ndarray]
) -> Logits:
  """Returns the decoder's results with these parameters, in their dtype."""
  arrays = {name: jnp.asarray(array) for name, array in params.items()}

  @jax.jit
  def compute(arrays, tokens):
    return decoder.forward(arrays, config, tokens, moe=_LAYER)[0]

  return lambda tokens: np.asarray(compute(arrays, jnp.asarray(tokens)))


@dataclasses.dataclass(frozen=True)
class Distance:
  """The distance of the two sides after a module.

  Attributes:
    module: its name.
    distance: norm of the difference over the left's norm.
  """

  module: str
  distance: float


def measure_modules(
  left: weights_lib.Weights,
  right: weights_lib.Weights,
  tokens: at.Int32[np.ndarray, 'B S'],
) -> tuple[Distance, ...]:
  """Returns the distance of two models on the same tokens after each module."""
  states = [list(_list_states(side, tokens)) for side in (left, right)]
  return tuple(
    Distance(name, _measure_distance(reference, candidate))
    for (name, reference), (_, candidate) in zip(*states, strict=True)
  )


def _list_states(
  weights: weights_lib.Weights, tokens: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
  params = {n: jnp.asarray(a) for n, a in weights.load().items()}
  config = weights.config
  compute = jax.jit(lambda p, t: decoder.forward(p, config, t, moe=_LAYER))
  logits, aux = compute(params, jnp.asarray(tokens))
  last = weights.config.num_hidden_layers - 1
  names = ['model.embed_tokens', *(f'model.layers.{n}' for n in range(last))]
  names.append('model.norm')
  for name, state in zip(names, aux.hidden_states, strict=True):
    yield name, np.asarray(state, np.float64)
  yield 'lm_head', np.asarray(logits, np.float64)


def _measure_distance(reference: np.ndarray, candidate: np.ndarray) -> float:
  size = float(np.linalg.norm(reference)) or 1.0
  return float(np.linalg.norm(candidate - reference)) / size


def format_scores(scores: Scores) -> str:
  """Returns a table of both sides and their differences."""
  rows = [
    (name, f'{nats:.6f}', f'{math.exp(nats):.6g}')
    for name, nats in (
      ('left', scores.left_nats),
      ('right', scores.right_nats),
    )
  ]
  table = text_table.format_table(('side', 'nats a token', 'perplexity'), rows)
  window, token = scores.place
  return (
    f'{table}\n'
    f'top-1 agreement: {100 * scores.agreement:.2f} % of {scores.tokens} '
    'tokens\n'
    f'KL(left, right): {scores.divergence:.3g} nats a token, at most '
    f'{scores.largest:.3g} (window {window}, token {token})'
  )


def format_distances(distances: tuple[Distance, ...]) -> str:
  """Returns a line for each module."""
  rows = [(d.module, f'{d.distance:.2g}') for d in distances]
  return text_table.format_table(('module', 'apart'), rows)
