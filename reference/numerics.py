"""How every stage reads and writes: widen, compute, round once."""

from collections.abc import Iterator
import contextlib

import jax
from jax import lax
import jax.numpy as jnp

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage as storage_lib

_FLOAT64 = jnp.dtype('float64')


@contextlib.contextmanager
def use_x64(enabled: bool = True) -> Iterator[None]:
  """Sets jax_enable_x64 in the context, which float64 requires."""
  before = jax.config.read('jax_enable_x64')
  jax.config.update('jax_enable_x64', enabled)
  try:
    yield
  finally:
    jax.config.update('jax_enable_x64', before)


def _dtype(name: str) -> jnp.dtype:
  dtype = jnp.dtype(name)
  if dtype == _FLOAT64 and not jax.config.read('jax_enable_x64'):
    raise ValueError(
      'jax_enable_x64: expected True for a policy in float64, got False'
    )
  return dtype


def storage_dtype(policy: precision.PrecisionPolicy) -> jnp.dtype:
  """Returns the dtype of stored tensors.

  Raises:
    ValueError: it is float64 and jax_enable_x64 is off.
  """
  return _dtype(policy.storage)


def accumulate_dtype(policy: precision.PrecisionPolicy) -> jnp.dtype:
  """Returns the dtype of arithmetic.

  Raises:
    ValueError: it is float64 and jax_enable_x64 is off.
  """
  return _dtype(policy.accumulate)


def widen(
  policy: precision.PrecisionPolicy, a: at.Float[at.Array, '*shape']
) -> at.Float[at.Array, '*shape']:
  """Returns stored values `[...]` in the accumulation dtype."""
  return a.astype(accumulate_dtype(policy))


def store(
  policy: precision.PrecisionPolicy, a: at.Float[at.Array, '*shape']
) -> at.Float[at.Array, '*shape']:
  """Returns values `[...]` rounded once, to nearest even, to storage."""
  storage = storage_dtype(policy)
  source, target = jnp.finfo(a.dtype), jnp.finfo(storage)
  if target.nmant < source.nmant:
    a = _narrowed(storage_lib.FORMATS[policy.storage], a)
  return a.astype(storage)


def at_point(
  policy: precision.PrecisionPolicy, point: str, a: at.Float[at.Array, '*shape']
) -> at.Float[at.Array, '*shape']:
  """Returns values `[...]` after a rounding point, in their own dtype."""
  dtype = policy.rounding(point)
  return a if dtype is None else _narrowed(storage_lib.ROUNDED[dtype], a)


def multiplied_parts(
  policy: precision.PrecisionPolicy,
  a: at.Float[at.Array, '...'],
  b: at.Float[at.Array, '...'],
) -> list[tuple[at.Array, at.Array]]:
  """Returns the pairs whose products add up to the product of two operands.

  The operands themselves, or pairs of their parts if products are emulated.
  """
  emulated = policy.emulated
  if emulated is None:
    return [(a, b)]
  of_a, of_b = (_split(emulated, operand) for operand in (a, b))
  return [(of_a[i], of_b[j]) for i, j in emulated.pairs]


def _split(emulated: storage_lib.Emulated, a: at.Array) -> list[at.Array]:
  parts = []
  for _ in range(emulated.parts):
    parts.append(_narrowed(storage_lib.ROUNDED[emulated.dtype], a))
    a = a - parts[-1]
  return parts


def _narrowed(storage: storage_lib.Format, a: at.Array) -> at.Array:
  # XLA may drop a convert to bfloat16 and back inside one jitted function
  # (excess precision); it never drops reduce_precision.
  if storage.truncates:
    return _truncated(storage, a)
  narrow = lax.reduce_precision(a, storage.exponent_bits, storage.digits - 1)
  if storage.exponent_bits < jnp.finfo(a.dtype).nexp:
    # reduce_precision flushes the subnormals of a format with fewer exponents.
    subnormal = jnp.round(a / storage.smallest) * storage.smallest
    narrow = jnp.where(jnp.abs(a) < storage.smallest_normal, subnormal, narrow)
  return narrow


def _truncated(target: storage_lib.Format, a: at.Array) -> at.Array:
  """Returns values truncated to the digits of a format of the same range."""
  info = jnp.finfo(a.dtype)
  assert target.exponent_bits == info.nexp
  word = jnp.dtype(f'uint{info.bits}')
  excess = info.nmant - (target.digits - 1)
  high_bits = lax.bitcast_convert_type(a, word) >> excess << excess
  return lax.bitcast_convert_type(high_bits, a.dtype)


def rounded(
  product: at.Float[at.Array, '*shape'],
) -> at.Float[at.Array, '*shape']:
  """Returns a product `[...]` that no compiler fuses with a later sum."""
  # XLA lets LLVM contract a * b + c to a fused multiply-add, and drops
  # optimization_barrier before it does; a select in between prevents it.
  return jnp.where(jnp.isnan(product), jnp.nan, product)


def bits(a: at.Array) -> at.Array:
  """Returns a two-byte dtype `[...]` as uint16, any other unchanged."""
  # XLA on CPUs would widen a whole narrow buffer to read or write one block.
  if a.dtype.itemsize == 2:
    return lax.bitcast_convert_type(a, jnp.uint16)
  return a


def values(stored_bits: at.Array, dtype: jnp.dtype) -> at.Array:
  """Returns the values of `dtype` whose `bits` are given: its inverse."""
  return lax.bitcast_convert_type(stored_bits, dtype)
