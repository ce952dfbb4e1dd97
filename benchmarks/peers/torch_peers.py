"""torch: grouped products, a loop over experts, and Hugging Face's experts."""

import abc

import ml_dtypes
import numpy as np
import torch
import transformers
from transformers.models.qwen3_moe import modeling_qwen3_moe

from benchmarks.peers import cases
from benchmarks.peers import peer

_LEAVES = ('x', 'topk_weights', 'w_gate_up', 'w_down')


def tensor(array: np.ndarray) -> torch.Tensor:
  if array.dtype == ml_dtypes.bfloat16:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
  return torch.from_numpy(array)


def array(value: torch.Tensor) -> np.ndarray:
  return value.detach().to(torch.float32).numpy()


class _Torch(peer.Peer):
  """What the three share: leaves with gradients."""

  def __init__(self, arrays):
    super().__init__(arrays)
    self.ids = tensor(arrays['topk_ids']).long()
    self.dy = tensor(arrays['dy'])
    self.leaves = {n: tensor(arrays[n]).requires_grad_() for n in _LEAVES}

  @abc.abstractmethod
  def layer(self) -> torch.Tensor:
    """Computes y [T, D]."""

  def forward(self):
    with torch.no_grad():
      return dict(y=self.layer())

  def both(self):
    for leaf in self.leaves.values():
      leaf.grad = None
    y = self.layer()
    y.backward(self.dy)
    return dict(y=y)

  def results(self, out):
    made = {name: array(value) for name, value in out.items()}
    grads = {n: leaf.grad for n, leaf in self.leaves.items()}
    if grads['x'] is not None:
      made |= {
        'dx' if n == 'x' else f'd_{n}': array(grad)
        for n, grad in grads.items()
        if grad is not None
      }
    return made

  @staticmethod
  def versions():
    return {'torch': torch.__version__}


class TorchGrouped(_Torch):
  """Rows sorted by expert, then torch.nn.functional.grouped_mm."""

  def multiply(self):
    if self.leaves['x'].dtype != torch.float32:
      raise peer.CannotRun('the square is of float32')
    a, b, c = map(tensor, cases.squares())
    return torch.mm(a, b, out=c)

  def layer(self):
    x, weights, w_gate_up, w_down = self.leaves.values()
    top_k, num_experts = self.ids.shape[1], len(w_down)
    flat = self.ids.reshape(-1)
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=num_experts).cumsum(0).int()
    token = order // top_k
    mm = torch.nn.functional.grouped_mm
    gate, up = mm(x[token], w_gate_up, offs=ends).chunk(2, dim=-1)
    rows = mm(torch.nn.functional.silu(gate) * up, w_down, offs=ends)
    rows = rows * weights.reshape(-1)[order, None].to(rows.dtype)
    return torch.zeros_like(x).index_add(0, token, rows)


class TorchLoop(_Torch):
  """One expert after the other."""

  def layer(self):
    x, weights, w_gate_up, w_down = self.leaves.values()
    y = torch.zeros_like(x)
    for e in range(len(w_down)):
      token, slot = torch.where(self.ids == e)
      gate, up = (x[token] @ w_gate_up[e]).chunk(2, dim=-1)
      rows = (torch.nn.functional.silu(gate) * up) @ w_down[e]
      rows = rows * weights[token, slot, None].to(rows.dtype)
      y = y.index_add(0, token, rows)
    return y


class HuggingFace(_Torch):
  """Qwen3MoeExperts as it is, eager; its weights are stored transposed."""

  def __init__(self, arrays):
    super().__init__(arrays)
    num_experts, d_ff, d_model = arrays['w_down'].shape
    config = transformers.Qwen3MoeConfig(
      num_experts=num_experts,
      hidden_size=d_model,
      moe_intermediate_size=d_ff,
      hidden_act='silu',
    )
    config._experts_implementation = 'eager'
    with torch.device('meta'):
      self.experts = modeling_qwen3_moe.Qwen3MoeExperts(config)
    for name, mine in (('gate_up_proj', 'w_gate_up'), ('down_proj', 'w_down')):
      stored = self.leaves[mine].detach().transpose(1, 2).contiguous()
      setattr(self.experts, name, torch.nn.Parameter(stored))
      del self.leaves[mine]

  def layer(self):
    x, weights = self.leaves.values()
    return self.experts(x, self.ids, weights)

  def both(self):
    self.experts.zero_grad(set_to_none=True)
    return super().both()

  def results(self, out):
    made = super().results(out)
    for name, mine in (('gate_up_proj', 'w_gate_up'), ('down_proj', 'w_down')):
      grad = getattr(self.experts, name).grad
      if grad is not None:
        made[f'd_{mine}'] = array(grad.transpose(1, 2))
    return made

  @staticmethod
  def versions():
    return {
      'torch': torch.__version__,
      'transformers': transformers.__version__,
    }
