"""Dumps a small Qwen3-MoE of transformers with msprobe, in torch's Python.

Run as: python dump_torch_testing.py FOLDER BUG
"""

import json
import sys

from msprobe.pytorch import PrecisionDebugger
import torch
from transformers import Qwen3MoeConfig
from transformers import Qwen3MoeForCausalLM


def make_model():
  """Returns the model, in float32."""
  torch.manual_seed(0)
  config = Qwen3MoeConfig(
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
    norm_topk_prob=True,
  )
  return Qwen3MoeForCausalLM(config).float()


def plant(experts, bug):
  """Makes the experts of a layer wrong."""
  right = experts.forward

  def lose_expert(x, ids, weights):
    return right(x, ids, weights * (ids != 3))

  def weigh_twice(x, ids, weights):
    return right(x, ids, weights * weights)

  def cut_gradient(x, ids, weights):
    return right(x.detach() + 0 * x, ids, weights)

  wrong = dict(
    lose_expert=lose_expert, weigh_twice=weigh_twice, cut_gradient=cut_gradient
  )
  if bug in wrong:
    experts.forward = wrong[bug]


def main():
  folder, bug = sys.argv[1:]
  model = make_model()
  plant(model.model.layers[1].mlp.experts, bug)
  config = dict(
    task='tensor',
    dump_path=folder,
    rank=[],
    step=[],
    level='L0',
    tensor=dict(scope=[], list=[], data_mode=['all']),
  )
  with open(f'{folder}.json', 'w', encoding='utf-8') as file:
    json.dump(config, file)
  debugger = PrecisionDebugger(config_path=f'{folder}.json')
  tokens = torch.arange(12).reshape(2, 6) * 5 % 64
  debugger.start(model=model)
  model(tokens, labels=tokens).loss.backward()
  debugger.stop()
  debugger.step()


if __name__ == '__main__':
  main()
