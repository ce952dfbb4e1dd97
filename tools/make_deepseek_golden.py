"""Makes reference/testdata/deepseek.npz from the layer in transformers.

Needs torch and transformers, and nothing of this project:

    python tools/make_deepseek_golden.py

All is in float64.  Two shared experts, which the layer holds as one of twice
the width, with weights of their own on each rank.  Some slots have no expert:
-1 here, one past the last expert there.
"""

import pathlib

import numpy as np
import torch
import transformers
from transformers.models.deepseek_v3 import modeling_deepseek_v3

_FILE = pathlib.Path(__file__).resolve().parents[1]
_FILE /= 'reference/testdata/deepseek.npz'
_RANKS, _TOKENS, _EXPERTS, _TOP_K, _WIDTH, _HIDDEN = 2, 5, 4, 2, 6, 3
_SHARED = 2


def main() -> None:
  inputs = _drawn()
  arrays = {n: torch.tensor(a, requires_grad=True) for n, a in inputs.items()}
  y = torch.stack([_rank(arrays, rank) for rank in range(_RANKS)])
  dy = np.random.default_rng(1).normal(size=y.shape)
  (y * torch.tensor(dy)).sum().backward()
  grads = {
    f'd_{n}' if n != 'x' else 'dx': a.grad.numpy() for n, a in arrays.items()
  }
  versions = f'torch {torch.__version__}, transformers '
  versions += transformers.__version__
  np.savez_compressed(
    _FILE,
    topk_ids=_ids(),
    dy=dy,
    y=y.detach().numpy(),
    made_by=versions,
    **inputs,
    **grads,
  )


def _ids() -> np.ndarray:
  scores = np.random.default_rng(2).random((_RANKS, _TOKENS, _EXPERTS))
  ids = np.argsort(scores, axis=-1)[..., :_TOP_K].astype(np.int32)
  ids[0, 1, 0] = ids[1, 2] = -1
  return ids


def _drawn() -> dict:
  rng = np.random.default_rng(0)
  local, shared = _EXPERTS // _RANKS, _SHARED * _HIDDEN
  return dict(
    x=rng.normal(size=(_RANKS, _TOKENS, _WIDTH)),
    topk_weights=rng.normal(size=(_RANKS, _TOKENS, _TOP_K)),
    w_gate_up=rng.normal(size=(_RANKS, local, _WIDTH, 2 * _HIDDEN)),
    w_down=rng.normal(size=(_RANKS, local, _HIDDEN, _WIDTH)),
    w_shared_gate_up=rng.normal(size=(_RANKS, _WIDTH, 2 * shared)),
    w_shared_down=rng.normal(size=(_RANKS, shared, _WIDTH)),
  )


class _Routed(torch.nn.Module):
  """In the place of the router: what it is said to have chosen."""

  def __init__(self, weights: torch.Tensor, ids: np.ndarray):
    super().__init__()
    ids = np.where(ids < 0, _EXPERTS, ids)
    self._chosen = weights, torch.tensor(ids, dtype=torch.long)

  def forward(self, x: torch.Tensor) -> tuple:
    return None, *self._chosen


def _rank(arrays: dict, rank: int) -> torch.Tensor:
  """Returns y `[T, D]` of a rank's tokens; experts are those of all ranks."""
  config = transformers.DeepseekV3Config(
    hidden_size=_WIDTH,
    moe_intermediate_size=_HIDDEN,
    n_routed_experts=_EXPERTS,
    n_shared_experts=_SHARED,
    num_experts_per_tok=_TOP_K,
    n_group=1,
    topk_group=1,
  )
  config._experts_implementation = 'eager'
  moe = modeling_deepseek_v3.DeepseekV3MoE(config).double()
  moe.gate = _Routed(arrays['topk_weights'][rank], _ids()[rank])
  gate, up = arrays['w_shared_gate_up'][rank].T.chunk(2)
  given = {
    'experts.gate_up_proj': _experts(arrays['w_gate_up']),
    'experts.down_proj': _experts(arrays['w_down']),
    'shared_experts.gate_proj.weight': gate,
    'shared_experts.up_proj.weight': up,
    'shared_experts.down_proj.weight': arrays['w_shared_down'][rank].T,
  }
  x = arrays['x'][rank][None]
  return torch.func.functional_call(moe, given, (x,))[0]


def _experts(weights: torch.Tensor) -> torch.Tensor:
  return weights.reshape(_EXPERTS, *weights.shape[2:]).transpose(-1, -2)


if __name__ == '__main__':
  main()
