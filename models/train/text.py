"""Text as bytes: train and held-out parts, and batches that a seed decides.

A batch is a function of (seed, position) and of nothing else, so a run that
stops and resumes reads what a run in one piece reads.
"""

import dataclasses
import os
import pathlib

from jaxtyping import Int
import numpy as np

SHIPPED = pathlib.Path(__file__).parent / 'data' / 'persuasion.txt'

_VALUES = 256


@dataclasses.dataclass(frozen=True)
class Split:
  """A text in two parts that share no byte.

  Attributes:
    train: `[S]` uint8, what a model learns from.
    held_out: `[H]` uint8, the end of the text, what it is judged on.
  """

  train: Int[np.ndarray, ' S']
  held_out: Int[np.ndarray, ' H']


def read(path: str | os.PathLike[str] | None = None) -> np.ndarray:
  """Returns the bytes of a text file, `[S]` uint8; None means the one shipped.

  Raises:
    OSError: the file cannot be read.
  """
  return np.fromfile(SHIPPED if path is None else path, np.uint8)


def split(text: Int[np.ndarray, ' S'], held_out: float = 0.05) -> Split:
  """Returns the text cut in two, the last `held_out` of it apart.

  Raises:
    ValueError: `held_out` is not between 0 and 1.
  """
  if not 0 < held_out < 1:
    raise ValueError(f'held_out: expected between 0 and 1, got {held_out}')
  cut = len(text) - int(len(text) * held_out)
  return Split(text[:cut], text[cut:])


def batch(
  text: Int[np.ndarray, ' S'],
  length: int,
  size: int,
  seed: int,
  position: int,
) -> Int[np.ndarray, 'B T+1']:
  """Returns batch number `position`, `[B, T + 1]` int32: inputs and targets.

  Row b holds `length + 1` consecutive bytes; its first `length` are inputs and
  its last `length` the targets, one byte on. Where a row begins is uniform and
  depends on (seed, position) alone.

  Args:
    text: `[S]` uint8.
    length: T, tokens of one sequence.
    size: B, sequences of one batch.
    seed: of the whole run.
    position: number of the batch, from 0.

  Raises:
    ValueError: a number is out of range, or the text is shorter than a row.
  """
  _check_positive('length', length)
  _check_positive('size', size)
  check_length(text, length)
  # A generator of its own for each batch, from a hash of both numbers: numpy
  # documents that SeedSequence and Philox keep their streams.
  bits = np.random.Philox(np.random.SeedSequence([seed, position]))
  draws = bits.random_raw(size) % np.uint64(len(text) - length)
  rows = draws.astype(np.int64)[:, None] + np.arange(length + 1)
  return text[rows].astype(np.int32)


def windows(
  text: Int[np.ndarray, ' S'], length: int, size: int
) -> list[Int[np.ndarray, 'B T+1']]:
  """Returns the whole text in order, as batches of the shape of `batch`.

  Each target stands in one window and no window overlaps another's targets;
  what does not fill a last batch is left out.

  Raises:
    ValueError: the text does not fill one batch.
  """
  _check_positive('length', length)
  _check_positive('size', size)
  rows = max(0, len(text) - 1) // length
  if rows < size:
    raise ValueError(
      f'text: expected at least {size * length + 1} bytes, one batch of {size} '
      f'sequences of {length}, got {len(text)}'
    )
  starts = np.arange(rows - rows % size) * length
  cut = text[starts[:, None] + np.arange(length + 1)].astype(np.int32)
  return list(cut.reshape(-1, size, length + 1))


def check_length(text: Int[np.ndarray, ' S'], length: int) -> None:
  """Refuses a text that is shorter than one sequence and its last target.

  Raises:
    ValueError: it is.
  """
  if len(text) < length + 1:
    raise ValueError(
      f'text: expected at least {length + 1} bytes, one sequence of {length} '
      f'and the byte after it, got {len(text)}'
    )


def bigram_entropy(text: Int[np.ndarray, ' S']) -> float:
  """Returns the entropy of a byte given the one before it, in nats.

  H = - sum over pairs (a, b) of p(a, b) ln p(b | a), with p counted on the
  text itself. No model that sees one byte has a lower mean loss on this text,
  so a loss below it shows that more context is used. Divide by ln 2 for bits.

  Raises:
    ValueError: the text has no pair.
  """
  if len(text) < 2:
    raise ValueError(f'text: expected at least 2 bytes, got {len(text)}')
  pairs = text[:-1].astype(np.int64) * _VALUES + text[1:]
  count = np.bincount(pairs, minlength=_VALUES**2).reshape(_VALUES, _VALUES)
  first = count.sum(axis=1, keepdims=True)
  a, b = np.nonzero(count)
  n = count[a, b]
  return float(-(n * np.log(n / first[a, 0])).sum() / n.sum())


def _check_positive(name: str, value: int) -> None:
  if value < 1:
    raise ValueError(f'{name}: expected a positive integer, got {value}')
