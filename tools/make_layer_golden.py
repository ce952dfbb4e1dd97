"""Makes two files of reference/testdata/ from layers in transformers.

Needs torch and transformers, and nothing of this project:

    python tools/make_layer_golden.py

All is in float64.  `gpt_oss.npz`: gates and ups are columns by turns there,
halves here.  `deepseek.npz`: two shared experts, which the layer holds as one
of twice the width, with weights of their own on each rank.  Some slots have no
expert: -1 here, one past the last expert there.
"""

import pathlib

import numpy as np
import torch
import transformers
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.gpt_oss import modeling_gpt_oss

_FOLDER = pathlib.Path(__file__).resolve().parents[1] / 'reference/testdata'
_RANKS, _TOKENS, _EXPERTS, _TOP_K, _WIDTH, _HIDDEN = 2, 5, 4, 2, 6, 3
_SHARED = 2


def main() -> None:
  ids, local, hidden = _ids(), _EXPERTS // _RANKS, _SHARED * _HIDDEN
  inputs = _drawn(
    b_gate_up=(_RANKS, local, 2 * _HIDDEN), b_down=(_RANKS, local, _WIDTH)
  )
  # Many gates and ups are beyond the limit of 7.
  inputs['x'] *= 3
  _save('gpt_oss', _gpt_oss, ids, inputs)
  ids[0, 1, 0] = ids[1, 2] = -1
  inputs = _drawn(
    w_shared_gate_up=(_RANKS, _WIDTH, 2 * hidden),
    w_shared_down=(_RANKS, hidden, _WIDTH),
  )
  _save('deepseek', _deepseek, ids, inputs)


def _save(name: str, layer, ids: np.ndarray, inputs: dict) -> None:
  arrays = {n: torch.tensor(a, requires_grad=True) for n, a in inputs.items()}
  y = layer(arrays, ids)
  dy = np.random.default_rng(1).normal(size=y.shape)
  (y * torch.tensor(dy)).sum().backward()
  grads = {
    f'd_{n}' if n != 'x' else 'dx': a.grad.numpy() for n, a in arrays.items()
  }
  versions = f'torch {torch.__version__}, transformers '
  versions += transformers.__version__
  np.savez_compressed(
    _FOLDER / f'{name}.npz',
    topk_ids=ids,
    dy=dy,
    y=y.detach().numpy(),
    made_by=versions,
    **inputs,
    **grads,
  )


def _ids() -> np.ndarray:
  scores = np.random.default_rng(2).random((_RANKS, _TOKENS, _EXPERTS))
  return np.argsort(scores, axis=-1)[..., :_TOP_K].astype(np.int32)


def _drawn(**more: tuple[int, ...]) -> dict:
  rng, local = np.random.default_rng(0), _EXPERTS // _RANKS
  shapes = dict(
    x=(_RANKS, _TOKENS, _WIDTH),
    topk_weights=(_RANKS, _TOKENS, _TOP_K),
    w_gate_up=(_RANKS, local, _WIDTH, 2 * _HIDDEN),
    w_down=(_RANKS, local, _HIDDEN, _WIDTH),
    **more,
  )
  return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def _gpt_oss(arrays: dict, ids: np.ndarray) -> torch.Tensor:
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
  chosen = torch.tensor(ids.reshape(-1, _TOP_K), dtype=torch.long)
  weights = arrays['topk_weights'].reshape(-1, _TOP_K)
  y = torch.func.functional_call(experts, given, (x, chosen, weights))
  return y.reshape(arrays['x'].shape)


def _by_turns(halves: torch.Tensor) -> torch.Tensor:
  gate, up = halves.chunk(2, dim=-1)
  return torch.stack([gate, up], dim=-1).flatten(-2)


class _Routed(torch.nn.Module):
  """In the place of the router: what it is said to have chosen."""

  def __init__(self, weights: torch.Tensor, ids: np.ndarray):
    super().__init__()
    ids = np.where(ids < 0, _EXPERTS, ids)
    self._chosen = weights, torch.tensor(ids, dtype=torch.long)

  def forward(self, x: torch.Tensor) -> tuple:
    return None, *self._chosen


def _deepseek(arrays: dict, ids: np.ndarray) -> torch.Tensor:
  """Returns y `[R, T, D]` of our inputs."""
  return torch.stack([_rank(arrays, ids[r], r) for r in range(_RANKS)])


def _rank(arrays: dict, ids: np.ndarray, rank: int) -> torch.Tensor:
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
  moe.gate = _Routed(arrays['topk_weights'][rank], ids)
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
