"""A small Qwen3-MoE of transformers, in torch's Python, and bugs of it.

It runs where this project is not: the tests copy it.
"""

import torch
import transformers


def make_model(dtype=torch.float32, experts_implementation='eager', **options):
  """Returns two layers of eight experts."""
  torch.manual_seed(0)
  config = transformers.Qwen3MoeConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    moe_intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=8,
    num_experts_per_tok=2,
    experts_implementation=experts_implementation,
    **options,
  )
  decoder = transformers.Qwen3MoeForCausalLM(config).to(dtype)
  with torch.no_grad():
    for item in decoder.parameters():
      if item.dim() > 1:
        item.normal_(std=item.shape[-1] ** -0.5)
  return decoder


def lose_expert(experts):
  """Expert 3 returns nothing."""
  forward = experts.forward
  experts.forward = lambda hidden_states, top_k_index, top_k_weights: forward(
    hidden_states, top_k_index, top_k_weights * (top_k_index != 3)
  )
