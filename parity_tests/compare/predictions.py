"""How two sides predict the same tokens, in float64."""

import numpy as np

from hpmoe.reference.contract import array_typing as at


def find_log_shares(
  logits: at.Float[np.ndarray, '*tokens V'],
) -> at.Float[np.ndarray, '*tokens V']:
  """Returns log-probabilities `[..., V]` float64."""
  wide = logits.astype(np.float64)
  wide = wide - wide.max(axis=-1, keepdims=True)
  return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def measure_divergence(
  left: at.Float[np.ndarray, '*tokens V'],
  right: at.Float[np.ndarray, '*tokens V'],
) -> at.Float[np.ndarray, '*tokens']:
  """Returns KL(left, right) `[...]`, nats, of log-probabilities `[..., V]`."""
  return np.sum(np.exp(left) * (left - right), axis=-1)


def count_agreeing(
  left: at.Float[np.ndarray, '*tokens V'],
  right: at.Float[np.ndarray, '*tokens V'],
) -> int:
  """Returns the tokens for which both have the same most probable one."""
  return int(np.sum(left.argmax(axis=-1) == right.argmax(axis=-1)))
