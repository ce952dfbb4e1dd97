"""transformers' Qwen3MoeExperts as it is, by one of its implementations."""

import of_torch
import torch
from torch.func import functional_call
import transformers
from transformers.models.qwen3_moe import modeling_qwen3_moe


def _moe(inputs, layer, policy, by):
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  config = transformers.Qwen3MoeConfig(num_experts=layer.num_experts)
  config._experts_implementation = by
  with torch.device('meta'):
    experts = modeling_qwen3_moe.Qwen3MoeExperts(config)
  if policy.activation == 'absolute':
    experts.act_fn = torch.nn.LeakyReLU(-1.0)  # |gate|
  held = dict(gate_up_proj=w_gate_up.mT, down_proj=w_down.mT)
  return {'y': functional_call(experts, held, (x, ids, weights))[None]}


@of_torch.differentiable
def eager(inputs, layer, policy):
  return _moe(inputs, layer, policy, 'eager')


@of_torch.differentiable
def grouped(inputs, layer, policy):
  return _moe(inputs, layer, policy, 'grouped_mm')
