"""Named layer shapes, as data."""

import dataclasses
from typing import Any

from hpmoe.reference.contract import config as config_lib


@dataclasses.dataclass(frozen=True)
class Router:
  """How scores become a token's experts.

  Attributes:
    kind: 'softmax', 'sigmoid_group' (DeepSeek-V3: sigmoid, bias for the
      choice only, top-k limited to the best groups), or 'all': every expert,
      in order, with weight 1.
    num_groups: groups of experts ('sigmoid_group').
    top_groups: groups a token may choose from ('sigmoid_group').
    scale: factor on the normalised weights ('sigmoid_group').
  """

  kind: str = 'softmax'
  num_groups: int = 1
  top_groups: int = 1
  scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Preset:
  """One layer shape.

  Attributes:
    name: what `--preset` takes.
    source: where the sizes come from.
    num_tokens: T, tokens of ONE rank.
    num_experts: E; None: one for each rank.  One that runs here has a multiple
      of 8.
    top_k: K; None: E.
    d_model: D.
    d_ff: F.
    router: how text is routed.
    runs_here: whether a check takes about a second on a CPU; the others are
      for compiling.
    num_ranks: R that `compile` takes by default.
    num_aic: cube cores of one rank that `compile` takes by default.
    num_aiv: vector cores of one rank that `compile` takes by default.
    capacity_step: N is a multiple of it where the routing decides, and an odd
      multiple of an odd one.
    starved: whether one expert receives no row, and another one only.
    sublayer: of the config.
  """

  name: str
  source: str
  num_tokens: int
  num_experts: int | None
  top_k: int | None
  d_model: int
  d_ff: int
  router: Router = Router()
  runs_here: bool = True
  num_ranks: int = 4
  num_aic: int = 24
  num_aiv: int = 48
  capacity_step: int = 16
  starved: bool = False
  sublayer: bool = False

  @property
  def is_routed(self) -> bool:
    """Whether tokens have a choice, so that any kind of routing suits them."""
    return self.router.kind != 'all'


_DEEPSEEK_V3 = Router(
  kind='sigmoid_group', num_groups=8, top_groups=4, scale=2.5
)
_ALL_EXPERTS = Router(kind='all')

# Scaled presets keep K, the router and D : F; experts are a quarter of the
# published number (Mixtral keeps its 8), widths 1/32 or 1/8.
# T, E, K, D, F.
_ALL = (
  Preset('tiny', 'this project, for tests', 16, 8, 2, 32, 16),
  Preset('small', 'this project, the default check', 128, 16, 4, 256, 128),
  # No vector length and no block divides a width, T or N; widths and, on one
  # rank, N are greater than every block inside a kernel.
  Preset(
    'odd',
    'this project: sizes that nothing divides',
    *(89, 24, 3, 267, 263),
    capacity_step=17,
    starved=True,
  ),
  Preset(
    'deepseek_v3',
    'DeepSeek-V3 (arXiv 2412.19437): E / 4, widths / 32',
    *(64, 64, 8, 224, 64),
    _DEEPSEEK_V3,
  ),
  Preset(
    'qwen3_moe',
    'Qwen3-30B-A3B (arXiv 2505.09388): E / 4, widths / 8',
    *(96, 32, 8, 256, 96),
  ),
  Preset(
    'mixtral',
    'Mixtral 8x7B (arXiv 2401.04088): widths / 32',
    *(128, 8, 2, 128, 448),
  ),
  # Tensor parallelism: a rank's expert is its shard of a dense MLP, F columns
  # of R * F.  Dispatch is the all-gather, combine the reduce-scatter.  Weight
  # gradients sum R * T rows: over 300, one ascending sum strays further than
  # `commercial_l1` lets it from one in blocks.
  Preset(
    'tp',
    'this project: a dense MLP, cut by columns and rows',
    *(37, None, None, 128, 80),
    _ALL_EXPERTS,
  ),
  Preset(
    'tp_norm',
    'this project: GEMM + reduce-scatter, norm, all-gather + GEMM',
    *(37, None, None, 128, 80),
    _ALL_EXPERTS,
    sublayer=True,
  ),
  Preset(
    'deepseek_v3_full',
    'DeepSeek-V3 (arXiv 2412.19437)',
    *(4096, 256, 8, 7168, 2048),
    _DEEPSEEK_V3,
    runs_here=False,
    num_ranks=32,
  ),
  Preset(
    'qwen3_moe_full',
    'Qwen3-30B-A3B (arXiv 2505.09388)',
    *(4096, 128, 8, 2048, 768),
    runs_here=False,
    num_ranks=8,
  ),
  Preset(
    'mixtral_full',
    'Mixtral 8x7B (arXiv 2401.04088)',
    *(4096, 8, 2, 4096, 14336),
    runs_here=False,
    num_ranks=8,
  ),
  Preset(
    'ep16',
    'HyperParallel-MoE (arXiv 2605.23764), EP16 row of its tables',
    *(4096, 128, 8, 7168, 2048),
    _DEEPSEEK_V3,
    runs_here=False,
    num_ranks=16,
  ),
)

PRESETS = {preset.name: preset for preset in _ALL}
# Of whole layers.
RUNS_HERE = tuple(
  preset.name for preset in _ALL if preset.runs_here and not preset.sublayer
)
ROUTED = tuple(name for name in RUNS_HERE if PRESETS[name].is_routed)


# Sizes that may follow a preset's name and replace its own.
SIZES = {
  'experts': 'num_experts',
  'top_k': 'top_k',
  'd_model': 'd_model',
  'd_ff': 'd_ff',
}


def get(name: str) -> Preset:
  """Returns the preset of that name; `small:experts=12:d_ff=99` is one, too.

  Raises:
    ValueError: there is none; the text lists the known names.
  """
  base, *sizes = name.split(':')
  if base not in PRESETS:
    raise ValueError(f'preset: expected one of {list(PRESETS)}, got {name!r}')
  fields: dict[str, Any] = {}
  for size in sizes:
    key, _, value = size.partition('=')
    if key not in SIZES or not value.isdecimal():
      raise ValueError(
        f'preset: expected {list(SIZES)}, each =NUMBER, after {base}:, got '
        f'{size!r}'
      )
    fields[SIZES[key]] = int(value)
  return dataclasses.replace(PRESETS[base], name=name, **fields)


def to_run(name: str) -> Preset:
  """Returns the preset of that name, one that runs here.

  Raises:
    ValueError: there is none, or it only compiles.
  """
  preset = get(name)
  if not preset.runs_here:
    raise ValueError(
      f'preset: expected one of {list(RUNS_HERE)} to run here, got {name!r}, '
      'which is for hpmoe compile'
    )
  return preset


def config(
  preset: Preset,
  ranks: int,
  tokens: int | None = None,
  capacity: int | None = None,
) -> config_lib.MoEConfig:
  """Returns the preset's layer on `ranks` ranks.

  Args:
    preset: the shape.
    ranks: R.
    tokens: T instead of the preset's.
    capacity: N, rows one rank can hold; None means lossless.

  Raises:
    ValueError: `MoEConfig` refuses the sizes.
  """
  experts = ranks if preset.num_experts is None else preset.num_experts
  return config_lib.MoEConfig(
    num_ranks=ranks,
    num_tokens=preset.num_tokens if tokens is None else tokens,
    num_experts=experts,
    top_k=experts if preset.top_k is None else preset.top_k,
    d_model=preset.d_model,
    d_ff=preset.d_ff,
    capacity=capacity,
    sublayer=preset.sublayer,
  )
