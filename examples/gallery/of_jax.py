"""What the adapters of JAX share."""

import jax
import jax.numpy as jnp
import of_both


def of_rank(inputs):
  """Returns x [T, D], ids, weights [T, K], w_gate_up [E, D, 2F], w_down."""
  return (jnp.asarray(inputs[name])[0] for name in of_both.NAMES)


def act(gate, up, policy):
  """Returns the activation [S, F] in the dtype of gate, from its float32."""
  wide = gate.astype(jnp.float32)
  wide = jax.nn.silu(wide) if policy.activation == 'swiglu' else jnp.abs(wide)
  return (wide * up.astype(jnp.float32)).astype(gate.dtype)


def differentiable(moe):
  """Gives a function of y its backward pass, by jax.vjp."""

  def backward(inputs, layer, policy):
    def y(*leaves):
      held = {**inputs, **dict(zip(of_both.GRADS, leaves))}
      return moe(held, layer, policy)['y']

    leaves = (jnp.asarray(inputs[name]) for name in of_both.GRADS)
    _, back = jax.vjp(y, *leaves)
    return dict(zip(of_both.GRADS.values(), back(jnp.asarray(inputs['dy']))))

  moe.backward = backward
  backward.recomputes = True  # it calls moe again
  return moe
