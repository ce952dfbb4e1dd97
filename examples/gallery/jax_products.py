"""JAX's grouped products; activation and combine in float32."""

import jax
from jax.experimental.pallas.ops.tpu import megablox
import jax.numpy as jnp
import of_both
import of_jax


def _moe(inputs, layer, policy, product):
  x, ids, weights, w_gate_up, w_down = of_jax.of_rank(inputs)
  order = jnp.argsort(ids.reshape(-1))
  sizes = jnp.bincount(ids.reshape(-1), length=len(w_down)).astype(jnp.int32)
  rows = x[order // layer.top_k]
  gate_up = product(rows, w_gate_up, sizes)
  hidden = of_jax.act(*jnp.split(gate_up, 2, -1), policy)
  out = product(hidden, w_down, sizes)
  sent = out[jnp.argsort(order)].reshape(*ids.shape, -1)
  y = jnp.sum(sent.astype(jnp.float32) * weights[..., None], 1)
  return of_both.answer(rows, gate_up, hidden, out, sent, y.astype(x.dtype))


@of_jax.differentiable
def ragged_dot(inputs, layer, policy):
  return _moe(inputs, layer, policy, jax.lax.ragged_dot)


def _gmm(rows, weights, sizes):
  # It takes whole blocks of 128 rows; those of no expert are cut off.
  padded = jnp.pad(rows, ((0, -len(rows) % 128), (0, 0)))
  out = megablox.gmm(padded, weights, sizes, rows.dtype, interpret=True)
  return out[: len(rows)]


@of_jax.differentiable
def gmm(inputs, layer, policy):
  return _moe(inputs, layer, policy, _gmm)
