"""Runs a small Qwen3-MoE of transformers under msprobe, in torch's Python.

Writes FOLDER, a dump of one engine's run, and FOLDER.model, its weights before
the bug.

Run as: python agreement_torch_testing.py FOLDER DTYPE BUG
"""

import pathlib
import sys

import torch

_ROOMS = pathlib.Path(__file__).parents[1]
sys.path += [str(_ROOMS / 'capture'), str(_ROOMS / 'dumps')]

import msprobe_torch_testing  # noqa: E402
import qwen3_torch_testing as qwen3  # noqa: E402


def plant(model, bug):
  """Makes the second layer wrong."""
  block = model.model.layers[1].mlp
  gate, experts = block.gate, block.experts
  with torch.no_grad():
    if bug == 'router':
      gate.weight[[0, 1]] = gate.weight[[1, 0]]
    elif bug == 'experts':
      for weight in experts.parameters():
        weight[[3, 4]] = weight[[4, 3]]
    elif bug == 'both':
      for weight in (gate.weight, *experts.parameters()):
        weight[[3, 4]] = weight[[4, 3]]
    elif bug == 'scores':
      right = gate.forward

      def choose(x):
        logits, weights, ids = right(x)
        # As if one expert's scores were another's.
        return logits, weights, right(x.roll(1, -1))[2]

      gate.forward = choose
    elif bug == 'norm':
      model.model.layers[1].post_attention_layernorm.weight *= 1.2


def main():
  folder, dtype, bug = sys.argv[1:]
  model = qwen3.make_model(norm_topk_prob=True, tie_word_embeddings=False)
  model.save_pretrained(f'{folder}.model')
  model.to(getattr(torch, dtype))
  plant(model, bug)
  generator = torch.Generator().manual_seed(1)
  tokens = torch.randint(0, 64, (4, 64), generator=generator)
  msprobe_torch_testing.dump_run(model, folder, lambda: model(tokens))


if __name__ == '__main__':
  main()
