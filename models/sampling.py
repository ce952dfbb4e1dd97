"""How a token is drawn from logits: the same in every framework."""

import dataclasses

import numpy as np

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a token is drawn.

  Attributes:
    temperature: divides the logits; 0 takes the best token, always.
    top_k: tokens that are drawn from, the best ones; 0 for all.
    top_p: of those, the fewest best ones whose shares add up to it.
    seed: decides every draw.

  Raises:
    ValueError: a number is out of its range; names it.
  """

  temperature: float = option_fields.option(
    1.0,
    'Divisor of the logits; 0 takes the most likely token.',
    typed=0.8,
  )
  top_k: int = option_fields.option(
    0,
    'Samples from the k most likely tokens; 0: all.',
  )
  top_p: float = option_fields.option(
    1.0,
    'Sample from the smallest set of tokens whose probabilities add up to '
    'this.',
  )
  seed: int = option_fields.option(
    0,
    'Seed of the sampling, the same for each prompt.',
  )

  def __post_init__(self):
    if not 0 <= self.temperature < float('inf'):
      raise ValueError(
        f'temperature: expected 0 or more, got {self.temperature}'
      )
    if self.top_k < 0:
      raise ValueError(f'top_k: expected 0 or more, got {self.top_k}')
    if not 0 < self.top_p <= 1:
      raise ValueError(f'top_p: expected above 0, at most 1, got {self.top_p}')
    if self.seed < 0:
      raise ValueError(f'seed: expected 0 or more, got {self.seed}')


def draw(
  logits: at.Float[np.ndarray, ' V'], sampling: Sampling, place: int
) -> int:
  """Returns one token; of equal logits the lower token is better.

  A draw depends on the logits, the seed and the place alone, so a prompt has
  the same text in any company.

  Args:
    logits: `[V]` float32.
    sampling: how.
    place: of the token after the prompt, from 0.
  """
  if sampling.temperature == 0:
    return int(np.argmax(logits))
  scaled = logits.astype(np.float64) / sampling.temperature
  best = np.argsort(-scaled, kind='stable')[: sampling.top_k or None]
  shares = np.exp(scaled[best] - scaled[best[0]])
  below = np.cumsum(shares) - shares  # of those before each
  best = best[below < sampling.top_p * shares.sum()]
  # The largest of logits with Gumbel's noise has softmax's shares.
  noise = -np.log(-np.log(_uniform(sampling.seed, place, logits.size)))
  return int(best[np.argmax((scaled + noise)[best])])


def _uniform(seed: int, place: int, count: int) -> at.Float[np.ndarray, ' V']:
  """Returns numbers between 0 and 1, neither of them."""
  # As `train/text.py` draws: numpy keeps these streams.
  bits = np.random.Philox(np.random.SeedSequence([seed, place]))
  return ((bits.random_raw(count) >> np.uint64(12)) + 0.5) * 2.0**-52
