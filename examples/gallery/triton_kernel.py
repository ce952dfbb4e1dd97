"""The kernel of triton_gmm.py; activation and combine in float32."""

import functools

import of_torch
import triton_gmm


def _moe(inputs, layer, policy, product):
  x, ids, weights, w_gate_up, w_down = of_torch.of_rank(inputs)
  order = ids.flatten().argsort(stable=True)
  sizes = ids.flatten().bincount(minlength=len(w_down))
  rows = x[order // layer.top_k]
  gate_up = product(rows, w_gate_up, sizes)
  hidden = of_torch.act(*gate_up.chunk(2, dim=-1), policy)
  out = product(hidden, w_down, sizes)
  sent = out[order.argsort()].unflatten(0, ids.shape)
  y = (sent.float() * weights[..., None]).sum(1).to(x.dtype)
  return of_torch.answer(rows, gate_up, hidden, out, sent, y)


def moe(inputs, layer, policy):
  return _moe(inputs, layer, policy, triton_gmm.product)


def wide(inputs, layer, policy):
  product = functools.partial(triton_gmm.product, wide=True)
  return _moe(inputs, layer, policy, product)


moe.torch = wide.torch = True
