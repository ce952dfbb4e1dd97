"""A decoder's configuration as the sizes that a training plan asks for."""

from hpmoe.backend_ascend.simulator.plan import decoder_sizes
from hpmoe.models import config as config_lib


def from_config(
  config: config_lib.ModelConfig, name: str
) -> decoder_sizes.Model:
  """Returns the sizes of a decoder.

  Args:
    config: sizes and options.
    name: to call it by.

  Raises:
    ValueError: no layer has experts.
  """
  moe = config.moe_layers()
  if not moe:
    raise ValueError(
      f'model: expected a layer with experts, got none in {name}'
    )
  layers = range(config.num_hidden_layers)
  return decoder_sizes.Model(
    name=name,
    layers=len(layers),
    dense=tuple(i for i in layers if i not in moe),
    hidden=config.hidden_size,
    vocabulary=config.vocab_size,
    heads=config.num_attention_heads,
    kv_heads=config.num_key_value_heads,
    qk_dim=config.qk_head_dim,
    v_dim=config.head_dim or config.v_head_dim,
    q_rank=config.q_lora_rank or 0,
    kv_rank=config.kv_lora_rank,
    rope_dim=config.qk_rope_head_dim,
    dense_width=config.intermediate_size,
    experts=config.num_experts,
    top_k=config.num_experts_per_tok,
    expert_width=config.moe_intermediate_size,
    shared_width=config.shared_width,
    mtp=config.num_nextn_predict_layers,
    tied=config.tie_word_embeddings,
    sandwich=config.sandwich_norm,
  )
