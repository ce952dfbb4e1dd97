"""The options that name a case: each sets a field of `case.Case`."""

from hpmoe.parity_tests.case import flag_tables
from hpmoe.reference.contract import messages
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import storage

SHORT = tuple(row.short for row in storage.KERNEL_FORMATS.values())
DTYPES = {row.short: name for name, row in storage.KERNEL_FORMATS.items()} | {
  name: name for name in storage.KERNEL_FORMATS
}
DIRECTIONS = ('forward', 'backward', 'both')
# Of a preset, in whose name they go.
SIZES = flag_tables.read_flags('sizes')
_PRESET, *_LAYER = flag_tables.read_flags(
  'layer',
  dtype=dict(choices=DTYPES),
  placement=dict(choices=precision.PLACEMENTS),
  accumulation_order=dict(choices=precision.ACCUMULATION_ORDERS),
)
LAYER = (_PRESET, *SIZES, *_LAYER)
# What a policy leaves to candidates that are not ours.
POLICY = flag_tables.read_flags(
  'policy',
  dict(gpt_oss=precision.FORMS['gpt_oss']),
  activation_ulp=dict(default=precision.ACTIVATION_ULP),
)


def _read_rows(text: str) -> str:
  """Returns what rows become, if it is known.

  Raises:
    ValueError: it is not; says what was expected.
  """
  try:
    quantised.row_forms(text)
  except ValueError as error:
    word = text.rpartition('=')[-1]
    raise messages.ChoiceError(
      quantised.describe_rows(word), quantised.OF_ROWS
    ) from error
  return text


def _read_recipe(text: str) -> str:
  """Returns a recipe, if it is known.

  Raises:
    ValueError: it is not; says what was expected.
  """
  try:
    recipes.read_words(text)
  except ValueError as error:
    raise messages.ChoiceError(
      f'some of {", ".join(recipes.RECIPES)} or GEMM:OPERAND=FORM, such as '
      'd_w_down:d_expert_out=e5m2_tensor, with commas',
      recipes.RECIPES,
    ) from error
  return text


QUANTISED = flag_tables.read_flags(
  'quantised',
  weights=dict(choices=('', *quantised.OF_VALUES)),
  rows=dict(kind=_read_rows),
  x_form=dict(choices=('', *quantised.OF_X)),
  recipe=dict(kind=_read_recipe),
)
DATA = flag_tables.read_flags('data')
RANKS_OF_PRESET = DATA[0].replace(
  default=None, help=f"{DATA[0].help} Default: the preset's."
)
# `FOLDER` has them all, but which pass and order.
DIRECTION, FOLDER = flag_tables.read_flags(
  'case', direction=dict(choices=DIRECTIONS)
)
FLAGS = (*LAYER, *POLICY, *QUANTISED, *DATA, DIRECTION)
