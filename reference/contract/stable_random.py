"""Seeded data whose bits do not depend on the numpy version or the CPU.

Only the raw words of PCG64 (a stream that numpy keeps fixed) and exact or
correctly rounded arithmetic are used: no library's transcendental functions,
no distribution method that a release may change.
"""

import math
import zlib

import numpy as np

# The first and the third quarter of a word.
_QUARTERS = np.uint64(0x0000FFFF0000FFFF)


def seed_of(*names: object) -> int:
  """Returns a seed derived from names, so that adding data moves no other."""
  return zlib.crc32('/'.join(str(name) for name in names).encode())


def raw(seed: int, shape: tuple[int, ...], skip: int = 0) -> np.ndarray:
  """Returns `shape` uint64 words, the stream's first `skip` left out."""
  stream = np.random.PCG64(seed).advance(skip)
  return stream.random_raw(math.prod(shape)).reshape(shape)


def read_state(seed: int) -> tuple[int, int, int, int]:
  """Returns the upper and lower half of a stream's state, and increment."""
  bits = np.random.PCG64(seed).state['state']
  return *divmod(bits['state'], 1 << 64), *divmod(bits['inc'], 1 << 64)


def integers(
  seed: int, shape: tuple[int, ...], bound: int, skip: int = 0
) -> np.ndarray:
  """Returns `shape` int64 in [0, bound), for bound up to 2^32."""
  words = raw(seed, shape, skip) >> np.uint64(32)
  return ((words * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


# Of a sum of four 16-bit uniforms; and no `normal` is further from 0.
DEVIATION = math.sqrt((2**32 - 1) / 3)
MOST_DEVIATIONS = 2 * (2**16 - 1) / DEVIATION


def normal(seed: int, shape: tuple[int, ...], skip: int = 0) -> np.ndarray:
  """Returns `shape` float64, mean 0 and variance 1, bell-shaped.

  The sum of four 16-bit uniforms: near normal, none beyond 3.5 deviations.  The
  stream's first `skip` are left out, so that parts may be drawn alone.
  """
  words = raw(seed, shape, skip)
  # In place: two sums of two quarters, then one of four.
  pairs = words & _QUARTERS
  words >>= np.uint64(16)
  words &= _QUARTERS
  words += pairs
  np.right_shift(words, np.uint64(32), out=pairs)
  pairs += words
  pairs &= np.uint64(2**32 - 1)
  total = pairs.view(np.int64)
  total -= 2 * (2**16 - 1)
  return total / DEVIATION


def permutation(seed: int, count: int) -> np.ndarray:
  """Returns `[count]` int64, the numbers below `count` in a seeded order."""
  return np.argsort(raw(seed, (count,)), kind='stable')
