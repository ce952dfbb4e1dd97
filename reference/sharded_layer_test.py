"""Tests of sharded_layer: the bits of the rank-axis form, on devices.

The mesh needs eight devices before JAX starts, so this file is also the program
that compares: it prints the tensors that differ, by case.
"""

import functools
import itertools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import sharded_layer
from hpmoe.reference import test_util
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CONFIGS = {
  1: config_testing.make_config(r=1, t=5, e=3, k=3, d=8, f=6),  # K = E
  2: config_testing.make_config(r=2, t=7, e=4, k=2, d=8, f=6, s=4),
  4: config_testing.make_config(
    r=4, t=3, e=8, k=2, d=8, f=6, n=10
  ),  # at times too few
  8: config_testing.make_config(
    r=8, t=2, e=8, k=8, d=8, f=6
  ),  # K = E, one expert a rank
}
# Liking for the first experts: any; most get one; all rows go to rank 0 where K
# experts live on one rank, and most experts are empty.
SKEWS = (0.0, 0.3, 100.0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def by_rank_axis(config, policy, inputs, dy):
  out = layer.forward(config, policy, **inputs)
  return out | layer_grad.backward(config, policy, inputs | out, dy)


@functools.partial(jax.jit, static_argnums=(0, 1))
def by_devices(config, policy, inputs, dy):
  devices = np.array(jax.devices()[: config.num_ranks])
  mesh_and_axis = jax.sharding.Mesh(devices, ('rank',)), 'rank'
  arrays = (inputs[name] for name in tensors.inputs(config))
  out = sharded_layer.forward(config, policy, *mesh_and_axis, *arrays)
  grads = sharded_layer.backward(
    config, policy, *mesh_and_axis, inputs | out, dy
  )
  return out | grads


def differing(config, policy, skew, integer, unused=0.0):
  """Returns the names of the tensors whose bits differ."""
  rng = test_util.generator(f'{config}{policy}{skew}')
  inputs = test_util.random_inputs(config, policy, rng, skew, integer, unused)
  inputs = jax.device_get(inputs)  # to divide them JAX would compile slices
  dy = rng.integers(-3, 4, inputs['x'].shape).astype(policy.storage)
  want = by_rank_axis(config, policy, inputs, dy)
  actual = by_devices(config, policy, inputs, dy)
  assert actual.keys() == want.keys()
  for name, array in actual.items():
    shards = array.addressable_shards
    assert len({s.device for s in shards}) == config.num_ranks, name
    assert shards[0].data.shape == (1, *want[name].shape[1:]), name
  # NaN and the sign of zero count.
  return [
    name
    for name, array in want.items()
    if np.asarray(array).tobytes() != np.asarray(actual[name]).tobytes()
  ]


RIGHT_ROUTES = sharded_layer._routes


def wrong_routes(*args):
  """Returns routes that take each message for that of another rank."""
  right = RIGHT_ROUTES(*args)
  return right._replace(row=jnp.roll(right.row, 1, axis=0))


def cases(selection):
  """Yields arguments of `differing`; a policy is seconds of compiler."""
  cases_to_run = itertools.product(
    CONFIGS.values(),
    ('float32', 'bfloat16'),
    precision.PLACEMENTS,
    precision.LAUNCHED_ACTIVATIONS,
  )
  if selection == 'quick':
    cases_to_run = [
      (CONFIGS[2], 'bfloat16', 'before_down', 'absolute'),
      (CONFIGS[8], 'float32', 'combine', 'absolute'),
    ]
  for config, storage, placement, activation in cases_to_run:
    policy = precision.PrecisionPolicy(
      storage, placement=placement, activation=activation
    )
    # Without exp, small integers stay exact.
    data = (True, False) if activation == 'absolute' else (False,)
    for skew, integer in itertools.product(SKEWS, data):
      yield config, policy, skew, integer
    yield config, policy, SKEWS[1], False, 0.3


def main(selection):
  """Prints lists of [R, case, names that differ]: right, and with a fault."""
  right = [(c[0].num_ranks, str(c), differing(*c)) for c in cases(selection)]
  faulty = next(cases('quick'))
  by_devices.clear_cache()
  sharded_layer._routes = wrong_routes
  print(json.dumps([right, differing(*faulty)]))


def run(selection):
  """Returns what `main` prints in a process with eight devices."""
  flags = '--xla_force_host_platform_device_count=8'
  process = subprocess.run(
    [sys.executable, '-m', 'hpmoe.reference.sharded_layer_test', selection],
    env=os.environ | dict(XLA_FLAGS=flags, JAX_PLATFORMS='cpu'),
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, process.stderr
  return json.loads(process.stdout)


class TestBits:
  def test_equal_those_of_the_rank_axis_form(self):
    differences, control = run('quick')
    assert {ranks for ranks, _, _ in differences} == {2, 8}
    assert [(case, names) for _, case, names in differences if names] == []
    # A message that is taken for another rank's is seen, and where.
    assert {'expert_in', 'y', 'dx', 'd_w_down'} <= set(control)
    assert not {'counts', 'row_base', 'row_of_slot'} & set(control)

  @pytest.mark.slow
  def test_equal_for_every_policy(self):
    differences, _ = run('all')
    assert len(differences) == 4 * 2 * 2 * 3 * len(SKEWS)
    assert {ranks for ranks, _, _ in differences} == {1, 2, 4, 8}
    assert [(case, names) for _, case, names in differences if names] == []


class TestRefused:
  CONFIG = CONFIGS[1]
  POLICY = precision.PrecisionPolicy()

  def mesh(self):
    return jax.sharding.Mesh(np.array(jax.devices()[:1]), ('rank',))

  def inputs(self):
    rng = test_util.generator('refused')
    return test_util.random_inputs(self.CONFIG, self.POLICY, rng)

  def test_mesh_with_another_number_of_devices(self):
    message = "mesh: expected num_ranks=4 devices along 'rank', got 1"
    with pytest.raises(ValueError, match=message):
      sharded_layer.forward(
        CONFIGS[4], self.POLICY, self.mesh(), 'rank', **self.inputs()
      )

  def test_axis_that_the_mesh_has_not(self):
    with pytest.raises(ValueError, match=r"axis: expected .*'rank'.*'expert'"):
      sharded_layer.forward(
        self.CONFIG, self.POLICY, self.mesh(), 'expert', **self.inputs()
      )

  def test_missing_tensor(self):
    message = r'topk_ids: expected int32 \[1, 5, 3\], got nothing'
    with pytest.raises(ValueError, match=message):
      sharded_layer.backward(
        self.CONFIG, self.POLICY, self.mesh(), 'rank', {}, self.inputs()['x']
      )


if __name__ == '__main__':
  main(sys.argv[1])
