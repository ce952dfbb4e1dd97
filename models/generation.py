"""Tokens after prompts, many at once, with a decoder of either framework.

Prompts are padded on the left to one length.  A token sees none of the padding
and counts its position without it, so a prompt has the tokens that it has
alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import sampling as sampling_lib
from hpmoe.reference.contract import array_typing as at

# In place of a prompt's missing tokens; any will do, as none is seen.
_PADDING = 0


class Stepper(Protocol):
  """A decoder with its parameters; `models/*/stepper.py`."""

  def empty(self, batch: int, capacity: int, starts: np.ndarray | None) -> Any:
    """Returns a cache of no tokens; `starts` as in `cache.Cache`."""

  def step(
    self, tokens: at.Int32[np.ndarray, 'B S'], cache: Any
  ) -> tuple[at.Float[np.ndarray, 'B V'], Any]:
    """Returns the logits after the last token, and the cache with `tokens`."""


def generate(
  model: Stepper,
  config: config_lib.ModelConfig,
  prompts: Sequence[Sequence[int]],
  count: int,
  sampling: sampling_lib.Sampling,
  on_token: Callable[[int, int | None], bool] = lambda row, token: True,
) -> list[list[int]]:
  """Returns the tokens that follow each prompt, at most `count` of each.

  A text ends before one of `config.eos_token_id`.

  Args:
    model: with its parameters.
    config: sizes and options.
    prompts: tokens, at least one of each.
    count: most tokens to draw.
    sampling: temperature, limits and seed of the draws.
    on_token: called with the number of a prompt and each new token, or None
      when the text has ended; returns whether the text goes on.

  Raises:
    ValueError: a prompt is empty, has a token that the model lacks, or is too
      long for the model with `count` tokens after it.
  """
  _check(config, prompts, count)
  width = max(map(len, prompts))
  starts = np.array([width - len(prompt) for prompt in prompts], np.int32)
  tokens = np.array(
    [[_PADDING] * (width - len(p)) + [*p] for p in prompts], np.int32
  )
  padded = starts if starts.any() else None
  cache = model.empty(len(prompts), width + count, padded)
  texts: list[list[int]] = [[] for _ in prompts]
  live = set(range(len(prompts)))
  for place in range(count):
    logits, cache = model.step(tokens, cache)
    tokens = np.full((len(prompts), 1), _PADDING, np.int32)
    for row in sorted(live):
      token = sampling_lib.draw(logits[row], sampling, place)
      tokens[row] = token
      goes_on = token not in config.eos_token_id
      if goes_on:
        texts[row].append(token)
        goes_on = on_token(row, token)
      if not goes_on or place + 1 == count:
        on_token(row, None)
        live.discard(row)
    if not live:
      break
  return texts


def _check(
  config: config_lib.ModelConfig, prompts: Sequence[Sequence[int]], count: int
) -> None:
  if count < 1:
    raise ValueError(f'tokens: expected at least 1, got {count}')
  for prompt in prompts:
    if not prompt:
      raise ValueError('prompt: expected at least one token, got none')
    if max(prompt) >= config.vocab_size:
      raise ValueError(
        f'prompt: expected tokens below vocab_size={config.vocab_size}, got '
        f'{max(prompt)}'
      )
    if len(prompt) + count > config.max_position_embeddings:
      raise ValueError(
        f'tokens: expected at most {config.max_position_embeddings}, with '
        f'those of the prompt, got {len(prompt) + count}'
      )
