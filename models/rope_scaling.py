"""How rotary position embedding is stretched to a longer context.

The names are those of `rope_scaling` in config.json.  Sources: YaRN, arXiv
2309.00071; LongRoPE, arXiv 2402.13753; `modeling_rope_utils.py` of transformers
5.23 for the others.
"""

import dataclasses
import math
from typing import Any

CONTEXT = 'original_max_position_embeddings'


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """One form, a row of `KINDS`, and its numbers.

  Attributes:
    factor: new context over the one of training, at least 1.
    original_max_position_embeddings: context of training, positions; for a kind
      that has no such field, `max_position_embeddings`.
    beta_fast: YaRN: rotations over that context above which a frequency is
      kept.
    beta_slow: YaRN: rotations below which it is divided by `factor`.
    mscale: see `models/rope_numbers.py`.
    mscale_all_dim: likewise; None for a family that has no such field.
    attention_factor: factor on cosines and sines; None for the one that
      follows from the others.
    truncate: whether YaRN's ramp between both ends begins and ends at a pair.
    low_freq_factor: llama3: rotations over the context of training below which
      a frequency is divided by `factor`.
    high_freq_factor: llama3: rotations above which it is kept.
    short_factor: LongRoPE: divisors of each pair's frequency within the context
      of training.
    long_factor: LongRoPE: those of a longer text.
    partial_rotary_factor: proportional: so many of a head's pairs rotate, the
      first.
    alpha: dynamic: the base is stretched by it, whatever a text's length.
    kind: a key of `KINDS`.
  """

  factor: float
  original_max_position_embeddings: int
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  mscale: float | None = None
  mscale_all_dim: float | None = None
  attention_factor: float | None = None
  truncate: bool = True
  low_freq_factor: float | None = None
  high_freq_factor: float | None = None
  short_factor: tuple[float, ...] = ()
  long_factor: tuple[float, ...] = ()
  alpha: float | None = None
  partial_rotary_factor: float | None = None
  kind: str = 'yarn'


# By kind, the fields that a file must have, and those that it may have.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
  'yarn': (
    ('factor',),
    (CONTEXT, 'beta_fast', 'beta_slow', 'mscale', 'mscale_all_dim')
    + ('attention_factor', 'truncate'),
  ),
  'llama3': (('factor', 'low_freq_factor', 'high_freq_factor'), (CONTEXT,)),
  'linear': (('factor',), ()),
  'dynamic': (('factor',), ('alpha',)),
  'proportional': ((), ('factor', 'partial_rotary_factor')),
  'longrope': (
    ('short_factor', 'long_factor'),
    ('factor', CONTEXT, 'attention_factor'),
  ),
}
# Of the fields that are no floats, a value of the type.
TYPES: dict[str, Any] = {
  CONTEXT: 0,
  'truncate': True,
  'short_factor': (1.0,),
  'long_factor': (1.0,),
}


def to_fields(scaling: RopeScaling) -> dict[str, Any]:
  """Returns the fields of a form in config.json."""
  required, optional = KINDS[scaling.kind]
  values = {name: getattr(scaling, name) for name in (*required, *optional)}
  fields: dict[str, Any] = {'type': scaling.kind}
  for name, value in values.items():
    if value is not None:
      fields[name] = list(value) if isinstance(value, tuple) else value
  return fields


def check(key: str, scaling: RopeScaling, pairs: int) -> None:
  """Refuses numbers out of range.

  Args:
    key: of config.json, to name in a refusal.
    scaling: what is said there.
    pairs: of a head, that rotate.

  Raises:
    ValueError: names the field.
  """
  # The next above 0 for what must not be 0.
  tiny, slow = math.ulp(0.0), scaling.beta_slow
  low = scaling.low_freq_factor
  for name, minimum in (
    *(('factor', 1), (CONTEXT, 1), ('mscale', 0), ('mscale_all_dim', 0)),
    *(('attention_factor', tiny), ('beta_slow', tiny), ('beta_fast', slow)),
    *(('low_freq_factor', tiny), ('high_freq_factor', low)),
    *(('alpha', 1), ('partial_rotary_factor', tiny)),
  ):
    value = getattr(scaling, name)
    fine = value is None or (math.isfinite(value) and value >= minimum)
    expected = '> 0' if minimum == tiny else f'>= {minimum}'
    if not fine:
      raise ValueError(
        f'{key}.{name}: expected a finite number {expected}, got {value!r}'
      )
  if low is not None and low == scaling.high_freq_factor:
    raise ValueError(f'{key}.high_freq_factor: expected > {low}, got {low}')
  if scaling.kind == 'dynamic' and pairs < 2:
    raise ValueError(f'{key}: expected two pairs that rotate, got {pairs}')
  if scaling.kind == 'longrope':
    _check_divisors(key, scaling, pairs)


def _check_divisors(key: str, scaling: RopeScaling, pairs: int) -> None:
  for name in ('short_factor', 'long_factor'):
    values = getattr(scaling, name)
    if len(values) != pairs or not all(0 < v < math.inf for v in values):
      raise ValueError(
        f'{key}.{name}: expected {pairs} finite numbers > 0, one of each pair '
        f'that rotates, got {str([*values])[:60]}'
      )
  if scaling.original_max_position_embeddings < 2:  # by whose logarithm
    raise ValueError(f'{key}.{CONTEXT}: expected >= 2, got 1')
