"""Runs a small Qwen3-MoE of transformers under msprobe, in torch's Python.

Writes FOLDER/model, the run's weights as FOLDER/run, FOLDER/dump, and
FOLDER/scores.json: perplexity, top-1 agreement and KL of both on the tokens.

Run as: python run_torch_testing.py FOLDER BUG
"""

import json
import pathlib
import sys

import torch

_ROOMS = pathlib.Path(__file__).parents[1]
sys.path += [str(_ROOMS / 'capture'), str(_ROOMS / 'dumps')]

import msprobe_torch_testing  # noqa: E402
import qwen3_torch_testing as qwen3  # noqa: E402


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
  model = qwen3.make_model(norm_topk_prob=True, tie_word_embeddings=False)
  model.save_pretrained(f'{folder}/model')
  tokens = torch.arange(24).reshape(2, 12) * 5 % 64
  left = model(tokens, labels=tokens)
  plant(model, bug)
  model.save_pretrained(f'{folder}/run')
  right = msprobe_torch_testing.dump_run(
    model, f'{folder}/dump', lambda: model(tokens, labels=tokens)
  )
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
