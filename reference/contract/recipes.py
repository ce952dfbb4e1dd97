"""What each of the six expert GEMMs makes of its operands: data, and names.

A policy holds words `GEMM:OPERAND=FORM`, both by names of tensors: the stage
that a GEMM computes, and what it reads.  A form is one of `quantised.FORMS`,
along the depth of that GEMM:

    GEMM              left, a row each        right
    gate_up           expert_in               w_gate_up
    expert_out        activation              w_down
    d_activation      d_expert_out            w_down, transposed
    d_expert_in       d_gate_up               w_gate_up, transposed
    d_w_down          activation, a column    d_expert_out, a column
    d_w_gate_up       expert_in, a column     d_gate_up, a column

A column is that of one expert's rows: its groups start at the expert's first
row, and no row of another expert and no padding counts.  `A>B` of a column is
quantised by rows to A first, and what those codes mean by columns to B.  A form
of one scale for all is of one expert's rows, or of its weight.

Gradients are straight through: that of a quantisation is the identity.  Weights
are master weights, in storage, that GEMMs quantise as they read them.
"""

import functools
import pathlib
import tomllib

from hpmoe.reference.contract import messages
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors

OPERANDS = tensors.GEMMS | tensors.TRANSPOSED_GEMMS | tensors.WEIGHT_GRADS
_THROUGH = '>'
_WHOLE = (0, 0)
_TABLES = tomllib.loads(
  pathlib.Path(__file__).with_suffix('.toml').read_text('utf-8')
)


def _word(gemm: str, operand: str) -> str:
  return f'{gemm}:{operand}'


# Forms by word, of each recipe by name.
RECIPES: dict[str, dict[str, str]] = {
  name: {
    _word(gemm, operand): table[gemm][operand]
    for gemm in OPERANDS
    for operand in table[gemm]
  }
  for name, table in _TABLES.items()
}
SOURCES: dict[str, str] = {name: row['source'] for name, row in _TABLES.items()}
# Of columns, and of rows: one group never holds values of two experts.
_FORMS = {
  name: row
  for name, row in quantised.FORMS.items()
  if not (quantised.ELEMENTS[row.element].is_packed or row.reads_scale)
}
OF_LINES = tuple(
  name
  for name, row in _FORMS.items()
  if row.group[0] == 1 or row.group == _WHOLE
)


@functools.cache
def read_words(text: str) -> dict[str, str]:
  """Returns forms by `GEMM:OPERAND`, in the order of `OPERANDS`.

  Args:
    text: names of `RECIPES` and words `GEMM:OPERAND=FORM`, with commas; a later
      one wins, and an empty form is none.

  Raises:
    ValueError: a name, a word or a form is unknown.
  """
  forms: dict[str, str] = {}
  for word in filter(None, text.split(',')):
    name, equals, form = word.partition('=')
    if name in RECIPES and not equals:
      forms |= RECIPES[name]
    else:
      forms[name] = _check_word(word, name, form)
  all_words = (
    _word(g, o) for g, operands in OPERANDS.items() for o in operands
  )
  return {name: forms[name] for name in all_words if forms.get(name)}


def _check_word(word: str, name: str, form: str) -> str:
  gemm, _, operand = name.partition(':')
  if operand not in OPERANDS.get(gemm, ()) or '=' not in word:
    beside = ' or GEMM:OPERAND=FORM such as d_w_down:d_expert_out=e5m2_tensor'
    expected = messages.refuse_choice(
      RECIPES, word, quantity='some of', beside=beside
    )
    raise ValueError(f'recipe: {expected}')
  *before, last = form.split(_THROUGH)
  is_weight = tensors.SPECS[operand].role == 'weight'
  allowed_forms = _FORMS if is_weight else OF_LINES
  max_before = int(gemm in tensors.WEIGHT_GRADS)
  is_right = len(before) <= max_before and {*before} <= {*quantised.OF_X}
  if form and not (is_right and last in allowed_forms):
    raise ValueError(
      f'recipe: expected a form of 8 bits in {name}=FORM'
      + (', of a row, a column or all,' if not is_weight else '')
      + (' or A>B of two,' if max_before else '')
      + f' as in reference/contract/quantised.toml, got {form!r}'
    )
  return form


def suits(name: str, form: str) -> bool:
  """Returns whether `GEMM:OPERAND` may have a form, or `A>B`."""
  try:
    _check_word(f'{name}={form}', name, form)
  except ValueError:
    return False
  return True


def join_words(forms: dict[str, str]) -> str:
  """Returns the text of forms by `GEMM:OPERAND`."""
  return ','.join(f'{name}={form}' for name, form in forms.items())


def split_rows(text: str) -> tuple[str, str]:
  """Returns a policy's `rows` and `operand_forms` of a recipe.

  Rows of the forward pass that are quantised as they come are the former.
  """
  forms, rows = read_words(text), {}
  for gemm, (operand, _) in tensors.GEMMS.items():
    form = forms.get(_word(gemm, operand), '')
    if form in quantised.OF_ROWS:
      rows[operand] = form
      forms = {n: f for n, f in forms.items() if n != _word(gemm, operand)}
  return join_words(rows), join_words(forms)


def leave_out(
  rows: str, operands: str, gemm: str, operand: str
) -> dict[str, str]:
  """Returns a policy's `rows` and `operand_forms` without those of an operand.

  Args:
    rows: the policy's.
    operands: likewise.
    gemm: the stage that reads the operand.
    operand: the tensor that is then multiplied as it is stored.
  """
  words, of_rows = dict(read_words(operands)), quantised.row_forms(rows)
  words.pop(_word(gemm, operand), None)
  if gemm in tensors.GEMMS:
    of_rows.pop(operand, None)
  plain = ','.join(f'{name}={form}' for name, form in of_rows.items())
  return dict(rows=plain, operand_forms=join_words(words))


def find_name(rows: str, operands: str) -> str:
  """Returns the recipe that a policy's fields come of, or ''."""
  fields = rows, operands
  return next((n for n in RECIPES if split_rows(n) == fields), '')


def select_gemm(operands: str, gemm: str) -> str:
  """Returns those words of a policy's `operand_forms` that are of one GEMM."""
  forms = read_words(operands)
  return join_words(
    {n: form for n, form in forms.items() if n.startswith(f'{gemm}:')}
  )


@functools.cache
def find_forms(
  operands: str, gemm: str, operand: str
) -> tuple[quantised.Form, ...]:
  """Returns the forms that a GEMM quantises an operand to, in sequence."""
  chain = read_words(operands).get(_word(gemm, operand), '')
  return tuple(quantised.FORMS[name] for name in chain.split(_THROUGH) if name)


def count_operands(operands: str) -> int:
  """Returns how many operands a policy's `operand_forms` quantises."""
  return len(read_words(operands))
