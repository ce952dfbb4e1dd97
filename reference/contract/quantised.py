"""The one table of quantised forms: what codes and scales stand for a tensor.

A row, of quantised.toml, is how one published quantiser makes them, bit by bit,
in float32; `quantised.quantise` executes it.  `[..., across, depth]` is what
the last two axes are called here: `depth` is summed over by the GEMM that reads
the tensor.  Where several rows differ by a rounding alone, each is a kernel
that exists.
"""

import dataclasses
import pathlib
import tomllib
from typing import Any

from hpmoe.reference.contract import messages

# How a scale s is made of the largest magnitude a of a group, and what a value
# x becomes before it is rounded, where `top` is the largest code:
RULES = {
  'divide': 's = a / top, x / s',
  'reciprocal': 's = a / top, x * (1 / s)',
  'encode': 'e = top / a, s = 1 / e, x * e',
  # 448 / a in torch is a product with the reciprocal of a.
  'encode_torch': 'e = (1 / a) * top, s = 1 / e, x * e',
  'reciprocal_apart': 's = a / top, x * (1 / s) before s is stored',
  'encode_apart': 'e = (1 / a) * top, s = a / top, x * e',
  # Powers of two, found by bits, so that x / s is exact.
  'ceil': 's = the power of two that is not below a / top, x / s',
  'floor': 's = 2^floor(log2 a) / 2^floor(log2 top), x / s',
  # A scale of a group in 8 bits, times a float32 scale 1 / g of the matrix,
  # whose largest magnitude is A: g = (448 top) / A.
  'two_level': 's = (a / top) * g, x * (1 / (s * (1 / g)))',
  # Of rows: `NAME_scale` of the expert, whatever their magnitudes are.
  'static': 's is an input, x / s, saturated',
  # Of rows: a scale of a group in 8 bits, times `NAME_scale` g of the expert.
  'static_two_level': 's = (a / top) / g, x / (s * g)',
  # All between 0 and the largest code; the group's zero is round(-least / s).
  'zero_point': 's = (most - least) / top, round(x / s) + zero',
}
# Whose scales are powers of two.
POWERS = ('ceil', 'floor')
MODES = ('even', 'away', 'zero', 'cut')


@dataclasses.dataclass(frozen=True)
class Element:
  """A format of codes, or one that a kernel rounds to on the way.

  Attributes:
    name: as numpy and ml_dtypes call it.
    digits: bits of the significand, the hidden one included.
    min_exponent: of the smallest number with all digits, 2**min_exponent; that
      of whole numbers makes their spacing 1.
    lowest, highest: codes saturate there.
  """

  name: str
  digits: int
  min_exponent: int
  lowest: float
  highest: float

  @property
  def is_packed(self) -> bool:
    """Whether files hold several codes in a word."""
    return self.name.split('_')[0].endswith('4')

  @property
  def most_whole(self) -> int:
    """Odd: all whole numbers of that size and less are codes less a zero."""
    return int(min(2**self.digits - 1, (self.highest - self.lowest) // 2))


ELEMENTS = {
  row.name: row
  for row in (
    Element('int8', 8, 7, -128, 127),
    Element('int4', 4, 3, -8, 7),
    Element('uint4', 4, 3, 0, 15),
    Element('float8_e4m3fn', 4, -6, -448, 448),
    Element('float8_e4m3fnuz', 4, -7, -240, 240),
    Element('float8_e5m2', 3, -14, -57344, 57344),
    Element('float4_e2m1fn', 2, 0, -6, 6),
    Element('float16', 11, -14, -65504, 65504),
  )
}

# Which element of a word lies in its i-th nibble, from the lowest.
PACKINGS = {
  # GPT-OSS, DeepGEMM, and vLLM's Triton kernels: bytes.
  'low': (0, 1),
  'high': (1, 0),
  # GPTQ (along the depth) and AWQ (across): words of 32 bits.
  'gptq': (0, 1, 2, 3, 4, 5, 6, 7),
  'awq': (0, 2, 4, 6, 1, 3, 5, 7),
}
# Whose words hold codes of one place of the depth.
ACROSS = ('awq',)


@dataclasses.dataclass(frozen=True)
class Form:
  """Codes and scales of one kernel's quantiser.

  Attributes:
    name: in flags and reports.
    element: key of `ELEMENTS`, the type of a code.
    group: elements across and along the depth that share a scale; 0 is all.
      Groups start at 0; the last one may be shorter, and is padded with zeros.
    source: repository, path and commit of the kernel.
    rule: key of `RULES`.
    top: scaled value of a group's largest magnitude, for positive and for
      negative elements.
    least: lower limit of a group's largest magnitude.
    of_zeros: the scale of a group of zeros; its codes are zeros.
    scale: dtype of scales.
    rounding: roundings in sequence, each (format, mode): to nearest, with ties
      to even, away from zero or to zero; or truncation.  The last is to
      `element`, and saturates.
    packing: key of `PACKINGS`, for 4-bit codes in files.
  """

  name: str
  element: str
  group: tuple[int, int]
  source: str
  rule: str = 'divide'
  top: tuple[float, float] = (0.0, 0.0)
  min_magnitude: float = 0.0
  of_zeros: float = 1.0
  scale: str = 'float32'
  rounding: tuple[tuple[str, str], ...] = ()
  packing: str = 'low'

  def __post_init__(self):
    highest = ELEMENTS[self.element].highest
    for name, value in (
      ('top', (highest, highest)),
      ('rounding', ((self.element, 'even'),)),
    ):
      if not any(getattr(self, name)):
        object.__setattr__(self, name, value)

  @property
  def limits(self) -> tuple[float, float]:
    """The smallest and largest code; with static scales `top` may be less."""
    element = ELEMENTS[self.element]
    low, high = element.lowest, element.highest
    if self.is_static and self.top[0] < high:
      return -self.top[1], self.top[0]
    return low, high

  @property
  def is_static(self) -> bool:
    """Whether scales are an input, one for each expert."""
    return self.rule == 'static'

  @property
  def reads_scale(self) -> bool:
    """Whether a scale is an input, alone or as a factor of group scales."""
    return self.rule in ('static', 'static_two_level')

  @property
  def is_packed(self) -> bool:
    """Whether files hold several codes in a word."""
    return ELEMENTS[self.element].is_packed

  @property
  def codes_in_word(self) -> int:
    """The codes in an element of files."""
    return len(PACKINGS[self.packing]) if self.is_packed else 1

  @property
  def is_packed_across(self) -> bool:
    """Whether a word holds codes across, and not along the depth."""
    return self.packing in ACROSS

  @property
  def has_coarse_scales(self) -> bool:
    """Whether the next scale is far: a power of two, or one in 8 bits."""
    return self.rule in POWERS or self.scale.startswith('float8')

  @property
  def parts(self) -> tuple[str, ...]:
    """What stands for a tensor, fields of `quantise.Quantised`."""
    if self.is_static:
      return ('codes',)
    further_parts = {'zero_point': ('zeros',), 'two_level': ('tensor_scales',)}
    return ('codes', 'scales', *further_parts.get(self.rule, ()))

  @property
  def dtypes(self) -> dict[str, str]:
    """The dtype of each part in files."""
    words = {1: self.element, 2: 'uint8', 8: 'int32'}
    dtypes = {
      'codes': words[self.codes_in_word],
      'scales': 'uint8' if self.rule in POWERS else self.scale,
      'zeros': 'int32',
      'tensor_scales': 'float32',
    }
    return {part: dtypes[part] for part in self.parts}

  def groups(self, across: int, depth: int) -> tuple[int, int]:
    """Returns the number of scales of such a tensor along each axis."""
    rows, columns = (
      -(-size // (limit or max(size, 1)))
      for size, limit in zip((across, depth), self.group)
    )
    return rows, columns


def _form(name: str, row: dict[str, Any]) -> Form:
  if 'rounding' in row:
    row['rounding'] = map(tuple, row['rounding'])
  for key in {'group', 'top', 'rounding'} & {*row}:
    row[key] = tuple(row[key])
  return Form(name, **row)


_ROWS = tomllib.loads(pathlib.Path(__file__).with_suffix('.toml').read_text())
FORMS = {name: _form(name, row) for name, row in _ROWS.items()}
_PACKED_ROWS = ('float4_e2m1fn',)
# Of rows, quantised as they come: no value of another row counts.
OF_ROWS = tuple(
  name
  for name, row in FORMS.items()
  if row.group[0] == 1 and (not row.is_packed or row.element in _PACKED_ROWS)
  if row.rule != 'two_level'
)
# Of what comes as codes: its scales come too, or are computed.
OF_VALUES = tuple(name for name, row in FORMS.items() if not row.reads_scale)
OF_X = tuple(
  name for name in OF_ROWS if name in OF_VALUES and not FORMS[name].is_packed
)
# What GEMMs may quantise before they multiply it.
ROWS = ('expert_in', 'activation')


def parts(form: str, name: str) -> tuple[str, ...]:
  """Returns the names of what stands for a tensor; '': nothing."""
  if not form:
    return ()
  return tuple(f'{name}_{part}' for part in FORMS[form].parts)


def describe_rows(word: str) -> str:
  """Returns what `row_forms` reads, for an error about `word`."""
  return (
    f'a form, or {ROWS[0]}=FORM,{ROWS[1]}=FORM, FORM one of '
    f'{messages.name_choices(OF_ROWS, word)}'
  )


def row_forms(rows: str) -> dict[str, str]:
  """Returns the form of each tensor of `ROWS` that a GEMM quantises.

  Args:
    rows: a form, of both; or `NAME=FORM`, several with a comma; '': of none.

  Raises:
    ValueError: a name or a form is unknown.
  """
  words = rows.split(',') if rows else []
  if len(words) == 1 and '=' not in rows:
    words = [f'{name}={rows}' for name in ROWS]
  forms = {}
  for word in words:
    name, _, form = word.partition('=')
    if name not in ROWS or form not in OF_ROWS:
      near = messages.suggest(OF_ROWS, form or name)
      raise ValueError(
        f'rows: expected {describe_rows(form or name)}, got {rows!r}{near}'
      )
    forms[name] = form
  return forms


def output_forms(rows: str) -> dict[str, str]:
  """Returns `row_forms`, and that of x, which a kernel may quantise itself.

  Rows of expert_in are then copies of its tokens.  A scale of each expert is
  known only after they are sent.
  """
  forms = row_forms(rows)
  form = forms.get(ROWS[0], '')
  if form and not FORMS[form].reads_scale:
    forms['x'] = form
  return forms
