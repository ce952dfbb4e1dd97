"""Makes reference/testdata/gpt_oss.npz from the experts in transformers.

Needs torch and transformers, and nothing of this project:

    python tools/make_gpt_oss_golden.py

All is in float64.  Gates and ups are columns by turns there, halves here.
"""

import pathlib

import numpy as np
import torch
import transformers
from transformers.models.gpt_oss import modeling_gpt_oss

_FILE = pathlib.Path(__file__).resolve().parents[1]
_FILE /= 'reference/testdata/gpt_oss.npz'
_RANKS, _TOKENS, _EXPERTS, _TOP_K, _WIDTH, _HIDDEN = 2, 5, 4, 2, 6, 3


def main() -> None:
  inputs = _drawn()
  arrays = {n: torch.tensor(a, requires_grad=True) for n, a in inputs.items()}
  y = _layer(arrays)
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
  return np.argsort(scores, axis=-1)[..., :_TOP_K].astype(np.int32)


def _drawn() -> dict:
  """Returns inputs of which many gates and ups are beyond the limit of 7."""
  rng = np.random.default_rng(0)
  local = _EXPERTS // _RANKS
  return dict(
    x=3 * rng.normal(size=(_RANKS, _TOKENS, _WIDTH)),
    topk_weights=rng.normal(size=(_RANKS, _TOKENS, _TOP_K)),
    w_gate_up=rng.normal(size=(_RANKS, local, _WIDTH, 2 * _HIDDEN)),
    w_down=rng.normal(size=(_RANKS, local, _HIDDEN, _WIDTH)),
    b_gate_up=rng.normal(size=(_RANKS, local, 2 * _HIDDEN)),
    b_down=rng.normal(size=(_RANKS, local, _WIDTH)),
  )


def _layer(arrays: dict) -> torch.Tensor:
  """Returns y `[R, T, D]` of our inputs."""
  config = transformers.GptOssConfig(
    hidden_size=_WIDTH, intermediate_size=_HIDDEN, num_local_experts=_EXPERTS
  )
  assert (config.swiglu_alpha, config.swiglu_limit) == (1.702, 7.0)
  experts = modeling_gpt_oss.GptOssExperts(config).double()
  given = dict(
    gate_up_proj=_by_turns(arrays['w_gate_up']),
    gate_up_proj_bias=_by_turns(arrays['b_gate_up']),
    down_proj=arrays['w_down'],
    down_proj_bias=arrays['b_down'],
  )
  given = {n: a.reshape(_EXPERTS, *a.shape[2:]) for n, a in given.items()}
  x = arrays['x'].reshape(-1, _WIDTH)
  ids = torch.tensor(_ids().reshape(-1, _TOP_K), dtype=torch.long)
  weights = arrays['topk_weights'].reshape(-1, _TOP_K)
  y = torch.func.functional_call(experts, given, (x, ids, weights))
  return y.reshape(arrays['x'].shape)


def _by_turns(halves: torch.Tensor) -> torch.Tensor:
  gate, up = halves.chunk(2, dim=-1)
  return torch.stack([gate, up], dim=-1).flatten(-2)


if __name__ == '__main__':
  main()
