"""Every parameter of a decoder by name: the contract of models and files.

Names are Hugging Face's, and so are the shapes: a dense weight is
`[out, in]`.  Only the routed experts of a layer are stacked, in the layout of
the layer that is checked here (`reference/contract/tensors.py`).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hpmoe.models import config as config_lib

# Of a layer's routed experts; the biases in a family that has them.
OF_EXPERTS = ('w_gate_up', 'w_down', 'b_gate_up', 'b_down')
# Of an indexer and of linear attention, in float32.
_WIDE = ('.indexer.k_norm.', '.indexer.weights_proj.') + (
  '.linear_attn.A_log',
  '.linear_attn.norm.',
)
_FACTORS = ('.layer_scalar', '.scale', '.per_expert_scale')
Shapes = dict[str, tuple[int, ...]]


def parameter_shapes(
  config: config_lib.ModelConfig, dtype: str | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns shape and dtype of every parameter, in the order of the layers.

  Args:
    config: sizes and options.
    dtype: of the weights; None for `config.dtype`.  The router's bias, and what
      else is float32 in published files, is float32 or `dtype` if that is
      float64.
  """
  # By attribute: MindSpore has numpy know another type as 'bfloat16'.
  weights = jnp.dtype(getattr(jnp, dtype or config.dtype))
  out = {}
  for name, shape in _shapes(config).items():
    wide = is_router_bias(name) or any(part in name for part in _WIDE)
    parameter_dtype = (
      jnp.promote_types(weights, jnp.float32) if wide else weights
    )
    out[name] = jax.ShapeDtypeStruct(shape, parameter_dtype)
  return out


def shared_parameters(config: config_lib.ModelConfig) -> dict[str, str]:
  """Returns names that a file may hold -> the parameter that they repeat.

  A tied `lm_head` is not written to a file.  What an MTP head shares with the
  model is, in published files.
  """
  shared = {}
  if config.tie_word_embeddings:
    shared['lm_head.weight'] = 'model.embed_tokens.weight'
  for layer in mtp_layers(config):
    prefix = f'model.layers.{layer}.'
    shared[f'{prefix}embed_tokens.weight'] = 'model.embed_tokens.weight'
    shared[f'{prefix}shared_head.head.weight'] = head_name(config)
  return shared


def under(params: Mapping[str, Any], prefix: str) -> dict[str, Any]:
  """Returns the parameters whose names begin with `prefix`, without it."""
  begin = f'{prefix}.'
  return {
    name[len(begin) :]: value
    for name, value in params.items()
    if name.startswith(begin)
  }


def head_name(config: config_lib.ModelConfig) -> str:
  """Returns the name of the weight that makes logits, `[vocabulary, D]`."""
  if config.tie_word_embeddings:
    return 'model.embed_tokens.weight'
  return 'lm_head.weight'


def mtp_layers(config: config_lib.ModelConfig) -> range:
  """Returns the numbers under which MTP heads stand: after the last layer."""
  first = config.num_hidden_layers
  return range(first, first + config.num_nextn_predict_layers)


def experts_prefix(config: config_lib.ModelConfig, layer: int) -> str:
  """Returns the prefix of the names of a layer's routed experts."""
  return f'model.layers.{layer}.{config.family.block}.experts.'


def is_of_experts(name: str) -> bool:
  """Returns whether a parameter is stacked over the experts of a layer."""
  block, _, last = name.rpartition('.')
  return block.endswith('.experts') and last in OF_EXPERTS


def is_router_bias(name: str) -> bool:
  """Returns whether a parameter corrects the load of a router's experts."""
  return name.endswith('.gate.e_score_correction_bias')


def has_gradient(name: str) -> bool:
  """Returns whether a parameter has one: no choice of experts or tokens has.

  Nor has what a reference keeps as a buffer.
  """
  is_buffer = name.endswith('.layer_scalar')
  return not (is_router_bias(name) or '.indexer.' in name or is_buffer)


def find_neutral(config: config_lib.ModelConfig, name: str) -> float:
  """Returns the weight with which a norm does no more than normalise.

  1 for a factor; 0 for what is neither.
  """
  if name.endswith(_FACTORS):
    return 1.0
  if not name.endswith('norm.weight'):
    return 0.0
  has_offset = not name.endswith('.linear_attn.norm.weight')
  return 1.0 - has_offset * config.family.norm_offset


def count_channels(config: config_lib.ModelConfig) -> int:
  """Returns the channels that linear attention's convolution has."""
  keys = config.linear_num_key_heads * config.linear_key_head_dim
  return 2 * keys + config.linear_num_value_heads * config.linear_value_head_dim


def _shapes(config: config_lib.ModelConfig) -> Shapes:
  vocabulary, width = config.vocab_size, config.hidden_size
  shapes = _linear('model.embed_tokens', width, vocabulary)
  for layer in range(config.num_hidden_layers):
    shapes |= _layer(config, layer)
  shapes |= _norm('model.norm', width)
  if not config.tie_word_embeddings:
    shapes |= _linear('lm_head', width, vocabulary)
  for layer in mtp_layers(config):
    shapes |= _layer(config, layer) | _mtp(config, layer)
  return shapes


def _layer(config: config_lib.ModelConfig, layer: int) -> Shapes:
  width = config.hidden_size
  norms = ['input_layernorm', 'post_attention_layernorm']
  if config.sandwich_norm:
    norms += ['pre_mlp_layernorm', 'post_mlp_layernorm']
  attention = _mla if config.family.attention == 'mla' else _gqa
  parts: Shapes = {}
  for name in norms:
    parts |= _norm(name, width)
  if config.is_linear(layer):
    parts |= _under('linear_attn', _linear_attention(config))
  else:
    parts |= _under('self_attn', attention(config, layer))
  if config.has_experts(layer):
    parts |= _under(config.family.block, _moe(config))
  else:
    dense = _mlp(width, config.intermediate_size, config.mlp_bias)
    parts |= _under('mlp', dense)
  if config.family.separate_norms:
    parts |= {'layer_scalar': (1,)}
  return _under(f'model.layers.{layer}', parts)


def _under(prefix: str, shapes: Shapes) -> Shapes:
  return {f'{prefix}.{name}': shape for name, shape in shapes.items()}


def _linear(name: str, inputs: int, outputs: int, bias: bool = False) -> Shapes:
  shapes: Shapes = {f'{name}.weight': (outputs, inputs)}
  return shapes | ({f'{name}.bias': (outputs,)} if bias else {})


def _norm(name: str, width: int) -> Shapes:
  return {f'{name}.weight': (width,)}


def _gqa(config: config_lib.ModelConfig, layer: int) -> Shapes:
  width, bias = config.hidden_size, config.attention_bias
  of_inputs, gated = bias or config.qkv_bias, config.family.attention_gate
  head = config.head_width(layer)
  queries = config.num_attention_heads * head
  keys = config.count_key_heads(layer) * head
  shapes = (
    _linear('q_proj', width, queries * (1 + gated), of_inputs)
    | _linear('k_proj', width, keys, of_inputs)
    | _linear('v_proj', width, keys, of_inputs)
    | _linear('o_proj', queries, width, bias)
  )
  if config.takes_keys(layer):
    shapes = {n: s for n, s in shapes.items() if not n.startswith('v_proj.')}
  if config.family.sinks:
    shapes['sinks'] = (config.num_attention_heads,)
  if config.qk_norm:
    whole = config.qk_norm == 'whole'
    shapes |= _norm('q_norm', queries if whole else head)
    shapes |= _norm('k_norm', keys if whole else head)
  return shapes


def _linear_attention(config: config_lib.ModelConfig) -> Shapes:
  width, channels = config.hidden_size, count_channels(config)
  heads = config.linear_num_value_heads
  values = heads * config.linear_value_head_dim
  if config.family.linear_attention == 'by_head':
    shapes = _linear('in_proj_qkvz', width, channels + values)
    shapes |= _linear('in_proj_ba', width, 2 * heads)
  else:
    sizes = dict(qkv=channels, z=values, b=heads, a=heads)
    shapes = {}
    for name, size in sizes.items():
      shapes |= _linear(f'in_proj_{name}', width, size)
  return (
    shapes
    | {'conv1d.weight': (channels, 1, config.linear_conv_kernel_dim)}
    | {'dt_bias': (heads,), 'A_log': (heads,)}
    | _norm('norm', config.linear_value_head_dim)
    | _linear('out_proj', values, width)
  )


def _mla(config: config_lib.ModelConfig, layer: int) -> Shapes:
  del layer  # all are alike
  width, bias = config.hidden_size, config.attention_bias
  heads, rank = config.num_attention_heads, config.kv_lora_rank
  queries = heads * config.qk_head_dim
  keys_values = heads * (config.qk_nope_head_dim + config.v_head_dim)
  return (
    _queries(config, queries)
    | _linear('kv_a_proj_with_mqa', width, rank + config.qk_rope_head_dim, bias)
    | _norm('kv_a_layernorm', rank)
    | _linear('kv_b_proj', rank, keys_values)
    | _linear('o_proj', heads * config.v_head_dim, width, bias)
    | _under('indexer', _indexer(config))
  )


def _indexer(config: config_lib.ModelConfig) -> Shapes:
  """Returns the weights of the indexer of sparse attention, if there is one."""
  if not config.index_topk:
    return {}
  width, rank = config.index_head_dim, config.q_lora_rank
  assert rank is not None
  return (
    _linear('wq_b', rank, config.index_n_heads * width)
    | _linear('wk', config.hidden_size, width)
    | _norm('k_norm', width)
    | {'k_norm.bias': (width,)}
    | _linear('weights_proj', config.hidden_size, config.index_n_heads)
  )


def _queries(config: config_lib.ModelConfig, outputs: int) -> Shapes:
  width, rank = config.hidden_size, config.q_lora_rank
  if rank is None:
    return _linear('q_proj', width, outputs)
  return (
    _linear('q_a_proj', width, rank, config.attention_bias)
    | _norm('q_a_layernorm', rank)
    | _linear('q_b_proj', rank, outputs)
  )


def _mlp(width: int, hidden: int, bias: bool) -> Shapes:
  return (
    _linear('gate_proj', width, hidden, bias)
    | _linear('up_proj', width, hidden, bias)
    | _linear('down_proj', hidden, width, bias)
  )


def _moe(config: config_lib.ModelConfig) -> Shapes:
  experts, width = config.num_experts, config.hidden_size
  hidden = config.moe_intermediate_size
  biased = config.family.by_turns
  shapes = _linear(config.family.gate, width, experts, biased)
  has_bias = config.family.router == 'sigmoid_group'
  if (has_bias or config.family.choice_bias) and config.router_bias:
    shapes['gate.e_score_correction_bias'] = (experts,)
  shapes['experts.w_gate_up'] = (experts, width, 2 * hidden)
  shapes['experts.w_down'] = (experts, hidden, width)
  if biased:
    shapes['experts.b_gate_up'] = (experts, 2 * hidden)
    shapes['experts.b_down'] = (experts, width)
  if shared := config.shared_width:
    shared_shapes = _mlp(width, shared, config.mlp_bias)
    shapes |= _under(config.family.shared, shared_shapes)
    if config.family.shared_gate:
      shapes |= _linear(config.family.shared_gate, width, 1)
  if config.family.separate_norms:
    for name in ('input_norm', 'routed_norm', 'shared_norm'):
      shapes |= _norm(name, width)
    gate = config.family.gate
    shapes |= {
      f'{gate}.scale': (width,),
      f'{gate}.per_expert_scale': (experts,),
    }
  return shapes


def _mtp(config: config_lib.ModelConfig, layer: int) -> Shapes:
  width = config.hidden_size
  shapes = _linear('eh_proj', 2 * width, width)
  for name in ('enorm', 'hnorm', 'shared_head.norm'):
    shapes |= _norm(name, width)
  return _under(f'model.layers.{layer}', shapes)
