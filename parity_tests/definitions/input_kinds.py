"""Which of a definition's inputs is what: rows of input_kinds.toml."""

from collections.abc import Mapping
import dataclasses
import pathlib
import re
import tomllib

from hpmoe.parity_tests.definitions import definition as definition_lib

# What an input may be.  Scales of x lie as `[D / 128, T]`, or are one number.
ROLES = (
  'logits',  # [T, E]
  'bias',  # [E]
  'ids',  # [T, K]
  'packed_ids',  # [T, K]: id << 16, and the weight's bfloat16 bits
  'topk_weights',  # [T, K]
  'x',  # [T, D]
  'x_scales',
  'w_gate_up',  # [L, 2F, D], up in the first F rows unless gate comes first
  'gate_up_scales',  # [L, 2F / 128, D / 128], or [L]
  'gate_scales',  # [L], of gate alone
  'up_scales',  # [L], of up alone
  'w_down',  # [L, D, F]
  'down_scales',  # [L, D / 128, F / 128], or [L]
  'down_factors',  # [L], beside scales of NVFP4, as gate's and up's are
  'first_expert',  # a number: which expert of all the first of L is
  'scale',  # a number: factor of routing weights
)


@dataclasses.dataclass(frozen=True)
class Kind:
  """One kind of definition.

  Attributes:
    label: its table in input_kinds.toml.
    name: a regular expression of its definitions' names; groups `top_k`,
      `groups` and `top_groups` are numbers of the router.
    rule: of `router.RULES`; '': ids and weights are inputs.
    x_form: of `quantised.FORMS`, what x comes in; ''.
    weights: likewise, of both weights.
    divides: whether codes are divided by scales.
    is_nvfp4: whether x and weights come in NVFP4, with scales along each row,
      and are read as the float32 numbers that these codes and scales are.
    gate_first: whether gate has the first rows.
    weighs_input: whether the weight of a token's one expert multiplies its x.
    factor: of routing weights, where no input is.
    tensors: the input's name of each role.
    refusal: why no definition of the kind can be judged; ''.
  """

  label: str
  name: str
  rule: str = ''
  x_form: str = ''
  weights: str = ''
  divides: bool = False
  is_nvfp4: bool = False
  gate_first: bool = False
  weighs_input: bool = False
  factor: float = 1.0
  tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)
  refusal: str = ''

  def match(self, name: str) -> re.Match[str] | None:
    """Returns the match of a definition's name."""
    return re.fullmatch(self.name, name)

  def read_numbers(self, name: str) -> dict[str, int]:
    """Returns the router's numbers that a definition's name says."""
    match = self.match(name)
    assert match is not None  # `find_kind`
    return {key: int(value) for key, value in match.groupdict().items()}


KINDS = {
  label: Kind(label, **row)
  for label, row in tomllib.loads(
    pathlib.Path(__file__).with_suffix('.toml').read_text('utf-8')
  ).items()
}


def find_kind(definition: definition_lib.Definition) -> Kind:
  """Returns the kind of a definition.

  Raises:
    ValueError: none is known, or it cannot be judged; says why.
  """
  if definition.op_type != 'moe':
    raise ValueError(
      f'definition: expected op_type moe, got {definition.op_type!r} of '
      f'{definition.name}'
    )
  for kind in KINDS.values():
    if not kind.match(definition.name):
      continue
    if kind.refusal:
      raise ValueError(
        f'definition: expected one that can be judged, got {definition.name}: '
        f'{kind.refusal}'
      )
    _check_inputs(kind, definition)
    return kind
  raise ValueError(
    f'definition: expected a name of a kind among {[*KINDS][:6]} and more, got '
    f'{definition.name!r}'
  )


def _check_inputs(kind: Kind, definition: definition_lib.Definition) -> None:
  names = [spec.name for spec in definition.inputs]
  for role, name in kind.tensors.items():
    if role not in ROLES or name not in names:
      raise ValueError(
        f'definition: expected input {name!r}, {role} of kind {kind.label}, '
        f'got {names} in {definition.name}'
      )
  outputs = [(spec.dtype, len(spec.shape or ())) for spec in definition.outputs]
  if outputs != [('bfloat16', 2)]:
    raise ValueError(
      f'definition: expected one output, bfloat16 [T, D], got {outputs} in '
      f'{definition.name}'
    )
