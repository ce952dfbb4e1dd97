"""What the adapters of torch share."""

import torch

# What is multiplied, as the layer reads it, and the gradient of each.
GRADS = {
  'x': 'dx',
  'topk_weights': 'd_topk_weights',
  'w_gate_up': 'd_w_gate_up',
  'w_down': 'd_w_down',
}


def of_rank(inputs):
  """Returns x [T, D], ids, weights [T, K], w_gate_up [E, D, 2F], w_down."""
  names = ('x', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down')
  x, ids, *rest = (inputs[name][0] for name in names)
  return x, ids.long(), *rest


def act(gate, up, policy):
  """Returns the activation [S, F] in the dtype of gate, from its float32."""
  wide = gate.float()
  if policy.activation == 'swiglu':
    wide = torch.nn.functional.silu(wide)
  else:
    wide = wide.abs()
  return (wide * up.float()).to(gate.dtype)


def answer(*tensors):
  """Returns what all adapters with rows sorted by expert return, by name."""
  names = ('expert_in', 'gate_up', 'activation', 'expert_out', 'returned', 'y')
  return {name: tensor[None] for name, tensor in zip(names, tensors)}


def differentiable(moe):
  """Gives a function of y its backward pass, by autograd."""

  def backward(inputs, layer, policy):
    leaves = [inputs[name].requires_grad_() for name in GRADS]
    y = moe(inputs, layer, policy)['y']
    grads = torch.autograd.grad(y, leaves, inputs['dy'])
    return dict(zip(GRADS.values(), grads))

  moe.torch = True  # inputs are tensors of torch
  moe.backward = backward
  backward.recomputes = True  # it calls moe again
  return moe
