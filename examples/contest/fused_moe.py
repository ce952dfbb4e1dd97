"""The fused MoE of the FP8 contest in torch, for any of its sizes."""

import torch

_BLOCK = 128
_TOP_K, _GROUPS, _TOP_GROUPS = 8, 8, 4
_LARGEST = 448.0


def run(*inputs):
  """Returns the output `[T, D]` bfloat16, float32 inside."""
  return _compute(*inputs, quantises_activation=False)


def run_production(*inputs):
  """Returns the output, its activation quantised 1 x 128 between the GEMMs."""
  return _compute(*inputs, quantises_activation=True)


@torch.no_grad()
def _compute(
  routing_logits,
  routing_bias,
  hidden_states,
  hidden_states_scale,
  gemm1_weights,
  gemm1_weights_scale,
  gemm2_weights,
  gemm2_weights_scale,
  local_expert_offset,
  routed_scaling_factor,
  *,
  quantises_activation,
):
  ids, weights = _route(routing_logits, routing_bias)
  x = hidden_states.float().unflatten(-1, (-1, _BLOCK))
  x = (x * hidden_states_scale.T[..., None]).flatten(-2)
  y = torch.zeros_like(x)
  for local in range(gemm1_weights.shape[0]):
    token, slot = torch.nonzero(
      ids == local_expert_offset + local, as_tuple=True
    )
    if not len(token):
      continue
    up, gate = (
      x[token] @ _dequantise(gemm1_weights[local], gemm1_weights_scale[local]).T
    ).chunk(2, -1)
    activation = torch.nn.functional.silu(gate) * up
    if quantises_activation:
      activation = _quantise_rows(activation)
    rows = (
      activation
      @ _dequantise(gemm2_weights[local], gemm2_weights_scale[local]).T
    )
    y.index_add_(0, token, rows * weights[token, slot, None])
  return (y * routed_scaling_factor).to(torch.bfloat16)


def _route(logits, bias):
  """Returns experts `[T, K]` and weights, as DeepSeek-V3 chooses them."""
  scores = torch.sigmoid(logits.float())
  choice = scores + bias.float()
  groups = choice.unflatten(-1, (_GROUPS, -1))
  best = groups.topk(2, -1).values.sum(-1).topk(_TOP_GROUPS, -1).indices
  kept = torch.zeros(groups.shape[:-1], dtype=torch.bool, device=logits.device)
  kept.scatter_(-1, best, True)
  groups = groups.masked_fill(~kept[..., None], float('-inf'))
  ids = groups.flatten(-2).topk(_TOP_K, -1).indices
  weights = scores.gather(-1, ids)
  return ids, weights / (weights.sum(-1, keepdim=True) + 1e-20)


def _dequantise(codes, scales):
  """Returns float32 `[A, B]` of codes and scales of blocks."""
  blocks = codes.float().unflatten(0, (-1, _BLOCK)).unflatten(2, (-1, _BLOCK))
  return (blocks * scales[:, None, :, None]).flatten(2).flatten(0, 1)


def _quantise_rows(rows):
  groups = rows.unflatten(-1, (-1, _BLOCK))
  scales = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / _LARGEST
  codes = (groups / scales).to(torch.float8_e4m3fn)
  return (codes.float() * scales).flatten(-2)
