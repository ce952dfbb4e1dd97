"""One configuration for every decoder, in Hugging Face's words."""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

from hpmoe.models import config_checks
from hpmoe.models import families
from hpmoe.models import hf_config
from hpmoe.models import rope_scaling as rope_scaling_lib

_CONFIGS = pathlib.Path(__file__).resolve().parent / 'configs'
FAMILIES = families.FAMILIES
DTYPES = config_checks.DTYPES
RopeScaling = rope_scaling_lib.RopeScaling


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
    num_shared_experts: experts that every token goes to, as one wide block.
    shared_expert_intermediate_size: width of that block, in a family that
      gives it.
    head_dim: width of a head, which need not be hidden_size over heads; 0 for
      attention 'mla', which has widths of its own.
    partial_rotary_factor: share of a head, from its start, that rotates.
    use_qk_norm: whether queries and keys are normalised, if the family's are.
    global_head_dim: head_dim of layers without the window, in a family with
      two widths; else 0.
    num_global_key_value_heads: key heads of these layers, if they use keys as
      values; 0: as in other layers.
    attention_k_eq_v: whether these layers use keys, before norm and rotation,
      as values.
    window_rope_theta: base of rotations in layers with the window; 0 for that
      of the others.
    final_logit_softcapping: logits are this times a tanh, so that they stay
      within it on both sides; 0 for none.
    sliding_window: number of tokens that a token sees, itself included; None
      for all.
    layer_types: of each layer, one of the family's `layer_pattern`: whether it
      has the window, or linear attention; () where all are alike.
    linear_conv_kernel_dim: of linear attention, tokens of its convolution.
    linear_key_head_dim: width of a query or key of it.
    linear_value_head_dim: width of a value.
    linear_num_key_heads: heads of queries and keys.
    linear_num_value_heads: heads of values, of which as many share a key.
    embedding_multiplier: factor on embeddings.
    residual_multiplier: factor on what a block adds to the hidden state.
    attention_multiplier: factor on the scores of attention; 0 for one over the
      root of a head's width.
    logits_scaling: divisor of logits.
    swiglu_alpha: factor on a gate in its sigmoid.
    swiglu_limit: a gate is at most this, an up projection within it on both
      sides; 0 for no limit.
    q_lora_rank: width of compressed queries; None for none.
    kv_lora_rank: width of compressed keys and values.
    rope_interleave: whether pairs that rotate together are neighbours, as in
      the published weights of DeepSeek-V3, or half a head apart.
    sandwich_norm: whether a layer also normalises what it adds.
    clip_qkv: queries, keys and values are within it on both sides; 0 for no
      limit.
    hidden_act: of gates: a key of `config_checks.ACTIVATIONS`.
    mlp_bias: whether what sees every token, and dense blocks, have biases.
    qkv_bias: whether queries, keys and values have a bias, and the output none.
    router_bias: whether a router of sigmoids has a bias that corrects the load.
    norm_topk_prob: whether a token's K weights are divided by their sum; see
      `normalizes_weights`.
    routed_scaling_factor: factor on them after that.
    n_group: groups of experts.
    topk_group: groups that a token may go to.
    first_k_dense_replace: number of first layers that are dense.
    moe_layer_freq: after those, every moe_layer_freq-th layer has experts.
    decoder_sparse_step: layer i has experts if it divides i + 1.
    mlp_only_layers: layers that are dense nevertheless.
    num_nextn_predict_layers: multi-token prediction heads, 0 or 1.
    router_aux_loss_coef: factor of the loss that balances experts.
    index_topk: maximum number of tokens that the indexer lets a token see; 0
      for a family without an indexer.
    index_n_heads: heads of the indexer.
    index_head_dim: their width.
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
  mlp_bias: bool = False
  clip_qkv: float = 0.0
  hidden_act: str = 'silu'
  head_dim: int = 0
  partial_rotary_factor: float = 1.0
  use_qk_norm: bool = True
  global_head_dim: int = 0
  num_global_key_value_heads: int = 0
  attention_k_eq_v: bool = False
  window_rope_theta: float = 0.0
  final_logit_softcapping: float = 0.0
  sliding_window: int | None = None
  layer_types: tuple[str, ...] = ()
  linear_conv_kernel_dim: int = 0
  linear_key_head_dim: int = 0
  linear_value_head_dim: int = 0
  linear_num_key_heads: int = 0
  linear_num_value_heads: int = 0
  embedding_multiplier: float = 1.0
  residual_multiplier: float = 1.0
  attention_multiplier: float = 0.0
  logits_scaling: float = 1.0
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
  index_topk: int = 0
  index_n_heads: int = 0
  index_head_dim: int = 0
  bos_token_id: int | None = None
  eos_token_id: tuple[int, ...] = ()
  dtype: str = 'bfloat16'

  def __post_init__(self):
    families.check_type(self.model_type)
    if not self.moe_intermediate_size:
      # Mixtral's experts have the width of its blocks.
      self._set('moe_intermediate_size', self.intermediate_size)
    if self.family.attention == 'gqa' and not self.head_dim:
      self._set('head_dim', self.hidden_size // self.num_attention_heads)
    if 'layer_types' in self.family.defaults and not self.layer_types:
      pattern, layers = self.family.layer_pattern, self.num_hidden_layers
      kinds = (pattern[i % len(pattern)] for i in range(layers))
      self._set('layer_types', tuple(kinds))
    if self.family.ends_full:
      last = self.family.layer_pattern[-1:]
      self._set('layer_types', self.layer_types[:-1] + last)
    if self.family.scaled_embeddings:
      self._set('embedding_multiplier', self.hidden_size**0.5)
    config_checks.check(self)

  def _set(self, name: str, value: Any) -> None:
    object.__setattr__(self, name, value)

  @property
  def family(self) -> families.Family:
    """What the models of this family have in common."""
    return FAMILIES[self.model_type]

  @property
  def activation(self) -> str:
    """That of gates, as `PrecisionPolicy.activation` names it."""
    if self.hidden_act == 'silu':
      return self.family.activation
    return config_checks.ACTIVATIONS[self.hidden_act]

  @property
  def is_launched(self) -> bool:
    """Whether the megakernel has all that this model's experts compute."""
    return self.family.is_launched and self.activation == 'swiglu'

  @property
  def use_sliding_window(self) -> bool:
    """Whether there is a window, as some families' files say beside it."""
    return self.sliding_window is not None

  @property
  def max_window_layers(self) -> int:
    """Layers without a window, in a family that has it in the later ones."""
    return self.num_hidden_layers

  @property
  def moe_layer_end_index(self) -> int:
    """The last layer that may have experts, as a family's files say."""
    return min(self.mlp_only_layers, default=self.num_hidden_layers) - 1

  @property
  def topk_method(self) -> str:
    """What a family's files say that may ignore groups."""
    return 'greedy' if self.n_group == 1 else 'group_limited_greedy'

  @property
  def mlp_layer_types(self) -> tuple[str, ...]:
    """What a family's files say of each layer's block."""
    layers = range(self.num_hidden_layers)
    return tuple('sparse' if self.has_experts(n) else 'dense' for n in layers)

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
  def attention_scale(self) -> float:
    """Factor on the scores of grouped attention."""
    return self.attention_multiplier or self.head_dim**-0.5

  @property
  def rope_dim(self) -> int:
    """Width of the part of a query or key that rotates."""
    width = self.global_head_dim or self.head_dim or self.qk_rope_head_dim
    return int(width * self.partial_rotary_factor)

  def head_width(self, layer: int) -> int:
    """Returns the width of a head of a layer, counted from 0."""
    own = 0 if self.has_window(layer) else self.global_head_dim
    return own or self.head_dim

  def count_key_heads(self, layer: int) -> int:
    """Returns the heads of keys of a layer, counted from 0."""
    own = self.num_global_key_value_heads if self.takes_keys(layer) else 0
    return own or self.num_key_value_heads

  def takes_keys(self, layer: int) -> bool:
    """Returns whether a layer takes its keys for values."""
    return self.attention_k_eq_v and not self.has_window(layer)

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
    layer_type = self.layer_types[layer : layer + 1]
    full = 'full_attention' in layer_type
    return self.sliding_window is not None and not full

  def is_linear(self, layer: int) -> bool:
    """Returns whether a layer, counted from 0, has linear attention."""
    return 'linear_attention' in self.layer_types[layer : layer + 1]

  def leaves_out(self, count: int) -> bool:
    """Returns whether an indexer leaves some of so many tokens unseen."""
    return 0 < self.index_topk < count

  def moe_layers(self) -> tuple[int, ...]:
    """Returns the layers that have routed experts, without MTP heads."""
    return tuple(filter(self.has_experts, range(self.num_hidden_layers)))

  def to_hf(self) -> dict[str, Any]:
    """Returns the contents of config.json, which `from_hf` reads."""
    names = hf_config.name_fields(self.family)
    out: dict[str, Any] = {
      'architectures': [self.family.architecture],
      'model_type': self.model_type,
      'hidden_act': 'silu',
      'torch_dtype': self.dtype,
      **self.family.stated,
    }
    if 'hidden_activation' in self.family.fixed:
      del out['hidden_act']
    for name, file_key in names.items():
      value = getattr(self, name)
      out[file_key] = list(value) if isinstance(value, tuple) else value
      if name in hf_config.NULL_IF_ZERO:
        out[file_key] = value or None
    if self.rope_scaling is not None:
      out['rope_scaling'] = rope_scaling_lib.to_fields(self.rope_scaling)
    elif self.family.defaults['rope_scaling']:  # null would mean that
      out['rope_scaling'] = {'rope_type': 'default'}
    if self.family.rope_by_kind:
      hf_config.nest_rope(out)
    if not self.eos_token_id:
      out['eos_token_id'] = None
    elif len(self.eos_token_id) == 1:
      out['eos_token_id'] = self.eos_token_id[0]
    return out


def from_hf(fields: Mapping[str, Any]) -> ModelConfig:
  """Returns the configuration that the contents of config.json mean.

  Raises:
    ValueError: as `hf_config.read`.
  """
  return ModelConfig(**hf_config.read(fields))


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
    config_checks.require(path.is_file(), 'model', expected, name)
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
    type_name = type(content).__name__
    raise ValueError(f'{path}: expected an object, got {type_name}')
  return content


def names() -> tuple[str, ...]:
  """Returns the names of the configurations that come with the project."""
  return tuple(sorted(path.stem for path in _CONFIGS.glob('*.json')))
