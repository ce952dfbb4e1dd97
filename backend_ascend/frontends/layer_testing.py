"""A layer, inputs and what the runtime computes, for tests of front ends."""

import numpy as np

from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage as storage_lib
from hpmoe.reference.contract import tensors

# Two ranks, rows that are no multiple of a block, a column left over.
CONFIG = config_testing.sized(r=2, t=21, e=4, k=2, d=17, f=13)
OPTIONS = flow_lib.Options(row_block=8, col_block=16, num_aic=2, num_aiv=3)
POLICIES = {
  f'{storage}-{placement}': precision.PrecisionPolicy(
    storage, placement=placement
  )
  for storage in storage_lib.STORED
  for placement in precision.LAUNCHED
}
POLICIES['float16-combine'] = precision.PrecisionPolicy('float16')
F32 = POLICIES['float32-combine']
GRADS = ('dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down')


def launched(inputs, dy, policy=F32, config=CONFIG):
  """Returns y and the gradients that the runtime computes, by name."""
  options = dict(row_block=8, col_block=16, num_aic=2, num_aiv=3)
  out = runtime.launch(testing.compile_layer(config, policy, **options), inputs)
  unread = ['x'] + ['returned'] * (policy.placement in tensors.EARLY)
  saved = ('expert_in', 'gate_up', 'activation', 'returned')
  given = inputs | {n: out[n] for n in saved} | dict(dy=dy)
  grads = runtime.launch(
    testing.compile_grad(config, policy, **options),
    {n: a for n, a in given.items() if n not in unread},
  )
  return {name: (out | grads)[name] for name in ('y', *GRADS)}


def case(policy=F32, routing='uniform', config=CONFIG):
  """Returns the five inputs by name, and dy."""
  drawn = testing.make_inputs(config, policy, name='dy')
  return testing.make_inputs(config, policy, routing), drawn['x']


def named(outputs):
  values = map(np.asarray, outputs)
  return dict(zip(('y', *GRADS), values, strict=True))
