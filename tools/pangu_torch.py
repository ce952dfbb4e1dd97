"""openPangu-Ultra-MoE in plain torch, of which golden files are made.

Written to the public code of openPangu-Ultra-MoE-718B
(`modeling_openpangu_moe.py`) and to vLLM's `openpangu.py`, whose reading of
the same weights is the same; neither is in transformers.  Every token goes
through every expert of its own in a loop: plain, and slow.  Modules have the
names that transformers 5 gives to those of DeepSeek-V3.
"""

import types

import torch
from torch import nn
from torch.nn import functional

# The norm class's default, which the norms of compressed vectors have.
_LATENT_EPS = 1e-5


class Config(types.SimpleNamespace):
  """The fields of config.json, with the defaults of the published class."""

  def __init__(self, **fields):
    defaults = dict(
      rms_norm_eps=1e-5,
      rope_theta=25600000.0,
      rope_interleave=True,
      sandwich_norm=False,
      router_enable_expert_bias=False,
      routed_scaling_factor=2.5,
      norm_topk_prob=True,
    )
    super().__init__(**defaults | fields)


class Norm(nn.Module):
  def __init__(self, width: int, eps: float):
    super().__init__()
    self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

  def forward(self, x):
    wide = x.float()
    mean = wide.pow(2).mean(-1, keepdim=True)
    return (self.weight * (wide * torch.rsqrt(mean + self.eps))).to(x.dtype)


def _linear(inputs: int, outputs: int) -> nn.Linear:
  return nn.Linear(inputs, outputs, bias=False)


class Mlp(nn.Module):
  def __init__(self, width: int, hidden: int):
    super().__init__()
    self.gate_proj, self.up_proj = (
      _linear(width, hidden),
      _linear(width, hidden),
    )
    self.down_proj = _linear(hidden, width)

  def forward(self, x):
    return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class TopKRouter(nn.Module):
  """Sigmoids; the best K; divided by their sum; scaled."""

  def __init__(self, config: Config):
    super().__init__()
    self.config = config
    experts = config.num_routed_experts
    self.weight = nn.Parameter(torch.zeros(experts, config.hidden_size))
    bias = torch.zeros(experts) if config.router_enable_expert_bias else None
    self.register_buffer('e_score_correction_bias', bias)

  def forward(self, x):
    logits = functional.linear(x.float(), self.weight.float())
    scores = by = logits.sigmoid()
    if self.e_score_correction_bias is not None:
      by = scores + self.e_score_correction_bias
    ids = by.topk(self.config.num_experts_per_tok, dim=-1).indices
    weights = scores.gather(1, ids)
    if self.config.norm_topk_prob and ids.shape[-1] > 1:
      weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return logits, weights * self.config.routed_scaling_factor, ids


class Experts(nn.Module):
  def __init__(self, config: Config):
    super().__init__()
    experts, width = config.num_routed_experts, config.hidden_size
    hidden = config.moe_intermediate_size
    self.gate_up_proj = nn.Parameter(torch.zeros(experts, 2 * hidden, width))
    self.down_proj = nn.Parameter(torch.zeros(experts, width, hidden))

  def forward(self, x, weights, ids):
    rows = []
    for token, of_token, chosen in zip(x, weights, ids, strict=True):
      outs = [self._expert(token, int(expert)) for expert in chosen]
      outs = torch.stack(outs).to(of_token.dtype) * of_token[:, None]
      rows.append(outs.sum(0).to(x.dtype))
    return torch.stack(rows)

  def _expert(self, token, expert: int):
    gate, up = (self.gate_up_proj[expert] @ token).chunk(2)
    return self.down_proj[expert] @ (functional.silu(gate) * up)


class Moe(nn.Module):
  def __init__(self, config: Config):
    super().__init__()
    width = config.hidden_size
    self.gate, self.experts = TopKRouter(config), Experts(config)
    hidden = config.moe_intermediate_size * config.num_shared_experts
    self.shared_experts = Mlp(width, hidden)

  def forward(self, x):
    rows = x.reshape(-1, x.shape[-1])
    _, weights, ids = self.gate(rows)
    routed = self.experts(rows, weights, ids).reshape(x.shape)
    return routed + self.shared_experts(x)


class Attention(nn.Module):
  def __init__(self, config: Config):
    super().__init__()
    self.config, width = config, config.hidden_size
    heads, low = config.num_attention_heads, config.attention_q_lora_dim
    self.plain, self.turning = (
      config.attention_qk_dim,
      config.attention_qk_rope_dim,
    )
    queries = heads * (self.plain + self.turning)
    if low is None:
      self.q_proj = _linear(width, queries)
    else:
      self.q_a_proj, self.q_b_proj = _linear(width, low), _linear(low, queries)
      self.q_a_layernorm = Norm(low, _LATENT_EPS)
    rank, of_value = config.attention_kv_lora_dim, config.attention_v_dim
    self.kv_a_proj_with_mqa = _linear(width, rank + self.turning)
    self.kv_a_layernorm = Norm(rank, _LATENT_EPS)
    self.kv_b_proj = _linear(rank, heads * (self.plain + of_value))
    self.o_proj = _linear(heads * of_value, width)

  def forward(self, x):
    batch, count, _ = x.shape
    if self.config.attention_q_lora_dim is None:
      queries = self.q_proj(x)
    else:
      queries = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
    heads = self.config.num_attention_heads
    queries = queries.reshape(batch, count, heads, -1).transpose(1, 2)
    rank = self.config.attention_kv_lora_dim
    low, of_key = self.kv_a_proj_with_mqa(x).split([rank, self.turning], -1)
    both = self.kv_b_proj(self.kv_a_layernorm(low))
    both = both.reshape(batch, count, heads, -1).transpose(1, 2)
    keys, values = both.split([self.plain, self.config.attention_v_dim], -1)
    plain, turning = queries.split([self.plain, self.turning], -1)
    of_key = self._turned(of_key[:, None]).expand(-1, heads, -1, -1)
    queries = torch.cat([plain, self._turned(turning)], -1)
    keys = torch.cat([keys, of_key], -1)
    scores = queries @ keys.transpose(2, 3) * queries.shape[-1] ** -0.5
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(later, float('-inf'))
    shares = functional.softmax(scores, -1, dtype=torch.float32).to(x.dtype)
    out = (shares @ values).transpose(1, 2).reshape(batch, count, -1)
    return self.o_proj(out)

  def _turned(self, x):
    width, count = x.shape[-1], x.shape[-2]
    steps = torch.arange(0, width, 2, dtype=torch.float32) / width
    turns = 1.0 / self.config.rope_theta**steps
    angles = torch.arange(count, dtype=torch.float32)[:, None] * turns
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if self.config.rope_interleave:
      first, second = x[..., 0::2], x[..., 1::2]
    else:
      first, second = x.chunk(2, -1)
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat(turned, -1)


class Layer(nn.Module):
  def __init__(self, config: Config, number: int):
    super().__init__()
    self.sandwich_norm = config.sandwich_norm
    self.self_attn = Attention(config)
    dense = number < config.num_dense_layers
    width = config.hidden_size
    self.mlp = Mlp(width, config.intermediate_size) if dense else Moe(config)
    names = ['input_layernorm', 'post_attention_layernorm']
    if config.sandwich_norm:
      names += ['pre_mlp_layernorm', 'post_mlp_layernorm']
    for name in names:
      setattr(self, name, Norm(width, config.rms_norm_eps))

  def forward(self, x):
    added = self.self_attn(self.input_layernorm(x))
    if not self.sandwich_norm:
      x = x + added
      return x + self.mlp(self.post_attention_layernorm(x))
    x = x + self.post_attention_layernorm(added)
    return x + self.post_mlp_layernorm(self.mlp(self.pre_mlp_layernorm(x)))


class Body(nn.Module):
  def __init__(self, config: Config):
    super().__init__()
    self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
    numbers = range(config.num_hidden_layers)
    self.layers = nn.ModuleList(Layer(config, n) for n in numbers)
    self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class PanguUltraMoEForCausalLM(nn.Module):
  """The decoder, called as those of transformers are."""

  config_class = Config

  def __init__(self, config: Config):
    super().__init__()
    self.model = Body(config)
    self.lm_head = _linear(config.hidden_size, config.vocab_size)

  def forward(self, tokens, **options):
    del options
    states = [self.model.embed_tokens(tokens)]
    for layer in self.model.layers:
      states.append(layer(states[-1]))
    states[-1] = self.model.norm(states[-1])
    logits = self.lm_head(states[-1])
    return types.SimpleNamespace(logits=logits, hidden_states=tuple(states))
