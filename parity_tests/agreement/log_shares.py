"""How two runs predict the tokens that both read."""

import dataclasses
from typing import Any

import numpy as np

from hpmoe.parity_tests.agreement import runs
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.compare import predictions
from hpmoe.reference.contract import array_typing as at

_CHUNK = 256
# Importance ratios that are counted: outside of PPO's usual clip.
CLIP = (0.8, 1.2)


@dataclasses.dataclass(frozen=True)
class Agreement:
  """Log-probabilities of the tokens that follow, on both sides.

  Attributes:
    tokens: that are predicted.
    mean, largest: of the difference of log-probabilities, without sign, nats.
    place: of the largest: the row of the token that is predicted.
    divergence: KL(left, right), mean, nats a token.
    least_ratio, most_ratio: importance ratio of a token, right over left.
    outside: the share of tokens whose ratio is outside of `CLIP`.
    best: the share of tokens whose most probable next token is the same.
    left, right: `[tokens]` the log-probabilities.
    rows: `[tokens]` which rows predict.
  """

  tokens: int
  mean: float
  largest: float
  place: int
  divergence: float
  least_ratio: float
  most_ratio: float
  outside: float
  best: float
  left: at.Float[np.ndarray, 'T']
  right: at.Float[np.ndarray, 'T']
  rows: at.Int[np.ndarray, 'T']

  def to_json(self) -> dict[str, Any]:
    """Returns the numbers as plain data, without those of each token."""
    fields = dataclasses.asdict(self)
    return {n: fields[n] for n in fields if n not in ('left', 'right', 'rows')}


def find_targets(
  rows: runs.Rows,
) -> tuple[at.Int[np.ndarray, 'T'], at.Int[np.ndarray, 'T']]:
  """Returns the rows that are followed by a token, and those tokens."""
  assert rows.tokens is not None
  follows = (np.diff(rows.sequence) == 0) & (np.diff(rows.position) == 1)
  indices = np.flatnonzero(follows)
  return indices, rows.tokens[indices + 1]


def measure(
  left: runs.Run, right: runs.Run, rows: runs.Rows
) -> Agreement | None:
  """Returns how two runs predict; None: a dump lacks tokens or logits."""
  if rows.tokens is None or not (left.head and right.head):
    return None
  sides = [_Head(run.head, run.shapes) for run in (left, right)]
  indices, targets = find_targets(rows)
  numbers = [rows.left, rows.right]
  present = np.all(
    [s.find_present(n[indices]) for s, n in zip(sides, numbers, strict=True)],
    axis=0,
  )
  indices, targets = indices[present], targets[present]
  if not indices.size:
    return None
  target_logs: list[list[np.ndarray]] = [[], []]
  divergence, agreeing = 0.0, 0
  for begin in range(0, len(indices), _CHUNK):
    part = indices[begin : begin + _CHUNK]
    logs = [
      predictions.find_log_shares(s.read(n[part]))
      for s, n in zip(sides, numbers, strict=True)
    ]
    target = targets[begin : begin + _CHUNK, None]
    for side, log in zip(target_logs, logs, strict=True):
      side.append(np.take_along_axis(log, target, -1)[:, 0])
    divergence += float(predictions.measure_divergence(*logs).sum())
    agreeing += predictions.count_agreeing(*logs)
  wide = [np.concatenate(side) for side in target_logs]
  return _summarise(wide[0], wide[1], indices, divergence, agreeing)


def _summarise(
  left: np.ndarray,
  right: np.ndarray,
  indices: np.ndarray,
  divergence: float,
  agreeing: int,
) -> Agreement:
  apart = np.abs(right - left)
  ratio = np.exp(right - left)
  count = len(left)
  return Agreement(
    tokens=count,
    mean=float(apart.mean()),
    largest=float(apart.max()),
    place=int(indices[apart.argmax()]) + 1,
    divergence=divergence / count,
    least_ratio=float(ratio.min()),
    most_ratio=float(ratio.max()),
    outside=float(np.mean((ratio < CLIP[0]) | (ratio > CLIP[1]))),
    best=agreeing / count,
    left=left,
    right=right,
    rows=indices,
  )


class _Head:
  """Logits of a run, perhaps of the last tokens of a call alone."""

  def __init__(self, tensors: tuple[tensor_files.StoredTensor, ...], shapes):
    self._arrays = [read_case.as_numpy(tensor.read()) for tensor in tensors]
    self._place = np.full((sum(b * s for b, s in shapes), 2), -1)
    begin = 0
    for call, (batch, length) in enumerate(shapes):
      if call < len(self._arrays):
        array = self._arrays[call]
        array = array.reshape(batch, -1, array.shape[-1])
        count = min(array.shape[1], length)
        rows = begin + np.arange(batch * length).reshape(batch, length)
        inner = np.arange(array.shape[0] * array.shape[1])
        inner = inner.reshape(batch, -1)[:, array.shape[1] - count :]
        last = rows[:, length - count :]
        self._place[last, 0] = call
        self._place[last, 1] = inner
        self._arrays[call] = array.reshape(-1, array.shape[-1])
      begin += batch * length

  def find_present(self, rows: np.ndarray) -> np.ndarray:
    """Says of rows `[T]` whether there are logits."""
    return self._place[rows, 0] >= 0

  def read(self, rows: np.ndarray) -> np.ndarray:
    """Returns the logits `[T, V]` of rows."""
    return np.stack([self._arrays[c][i] for c, i in self._place[rows]])
