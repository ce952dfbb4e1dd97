"""The options that name a case: each sets a field of `case.Case`."""

from hpmoe.parity_tests.case import flag
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import storage

SHORT = tuple(row.short for row in storage.STORED.values())
DTYPES = {row.short: name for name, row in storage.STORED.items()} | {
  name: name for name in storage.STORED
}
DIRECTIONS = ('forward', 'backward', 'both')
_OF_PRESET = "Default: the preset's."

# Of a preset, in whose name they go.
SIZES = tuple(
  flag.Flag(name, '', f'{text} {_OF_PRESET}', kind=int, least=1)
  for name, text in (
    ('experts', 'Experts of the layer, E.'),
    ('top_k', 'Experts of a token, K.'),
    ('d_model', 'Model width, D.'),
    ('d_ff', 'Expert width, F.'),
  )
)
LAYER = (
  flag.Flag(
    'preset',
    'preset',
    'Shape of the layer; `tiny`, `small`, `odd`, `deepseek_v3`, '
    '`qwen3_moe`, `mixtral` and `tp` (each rank has its shard of a dense MLP) '
    'run here, `*_full` and `ep16` only compile.',
    'small',
  ),
  *SIZES,
  flag.Flag('tokens', 'tokens', f'Tokens of ONE rank. {_OF_PRESET}', kind=int),
  flag.Flag('dtype', 'dtype', 'Storage dtype.', 'f32', choices=DTYPES),
  flag.Flag(
    'placement',
    'placement',
    'Where the routing weight multiplies: `combine`, the returned rows as they '
    'are summed; `before_down`, the activation before the down GEMM; '
    "`epilogue`, that GEMM's sums; `returned`, stored rows, rounded again.",
    'combine',
    choices=precision.PLACEMENTS,
  ),
  flag.Flag(
    'accumulation_order',
    'accumulation_order',
    "Order of our backend's sums: `ascending`, or of bf16 `even_odd_32`; see "
    'docs/architecture.md.',
    'ascending',
    choices=precision.ACCUMULATION_ORDERS,
  ),
  flag.Flag(
    'capacity',
    'capacity',
    'Rows that one rank can hold. Default: as many as the routing needs; '
    'compile: lossless.',
    kind=int,
  ),
)
# What a policy leaves to candidates that are not ours.
POLICY = (
  flag.Flag(
    'activation',
    'activation',
    'Activation between the two GEMMs: `swiglu`, perhaps with `:alpha=A`, '
    '`:limit=L` and `:offset=O`, min(gate, L) sigmoid(A gate) (clamp(up, -L, '
    f'L) + O); `gpt_oss` is `{precision.FORMS["gpt_oss"]}`.',
    'swiglu',
  ),
  flag.Flag(
    'bias',
    'bias',
    'Both GEMMs add a bias of the expert, b_gate_up and b_down; --input has '
    'them or not.',
    False,
    bool,
  ),
  flag.Flag(
    'd_shared',
    'd_shared',
    'Hidden width of the shared experts, which all tokens go to, as one MLP; '
    '--input has them or not.',
    0,
    int,
    least=0,
  ),
  flag.Flag(
    'policy',
    'policy',
    'Where the candidate rounds: a name of docs/find_a_bug.md '
    '(`torch_grouped_mm`, `vllm`), or POINT=DTYPE: `gate_up=f32,silu=bf16`.',
    '',
    many=True,
  ),
  flag.Flag(
    'activation_ulp',
    'activation_ulp',
    'Allowed error of silu, in float32 units in the last place of its result.',
    precision.ACTIVATION_ULP,
    float,
    least=0,
  ),
  flag.Flag(
    'sigmoid_ulp',
    'sigmoid_ulp',
    'Allowed error of its sigmoid beside that, in float32 units in the last '
    'place of 1: exp2 needs 0.25, tanh 0.75.',
    0.0,
    float,
    least=0,
  ),
)
WEIGHTS = flag.Flag(
  'weights',
  'quantised',
  'What expert weights come in: codes and scales of `int8_channel` (W8A16), '
  '`int4_128` (W4A16), `e4m3_128x128`, `mxfp4`, ...; a candidate gets '
  'w_gate_up_codes, w_gate_up_scales and so on. Default: the dtype.',
  '',
  choices=('', *quantised.FORMS),
)
ROWS = flag.Flag(
  'rows',
  'rows',
  'What each expert GEMM makes of its rows, as they come: codes and scales of '
  '`int8_token`, `e4m3_1x128`, ... Default: nothing.',
  '',
  choices=('', *quantised.OF_ROWS),
)
DATA = (
  flag.Flag('ranks', 'ranks', 'Expert-parallel ranks.', 4, int),
  flag.Flag(
    'routing',
    'routing',
    '`text`, `balanced`, `zipf`, `hot`, `one_rank`, `empty_experts`, '
    '`dropped` (some slots have no expert, id -1), or a .safetensors or .npz '
    'file with topk_ids int32 [R,T,K] and optionally topk_weights float32 '
    '[R,T,K].',
    'text',
  ),
  flag.Flag(
    'input',
    'input',
    'A .safetensors or .npz file with x, topk_ids, topk_weights, w_gate_up, '
    'w_down and perhaps dy; its shapes replace the preset.',
  ),
  flag.Flag(
    'text',
    'text',
    'A text to embed and route. Default: the one that ships.',
  ),
  flag.Flag('seed', 'seed', 'Seed of all values.', 0, int),
)
RANKS_OF_PRESET = DATA[0].but(default=None, help=f'{DATA[0].help} {_OF_PRESET}')
DIRECTION = flag.Flag(
  'direction',
  'direction',
  '`backward` runs the candidate on what the forward pass of the oracle saved, '
  '`both` on what its own did.',
  'both',
  choices=DIRECTIONS,
)
FLAGS = (*LAYER, *POLICY, WEIGHTS, ROWS, *DATA, DIRECTION)
# That has them all, but which pass and order.
FOLDER = flag.Flag(
  'case',
  '',
  'A folder of hpmoe export, which decides sizes, precision and data.',
)
