"""A MoE layer as most JAX models have it: experts of one fixed capacity.

Rows are scattered to `[E, C, D]`, experts are batched products, and what has no
room is lost: C is 1.25 times the even load, as in GShard (arXiv 2006.16668) and
Switch Transformers (arXiv 2101.03961).  Written for `benchmarks/train_step.py`,
as a user would write a layer for `hpmoe train --moe`.
"""

import math

import jax
import jax.numpy as jnp

CAPACITY_FACTOR = 1.25


def capacity(slots: int, experts: int) -> int:
  """Returns C, the rows of an expert, for so many routed slots in all."""
  return math.ceil(CAPACITY_FACTOR * slots / experts)


def layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy):
  """Returns `y` `[1, T, D]`; see `models/jax/moe.py` for the rest."""
  del policy
  (d_model, top_k), ids = (
    (x.shape[-1], topk_ids.shape[-1]),
    topk_ids.reshape(-1),
  )
  w_gate_up, w_down = (w.reshape(-1, *w.shape[2:]) for w in (w_gate_up, w_down))
  experts = len(w_down)
  room = capacity(ids.size, experts)
  before = jnp.cumsum(jax.nn.one_hot(ids, experts, dtype=jnp.int32), axis=0) - 1
  places = jnp.take_along_axis(before, ids[:, None], axis=1)[:, 0]
  rows = jnp.repeat(x.reshape(-1, d_model), top_k, axis=0)
  held = jnp.zeros((experts, room, d_model), x.dtype)
  held = held.at[ids, places].set(rows, mode='drop')
  gate, up = jnp.split(jnp.einsum('ecd,edf->ecf', held, w_gate_up), 2, axis=-1)
  out = jnp.einsum('ecf,efd->ecd', jax.nn.silu(gate) * up, w_down)
  returned = out.at[ids, places].get(mode='fill', fill_value=0)
  returned = returned.reshape(*topk_ids.shape, d_model)
  return jnp.sum(returned * topk_weights[..., None], axis=2).astype(x.dtype)


def none(x, topk_ids, topk_weights, w_gate_up, w_down, policy):
  """Returns tokens times their weights: what a step costs without experts."""
  del topk_ids, policy
  weights = jnp.sum(topk_weights, axis=-1, keepdims=True)
  touched = jnp.sum(w_gate_up[:, :, 0, 0]) + jnp.sum(w_down[:, :, 0, 0])
  return (x * weights + touched).astype(x.dtype)
