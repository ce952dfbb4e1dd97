"""What experts make of tokens, in float64, under a routing of one's own."""

import numpy as np

from hpmoe.reference.contract import array_typing as at


def compute_y(
  x: at.Float[np.ndarray, 'N D'],
  ids: at.Int[np.ndarray, 'N K'],
  weights: at.Float[np.ndarray, 'N K'],
  w_gate_up: at.Float[np.ndarray, 'E D 2F'],
  w_down: at.Float[np.ndarray, 'E F D'],
) -> tuple[at.Float[np.ndarray, 'N D'], at.Float[np.ndarray, 'N']]:
  """Returns y `[N, D]` float64, and the size of its terms `[N]`.

  The size is the root of the summed squares of all weighted terms: rounding
  moves y by parts of it, even where terms cancel.
  """
  wide = x.astype(np.float64)
  y = np.zeros(wide.shape)
  squares = np.zeros(len(wide))
  for expert in np.unique(ids).tolist():
    token, slot = np.nonzero(ids == expert)
    gate_up = wide[token] @ w_gate_up[expert].astype(np.float64)
    gate, up = np.split(gate_up, 2, axis=-1)
    with np.errstate(over='ignore'):
      hidden = gate / (1 + np.exp(-gate)) * up
    out = hidden @ w_down[expert].astype(np.float64)
    out *= weights[token, slot, None].astype(np.float64)
    np.add.at(y, token, out)
    np.add.at(squares, token, np.sum(out * out, axis=-1))
  return y, np.sqrt(squares)


def measure_distance(left: np.ndarray, right: np.ndarray) -> float:
  """Returns the norm of the difference over the norm of the left."""
  wide = left.astype(np.float64)
  size = float(np.linalg.norm(wide)) or 1.0
  return float(np.linalg.norm(right.astype(np.float64) - wide)) / size


def measure_tokens(
  left: at.Float[np.ndarray, 'N D'], right: at.Float[np.ndarray, 'N D']
) -> at.Float[np.ndarray, 'N']:
  """Returns the distance of each token `[N]`, relative to the left's."""
  wide = left.astype(np.float64)
  size = np.linalg.norm(wide, axis=-1)
  apart = np.linalg.norm(right.astype(np.float64) - wide, axis=-1)
  return apart / np.where(size == 0, 1.0, size)
