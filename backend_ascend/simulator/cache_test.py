"""L2 by reuse distance, against a list of the most recently touched parts."""

import itertools

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from hpmoe.backend_ascend import _native


def least_recent(size: float, bytes_of, touches) -> list[bool]:
  """Returns which touches miss in a cache that holds the last `size` bytes.

  A part stays while less than `size` bytes of others were touched since.
  """
  recent: list[int] = []
  misses = []
  for part in touches:
    if part in recent:
      position = recent.index(part)
      since = sum(bytes_of[p] for p in recent[:position])
      misses.append(since + bytes_of[part] > size)
      recent.pop(position)
    else:
      misses.append(True)
    recent.insert(0, part)
  return misses


def native_misses(size: float, bytes_of, touches) -> list[bool]:
  return _native.cache_misses(size, list(map(float, bytes_of)), list(touches))


class TestRounds:
  """Parts that are touched in turn: all hit, or all miss."""

  @pytest.mark.parametrize('size', [1, 5, 9.99, 10.01, 11, 100])
  def test_one_stream(self, size):
    bytes_of, touches = [1] * 10, list(range(10)) * 6
    expected = [True] * 10 + [size < 10] * 50
    assert native_misses(size, bytes_of, touches) == expected

  @pytest.mark.parametrize('repeats', [1, 3])
  @pytest.mark.parametrize('before', [0, 5])
  @pytest.mark.parametrize('fresh', [0, 1, 3, 5, 8])
  def test_beside_a_stream_of_new_parts(self, before, fresh, repeats):
    """8 parts in turn, each `repeats` times, and new ones, in a cache of 10."""
    new = itertools.count(8)
    touches, last = [], 0
    for num_new in [before] * 20 + [fresh] * 40:
      last = len(touches)
      for part in [*range(8), *itertools.islice(new, num_new)]:
        touches += [part] * repeats
    bytes_of = [1] * (max(touches) + 1)
    # The clock needs a few rounds to settle.
    exact = least_recent(10, bytes_of, touches)
    assert native_misses(10, bytes_of, touches)[last:] == exact[last:]


@hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)
@hypothesis.given(st.integers(0, 10**6), st.integers(4, 40))
def test_between_caches_of_half_and_of_double_size(seed, size):
  """Random touches, near ones more often, of parts of unlike sizes."""
  draw = np.random.default_rng(seed)
  bytes_of = draw.integers(1, 4, 60)
  walk = np.cumsum(draw.integers(-4, 5, 400)) + draw.integers(0, 60, 400) * (
    draw.random(400) < 0.2
  )
  touches = (walk % 60).tolist()
  num_misses = sum(native_misses(size, bytes_of, touches))
  upper = sum(least_recent(size / 2, bytes_of, touches))
  lower = sum(least_recent(size * 2, bytes_of, touches))
  assert lower <= num_misses <= upper


@pytest.mark.parametrize('size', [1e-9, float('inf')])
def test_no_cache_and_an_endless_one(size):
  touches = [0, 1, 0, 1, 2, 0]
  expected = least_recent(size, [1] * 3, touches)
  assert native_misses(size, [1] * 3, touches) == expected
