"""Runs a small Qwen3-MoE of transformers under msprobe, in torch's Python.

Writes FOLDER/model, the run's weights as FOLDER/run, FOLDER/dump, and
FOLDER/scores.json: perplexity, top-1 agreement and KL of both on the tokens.

Run as: python run_torch_testing.py FOLDER BUG
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
    initializer_range=0.1,
    tie_word_embeddings=False,
  )
  return Qwen3MoeForCausalLM(config).float()


def plant(model, bug):
  """Makes the run of a model another than that of its folder."""
  layer = model.model.layers[1]
  with torch.no_grad():
    if bug == 'bfloat16':
      model.to(torch.bfloat16)
    elif bug == 'experts':
      for weight in layer.mlp.experts.parameters():
        weight[[3, 4]] = weight[[4, 3]]
    elif bug == 'rope':
      model.model.rotary_emb.inv_freq *= 0.5
    elif bug == 'eps':
      layer.post_attention_layernorm.variance_epsilon = 1e-2
    elif bug == 'router':
      layer.mlp.gate.weight[[0, 1]] = layer.mlp.gate.weight[[1, 0]]


def main():
  folder, bug = sys.argv[1:]
  model = make_model()
  model.save_pretrained(f'{folder}/model')
  tokens = torch.arange(24).reshape(2, 12) * 5 % 64
  left = model(tokens, labels=tokens)
  plant(model, bug)
  model.save_pretrained(f'{folder}/run')
  config = dict(
    task='tensor',
    dump_path=f'{folder}/dump',
    rank=[],
    step=[],
    level='L0',
    tensor=dict(scope=[], list=[], data_mode=['all']),
  )
  with open(f'{folder}/dump.json', 'w', encoding='utf-8') as file:
    json.dump(config, file)
  debugger = PrecisionDebugger(config_path=f'{folder}/dump.json')
  debugger.start(model=model)
  right = model(tokens, labels=tokens)
  debugger.stop()
  debugger.step()
  logs = [
    torch.log_softmax(side.logits[:, :-1].double(), -1).flatten(0, 1)
    for side in (left, right)
  ]
  best = [side.argmax(-1) for side in logs]
  scores = dict(
    left_perplexity=float(left.loss.exp()),
    right_perplexity=float(right.loss.exp()),
    agreement=float((best[0] == best[1]).double().mean()),
    divergence=float(
      torch.nn.functional.kl_div(
        logs[1], logs[0], log_target=True, reduction='batchmean'
      )
    ),
  )
  with open(f'{folder}/scores.json', 'w', encoding='utf-8') as file:
    json.dump(scores, file)


if __name__ == '__main__':
  main()
