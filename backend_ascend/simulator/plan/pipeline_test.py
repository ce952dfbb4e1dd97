"""Bubbles, what is in flight, and times of pipelines by hand."""

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.plan import pipeline


@pytest.mark.parametrize('stages', [1, 2, 4, 8])
@pytest.mark.parametrize('chunks', [1, 2, 3])
@pytest.mark.parametrize('turns', [1, 2, 5])
class TestAlike:
  """Stages that take the same time."""

  def test_the_bubble_is_the_formula(self, stages, chunks, turns):
    # (P - 1) / V of a micro-batch's passes, whatever their number.
    micros = stages * turns
    f, b = np.full(stages * chunks, 1.0), np.full(stages * chunks, 2.0)
    schedule = pipeline.simulate(f, b, stages, micros)
    work = micros * chunks * 3.0
    bubble = (stages - 1) * 3.0
    # The warm-up of an interleaved order is deeper than a turn of micro-batches
    # where there is one turn only; then passes are not paired.
    if chunks == 1 or turns > 1:
      assert schedule.seconds == pytest.approx(work + bubble)
      assert schedule.idle == pytest.approx(bubble / (work + bubble))
    assert pipeline.bound(f, b, stages, micros) == pytest.approx(work + bubble)
    assert schedule.seconds >= work + bubble - 1e-9

  def test_every_pass_runs_once(self, stages, chunks, turns):
    micros = stages * turns
    steps = [
      step
      for stage in range(stages)
      for step in pipeline.order(stages, chunks, micros, stage)
    ]
    assert len(set(steps)) == len(steps) == 2 * stages * chunks * micros
    assert {s.chunk for s in steps} == set(range(stages * chunks))


def test_two_stages_by_hand():
  # F 1 and 3, B 2 and 4, two micro-batches, hop 0.5.  Stage 1 begins at 1.5 and
  # is busy to 15.5; the last gradient comes back at 16 and takes 2.
  schedule = pipeline.simulate([1, 3], [2, 4], 2, 2, 0.5)
  assert schedule.seconds == 18
  (first, second) = schedule.steps
  assert [start for _, start, _ in first] == [0, 1, 9, 16]
  assert [start for _, start, _ in second] == [1.5, 4.5, 8.5, 11.5]


def test_uneven_stages_are_no_faster_than_the_bound():
  rng = np.random.default_rng(0)
  for _ in range(50):
    stages, chunks = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    f, b = rng.random((2, stages * chunks))
    hop = float(rng.random())
    micros = stages * int(rng.integers(1, 5))
    schedule = pipeline.simulate(f, b, stages, micros, hop)
    assert schedule.seconds >= pipeline.bound(f, b, stages, micros, hop) - 1e-9


@pytest.mark.parametrize(
  'stages, chunks, micros, most_in_flight',
  [
    # 1F1B: P - s, and no more than there are.
    (4, 1, 8, [4, 3, 2, 1]),
    (4, 1, 2, [2, 2, 2, 1]),
    # Interleaved: 2 (P - s - 1) + (V - 1) P + 1 chunks.
    (4, 2, 16, [11, 9, 7, 5]),
    (1, 1, 8, [1]),
  ],
)
def test_what_is_in_flight(stages, chunks, micros, most_in_flight):
  assert [*pipeline.in_flight(stages, chunks, micros).sum(1)] == most_in_flight
