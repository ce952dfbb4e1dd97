"""What large arrays were made from, so that they need not be hashed.

An array that `note` was told of is known by its recipe: the names and numbers
from which it was drawn, and a digest of the source text that drew it.  The
result of a program is known by the digest of the program and its arguments.
Such an array is read-only from then on, and whatever is made of it, a part say,
is another array without a recipe.
"""

import hashlib
import weakref

import numpy as np

from hpmoe.parity_tests.cache import cache_key

# A smaller array is hashed faster than the text that drew it.
LEAST_BYTES = 16 << 20

_digest_by_id: dict[int, bytes] = {}


def note(array: np.ndarray, *recipe: object) -> np.ndarray:
  """Returns an array, read-only and known by its recipe if it is large.

  Args:
    array: drawn, and not to be changed any more.
    *recipe: all that its bits depend on beside the source text, plain data.
  """
  if not is_large(array):
    return array
  text = (
    *cache_key.describe_environment(),
    cache_key.digest_package('hpmoe.parity_tests.case'),
    repr((recipe, array.shape, array.dtype.name)),
  )
  digest = hashlib.sha256('\n'.join(text).encode()).digest()
  return note_digest(array, digest)


def is_large(array: object) -> bool:
  """Returns whether to hash an array takes longer than to note its digest."""
  return getattr(array, 'nbytes', 0) >= LEAST_BYTES


def note_digest(array: np.ndarray, digest: bytes) -> np.ndarray:
  """Returns a large array, read-only and known by a digest.

  Args:
    array: not to be changed any more.
    digest: of all that its bits depend on.
  """
  array.flags.writeable = False
  _digest_by_id[id(array)] = digest
  weakref.finalize(array, _digest_by_id.pop, id(array), None).atexit = False
  return array


def find(array: object) -> bytes | None:
  """Returns a digest of an array's recipe; None: it is not known by one."""
  return _digest_by_id.get(id(array))
