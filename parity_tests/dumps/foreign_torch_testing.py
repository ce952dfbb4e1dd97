"""Dumps MoE layers in modules named as those of other projects, with msprobe.

Their classes have the names, arguments and parameters of Megatron-LM's, vLLM's
and vllm-ascend's, as modules.toml names them, and are written anew.

Each class has a right layer, then one that loses expert 3.

Run as: python foreign_torch_testing.py FOLDER
"""

import pathlib
import sys

import torch
from torch import nn

sys.path.append(str(pathlib.Path(__file__).parent))

import msprobe_torch_testing  # noqa: E402

EXPERTS, TOP_K, D_MODEL, D_FF, TOKENS = 8, 2, 16, 8, 24


def _make_parameter(*shape):
  return nn.Parameter(torch.randn(*shape) / 4)


def _activate(gate_up, weights=None):
  gate, up = gate_up.chunk(2, -1)
  activation = nn.functional.silu(gate) * up
  return activation if weights is None else activation * weights[:, None]


class GroupedMLP(nn.Module):
  """Weights of all experts in one matrix."""

  def __init__(self):
    super().__init__()
    self.weight1 = _make_parameter(D_MODEL, EXPERTS * 2 * D_FF)
    self.weight2 = _make_parameter(EXPERTS * D_FF, D_MODEL)

  def forward(self, rows, tokens_per_expert, probs):
    gate_up = self.weight1.view(EXPERTS, D_MODEL, -1)
    down = self.weight2.view(EXPERTS, -1, D_MODEL)
    parts = zip(
      rows.split(tokens_per_expert.tolist()),
      probs.split(tokens_per_expert.tolist()),
      gate_up,
      down,
    )
    return torch.cat([_activate(r @ g, p) @ d for r, p, g, d in parts]), None


class TEColumnParallelGroupedLinear(nn.Module):
  """A parameter for each expert."""

  def __init__(self, size, width):
    super().__init__()
    for expert in range(EXPERTS):
      setattr(self, f'weight{expert}', _make_parameter(width, size))

  def forward(self, rows, counts):
    weights = (getattr(self, f'weight{e}') for e in range(EXPERTS))
    parts = zip(rows.split(counts), weights)
    return torch.cat([r @ w.T for r, w in parts]), None


class TEGroupedMLP(nn.Module):
  """Weights in two modules."""

  def __init__(self):
    super().__init__()
    self.linear_fc1 = TEColumnParallelGroupedLinear(D_MODEL, 2 * D_FF)
    self.linear_fc2 = TEColumnParallelGroupedLinear(D_FF, D_MODEL)

  def forward(self, rows, tokens_per_expert, probs):
    counts = tokens_per_expert.tolist()
    activation = _activate(self.linear_fc1(rows, counts)[0], probs)
    return self.linear_fc2(activation, counts)


class MLP(nn.Module):
  """One expert."""

  def __init__(self):
    super().__init__()
    self.linear_fc1 = nn.Linear(D_MODEL, 2 * D_FF, bias=False)
    self.linear_fc2 = nn.Linear(D_FF, D_MODEL, bias=False)

  def forward(self, rows, probs):
    return self.linear_fc2(_activate(self.linear_fc1(rows), probs)), None


class SequentialMLP(nn.Module):
  """Experts one after the other."""

  def __init__(self):
    super().__init__()
    self.local_experts = nn.ModuleList(MLP() for _ in range(EXPERTS))

  def forward(self, rows, tokens_per_expert, probs):
    counts = tokens_per_expert.tolist()
    parts = zip(self.local_experts, rows.split(counts), probs.split(counts))
    return torch.cat([expert(r, p)[0] for expert, r, p in parts]), None


class MoELayer(nn.Module):
  """Sorts rows by expert, as Megatron-LM's dispatcher does."""

  def __init__(self, experts, bug):
    super().__init__()
    self.experts, self._bug = experts(), bug

  def forward(self, x, logits):
    weights, ids = torch.softmax(logits, -1).topk(TOP_K, -1)
    order = ids.flatten().argsort(stable=True)
    counts = ids.flatten().bincount(minlength=EXPERTS)
    tokens, probs = order // TOP_K, weights.flatten()[order]
    if self._bug == 'lose_expert':
      self.experts.forward = _lose(self.experts.forward, counts)
    rows, _ = self.experts(x[tokens], counts, probs)
    return torch.zeros_like(x).index_add(0, tokens, rows)


def _lose(right, counts):
  def forward(rows, tokens_per_expert, probs):
    y, bias = right(rows, tokens_per_expert, probs)
    is_lost = torch.arange(EXPERTS).repeat_interleave(counts) == 3
    return torch.where(is_lost[:, None], 0.0, y), bias

  return forward


class FusedMoE(nn.Module):
  """Routes by itself."""

  is_transposed = False
  shared = False

  def __init__(self, bug):
    super().__init__()
    self.w13_weight = _make_parameter(EXPERTS, 2 * D_FF, D_MODEL)
    self.w2_weight = _make_parameter(EXPERTS, D_MODEL, D_FF)
    if self.is_transposed:
      for weight in (self.w13_weight, self.w2_weight):
        weight.data = weight.data.transpose(1, 2).contiguous()
    self._bug = bug

  def forward(self, hidden_states, router_logits):
    weights, ids = torch.softmax(router_logits, -1).topk(TOP_K, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    if self._bug == 'lose_expert':
      weights = torch.where(ids == 3, 0.0, weights)
    w13, w2 = self.w13_weight, self.w2_weight
    if self.is_transposed:
      w13, w2 = w13.transpose(1, 2), w2.transpose(1, 2)
    y = torch.zeros_like(hidden_states)
    for slot in range(TOP_K):
      gate_up = torch.einsum('td,tfd->tf', hidden_states, w13[ids[:, slot]])
      out = torch.einsum('tf,tdf->td', _activate(gate_up), w2[ids[:, slot]])
      y = y + weights[:, slot, None] * out
    return (2 * hidden_states, y) if self.shared else y


class SharedFusedMoE(FusedMoE):
  """Returns the shared experts' output too."""

  shared = True


class AscendFusedMoE(FusedMoE):
  """Its weights are transposed."""

  is_transposed = True


class AscendSharedFusedMoE(AscendFusedMoE):
  """Both."""

  shared = True


class Layer(nn.Module):
  """A router and its experts."""

  def __init__(self, kind, bug):
    super().__init__()
    self.gate = nn.Linear(D_MODEL, EXPERTS, bias=False)
    if issubclass(kind, FusedMoE):
      self.experts = kind(bug)
    else:
      self.mlp = MoELayer(kind, bug)

  def forward(self, x):
    logits = self.gate(x)
    if hasattr(self, 'mlp'):
      return x + self.mlp(x, logits)
    y = self.experts(hidden_states=x, router_logits=logits)
    return x + (y[1] if isinstance(y, tuple) else y)


KINDS = (
  *(GroupedMLP, TEGroupedMLP, SequentialMLP),
  *(FusedMoE, SharedFusedMoE, AscendFusedMoE, AscendSharedFusedMoE),
)


class Net(nn.Module):
  """A right layer and a wrong one of each kind."""

  def __init__(self):
    super().__init__()
    bugs = ('none', 'lose_expert')
    self.layers = nn.ModuleList(Layer(k, bug) for k in KINDS for bug in bugs)

  def forward(self, x):
    for layer in self.layers:
      # Layers read like values, whatever those before them did.
      x = nn.functional.layer_norm(layer(x), x.shape[-1:])
    return x


def main():
  torch.manual_seed(3)
  net, x = Net(), torch.randn(TOKENS, D_MODEL, requires_grad=True)
  msprobe_torch_testing.dump_run(
    net, sys.argv[1], lambda: (net(x) ** 3).sum().backward()
  )


if __name__ == '__main__':
  main()
