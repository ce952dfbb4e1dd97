"""Dumps a small Qwen3-MoE of transformers with msprobe, in torch's Python.

Run as: python dump_torch_testing.py FOLDER BUG
"""

import json
import pathlib
import sys

from msprobe.pytorch import PrecisionDebugger
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'capture'))

import qwen3_torch_testing as qwen3  # noqa: E402


def plant(experts, bug):
  """Makes the experts of a layer wrong."""
  right = experts.forward

  def weigh_twice(x, ids, weights):
    return right(x, ids, weights * weights)

  def cut_gradient(x, ids, weights):
    return right(x.detach() + 0 * x, ids, weights)

  wrong = dict(weigh_twice=weigh_twice, cut_gradient=cut_gradient)
  if bug == 'lose_expert':
    qwen3.lose_expert(experts)
  elif bug in wrong:
    experts.forward = wrong[bug]


def main():
  folder, bug = sys.argv[1:]
  model = qwen3.make_model(norm_topk_prob=True)
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
