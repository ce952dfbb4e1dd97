"""L2 by reuse distance, against a list of what was touched least recently."""

import itertools

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from hpmoe.backend_ascend import _native


def least_recent(size: float, bytes_of, touched) -> list[bool]:
  """Returns which touches miss in a cache that holds the last `size` bytes.

  A part is there while less than `size` bytes of others were touched since.
  """
  recent: list[int] = []
  misses = []
  for part in touched:
    if part in recent:
      at = recent.index(part)
      since = sum(bytes_of[p] for p in recent[:at])
      misses.append(since + bytes_of[part] > size)
      recent.pop(at)
    else:
      misses.append(True)
    recent.insert(0, part)
  return misses


def ours(size: float, bytes_of, touched) -> list[bool]:
  return _native.cache_misses(size, list(map(float, bytes_of)), list(touched))


class TestRounds:
  """Parts that come round in turn: all are there, or none is."""

  @pytest.mark.parametrize('size', [1, 5, 9.99, 10.01, 11, 100])
  def test_one_stream(self, size):
    bytes_of, touched = [1] * 10, list(range(10)) * 6
    expected = [True] * 10 + [size < 10] * 50
    assert ours(size, bytes_of, touched) == expected

  @pytest.mark.parametrize('again', [1, 3])
  @pytest.mark.parametrize('before', [0, 5])
  @pytest.mark.parametrize('fresh', [0, 1, 3, 5, 8])
  def test_beside_a_stream_of_new_parts(self, before, fresh, again):
    """8 parts in turn, each `again` times, and new ones, in a cache of 10."""
    new = itertools.count(8)
    touched, last = [], 0
    for some in [before] * 20 + [fresh] * 40:
      last = len(touched)
      for part in [*range(8), *itertools.islice(new, some)]:
        touched += [part] * again
    bytes_of = [1] * (max(touched) + 1)
    # The clock needs a few rounds to settle.
    exact = least_recent(10, bytes_of, touched)
    assert ours(10, bytes_of, touched)[last:] == exact[last:]


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
  touched = (walk % 60).tolist()
  missed = sum(ours(size, bytes_of, touched))
  most = sum(least_recent(size / 2, bytes_of, touched))
  least = sum(least_recent(size * 2, bytes_of, touched))
  assert least <= missed <= most


@pytest.mark.parametrize('size', [1e-9, float('inf')])
def test_no_cache_and_an_endless_one(size):
  touched = [0, 1, 0, 1, 2, 0]
  expected = least_recent(size, [1] * 3, touched)
  assert ours(size, [1] * 3, touched) == expected
