"""Dumps a small Qwen3-MoE of transformers with msprobe, in torch's Python.

Run as: python dump_torch_testing.py FOLDER BUG [IMPLEMENTATION]

With an implementation of experts the run is in bfloat16.
"""

import pathlib
import sys

import torch

_ROOMS = pathlib.Path(__file__).parents[1]
sys.path += [str(_ROOMS / 'capture'), str(_ROOMS / 'dumps')]

import msprobe_torch_testing  # noqa: E402
import qwen3_torch_testing as qwen3  # noqa: E402


def plant(experts, bug):
  """Makes the experts of a layer wrong."""
  right = experts.forward

  def weigh_twice(x, ids, weights):
    return right(x, ids, weights * weights)

  def cut_gradient(x, ids, weights):
    return right(x.detach() + 0 * x, ids, weights)

  def double_weights_gradient(x, ids, weights):
    return right(x, ids, 2 * weights - weights.detach())

  wrong = dict(
    weigh_twice=weigh_twice,
    cut_gradient=cut_gradient,
    double_weights_gradient=double_weights_gradient,
  )
  if bug == 'lose_expert':
    qwen3.lose_expert(experts)
  elif bug in wrong:
    experts.forward = wrong[bug]


def main():
  folder, bug, *implementations = sys.argv[1:]
  options = {}
  for name in implementations:
    options = dict(dtype=torch.bfloat16, experts_implementation=name)
  model = qwen3.make_model(norm_topk_prob=True, **options)
  plant(model.model.layers[1].mlp.experts, bug)
  tokens = torch.arange(12).reshape(2, 6) * 5 % 64
  msprobe_torch_testing.dump_run(
    model, folder, lambda: model(tokens, labels=tokens).loss.backward()
  )


if __name__ == '__main__':
  main()
