"""A backward pass through a router's GEMM, in numpy, right and wrong."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.reference import routing
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import tensors

ALL = tuple(spec.name for spec in tensors.ROUTER_GRADS)
_F32 = np.float32


def differentiate(
  inputs,
  config,
  policy,
  word,
  change='',
  returns=ALL,
  kernel=trial.Kernel(),
):
  """Returns gradients of a layer and of its router's GEMM, in numpy.

  Args:
    inputs: those of a backward pass, with router_w and router_logits.
    config: sizes.
    policy: precision.
    word: of `--router`.
    change: what it does wrong; '': nothing.
    returns: names of `ALL`.
    kernel: computes the gradients of the experts.
  """
  grads = kernel.backward(config, policy, inputs)
  router = router_lib.parse_router(word, config.top_k)
  if change == 'not renormalised':
    router = dataclasses.replace(router, rule='llama4', groups=1, top_groups=1)
  if change == 'scale forgotten':
    router = dataclasses.replace(router, scale=1.0)
  # A bias of the GEMM is in the logits already.
  is_added = router.table.bias == 'logits'
  bias = None if is_added else inputs.get('router_bias')
  logits = inputs['router_logits'].astype(_F32)
  d_weights = grads['d_topk_weights']
  d_logits = np.array(
    routing.weigh_choice_grad(
      router, logits, bias, inputs['topk_ids'], d_weights
    )
  )
  router_w = inputs['router_w'].astype(_F32)
  if change == 'read as [E, D]':
    router_w = router_w.reshape(router_w.shape[::-1]).T
  d_in = (d_logits @ router_w.T).astype(policy.dtype('d_router_in'))
  factor = {'left out': 0, 'added twice': 2}.get(change, 1)
  dx = grads['d_returned'].astype(_F32).sum(2) + factor * d_in.astype(_F32)
  x, of_weights = inputs['x'].astype(_F32), d_logits.copy()
  if change == 'one rank':
    of_weights[1:] = 0
  if change == 'mean of ranks':
    of_weights /= len(x)
  if change == 'next token':
    x = np.roll(x, -1, 1)
  d_router_w = np.einsum('rtd,rte->de', x, of_weights)
  if change == 'written as [E, D]':
    d_router_w = np.ascontiguousarray(d_router_w.T).reshape(d_router_w.shape)
  outputs = {name: grads[name] for name in ('d_w_down', 'd_w_gate_up')}
  d_router_w = d_router_w.astype(policy.dtype('d_router_w'))
  own = dict(zip(ALL, (d_logits, d_in, d_router_w)))
  outputs |= {name: own[name] for name in returns}
  return outputs | {'dx': dx.astype(policy.dtype('dx'))}
