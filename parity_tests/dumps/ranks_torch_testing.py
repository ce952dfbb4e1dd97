"""Dumps a small Qwen3-MoE on two ranks with msprobe, in torch's Python.

MODE is all_reduce or all_to_all, as transformers spreads experts over ranks, or
data: each rank holds all.

Run as: python -m torch.distributed.run --nproc_per_node=2
  ranks_torch_testing.py FOLDER MODE BUG
"""

import pathlib
import sys

import torch
from torch.distributed import device_mesh
from transformers.distributed import expert_parallel

_ROOMS = pathlib.Path(__file__).parents[1]
sys.path += [str(_ROOMS / 'capture'), str(_ROOMS / 'dumps')]

import msprobe_torch_testing  # noqa: E402
import qwen3_torch_testing as qwen3  # noqa: E402


def plant(model, rank, last, bug):
  """Loses an expert of the second rank, by its number there."""
  if bug != 'lose_expert' or rank != 1:
    return
  experts = model.model.layers[1].mlp.experts
  right = experts.forward

  def lose(x, ids, weights):
    return right(x, ids, weights * (ids != last))

  experts.forward = lose


def spread_experts(model, mode):
  """Leaves each rank half of the experts."""
  mesh = device_mesh.init_device_mesh(
    'cpu', (2, 1), mesh_dim_names=('e', 'one')
  )
  tokens_mesh = mesh['e'] if mode == 'all_reduce' else mesh['one']
  plan = {}
  for number in range(2):
    name = f'model.layers.{number}.mlp.experts'
    for weight in ('gate_up_proj', 'down_proj'):
      plan[f'{name}.{weight}'] = 'grouped_gemm'
    plan[name] = 'ep_dispatch_experts'
  expert_parallel.apply_expert_parallelism(
    model, mesh['e'], tokens_mesh, plan, ep_implementation=mode
  )


def main():
  folder, mode, bug = sys.argv[1:]
  torch.distributed.init_process_group('gloo')
  rank = torch.distributed.get_rank()
  model = qwen3.make_model(norm_topk_prob=True)
  plant(model, rank, 3, bug)
  if mode == 'data':
    trained_model = torch.nn.parallel.DistributedDataParallel(model)
  else:
    spread_experts(model, mode)
    trained_model = model
  begin = 0 if mode == 'all_reduce' else rank
  tokens = (torch.arange(24).reshape(2, 12) * 5 + begin) % 64
  msprobe_torch_testing.dump_run(
    trained_model,
    folder,
    lambda: trained_model(tokens, labels=tokens).loss.backward(),
  )
  torch.distributed.destroy_process_group()


if __name__ == '__main__':
  main()
