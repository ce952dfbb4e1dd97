"""What the adapters of JAX share."""

import jax
import jax.numpy as jnp

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
  return (jnp.asarray(inputs[name])[0] for name in names)


def act(gate, up, policy):
  """Returns the activation [S, F] in the dtype of gate, from its float32."""
  wide = gate.astype(jnp.float32)
  wide = jax.nn.silu(wide) if policy.activation == 'swiglu' else jnp.abs(wide)
  return (wide * up.astype(jnp.float32)).astype(gate.dtype)


def answer(*tensors):
  """Returns what all adapters with rows sorted by expert return, by name."""
  names = ('expert_in', 'gate_up', 'activation', 'expert_out', 'returned', 'y')
  return {name: tensor[None] for name, tensor in zip(names, tensors)}


def differentiable(moe):
  """Gives a function of y its backward pass, by jax.vjp."""

  def backward(inputs, layer, policy):
    def y(*leaves):
      held = {**inputs, **dict(zip(GRADS, leaves))}
      return moe(held, layer, policy)['y']

    leaves = (jnp.asarray(inputs[name]) for name in GRADS)
    _, back = jax.vjp(y, *leaves)
    return dict(zip(GRADS.values(), back(jnp.asarray(inputs['dy']))))

  moe.backward = backward
  backward.recomputes = True  # it calls moe again
  return moe
