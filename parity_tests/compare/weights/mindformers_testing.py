"""A model's tensors as MindFormers names and lays them out.

Source: toolkit/weight_convert of MindFormers 1351647, which reads such files.
"""

from collections.abc import Mapping

import numpy as np

from hpmoe.models import config as config_lib

_NAMES = {
  'model.embed_tokens.weight': 'embedding.word_embeddings.weight',
  'model.norm.weight': 'decoder.final_layernorm.weight',
  'lm_head.weight': 'output_layer.weight',
}
_PARTS = {
  'model.layers.': 'decoder.layers.',
  'post_attention_layernorm': 'pre_mlp_layernorm',
  'self_attn.q_a_proj': 'self_attention.linear_q_down_proj',
  'self_attn.q_b_proj': 'self_attention.linear_q_up_proj',
  'self_attn.kv_a_proj_with_mqa': 'self_attention.linear_kv_down_proj',
  'self_attn.kv_b_proj': 'self_attention.linear_kv_up_proj',
  'self_attn.q_a_layernorm': 'self_attention.q_layernorm',
  'self_attn.kv_a_layernorm': 'self_attention.kv_layernorm',
  'self_attn.q_norm': 'self_attention.q_layernorm',
  'self_attn.k_norm': 'self_attention.k_layernorm',
  'self_attn.o_proj': 'self_attention.linear_proj',
  'mlp.gate.e_score_correction_bias': 'mlp.router.expert_bias',
  'mlp.gate.weight': 'mlp.router.weight',
  '.down_proj': '.linear_fc2',
}
Tensors = Mapping[str, np.ndarray]


def rename(
  config: config_lib.ModelConfig, tensors: Tensors
) -> dict[str, np.ndarray]:
  """Returns a Hugging Face folder's tensors as MindFormers has them."""
  files: dict[str, np.ndarray] = {}
  for name, array in tensors.items():
    if name in _NAMES:
      files[_NAMES[name]] = array
    elif '.experts.' not in name:
      files[_replace_parts(name)] = array
  for layer in range(config.num_hidden_layers):
    prefix, source = f'decoder.layers.{layer}.', f'model.layers.{layer}.'
    if f'{source}self_attn.k_proj.weight' in tensors:
      _join_heads(config, files, f'{prefix}self_attn.')
    for block in ('mlp.', 'mlp.shared_experts.'):
      if f'{prefix}{block}gate_proj.weight' in files:
        gate, up = (
          files.pop(f'{prefix}{block}{n}_proj.weight') for n in ('gate', 'up')
        )
        turns = np.stack([gate, up], 1).reshape(-1, gate.shape[1])
        files[f'{prefix}{block}linear_fc1.weight'] = turns
    if f'{source}mlp.experts.0.up_proj.weight' in tensors:
      files |= _stack_experts(tensors, prefix, f'{source}mlp.experts.')
  return files


def _replace_parts(name: str) -> str:
  for part, other in _PARTS.items():
    name = name.replace(part, other)
  return name


def _join_heads(config, files: dict[str, np.ndarray], prefix: str) -> None:
  """Joins queries, keys and values, a key's head and its queries together."""
  rows = []
  q, k, v = (files.pop(f'{prefix}{n}_proj.weight') for n in 'qkv')
  queries = len(q) // config.num_key_value_heads
  keys = len(k) // config.num_key_value_heads
  for head in range(config.num_key_value_heads):
    rows.append(q[head * queries : (head + 1) * queries])
    rows += [a[head * keys : (head + 1) * keys] for a in (k, v)]
  name = prefix.replace('self_attn', 'self_attention')
  files[f'{name}linear_qkv.weight'] = np.concatenate(rows)


def _stack_experts(
  tensors: Tensors, prefix: str, experts: str
) -> dict[str, np.ndarray]:
  """Returns weights of all experts `[E D, 2F]` and `[E F, D]`."""
  count = len([n for n in tensors if n.startswith(experts)]) // 3
  gate, up, down = (
    [tensors[f'{experts}{e}.{n}_proj.weight'].T for e in range(count)]
    for n in ('gate', 'up', 'down')
  )
  return {
    f'{prefix}mlp.experts.weight1': np.concatenate(
      [np.hstack(pair) for pair in zip(gate, up, strict=True)]
    ),
    f'{prefix}mlp.experts.weight2': np.concatenate(down),
  }
