"""What the adapters of torch share.

Kernels run on the GPU where torch has one; elsewhere those of Triton run under
its interpreter, which must be asked for before Triton is imported.
"""

import os

import of_both
import torch

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
if DEVICE == 'cpu':
  os.environ.setdefault('TRITON_INTERPRET', '1')


def of_rank(inputs):
  """Returns x [T, D], ids, weights [T, K], w_gate_up [E, D, 2F], w_down."""
  x, ids, *rest = (inputs[name][0] for name in of_both.NAMES)
  return x, ids.long(), *rest


def act(gate, up, policy):
  """Returns the activation [S, F] in the dtype of gate, from its float32."""
  wide = gate.float()
  if policy.activation == 'swiglu':
    wide = torch.nn.functional.silu(wide)
  else:
    wide = wide.abs()
  return (wide * up.float()).to(gate.dtype)


def differentiable(moe):
  """Gives a function of y its backward pass, by autograd."""

  def backward(inputs, layer, policy):
    leaves = [inputs[name].requires_grad_() for name in of_both.GRADS]
    y = moe(inputs, layer, policy)['y']
    grads = torch.autograd.grad(y, leaves, inputs['dy'])
    return dict(zip(of_both.GRADS.values(), grads))

  moe.torch = DEVICE  # inputs are tensors of torch, there
  moe.backward = backward
  backward.recomputes = True  # it calls moe again
  return moe
