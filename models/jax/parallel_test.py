"""A decoder on four devices is the decoder on one.

The mesh needs four devices before JAX starts, so this file is also the program
that compares: it prints the largest differences by configuration and dtype.
"""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.models import golden_testing as golden
from hpmoe.models.jax import decoder
from hpmoe.models.jax import model_testing
from hpmoe.models.jax import parallel
from hpmoe.reference.contract import stable_random

CASES = {
  'quick': [('deepseek_groups', 'float64')],
  'all': [
    (name, dtype) for name in golden.CONFIGS for dtype in ('float32', 'float64')
  ],
}


def differences(name: str, dtype: str) -> dict[str, float]:
  """Returns largest differences: of logits, and of gradients over their rms."""
  # Given: a sequence for each device, and the routing of every token its own.
  config, params, _ = model_testing.model(name, dtype)
  tokens = stable_random.integers(3, (4, 8), config.vocab_size)
  tokens = jnp.asarray(tokens, jnp.int32)
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ('rank',))

  @model_testing.jit
  def on_one(params):
    def loss(params):
      out, _ = decoder.forward(params, config, tokens)
      return decoder.next_token_loss(out, tokens), out

    (value, out), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return out, value, grads

  @model_testing.jit
  def on_four(params):
    value, grads = parallel.loss_and_grads(params, config, tokens, mesh)
    return parallel.logits(params, config, tokens, mesh), value, grads

  # When.
  want, actual = on_one(params), on_four(params)
  # Then.
  out = {'logits': far(actual[0], want[0]), 'loss': far(actual[1], want[1])}
  for parameter, grad in want[2].items():
    size = float(jnp.sqrt(jnp.mean(jnp.square(grad)))) or 1.0
    out[parameter] = far(actual[2][parameter], grad) / size
  return out


def far(left, other) -> float:
  return float(np.max(np.abs(np.asarray(left) - np.asarray(other))))


def main(suite: str) -> None:
  print(json.dumps([[*c, differences(*c)] for c in CASES[suite]]))


def compare(suite: str) -> list:
  flags = '--xla_force_host_platform_device_count=4'
  environment = dict(os.environ, XLA_FLAGS=flags, JAX_ENABLE_X64='1')
  ran = subprocess.run(
    [sys.executable, '-m', 'hpmoe.models.jax.parallel_test', suite],
    env=environment,
    capture_output=True,
    text=True,
  )
  assert not ran.returncode, ran.stderr
  return json.loads(ran.stdout)


# Sums of gradients over devices, and XLA's of other shapes, have other orders.
# A chain of a hundred roundings; a wrong row or a lost sum is of order 1.
ORDER = {'float32': 100 * 2.0**-23, 'float64': 100 * 2.0**-52}


def check(measurements: list) -> None:
  for name, dtype, differs in measurements:
    for part, difference in differs.items():
      assert difference < ORDER[dtype], (name, dtype, part, difference)


class TestParallel:
  @pytest.mark.slow
  def test_four_devices_are_one(self):
    check(compare('quick'))

  @pytest.mark.slow
  def test_four_devices_are_one_in_every_configuration(self):
    check(compare('all'))

  @pytest.mark.parametrize(
    'changes, message',
    [
      (dict(axis='x'), "axis: .*'rank'.* got 'x'"),
      (dict(moe='host'), "moe: expected 'oracle' or a function .* got 'host'"),
      (dict(tokens=jnp.zeros(3, jnp.int32)), r'tokens: .* got \[3\]'),
    ],
  )
  def test_an_argument_is_named(self, changes, message):
    config, params, tokens = model_testing.model('mixtral_plain')
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('rank',))
    options = dict(tokens=jnp.asarray(tokens), axis='rank') | changes
    with pytest.raises(ValueError, match=f'^{message}'):
      parallel.logits(params, config, mesh=mesh, **options)


if __name__ == '__main__':
  main(sys.argv[1])
