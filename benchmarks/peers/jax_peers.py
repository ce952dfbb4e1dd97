"""JAX: ragged products, experts of one capacity, and our front end."""

import abc

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import peer

_LEAVES = ('x', 'topk_weights', 'w_gate_up', 'w_down')
_GRADS = ('dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down')


class _Jax(peer.Peer):
  """What the three share: one compiled function for each pass."""

  def __init__(self, arrays):
    super().__init__(arrays)
    self.ids = jnp.asarray(arrays['topk_ids'])
    self.dy = jnp.asarray(arrays['dy'])
    self.leaves = tuple(jnp.asarray(arrays[n]) for n in _LEAVES)
    self._forward = jax.jit(self.layer)
    self._both = jax.jit(self._with_grads)

  @abc.abstractmethod
  def layer(self, ids, x, weights, w_gate_up, w_down) -> jax.Array:
    """Computes y [T, D]."""

  def _with_grads(self, ids, dy, *leaves):
    y, back = jax.vjp(lambda *moving: self.layer(ids, *moving), *leaves)
    return y, back(dy)

  def forward(self):
    return jax.block_until_ready(self._forward(self.ids, *self.leaves)), ()

  def both(self):
    return jax.block_until_ready(self._both(self.ids, self.dy, *self.leaves))

  def results(self, out):
    y, grads = out
    made = dict(zip(('y', *_GRADS), (y, *grads)))
    return {name: np.asarray(value) for name, value in made.items()}

  @staticmethod
  def versions():
    return {'jax': jax.__version__}


class JaxRagged(_Jax):
  """Rows sorted by expert, then jax.lax.ragged_dot."""

  def layer(self, ids, x, weights, w_gate_up, w_down):
    flat = ids.reshape(-1)
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=len(w_down)).astype(jnp.int32)
    token = order // ids.shape[1]
    gate_up = jax.lax.ragged_dot(x[token], w_gate_up, sizes)
    gate, up = jnp.split(gate_up, 2, axis=-1)
    rows = jax.lax.ragged_dot(jax.nn.silu(gate) * up, w_down, sizes)
    rows = rows * weights.reshape(-1)[order, None].astype(rows.dtype)
    return jnp.zeros_like(x).at[token].add(rows)


class JaxCapacity(_Jax):
  """Experts of one capacity, batched products, as in GShard.

  The capacity is what the routing needs: nothing is lost, so zipf pays.
  """

  def __init__(self, arrays):
    counts = np.bincount(arrays['topk_ids'].reshape(-1))
    self.capacity = int(counts.max())
    super().__init__(arrays)

  def layer(self, ids, x, weights, w_gate_up, w_down):
    num_experts, _, d_model = w_down.shape
    flat = ids.reshape(-1)
    chosen = jax.nn.one_hot(flat, num_experts, dtype=jnp.int32)
    before = jnp.cumsum(chosen, axis=0) - 1
    place = jnp.take_along_axis(before, flat[:, None], axis=1)[:, 0]
    rows = jnp.repeat(x, ids.shape[1], axis=0)
    held = jnp.zeros((num_experts, self.capacity, d_model), x.dtype)
    held = held.at[flat, place].set(rows)
    gate_up = jnp.einsum('ecd,edf->ecf', held, w_gate_up)
    gate, up = jnp.split(gate_up, 2, axis=-1)
    out = jnp.einsum('ecf,efd->ecd', jax.nn.silu(gate) * up, w_down)
    returned = out[flat, place].reshape(*ids.shape, d_model)
    return jnp.sum(returned * weights[..., None].astype(x.dtype), axis=1)
