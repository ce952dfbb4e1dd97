"""What a configuration is refused for."""

import math
from typing import Any

from hpmoe.models import rope_scaling

# Of weights.
DTYPES = ('float32', 'bfloat16', 'float16')
# Of gates, in the words of config.json -> as `PrecisionPolicy` names them.
ACTIVATIONS = {
  'silu': 'swiglu',
  'swish': 'swiglu',
  'gelu': 'geglu',
  'gelu_new': 'geglu_tanh',
  'gelu_pytorch_tanh': 'geglu_tanh',
}
# Indices are int32.
MAX_SIZE = 2**31 - 1
OPTIONAL_SIZES = ('sliding_window', 'q_lora_rank')
# Fields that may be 0, each with what it then means in `ModelConfig`.
MAY_BE_ZERO = (
  'num_shared_experts',
  'first_k_dense_replace',
  'num_nextn_predict_layers',
  'moe_layer_end_index',
  'num_global_key_value_heads',
)
_NO_SIZES = ('bos_token_id', 'rope_scaling')


def require(fine: bool, name: str, expected: str, actual: Any) -> None:
  """Refuses a value by its name."""
  if not fine:
    raise ValueError(f'{name}: expected {expected}, got {actual!r}')


def is_int(value: Any) -> bool:
  """Returns whether a value is a whole number, and no truth value."""
  return isinstance(value, int) and not isinstance(value, bool)


def check(config: Any) -> None:
  """Refuses a `ModelConfig` with a field out of its range.

  Raises:
    ValueError: names the field as files do.
  """
  for name, default in config.family.defaults.items():
    value, file_key = getattr(config, name), _hf(config, name)
    if name in OPTIONAL_SIZES and value is None:
      continue
    is_size = default is None or is_int(default) or name in OPTIONAL_SIZES
    if is_size and name not in _NO_SIZES:
      minimum = 0 if name in MAY_BE_ZERO else 1
      require(
        is_int(value) and value >= minimum, file_key, f'>= {minimum}', value
      )
      require(value <= MAX_SIZE, file_key, f'<= {MAX_SIZE}', value)
    elif isinstance(default, float):
      turns = name == 'rope_theta'  # YaRN divides by its logarithm.
      fine = math.isfinite(value) and (value > 1 if turns else value >= 0)
      expected = f'a finite number {"> 1" if turns else ">= 0"}'
      require(fine, file_key, expected, value)
  _check_heads(config)
  if config.rope_scaling is not None:
    pairs = config.rope_dim // 2
    rope_scaling.check('rope_scaling', config.rope_scaling, pairs)
  _check_kinds(config)
  _check_router(config)
  acts = tuple(ACTIVATIONS)
  fine = config.hidden_act in acts
  require(fine, 'hidden_act', f'one of {acts}', config.hidden_act)
  require(config.dtype in DTYPES, 'dtype', f'one of {DTYPES}', config.dtype)
  heads = config.num_nextn_predict_layers
  require(heads <= 1, _hf(config, 'num_nextn_predict_layers'), '0 or 1', heads)
  for layer in config.mlp_only_layers:
    require(
      0 <= layer < config.num_hidden_layers,
      'mlp_only_layers',
      f'layers below num_hidden_layers={config.num_hidden_layers}',
      layer,
    )


def _check_kinds(config: Any) -> None:
  """Refuses windows and activations of layers that there cannot be."""
  for name in (
    *('swiglu_alpha', 'swiglu_limit'),
    *('attention_multiplier', 'logits_scaling'),
  ):
    value = getattr(config, name)
    fine = value > 0 or name not in config.family.defaults
    require(fine, name, '> 0', value)
  kinds, layers = config.layer_types, config.num_hidden_layers
  if not config.family.defaults.keys() >= {'layer_types'}:
    require(not kinds, 'layer_types', 'none', kinds)
    return
  kinds_allowed = tuple(dict.fromkeys(config.family.layer_pattern))
  require(
    len(kinds) == layers and set(kinds) <= set(kinds_allowed),
    'layer_types',
    f'num_hidden_layers={layers} of {kinds_allowed}',
    kinds,
  )
  if config.family.linear_attention:
    _check_linear_attention(config)


def _check_linear_attention(config: Any) -> None:
  keys, values = config.linear_num_key_heads, config.linear_num_value_heads
  fine = values % keys == 0
  expected = f'a multiple of linear_num_key_heads={keys}'
  require(fine, 'linear_num_value_heads', expected, values)
  taps = config.linear_conv_kernel_dim
  require(taps > 1, 'linear_conv_kernel_dim', '> 1', taps)
  fine = len(set(config.layer_types)) > 1 or 'full' in config.layer_types[0]
  require(fine, 'layer_types', 'a layer of full attention', config.layer_types)


def _check_heads(config: Any) -> None:
  heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
  require(
    heads % kv_heads == 0,
    'num_key_value_heads',
    f'a divisor of num_attention_heads={heads}',
    kv_heads,
  )
  if config.family.attention == 'mla':
    require(kv_heads == heads, 'num_key_value_heads', f'{heads}', kv_heads)
  if own := config.num_global_key_value_heads:
    expected = f'a divisor of num_attention_heads={heads}'
    require(heads % own == 0, 'num_global_key_value_heads', expected, own)
  width, part = config.rope_dim, config.partial_rotary_factor
  require(0 < part <= 1, 'partial_rotary_factor', 'in (0, 1]', part)
  name = 'head_dim' if config.head_dim else _hf(config, 'qk_rope_head_dim')
  if config.global_head_dim:
    fine = config.head_dim % 2 == 0
    require(fine, name, 'an even width that rotates', config.head_dim)
    name = 'global_head_dim'
  fine = width >= 2 and width % 2 == 0
  require(fine, name, 'an even width that rotates', width)


def _check_router(config: Any) -> None:
  experts, top_k = config.num_experts, config.num_experts_per_tok
  require(
    top_k <= experts,
    'num_experts_per_tok',
    f'at most {_hf(config, "num_experts")}={experts}',
    top_k,
  )
  groups, top_groups = config.n_group, config.topk_group
  require(experts % groups == 0, 'n_group', f'a divisor of {experts}', groups)
  size = experts // groups
  best = config.family.group_best
  fine = groups == 1 or size >= best
  require(fine, 'n_group', f'groups of {best} or more', groups)
  require(
    top_groups <= groups and top_groups * size >= top_k,
    'topk_group',
    f'at most n_group={groups}, and groups of {size} that hold {top_k} experts',
    top_groups,
  )


def _hf(config: Any, name: str) -> str:
  return config.family.renamed.get(name, name)
