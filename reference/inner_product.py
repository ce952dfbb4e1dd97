"""Inner product whose order is fixed by its length alone."""

import jax.numpy as jnp

from hpmoe.reference import numerics
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision


def inner_product(
  policy: precision.PrecisionPolicy,
  a: at.Float[at.Array, '*batch X'],
  b: at.Float[at.Array, '*batch X'],
) -> at.Float[at.Array, '*batch']:
  """Returns sum(a * b) over the last axis, `[...]`, in the accumulate dtype.

  Products are rounded to it, then the second half is added to the first until
  one is left: 1 + ceil(log2(X)) roundings for every term.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  a, b = numerics.widen(policy, a), numerics.widen(policy, b)
  terms = numerics.rounded(a * b)
  # Not jnp.sum or a dot: the compiler would choose their order.
  while (width := terms.shape[-1]) > 1:
    half = (width + 1) // 2
    second = terms[..., half:]
    missing = [(0, 0)] * (terms.ndim - 1) + [(0, 2 * half - width)]
    terms = terms[..., :half] + jnp.pad(second, missing)
  return terms[..., 0]
