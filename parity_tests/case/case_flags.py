"""What names a case: `CaseOptions`, whose fields are options, in groups."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.reference.contract import messages
from hpmoe.reference.contract import option_fields
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import storage

SHORT = tuple(row.short for row in storage.KERNEL_FORMATS.values())
DTYPES = {row.short: name for name, row in storage.KERNEL_FORMATS.items()} | {
  name: name for name in storage.KERNEL_FORMATS
}
DIRECTIONS = ('forward', 'backward', 'both')
_VALUE_FORMS = ('', *quantised.OF_VALUES)
_X_FORMS = ('', *quantised.OF_X)
_GPT_OSS = precision.FORMS['gpt_oss']


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


@dataclasses.dataclass(frozen=True)
class CaseOptions:
  """The fields of `case.Case`.

  Attributes:
    direction: one of `passes.DIRECTIONS`; 'backward' runs a candidate on the
      oracle's forward tensors, 'both' on the candidate's own.
    preset: name of the shape.
    ranks: R.
    tokens: T instead of the preset's.
    dtype: storage dtype, in a long or short name: 'bfloat16' or 'bf16'.
    routing: a name of `inputs.ROUTINGS` or a file.
    input: a .safetensors file with all inputs, or the inputs by name; their
      shapes and dtype override the preset's.
    text: a text file to embed.
    seed: of all values.
    placement: where the routing weight multiplies.
    accumulation_order: of the sums of the megakernel.
    capacity: N; None: as many rows as the routing needs.
    policy: names and words of `policies.fields`; a text is split at commas.
    activation_ulp, sigmoid_ulp: of the policy.
    weights: the dtype that routing weights are rounded to.
    activation: between the two GEMMs, see `precision.activation_of`.
    bias: whether both GEMMs add a bias; not read if `input` is set.
    d_shared: S, of the shared experts; not read if `input` is set.
    quantised: the form of expert weights, of `quantised.FORMS`; '': none.
    rows: as of the policy.
    x_form: the form of x, of `quantised.FORMS`; '': none.
    recipe: how GEMMs quantise their operands, see `recipes.read_words`.
    weight_ulp: as of the policy.
    router: a rule and its numbers, see `router.parse_router`; a candidate then
      gets router_logits and router_bias in place of topk_ids and topk_weights.
    router_gemm: whether it gets router_w in place of router_logits.
    local_experts: FIRST:COUNT, the experts that a candidate holds; '': all.
    folder: a folder of `hpmoe export`, which decides all but `direction`.
  """

  direction: str = option_fields.option(
    'forward',
    "`backward` runs the backward pass on the tensors that the oracle's "
    "forward pass saved; `both` runs the candidate's forward pass first, "
    'and its backward pass on what that saved.',
    typed='both',
    choices=DIRECTIONS,
  )
  preset: str = option_fields.option(
    'small',
    'Shape of the layer: `tiny`, `small`, `odd`; `tp` (each rank has its '
    'shard of a dense MLP), `tp_norm` (GEMM, sum over ranks, norm, GEMM); '
    'the published layers `qwen3_30b_a3b`, `mixtral_8x7b`, `deepseek_v3`, '
    '`kimi_k2`, `glm_4_5`, `gpt_oss_120b`; the first three of these '
    'scaled down, `..._tiny`; and `ep16`, 128 experts on 16 ranks as in '
    'the paper HyperParallel-MoE, which is compiled and simulated alone. '
    'At full size --tokens is 64 by default; fewer --experts and '
    '--dtype=bf16 reduce memory and time.',
  )
  ranks: int = option_fields.option(
    4,
    'Expert-parallel ranks.',
  )
  tokens: int | None = option_fields.option(
    None,
    "Tokens of each rank, T. Default: the preset's.",
  )
  dtype: str = option_fields.option(
    'float32',
    'Storage dtype of x, of weights and of stages: `f32`, `bf16` or `f16`.',
    choices=DTYPES,
    typed='f32',
  )
  routing: str = option_fields.option(
    'text',
    '`text`, `balanced`, `zipf`, `hot`, `one_rank`, `empty_experts`, '
    '`dropped` (some slots have no expert, id -1); or a .safetensors, .npz '
    'or .pt file with topk_ids int32 [R,T,K] and optionally topk_weights '
    'float32 [R,T,K].',
  )
  input: str | Mapping[str, np.ndarray] | None = option_fields.option(
    None,
    'A .safetensors, .npz or .pt file with x, topk_ids, topk_weights, '
    'w_gate_up, w_down and optionally dy; its shapes replace the preset.',
  )
  text: str | None = option_fields.option(
    None,
    'Text to embed and route. Default: the included text.',
  )
  seed: int = option_fields.option(
    0,
    'Seed of all values.',
  )
  placement: str = option_fields.option(
    'combine',
    'Where the routing weight multiplies: `combine`: the returned rows, '
    'when they are summed; `before_down`: the activation, before the '
    'second GEMM; `epilogue`: the sums of the second GEMM, before they are '
    'rounded; `returned`: the stored rows, which are then rounded again; '
    '`input`: rows of x, before the first GEMM, as in Llama-4.',
    choices=tuple(precision.PLACEMENTS),
  )
  accumulation_order: str = option_fields.option(
    'ascending',
    'Order in which the megakernel adds the terms of a GEMM: `ascending`, '
    'or for bf16 also `even_odd_32`; see docs/architecture.md.',
    choices=tuple(precision.ACCUMULATION_ORDERS),
  )
  capacity: int | None = option_fields.option(
    None,
    'Rows that the buffers of a rank hold, N; a row is a token in one of its '
    'experts. A routing that needs more is refused. Default: as many as the '
    'routing needs; hpmoe compile: as many as any routing needs.',
  )
  policy: tuple[str, ...] | str = option_fields.option(
    (),
    'Where the candidate rounds: the name of an implementation '
    '(`torch_grouped_mm`, `vllm`), or POINT=DTYPE pairs such as '
    '`gate_up=f32,silu=bf16`; see docs/find_a_bug.md.',
  )
  activation_ulp: float = option_fields.option(
    precision.ACTIVATION_ULP,
    'Allowed error of silu, or of erf or tanh in a GELU, in units in the '
    'last place of its float32 result.',
    minimum=0,
  )
  sigmoid_ulp: float = option_fields.option(
    0.0,
    'Further allowed error of the sigmoid in silu, in float32 units in the '
    'last place of 1.0: exp2 needs 0.25, tanh 0.75.',
    minimum=0,
  )
  weights: str = 'float32'
  activation: str = option_fields.option(
    'swiglu',
    'Activation between the two GEMMs. `swiglu` accepts `:alpha=A`, '
    '`:limit=L` and `:offset=O`: min(gate, L) sigmoid(A min(gate, L)) '
    f'(clamp(up, -L, L) + O); `gpt_oss` is `{_GPT_OSS}`. Others: `geglu`, '
    '`geglu_tanh`, `reglu`, `relu2`, `glu`, `bilinear`.',
  )
  bias: bool = option_fields.option(
    False,
    'Both GEMMs add a bias for each expert, b_gate_up and b_down. With '
    '--input, the file decides.',
  )
  d_shared: int = option_fields.option(
    0,
    'Hidden width of the shared experts as one MLP that every token goes '
    'to; 0: none. With --input, the file decides.',
    minimum=0,
  )
  quantised: str = option_fields.option(
    '',
    'Form of the expert weights: `int8_channel` (W8A16), `int4_128` '
    '(W4A16), `e4m3_128x128`, `mxfp4`, ...; `e4m3` is float8_e4m3fn, '
    '`e4m3fnuz` the form of AMD. The candidate receives codes and scales, '
    'w_gate_up_codes, w_gate_up_scales and so on. Default: not quantised.',
    flag='weights',
    choices=_VALUE_FORMS,
  )
  rows: str = option_fields.option(
    '',
    'Form to which each expert GEMM quantises its input rows: '
    '`int8_token`, `e4m3_1x128`, ...; or a static form such as '
    '`e4m3_static`, whose scales are inputs. `activation=FORM` or '
    '`expert_in=FORM` selects one GEMM. Default: not quantised.',
    kind=_read_rows,
  )
  x_form: str = option_fields.option(
    '',
    'Form of x: `e4m3_1x128`, ...; the candidate receives x_codes and '
    'x_scales. Default: not quantised.',
    choices=_X_FORMS,
  )
  recipe: str = option_fields.option(
    '',
    'Recipe of 8-bit training, which says how each operand of the six '
    'GEMMs is quantised: `deepseek_v3`, `block_scaling`, `mxfp8` or '
    '`current_scaling`. GEMM:OPERAND=FORM sets one operand, alone or after '
    'a name: `d_w_down:d_expert_out=e5m2_tensor`. Default: none.',
    kind=_read_recipe,
  )
  weight_ulp: float = option_fields.option(
    0.0,
    'Allowed error of routing weights that the candidate computes itself, '
    'in units of float32 rounding of the weight.',
    minimum=0,
  )
  router: str = option_fields.option(
    '',
    'Routing rule that the candidate computes itself, in place of '
    '--routing: `deepseek_v3:groups=8:top_groups=4:scale=2.5`, '
    '`renormalize`, `softmax`, ... The candidate receives router_logits '
    '[R,T,E] and router_bias [E], and may return topk_ids and '
    'topk_weights. Default: none.',
  )
  router_gemm: bool = option_fields.option(
    False,
    'The candidate also computes the logits of --router: it receives '
    'router_w [D,E] in place of router_logits, and may return '
    'router_logits [R,T,E] in the dtype of x or of '
    '--policy=router_logits=DTYPE. Its dx includes the part of the router.',
  )
  local_experts: str = option_fields.option(
    '',
    'FIRST:COUNT, the experts that the candidate holds as one rank of '
    'expert parallelism. It receives their weights, topk_ids of all '
    'experts, and local_experts [2], and returns the part of y that its '
    'experts contribute. Needs --ranks=1. Default: all experts.',
  )
  folder: str | None = option_fields.option(
    None,
    'A folder that hpmoe export wrote; it decides sizes, precision and data.',
    flag='case',
  )


@dataclasses.dataclass(frozen=True)
class SizeOptions:
  """Sizes that replace those of a preset, in whose name they go."""

  experts: int | None = option_fields.option(
    None,
    "Experts of the layer, E. Default: the preset's.",
    minimum=1,
  )
  top_k: int | None = option_fields.option(
    None,
    "Experts of a token, K. Default: the preset's.",
    minimum=1,
  )
  d_model: int | None = option_fields.option(
    None,
    "Model width, D. Default: the preset's.",
    minimum=1,
  )
  d_ff: int | None = option_fields.option(
    None,
    "Expert width, F. Default: the preset's.",
    minimum=1,
  )


SIZES = option_fields.list_options(SizeOptions)
_OPTIONS = option_fields.list_options(CaseOptions)
# `FOLDER` has all of a case, but which pass and order.
DIRECTION, FOLDER = option_fields.select(_OPTIONS, 'direction', 'case')
LAYER = (
  *option_fields.select(_OPTIONS, 'preset'),
  *SIZES,
  *option_fields.select(
    _OPTIONS,
    'tokens',
    'dtype',
    'placement',
    'accumulation_order',
    'capacity',
  ),
)
QUANTISED = option_fields.select(
  _OPTIONS, 'weights', 'rows', 'x_form', 'recipe'
)
DATA = option_fields.select(
  _OPTIONS,
  'ranks',
  'routing',
  'input',
  'text',
  'seed',
  'router',
  'router_gemm',
  'local_experts',
)
RANKS_OF_PRESET = DATA[0].replace(
  default=None, help=f"{DATA[0].help} Default: the preset's."
)
# The options that set a field of a case, and all that name one but `FOLDER`.
FIELDS = tuple(row for row in _OPTIONS if row is not FOLDER)
FLAGS = (*SIZES, *FIELDS)
