"""Named layer shapes, the data of presets.toml."""

import dataclasses
import pathlib
import tomllib
from typing import Any

from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import messages


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
      layers at the size that they are published in.
    num_tokens_here: T of a check of one that is not `runs_here`.
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
  num_tokens_here: int = 64
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


def _preset(name: str, row: dict[str, Any]) -> Preset:
  row['router'] = Router(**row.get('router', {}))
  return Preset(name, **{'num_experts': None, 'top_k': None} | row)


_ROWS = tomllib.loads(pathlib.Path(__file__).with_suffix('.toml').read_text())
PRESETS = {name: _preset(name, row) for name, row in _ROWS.items()}
# Names of releases before 0.4.
_OLD_NAMES = {
  'deepseek_v3_full': 'deepseek_v3',
  'qwen3_moe': 'qwen3_30b_a3b_tiny',
  'qwen3_moe_full': 'qwen3_30b_a3b',
  'mixtral': 'mixtral_8x7b_tiny',
  'mixtral_full': 'mixtral_8x7b',
}
# Of whole layers.
RUNS_HERE = tuple(
  name for name, p in PRESETS.items() if p.runs_here and not p.sublayer
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
  base = _OLD_NAMES.get(base, base)
  if base not in PRESETS:
    expected = messages.refuse_choice(PRESETS, base, typed=name)
    raise ValueError(f'preset: {expected}')
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
  """Returns the preset of that name, one that takes about a second here.

  Raises:
    ValueError: there is none, or it is too large.
  """
  preset = get(name)
  if not preset.runs_here:
    raise ValueError(
      'preset: expected one of '
      f'{messages.name_choices(RUNS_HERE, name)}'
      f' here, got {name!r}, which is '
      'for hpmoe check and hpmoe compile'
    )
  return preset


def to_check(name: str) -> Preset:
  """Returns the preset of that name with the T that a check takes.

  Raises:
    ValueError: there is none.
  """
  preset = get(name)
  if preset.runs_here:
    return preset
  return dataclasses.replace(preset, num_tokens=preset.num_tokens_here)


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
