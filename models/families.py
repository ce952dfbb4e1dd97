"""Families of decoders: one row each, and nothing else knows them by name.

A row says which parts a family is built of, what its config.json calls each
field, and what the family's reference implementation takes where the file is
silent: transformers 5.23, and for Pangu the configuration published with
openPangu-Ultra-MoE-718B.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Family:
  """What the models of one family have in common.

  Attributes:
    architecture: the class in `architectures` of config.json.
    attention: 'mla' (compressed keys and values) or 'gqa'.
    router: 'sigmoid_group' or 'softmax', as in `reference/routing.py`.
    defaults: the fields of `ModelConfig` that config.json of this family has ->
      what its absence means; None for a field that must be there, or null.  Of
      `layer_types`, () means windows by turns.
    group_best: so many best experts speak for a group.
    normalizes_one: whether a token's only weight is divided by itself too.
    up_offset: what an expert adds to its up projection.
    sinks: whether each head's softmax has one score more, with no value.
    qk_norm: how queries and keys are normalised: each 'head', the 'whole'
      width at once, or ''.
    latent_eps: of the norms of compressed vectors, which the reference gives
      the default of its norm class whatever `rms_norm_eps` says.
    block: name of the feed-forward block with experts.
    gate: name of the router in it.
    experts: Hugging Face's names of gate, up and down of one expert.
    by_turns: whether files hold the experts of a layer as one tensor
      `[E, in, out]`, gates and ups by turns, with biases, and maybe in MXFP4:
      see `checkpoint/expert_layout.py`.
    shared: name of the experts that see every token.
    shared_gate: name of what weighs them for each token; '' for nothing.
    renamed: our name of a field -> the family's.
    also_named: our name of a field -> others under which files have it.
    fixed: keys of config.json that no model here computes another value of ->
      that value; it may be in `defaults` too.
    unused: keys that the family's reference does not compute with.
  """

  architecture: str
  attention: str
  router: str
  defaults: Mapping[str, Any]
  up_offset: float = 0.0
  sinks: bool = False
  group_best: int = 2
  normalizes_one: bool = True
  qk_norm: str = ''
  latent_eps: float = 1e-6
  block: str = 'mlp'
  gate: str = 'gate'
  by_turns: bool = False
  experts: tuple[str, str, str] = ('gate_proj', 'up_proj', 'down_proj')
  shared: str = 'shared_experts'
  shared_gate: str = ''
  renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  also_named: Mapping[str, tuple[str, ...]] = dataclasses.field(
    default_factory=dict
  )
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  unused: tuple[str, ...] = ()


# Of any family: what describes a file, or how its model is used, and no number
# that it computes.
UNUSED = (
  *('model_type', 'architectures', 'auto_map', 'transformers_version'),
  *('torch_dtype', 'dtype', 'quantization_config', '_name_or_path'),
  *('attn_implementation', '_attn_implementation', 'use_cache', 'pad_token_id'),
  *('output_router_logits', 'output_hidden_states', 'output_attentions'),
  *('return_dict', 'id2label', 'label2id', 'num_labels', 'problem_type'),
  *('do_sample', 'temperature', 'top_k', 'top_p', 'repetition_penalty'),
  *('max_length', 'max_new_tokens', 'pretraining_tp', 'ep_size'),
)
FIXED = {
  'hidden_act': 'silu',
  'attention_dropout': 0.0,
  'is_encoder_decoder': False,
  'chunk_size_feed_forward': 0,
}

_COMMON = dict(
  rms_norm_eps=1e-6,
  rope_theta=10000.0,
  rope_scaling=None,
  initializer_range=0.02,
  tie_word_embeddings=False,
  bos_token_id=None,
  eos_token_id=(),
)
_DEEPSEEK_V3 = Family(
  architecture='DeepseekV3ForCausalLM',
  attention='mla',
  router='sigmoid_group',
  defaults=_COMMON
  | dict(
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    num_hidden_layers=61,
    num_attention_heads=128,
    num_key_value_heads=128,
    num_experts=256,
    num_experts_per_tok=8,
    num_shared_experts=1,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    attention_bias=False,
    rope_interleave=True,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    n_group=8,
    topk_group=4,
    first_k_dense_replace=3,
    moe_layer_freq=1,
    num_nextn_predict_layers=1,
    max_position_embeddings=4096,
    bos_token_id=0,
    eos_token_id=(1,),
  ),
  renamed={
    'num_experts': 'n_routed_experts',
    'num_shared_experts': 'n_shared_experts',
  },
  also_named={
    'num_experts': ('num_local_experts',),
    'num_nextn_predict_layers': ('num_mtp_layers',),
  },
  fixed={'scoring_func': 'sigmoid', 'topk_method': 'noaux_tc'},
  # The first two are of training; the others follow from the widths.
  unused=('aux_loss_alpha', 'seq_aux', 'head_dim', 'qk_head_dim'),
)
# As transformers computes it: weights are not divided by their sum.
_DEEPSEEK_V2 = Family(
  architecture='DeepseekV2ForCausalLM',
  attention='mla',
  router='softmax',
  group_best=1,
  defaults=_COMMON
  | dict(
    vocab_size=102400,
    hidden_size=4096,
    intermediate_size=11008,
    moe_intermediate_size=1407,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=None,
    num_experts=64,
    num_experts_per_tok=None,
    num_shared_experts=2,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    attention_bias=False,
    rope_interleave=True,
    norm_topk_prob=False,
    routed_scaling_factor=1.0,
    topk_method='greedy',
    n_group=None,
    topk_group=None,
    first_k_dense_replace=0,
    max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_id=(2,),
  ),
  renamed=_DEEPSEEK_V3.renamed,
  also_named={'num_experts': ('num_experts', 'num_local_experts')},
  fixed={
    'scoring_func': 'softmax',
    'norm_topk_prob': False,
    'rope_interleave': True,
    'mlp_bias': False,
    'moe_layer_freq': 1,
  },
  unused=_DEEPSEEK_V3.unused,
)
_QWEN3_MOE = Family(
  architecture='Qwen3MoeForCausalLM',
  attention='gqa',
  router='softmax',
  qk_norm='head',
  defaults=_COMMON
  | dict(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    moe_intermediate_size=768,
    num_hidden_layers=24,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=0,
    num_experts=128,
    num_experts_per_tok=8,
    attention_bias=False,
    use_sliding_window=False,
    sliding_window=4096,
    norm_topk_prob=False,
    decoder_sparse_step=1,
    mlp_only_layers=(),
    router_aux_loss_coef=0.001,
    max_position_embeddings=32768,
  ),
  also_named={'num_experts': ('num_local_experts',)},  # by transformers 5
  unused=('max_window_layers',),
)
_OLMOE = Family(
  architecture='OlmoeForCausalLM',
  attention='gqa',
  router='softmax',
  qk_norm='whole',
  defaults=_COMMON
  | dict(
    vocab_size=50304,
    hidden_size=2048,
    intermediate_size=2048,
    num_hidden_layers=16,
    num_attention_heads=16,
    num_key_value_heads=None,
    head_dim=0,
    num_experts=64,
    num_experts_per_tok=8,
    attention_bias=False,
    norm_topk_prob=False,
    router_aux_loss_coef=0.01,
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    eos_token_id=(50279,),
  ),
  also_named={'num_experts': ('num_local_experts',)},
)
_QWEN2_MOE = Family(
  architecture='Qwen2MoeForCausalLM',
  attention='gqa',
  router='softmax',
  shared='shared_expert',
  shared_gate='shared_expert_gate',
  defaults={
    name: value
    for name, value in _QWEN3_MOE.defaults.items()
    if name not in ('attention_bias', 'use_sliding_window', 'sliding_window')
  }
  | dict(
    intermediate_size=5632,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    num_attention_heads=16,
    num_key_value_heads=16,
    num_experts=60,
    num_experts_per_tok=4,
    qkv_bias=True,
  ),
  also_named={'num_experts': ('num_local_experts',)},
  fixed={'use_sliding_window': False},
  unused=('sliding_window', 'max_window_layers'),
)
# Qwen3's attention, DeepSeek-V3's experts.
_DOTS1 = Family(
  architecture='Dots1ForCausalLM',
  attention='gqa',
  router='sigmoid_group',
  qk_norm='head',
  defaults=_COMMON
  | dict(
    vocab_size=152064,
    hidden_size=4608,
    intermediate_size=10944,
    moe_intermediate_size=1408,
    num_hidden_layers=62,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=0,
    num_experts=None,
    num_experts_per_tok=None,
    num_shared_experts=None,
    attention_bias=False,
    sliding_window=4096,
    max_window_layers=62,
    norm_topk_prob=False,
    routed_scaling_factor=1.0,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=0,
    max_position_embeddings=2048,
  ),
  renamed=_DEEPSEEK_V3.renamed,
  also_named={'num_experts': ('num_local_experts',)},
  fixed={'moe_layer_freq': 1},
  unused=('scoring_func', 'topk_method', 'use_sliding_window'),
)
# GLM-4.5: dots1's layer, of which a part of each head rotates.
_GLM4_MOE = Family(
  architecture='Glm4MoeForCausalLM',
  attention='gqa',
  router='sigmoid_group',
  qk_norm='head',
  defaults=_COMMON
  | dict(
    vocab_size=151552,
    hidden_size=4096,
    intermediate_size=10944,
    moe_intermediate_size=1408,
    num_hidden_layers=46,
    num_attention_heads=96,
    num_key_value_heads=8,
    head_dim=0,
    num_experts=128,
    num_experts_per_tok=8,
    num_shared_experts=1,
    qkv_bias=False,
    use_qk_norm=False,
    partial_rotary_factor=0.5,
    norm_topk_prob=True,
    routed_scaling_factor=1.0,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    num_nextn_predict_layers=1,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
  ),
  renamed={**_DEEPSEEK_V3.renamed, 'qkv_bias': 'attention_bias'},
  also_named=_DEEPSEEK_V3.also_named,
)
_MIXTRAL = Family(
  architecture='MixtralForCausalLM',
  attention='gqa',
  router='softmax',
  block='block_sparse_moe',
  experts=('w1', 'w3', 'w2'),
  defaults=_COMMON
  | dict(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=0,
    num_experts=8,
    num_experts_per_tok=2,
    sliding_window=None,
    router_aux_loss_coef=0.001,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_theta=1e6,
    bos_token_id=1,
    eos_token_id=(2,),
  ),
  renamed={'num_experts': 'num_local_experts'},
  also_named={'num_experts': ('num_experts',)},
  fixed={'router_jitter_noise': 0.0},
)
# A softmax of the chosen scores alone is one of all, divided by their sum.
_GPT_OSS = Family(
  architecture='GptOssForCausalLM',
  attention='gqa',
  router='softmax',
  gate='router',
  up_offset=1.0,
  sinks=True,
  by_turns=True,
  defaults=_COMMON
  | dict(
    vocab_size=201088,
    hidden_size=2880,
    intermediate_size=2880,
    num_hidden_layers=36,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=64,
    num_experts=128,
    num_experts_per_tok=4,
    attention_bias=True,
    sliding_window=128,
    layer_types=(),
    swiglu_alpha=1.702,
    swiglu_limit=7.0,
    router_aux_loss_coef=0.001,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_theta=150000.0,
    rope_scaling=dict(
      rope_type='yarn',
      factor=32.0,
      beta_fast=32.0,
      beta_slow=1.0,
      truncate=False,
      original_max_position_embeddings=4096,
    ),
  ),
  renamed={'num_experts': 'num_local_experts'},
  also_named={
    'num_experts': ('num_experts',),
    'num_experts_per_tok': ('experts_per_token',),
  },
  unused=('initial_context_length',),
)
# DeepSeek-V3's layer, without groups and, if the file says so, with sandwich
# norms: arXiv 2505.04519 and the code of openPangu-Ultra-MoE-718B.  Its files
# have the names on the right of `renamed`; those that vLLM reads have
# DeepSeek-V3's.
_PANGU = Family(
  architecture='PanguUltraMoEForCausalLM',
  attention='mla',
  router='sigmoid_group',
  normalizes_one=False,
  latent_eps=1e-5,
  defaults={
    name: value
    for name, value in _DEEPSEEK_V3.defaults.items()
    if name not in ('n_group', 'topk_group', 'moe_layer_freq', 'attention_bias')
  }
  | dict(
    vocab_size=153600,
    hidden_size=7680,
    sandwich_norm=False,
    router_bias=False,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_theta=25600000.0,
  ),
  renamed={
    'num_experts': 'num_routed_experts',
    'first_k_dense_replace': 'num_dense_layers',
    'num_nextn_predict_layers': 'num_mtp_layers',
    'q_lora_rank': 'attention_q_lora_dim',
    'kv_lora_rank': 'attention_kv_lora_dim',
    'qk_nope_head_dim': 'attention_qk_dim',
    'qk_rope_head_dim': 'attention_qk_rope_dim',
    'v_head_dim': 'attention_v_dim',
    'router_bias': 'router_enable_expert_bias',
  },
  also_named={
    'num_experts': ('n_routed_experts',),
    'num_shared_experts': ('n_shared_experts',),
    'first_k_dense_replace': ('first_k_dense_replace',),
    'num_nextn_predict_layers': ('num_nextn_predict_layers',),
    'q_lora_rank': ('q_lora_rank',),
    'kv_lora_rank': ('kv_lora_rank',),
    'qk_nope_head_dim': ('qk_nope_head_dim',),
    'qk_rope_head_dim': ('qk_rope_head_dim',),
    'v_head_dim': ('v_head_dim',),
  },
  fixed={
    'scoring_func': 'sigmoid',
    'topk_method': 'noaux_tc',
    'attention_bias': False,
    'mlp_bias': False,
    'moe_layer_freq': 1,
    'n_group': 1,
    'topk_group': 1,
  },
)
# DeepSeek-V3 by the code that is published with its weights, not
# transformers'; its files name that class.
_KIMI_K2 = dataclasses.replace(_DEEPSEEK_V3, normalizes_one=False)
FAMILIES = {
  'deepseek_v2': _DEEPSEEK_V2,
  'deepseek_v3': _DEEPSEEK_V3,
  'kimi_k2': _KIMI_K2,
  'qwen3_moe': _QWEN3_MOE,
  'mixtral': _MIXTRAL,
  'olmoe': _OLMOE,
  'qwen2_moe': _QWEN2_MOE,
  'dots1': _DOTS1,
  'glm4_moe': _GLM4_MOE,
  'gpt_oss': _GPT_OSS,
  'pangu_ultra_moe': _PANGU,
}
