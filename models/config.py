"""One configuration for every decoder, in Hugging Face's words."""

from collections.abc import Mapping
import dataclasses
import json
import math
import pathlib
from typing import Any

from hpmoe.models import families

_CONFIGS = pathlib.Path(__file__).resolve().parent / 'configs'
FAMILIES = families.FAMILIES
DTYPES = ('float32', 'bfloat16', 'float16')
_FULL = 'full_attention'
LAYER_TYPES = ('sliding_attention', _FULL)
_CONTEXT = 'original_max_position_embeddings'
_LIMITED = 'group_limited_greedy'


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """YaRN, arXiv 2309.00071, in the names of `rope_scaling` in config.json.

  Attributes:
    factor: new context over the one of training, at least 1.
    original_max_position_embeddings: context of training, positions.
    beta_fast: rotations over that context above which a frequency is kept.
    beta_slow: rotations below which it is divided by `factor`.
    mscale: see `models/rope_numbers.py`.
    mscale_all_dim: likewise; None for a family that has no such field.
    attention_factor: factor on cosines and sines; None for the one that
      follows from the others.
    truncate: whether the ramp between both ends begins and ends at a pair.
  """

  factor: float
  original_max_position_embeddings: int
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  mscale: float | None = None
  mscale_all_dim: float | None = None
  attention_factor: float | None = None
  truncate: bool = True


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Sizes and options of one decoder, in Hugging Face's names.

  Where the families name one thing differently, the name here is the first of
  `FAMILIES[...].renamed`.  A field that a family does not have keeps its
  default.  Sizes are in elements.

  Attributes:
    model_type: a key of `FAMILIES`.
    intermediate_size: hidden width of a dense feed-forward block.
    moe_intermediate_size: F, hidden width of one expert; for Mixtral, whose
      files do not have it, `intermediate_size`.
    num_experts: E, routed experts of a layer.
    num_experts_per_tok: K.
    num_shared_experts: experts that see every token, as one wide block.
    shared_expert_intermediate_size: its width, for a family that has it so.
    head_dim: width of a head, which need not be hidden_size over heads; 0 for
      attention 'mla', which has widths of its own.
    partial_rotary_factor: so much of a head, from its start, rotates.
    use_qk_norm: whether queries and keys are normalised, if the family's are.
    sliding_window: a token sees itself and so many less one before it; None for
      all.
    layer_types: of each layer, one of `LAYER_TYPES`: whether it has the window;
      () where all are alike.
    swiglu_alpha: factor on a gate in its sigmoid.
    swiglu_limit: a gate is at most this, an up projection within it on both
      sides; 0 for no limit.
    q_lora_rank: width of compressed queries; None for none.
    kv_lora_rank: width of compressed keys and values.
    rope_interleave: whether pairs that rotate together are neighbours, as in
      the published weights of DeepSeek-V3, or half a head apart.
    sandwich_norm: whether a layer also normalises what it adds.
    qkv_bias: whether queries, keys and values have a bias, and the output none.
    router_bias: whether a router of sigmoids has a bias that corrects the load.
    norm_topk_prob: whether a token's K weights are divided by their sum; see
      `normalizes_weights`.
    routed_scaling_factor: factor on them after that.
    n_group: groups of experts.
    topk_group: groups that a token may go to.
    first_k_dense_replace: so many first layers are dense.
    moe_layer_freq: of the others, each so-manieth has experts.
    decoder_sparse_step: layer i has experts if it divides i + 1.
    mlp_only_layers: layers that are dense nevertheless.
    num_nextn_predict_layers: heads that predict one token further, 0 or 1.
    router_aux_loss_coef: factor of the loss that balances experts.
    eos_token_id: tokens that end a text.
    dtype: of the weights in a file, one of `DTYPES`.

  Raises:
    ValueError: a field is out of its range; names it.
  """

  model_type: str
  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_hidden_layers: int
  num_attention_heads: int
  num_key_value_heads: int
  num_experts: int
  num_experts_per_tok: int
  moe_intermediate_size: int = 0
  num_shared_experts: int = 0
  shared_expert_intermediate_size: int = 0
  max_position_embeddings: int = 4096
  rms_norm_eps: float = 1e-6
  rope_theta: float = 10000.0
  rope_scaling: RopeScaling | None = None
  rope_interleave: bool = False
  initializer_range: float = 0.02
  tie_word_embeddings: bool = False
  attention_bias: bool = False
  qkv_bias: bool = False
  head_dim: int = 0
  partial_rotary_factor: float = 1.0
  use_qk_norm: bool = True
  sliding_window: int | None = None
  layer_types: tuple[str, ...] = ()
  swiglu_alpha: float = 1.0
  swiglu_limit: float = 0.0
  q_lora_rank: int | None = None
  kv_lora_rank: int = 0
  qk_nope_head_dim: int = 0
  qk_rope_head_dim: int = 0
  v_head_dim: int = 0
  sandwich_norm: bool = False
  router_bias: bool = True
  norm_topk_prob: bool = True
  routed_scaling_factor: float = 1.0
  n_group: int = 1
  topk_group: int = 1
  first_k_dense_replace: int = 0
  moe_layer_freq: int = 1
  decoder_sparse_step: int = 1
  mlp_only_layers: tuple[int, ...] = ()
  num_nextn_predict_layers: int = 0
  router_aux_loss_coef: float = 0.001
  bos_token_id: int | None = None
  eos_token_id: tuple[int, ...] = ()
  dtype: str = 'bfloat16'

  def __post_init__(self):
    _checked_type(self.model_type)
    if not self.moe_intermediate_size:
      # Mixtral's experts have the width of its blocks.
      self._set('moe_intermediate_size', self.intermediate_size)
    if self.family.attention == 'gqa' and not self.head_dim:
      self._set('head_dim', self.hidden_size // self.num_attention_heads)
    if 'layer_types' in self.family.defaults and not self.layer_types:
      kinds = (LAYER_TYPES[i % 2] for i in range(self.num_hidden_layers))
      self._set('layer_types', tuple(kinds))
    _check(self)

  def _set(self, name: str, value: Any) -> None:
    object.__setattr__(self, name, value)

  @property
  def family(self) -> families.Family:
    """What the models of this family have in common."""
    return FAMILIES[self.model_type]

  @property
  def use_sliding_window(self) -> bool:
    """Whether there is a window, as some families' files say beside it."""
    return self.sliding_window is not None

  @property
  def max_window_layers(self) -> int:
    """Layers without a window, in a family that has it in the later ones."""
    return self.num_hidden_layers

  @property
  def topk_method(self) -> str:
    """What a family's files say that may ignore groups."""
    return 'greedy' if self.n_group == 1 else _LIMITED

  @property
  def shared_width(self) -> int:
    """Hidden width of what sees every token."""
    own = self.num_shared_experts * self.moe_intermediate_size
    return own or self.shared_expert_intermediate_size

  @property
  def normalizes_weights(self) -> bool:
    """Whether a token's routing weights are divided by their sum."""
    several = self.num_experts_per_tok > 1
    return self.norm_topk_prob and (several or self.family.normalizes_one)

  @property
  def qk_norm(self) -> str:
    """How queries and keys are normalised: see `Family.qk_norm`."""
    return self.family.qk_norm if self.use_qk_norm else ''

  @property
  def qk_head_dim(self) -> int:
    """Width of a query or key."""
    return self.head_dim or self.qk_nope_head_dim + self.qk_rope_head_dim

  @property
  def rope_dim(self) -> int:
    """Width of the part of a query or key that rotates."""
    width = self.head_dim or self.qk_rope_head_dim
    return int(width * self.partial_rotary_factor)

  def has_experts(self, layer: int) -> bool:
    """Returns whether a layer, counted from 0, has routed experts."""
    return (
      layer >= self.first_k_dense_replace
      and layer % self.moe_layer_freq == 0
      and (layer + 1) % self.decoder_sparse_step == 0
      and layer not in self.mlp_only_layers
    )

  def has_window(self, layer: int) -> bool:
    """Returns whether a layer, counted from 0, has the sliding window."""
    listed = self.layer_types[layer : layer + 1]
    return self.sliding_window is not None and _FULL not in listed

  def moe_layers(self) -> tuple[int, ...]:
    """Returns the layers that have routed experts, without MTP heads."""
    return tuple(filter(self.has_experts, range(self.num_hidden_layers)))

  def to_hf(self) -> dict[str, Any]:
    """Returns the contents of config.json, which `from_hf` reads."""
    names = _hf_names(self.family)
    out: dict[str, Any] = {
      'architectures': [self.family.architecture],
      'model_type': self.model_type,
      'hidden_act': 'silu',
      'torch_dtype': self.dtype,
    }
    for ours, theirs in names.items():
      value = getattr(self, ours)
      out[theirs] = list(value) if isinstance(value, tuple) else value
    if self.rope_scaling is not None:
      said = dataclasses.asdict(self.rope_scaling).items()
      given = {name: value for name, value in said if value is not None}
      out['rope_scaling'] = {'type': 'yarn', **given}
    elif self.family.defaults['rope_scaling']:  # null would mean that
      out['rope_scaling'] = {'rope_type': 'default'}
    if not self.eos_token_id:
      out['eos_token_id'] = None
    elif len(self.eos_token_id) == 1:
      out['eos_token_id'] = self.eos_token_id[0]
    return out


def from_hf(fields: Mapping[str, Any]) -> ModelConfig:
  """Returns the configuration that the contents of config.json mean.

  Where a key is absent, the default of the family's reference implementation
  holds.  Reads `rope_parameters`, as transformers 5 writes it, as well as
  `rope_theta` with `rope_scaling`, and both where they agree.  Keys that do not
  change the arithmetic are not read.

  Raises:
    ValueError: a field is missing, out of range, unknown, or asks for what no
      model here computes; names the field as the file does.
  """
  model_type = _checked_type(fields.get('model_type'))
  family = FAMILIES[model_type]
  _check_keys(model_type, fields)
  fields = _with_groups(family, _with_rope(family, fields))
  values = {ours: _value(family, ours, fields) for ours in family.defaults}
  values.pop('topk_method', None)
  if not values.pop('use_sliding_window', True):
    values['sliding_window'] = None
  if (full := values.pop('max_window_layers', None)) is not None:
    layers, window = values['num_hidden_layers'], values['sliding_window']
    _require(
      window is None or 'layer_types' in fields or full >= layers,
      'max_window_layers',
      f'at least num_hidden_layers={layers}, so that no layer has a window',
      full,
    )
    values['sliding_window'] = None
  if values['num_key_value_heads'] is None:
    values['num_key_value_heads'] = values['num_attention_heads']
  dtype = fields.get('dtype') or fields.get('torch_dtype') or 'float32'
  return ModelConfig(model_type=model_type, **values, dtype=dtype)


def load(name: str) -> ModelConfig:
  """Returns the configuration `name` of `models/configs`, or of a file.

  Args:
    name: one of `names()`, or the path of a config.json.

  Raises:
    ValueError: there is no such configuration, or it is not valid.
  """
  path = _CONFIGS / f'{name}.json'
  if name not in names():
    path, expected = pathlib.Path(name), f'a config.json or one of {[*names()]}'
    _require(path.is_file(), 'model', expected, name)
  return from_hf(read_json(path))


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a file.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is not one JSON object.
  """
  try:
    content = json.loads(path.read_bytes())
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{path}: expected JSON, got {error}') from error
  if not isinstance(content, dict):
    got = type(content).__name__
    raise ValueError(f'{path}: expected an object, got {got}')
  return content


def names() -> tuple[str, ...]:
  """Returns the names of the configurations that come with the project."""
  return tuple(sorted(path.stem for path in _CONFIGS.glob('*.json')))


# Indices are int32.
_MOST = 2**31 - 1
# Whole numbers below it are floats.
_HUGE = 2**1023
_OPTIONAL_SIZES = ('sliding_window', 'q_lora_rank')
# Fields that may be 0, each with what it then means in `ModelConfig`.
_MAY_BE_ZERO = (
  'num_shared_experts',
  'first_k_dense_replace',
  'num_nextn_predict_layers',
)
_NO_SIZES = ('bos_token_id', 'rope_scaling')
# What null means where it is not None itself.
_NULLS: dict[str, Any] = {
  **dict.fromkeys((*_MAY_BE_ZERO, 'head_dim'), 0),
  **dict.fromkeys(('mlp_only_layers', 'layer_types', 'eos_token_id'), ()),
}
_MAY_BE_NULL = (
  *_OPTIONAL_SIZES,
  *('bos_token_id', 'rope_scaling', 'num_key_value_heads'),
)
_ROPE = ('rope_theta', 'rope_scaling', 'rope_parameters')
# Of the fields of `RopeScaling` that are no floats, a value of the type.
_ROPE_TYPES = {_CONTEXT: 0, 'truncate': True}
# Numbers that a file may hold beside a form of rope, in it, or both.
_BESIDE = ('rope_theta', 'partial_rotary_factor')


def _hf_names(family: families.Family) -> dict[str, str]:
  return {name: family.renamed.get(name, name) for name in family.defaults}


def _checked_type(model_type: Any) -> str:
  known = [*FAMILIES]
  _require(model_type in known, 'model_type', f'one of {known}', model_type)
  return model_type


def _check_keys(model_type: str, fields: Mapping[str, Any]) -> None:
  """Refuses a key that asks for what is not computed, or that is not known."""
  family = FAMILIES[model_type]
  read = {*_hf_names(family).values(), *_ROPE, *family.unused, *families.UNUSED}
  read.update(*family.also_named.values())
  fixed = {k: v for k, v in families.FIXED.items() if k not in read}
  fixed |= family.fixed
  kinds = fields.get('layer_types')
  if 'layer_types' not in family.defaults:
    fixed['layer_types'] = [_FULL] * len(kinds or ())
  read -= set(fixed)
  for name, value in fields.items():
    if name in read or value is None or value == fixed.get(name):
      continue
    other = f'a key that a {model_type} here computes with'
    expected = repr(fixed[name]) if name in fixed else other
    raise ValueError(f'{name}: expected {expected}, got {value!r}')


def _value(
  family: families.Family, ours: str, fields: Mapping[str, Any]
) -> Any:
  """Returns what a file says of a field under any of its names."""
  theirs = family.renamed.get(ours, ours)
  names = (theirs, *family.also_named.get(ours, ()))
  given = {name: fields[name] for name in names if name in fields}
  first = next(iter(given), theirs)
  given.setdefault(first, family.defaults[ours])
  for name, value in given.items():
    same = value == given[first]
    _require(same, name, f'{first}={given[first]!r}', value)
  if given[first] is None and ours in _MAY_BE_NULL:
    return None
  required = family.defaults[ours] is None
  if given[first] is None and ours in _NULLS and not required:
    return _NULLS[ours]
  return _typed(first, family.defaults[ours], given[first])


def _typed(theirs: str, default: Any, value: Any) -> Any:
  """Returns a value of config.json in the type of the field's default."""
  if isinstance(value, RopeScaling) or isinstance(default, str):
    return value
  if isinstance(default, tuple):
    value = value if isinstance(value, (list, tuple)) else [value]
    if theirs == 'layer_types' and all(isinstance(v, str) for v in value):
      return tuple(value)
    _require(all(map(_is_int, value)), theirs, 'integers', value)
    return tuple(value)
  if isinstance(default, bool):
    _require(isinstance(value, bool), theirs, 'true or false', value)
    return value
  if isinstance(default, float):
    real = isinstance(value, float) or (_is_int(value) and abs(value) < _HUGE)
    _require(real, theirs, 'a number', value)
    return float(value)
  _require(_is_int(value), theirs, 'an integer', value)
  _require(value <= _MOST, theirs, f'<= {_MOST}', value)
  return value


def _is_int(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool)


def _with_groups(
  family: families.Family, fields: dict[str, Any]
) -> dict[str, Any]:
  """Returns fields without the groups that a 'greedy' router ignores."""
  if 'topk_method' not in family.defaults:
    return fields
  method = fields.get('topk_method', family.defaults['topk_method'])
  known = ('greedy', _LIMITED)
  _require(method in known, 'topk_method', f'one of {known}', method)
  return fields | (dict(n_group=1, topk_group=1) if method == 'greedy' else {})


def _with_rope(
  family: families.Family, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns fields with `rope_theta` and `rope_scaling`.

  A file may have one, or both of transformers' forms if they mean the same.
  """
  out = {name: value for name, value in fields.items() if name not in _ROPE[1:]}
  forms = {name: fields.get(name) for name in _ROPE[1:]}
  given = [name for name, form in forms.items() if form is not None]
  if not given and (default := family.defaults['rope_scaling']):
    given, forms = ['rope_scaling'], {'rope_scaling': default}
  read = [_rope(family, name, forms[name], out) for name in given]
  for name, rope in zip(given, read, strict=True):
    if rope != read[0]:
      raise ValueError(f'{name}: expected {given[0]}={read[0]}, got {rope}')
  return out | (read[0] if read else {})


def _rope(
  family: families.Family, key: str, value: Any, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns what one form says, with the rest of the file's `fields`."""
  _require(isinstance(value, Mapping), key, 'an object', value)
  given = {name: v for name, v in value.items() if v is not None}
  kind_names = [name for name in ('rope_type', 'type') if name in given]
  kinds = {str(given.pop(name)) for name in kind_names} or {'default'}
  known = kinds in ({'default'}, {'yarn'})
  _require(known, key, "the type 'default' or 'yarn'", sorted(kinds))
  beside = [name for name in _BESIDE if name in family.defaults]
  out = {name: _beside(family, key, name, given, fields) for name in beside}
  read = dataclasses.fields(RopeScaling) if kinds == {'yarn'} else ()
  types = {field.name: _ROPE_TYPES.get(field.name, 0.0) for field in read}
  if unknown := sorted(set(given) - set(types)):
    raise ValueError(
      f'{key}: expected of the type {min(kinds)!r} no key but '
      f'{[*beside, *types]}, got {unknown[0]!r}'
    )
  if not types:
    return out | {'rope_scaling': None}
  given.setdefault(_CONTEXT, _value(family, 'max_position_embeddings', fields))
  if 'factor' not in given:
    raise ValueError(f'{key}.factor: expected a number, got none')
  given = {n: _typed(f'{key}.{n}', types[n], v) for n, v in given.items()}
  scaling = RopeScaling(**given)
  _check_scaling(key, scaling)
  return out | {'rope_scaling': scaling}


def _beside(
  family: families.Family,
  key: str,
  name: str,
  given: dict[str, Any],
  fields: Mapping[str, Any],
) -> float:
  """Takes a number out of one form; beside it, it must be the same."""
  outer = _value(family, name, fields)
  value = given.pop(name, outer)
  if name in fields and value != outer:
    raise ValueError(f'{key}.{name}: expected {name}={outer}, got {value!r}')
  return _typed(f'{key}.{name}', 0.0, value)


def _check(config: ModelConfig) -> None:
  for name, default in config.family.defaults.items():
    value, theirs = getattr(config, name), _hf(config, name)
    if name in _OPTIONAL_SIZES and value is None:
      continue
    is_size = default is None or _is_int(default) or name in _OPTIONAL_SIZES
    if is_size and name not in _NO_SIZES:
      least = 0 if name in _MAY_BE_ZERO else 1
      _require(_is_int(value) and value >= least, theirs, f'>= {least}', value)
      _require(value <= _MOST, theirs, f'<= {_MOST}', value)
    elif isinstance(default, float):
      turns = name == 'rope_theta'  # YaRN divides by its logarithm.
      fine = math.isfinite(value) and (value > 1 if turns else value >= 0)
      expected = f'a finite number {"> 1" if turns else ">= 0"}'
      _require(fine, theirs, expected, value)
  if config.rope_scaling is not None:
    _check_scaling('rope_scaling', config.rope_scaling)
  _check_heads(config)
  _check_kinds(config)
  _check_router(config)
  _require(config.dtype in DTYPES, 'dtype', f'one of {DTYPES}', config.dtype)
  heads = config.num_nextn_predict_layers
  _require(heads <= 1, _hf(config, 'num_nextn_predict_layers'), '0 or 1', heads)
  for layer in config.mlp_only_layers:
    _require(
      0 <= layer < config.num_hidden_layers,
      'mlp_only_layers',
      f'layers below num_hidden_layers={config.num_hidden_layers}',
      layer,
    )


def _check_kinds(config: ModelConfig) -> None:
  """Refuses windows and activations of layers that there cannot be."""
  for name in ('swiglu_alpha', 'swiglu_limit'):
    value = getattr(config, name)
    fine = value > 0 or name not in config.family.defaults
    _require(fine, name, '> 0', value)
  kinds, layers = config.layer_types, config.num_hidden_layers
  if not config.family.defaults.keys() >= {'layer_types'}:
    _require(not kinds, 'layer_types', 'none', kinds)
    return
  _require(
    len(kinds) == layers and set(kinds) <= set(LAYER_TYPES),
    'layer_types',
    f'num_hidden_layers={layers} of {LAYER_TYPES}',
    kinds,
  )


def _check_scaling(key: str, scaling: RopeScaling) -> None:
  # The next above 0 for what must not be 0.
  tiny, slow = math.ulp(0.0), scaling.beta_slow
  for name, least in (
    *(('factor', 1), (_CONTEXT, 1), ('mscale', 0), ('mscale_all_dim', 0)),
    *(('attention_factor', tiny), ('beta_slow', tiny), ('beta_fast', slow)),
  ):
    value = getattr(scaling, name)
    fine = value is None or (math.isfinite(value) and value >= least)
    expected = '> 0' if least == tiny else f'>= {least}'
    _require(fine, f'{key}.{name}', f'a finite number {expected}', value)


def _check_heads(config: ModelConfig) -> None:
  heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
  _require(
    heads % kv_heads == 0,
    'num_key_value_heads',
    f'a divisor of num_attention_heads={heads}',
    kv_heads,
  )
  if config.family.attention == 'mla':
    _require(kv_heads == heads, 'num_key_value_heads', f'{heads}', kv_heads)
  width, part = config.rope_dim, config.partial_rotary_factor
  _require(0 < part <= 1, 'partial_rotary_factor', 'in (0, 1]', part)
  name = 'head_dim' if config.head_dim else _hf(config, 'qk_rope_head_dim')
  fine = width >= 2 and width % 2 == 0
  _require(fine, name, 'an even width that rotates', width)


def _check_router(config: ModelConfig) -> None:
  experts, top_k = config.num_experts, config.num_experts_per_tok
  _require(
    top_k <= experts,
    'num_experts_per_tok',
    f'at most {_hf(config, "num_experts")}={experts}',
    top_k,
  )
  groups, chosen = config.n_group, config.topk_group
  _require(experts % groups == 0, 'n_group', f'a divisor of {experts}', groups)
  size = experts // groups
  best = config.family.group_best
  fine = groups == 1 or size >= best
  _require(fine, 'n_group', f'groups of {best} or more', groups)
  _require(
    chosen <= groups and chosen * size >= top_k,
    'topk_group',
    f'at most n_group={groups}, and groups of {size} that hold {top_k} experts',
    chosen,
  )


def _hf(config: ModelConfig, name: str) -> str:
  return config.family.renamed.get(name, name)


def _require(fine: bool, name: str, expected: str, got: Any) -> None:
  if not fine:
    raise ValueError(f'{name}: expected {expected}, got {got!r}')
