"""1F1B pipelines: orders, times, and micro-batches in flight.

Chunk c of a model lies on stage c mod P, so a stage has V chunks (interleaved,
arXiv 2104.04473).  Orders are Megatron's.
"""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Step:
  """One pass of one micro-batch through one chunk.

  Attributes:
    backward: which pass.
    micro: number of the micro-batch.
    chunk: number of the chunk in the model.
  """

  backward: bool
  micro: int
  chunk: int


def _warm_up(stages: int, chunks: int, micros: int, stage: int) -> int:
  if chunks == 1:
    return min(micros, stages - stage - 1)
  deep = (stages - stage - 1) * 2 + (chunks - 1) * stages
  return min(micros * chunks, deep)


@functools.lru_cache(maxsize=1024)
def order(
  stages: int, chunks: int, micros: int, stage: int
) -> tuple[Step, ...]:
  """Returns the steps of a stage, in order.

  Args:
    stages: P.
    chunks: V, of each stage.
    micros: micro-batches; a multiple of P where V is not 1.
    stage: which one.
  """

  def step(number: int, backward: bool) -> Step:
    turn, offset = divmod(number, stages * chunks)
    local_chunk, micro = divmod(offset, stages)
    if backward:
      local_chunk = chunks - 1 - local_chunk
    return Step(backward, turn * stages + micro, local_chunk * stages + stage)

  total, warm = micros * chunks, _warm_up(stages, chunks, micros, stage)
  steps = [step(i, False) for i in range(warm)]
  for i in range(total - warm):
    steps += [step(warm + i, False), step(i, True)]
  return (*steps, *(step(i, True) for i in range(total - warm, total)))


@functools.lru_cache(maxsize=1024)
def in_flight(stages: int, chunks: int, micros: int) -> np.ndarray:
  """Returns `[P, V]`: micro-batches of each chunk when a stage holds most."""
  # More micro-batches than this change nothing: the steady state is reached.
  micros = min(micros, 2 * stages * (1 if chunks == 1 else 2))
  peak = np.zeros((stages, chunks), np.int64)
  for stage in range(stages):
    in_stage = np.zeros(chunks, np.int64)
    for step in order(stages, chunks, micros, stage):
      in_stage[step.chunk // stages] += -1 if step.backward else 1
      if in_stage.sum() > peak[stage].sum():
        peak[stage] = in_stage
  peak.flags.writeable = False
  return peak


@dataclasses.dataclass(frozen=True)
class Execution:
  """A step of training in time.

  Attributes:
    seconds: until the last pass ends.
    steps: by stage, each with its start and end in s.
  """

  seconds: float
  steps: tuple[tuple[tuple[Step, float, float], ...], ...]

  @property
  def idle(self) -> float:
    """The part of all stages' time in which they do nothing."""
    busy = sum(end - start for stage in self.steps for _, start, end in stage)
    return 1 - busy / (len(self.steps) * self.seconds)


def simulate(
  forward: Sequence[float],
  backward: Sequence[float],
  stages: int,
  micros: int,
  hop: float = 0.0,
) -> Execution:
  """Runs the orders of all stages.

  Args:
    forward: `[P * V]` s of a micro-batch in each chunk.
    backward: `[P * V]` s, the same.
    stages: P.
    micros: micro-batches.
    hop: s from the end of a chunk until the next one can begin.
  """
  last = len(forward) - 1
  orders = [
    order(stages, len(forward) // stages, micros, stage)
    for stage in range(stages)
  ]
  ends: dict[tuple[bool, int, int], float] = {}
  executed: list[list[tuple[Step, float, float]]] = [[] for _ in orders]
  clock, left = [0.0] * stages, sum(map(len, orders))
  while left:
    before = left
    for stage, (steps, stage_steps) in enumerate(zip(orders, executed)):
      while len(stage_steps) < len(steps):
        step = steps[len(stage_steps)]
        ready = _ready(step, ends, last, hop)
        if ready is None:
          break
        start = max(clock[stage], ready)
        seconds = (backward if step.backward else forward)[step.chunk]
        clock[stage] = ends[step.backward, step.micro, step.chunk] = (
          start + seconds
        )
        stage_steps.append((step, start, clock[stage]))
        left -= 1
    if left == before:
      raise RuntimeError('orders: expected one that ends, got stages that wait')
  return Execution(max(clock), tuple(map(tuple, executed)))


def _ready(step: Step, ends, last: int, hop: float) -> float | None:
  """Returns when the input of a pass is there; None: not known yet."""
  back = step.backward
  if step.chunk == (last if back else 0):
    return ends.get((False, step.micro, last)) if back else 0.0
  before = ends.get((back, step.micro, step.chunk + (1 if back else -1)))
  return None if before is None else before + hop


def bound(
  forward: np.ndarray,
  backward: np.ndarray,
  stages: int,
  micros: int,
  hop: float = 0.0,
) -> float:
  """Returns s that no run of `simulate` is shorter than.

  A stage starts when the first micro-batch has come through those before it,
  has all its passes, and then the last gradient goes back through them.  Where
  all chunks are alike that is the time itself: (m + (P - 1) / V) (F + B).
  """
  seconds = forward + backward
  work = micros * seconds.reshape(-1, stages).sum(0)
  before = np.concatenate([[0.0], np.cumsum(seconds[: stages - 1] + 2 * hop)])
  return float((before + work).max())
