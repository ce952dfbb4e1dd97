"""Some tokens with values that a layer must take and few routers give.

Weights of a softmax are positive and sum to 1, and text embeds to no -0.0: a
kernel that renormalises, clamps or drops a sign looks right on both.  The
contract applies routing weights as given, and moves x bit for bit.
"""

import numpy as np

from hpmoe.parity_tests.case import routings
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import storage
from hpmoe.reference.contract.array_typing import Float

PERIOD = 8  # The first of so many tokens is odd.
# What becomes of a weight, by turns over slots, and over odd tokens.
_TURNS = (lambda w: -w, lambda w: w + 1, lambda w: 0 * w, lambda w: w)


def change_weights(
  routed: routings.TokenRouting, factors: Float[np.ndarray, 'E']
) -> Float[np.ndarray, 'R T K']:
  """Returns `[R, T, K]` f32, of odd tokens negative, above 1, 0 and as given.

  They sum to 1 by chance only.

  Args:
    routed: ids and weights of a router.
    factors: of the weights of each expert; powers of two.
  """
  weights = routed.topk_weights
  values = weights.reshape(-1, weights.shape[-1]).copy()
  for turn, token in enumerate(range(0, len(values), PERIOD)):
    for slot in range(values.shape[1]):
      change = _TURNS[(turn + slot) % len(_TURNS)]
      values[token, slot] = change(values[token, slot])
  is_used = routed.topk_ids >= 0
  scales = np.where(is_used, factors[routed.topk_ids], 1)
  return (values.reshape(weights.shape) * scales).astype(weights.dtype)


def change_x(
  array: Float[np.ndarray, 'R T D'], seed: int
) -> Float[np.ndarray, 'R T D']:
  """Returns `[R, T, D]` storage: two subnormals, a -0.0 in odd tokens."""
  smallest = storage.FORMATS[str(array.dtype)].smallest
  values = array.reshape(-1, array.shape[-1]).copy()
  odd = np.arange(0, len(values), PERIOD)
  first = stable_random.integers(
    stable_random.seed_of('odd/x', seed), odd.shape, values.shape[1]
  )
  for place, value in enumerate((smallest, -smallest, -0.0)):
    values[odd, (first + place) % values.shape[1]] = value
  return values.reshape(array.shape)


def plant_ties(
  array: Float[np.ndarray, 'R T D'], form: quantised.Form
) -> Float[np.ndarray, 'R T D']:
  """Returns `[R, T, D]` storage: odd tokens with ties between two codes.

  Only a scale that is a power of two divides without an error; elsewhere
  either code is right.  The first group's largest magnitude becomes one that
  is far from those of another scale, and two elements lie halfway between
  codes, the even one of which is nearer to zero.
  """
  size = form.group[1] or array.shape[-1]
  if form.rule not in quantised.POWERS or form.is_static or size < 3:
    return array
  element = quantised.ELEMENTS[form.element]
  is_whole = element.min_exponent > 0
  tie = 2.5 if is_whole else 1 + 2.0**-element.digits
  values = array.reshape(-1, array.shape[-1]).copy()
  group = values[::PERIOD, :size].astype(np.float64)
  largest = np.maximum(np.abs(group).max(axis=1), np.finfo(np.float32).tiny)
  scale = 2.0 ** np.ceil(np.log2(largest / (0.75 * form.top[0])))
  for column, value in enumerate((0.75 * form.top[0], tie, -tie)):
    values[::PERIOD, column] = value * scale
  return values.reshape(array.shape)
