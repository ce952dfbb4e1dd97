"""Limits of exact data: the largest sum, the largest stored value.

Each check raises an error that names the stage, the place and the limit.
"""

import numpy as np

from hpmoe.reference.contract import storage as storage_lib

LIMIT = 2**24  # Integers up to here are exact in float32.

# Dtypes that exact data can be stored in: name -> numpy's.
STORAGE = {name: row.numpy for name, row in storage_lib.KERNEL_FORMATS.items()}

# By stage the largest sum |a| |b| of any output element, all below `LIMIT`: the
# proof that data are exact.
Bounds = dict[str, int]


class ExactnessError(ValueError):
  """The data are not exact; the message names stage, place and bound."""


class OverflowsError(ExactnessError):
  """A value is larger than a dtype of the policy holds."""


def update_bound(bounds, stage, sums, location):
  """Raises a stage's bound to the largest of its sums `[n, columns]`.

  Raises:
    ExactnessError: a sum reaches `LIMIT`.
  """
  largest = np.max(sums, initial=0)
  if not largest < LIMIT:
    row, column = np.unravel_index(sums.argmax(), sums.shape)
    raise ExactnessError(
      f'{stage}: expected sum |a| |b| < 2^24 = {LIMIT}, got {largest:.0f} '
      f'at {location} {row}, column {column}'
    )
  bounds[stage] = max(bounds.get(stage, 0), largest)


def limiting_format(policy) -> storage_lib.Format:
  """Returns the format of the policy that limits integers.

  The storage dtype, unless a tensor or a rounding point has a range below
  `LIMIT`.
  """
  if policy.smallest_range.largest < LIMIT:
    return policy.smallest_range
  return storage_lib.FORMATS[policy.storage]


def largest_stored(policy) -> float:
  """Returns the largest value that is finite in every dtype of the policy."""
  return limiting_format(policy).largest


def check_stored(policy, stage, value):
  """Refuses values `[...]` that overflow a dtype of the policy.

  Raises:
    OverflowsError: one does.
  """
  limiting = limiting_format(policy)
  if limiting.largest >= LIMIT:
    return
  largest = np.max(np.abs(value), initial=0)
  if not largest <= limiting.largest:
    raise OverflowsError(
      f'{stage}: expected values that {limiting.name} holds, at most '
      f'{limiting.largest:.0f}, got {largest:.0f}'
    )


def check_policy(policy):
  """Refuses policies that cannot be exact.

  Raises:
    ValueError: names the field.
  """
  for name, choices in (
    ('storage', tuple(STORAGE)),
    ('accumulate', ('float32',)),
    ('activation', ('absolute',)),
  ):
    if getattr(policy, name) not in choices:
      raise ValueError(
        f'{name}: expected one of {choices} in the exact lane, got '
        f'{getattr(policy, name)!r}'
      )
  for name in ('limit', 'offset'):
    if getattr(policy, name) % 1:
      raise ValueError(
        f'{name}: expected an integer in the exact lane, got '
        f'{getattr(policy, name):g}'
      )
