"""The sharded layer over several processes: the bits of the rank-axis form.

This file is also the program of each process: it prints the tensors whose bits
differ on the rank that it holds.
"""

import functools
import json
import os
import socket
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

PROCESSES = 2
CONFIG = config_testing.make_config(r=2, t=5, e=4, k=2, d=8, f=6)
POLICY = precision.PrecisionPolicy('bfloat16')


def differing(mesh_args, own_rank, inputs, dy, want, fault=False) -> list[str]:
  """Returns the names of tensors whose bits differ on this process's rank."""
  local_arrays = {
    n: np.asarray(a)[own_rank] for n, a in (inputs | {'dy': dy}).items()
  }
  if fault:
    local_arrays['w_down'] = local_arrays['w_down'][:, ::-1]
  global_arrays = sharded_layer.of_process(*mesh_args, local_arrays)
  outputs = by_devices(*mesh_args, global_arrays)
  names = []
  for name, array in outputs.items():
    (shard,) = array.addressable_shards
    right = np.asarray(want[name])[shard.index]
    assert shard.index[0] == own_rank
    if np.asarray(shard.data).tobytes() != right.tobytes():
      names.append(name)
  assert outputs.keys() == want.keys()
  return sorted(names)


@functools.partial(jax.jit, static_argnums=(0, 1))
def by_devices(mesh, axis, arrays):
  layer_args = CONFIG, POLICY, mesh, axis
  inputs = {name: arrays[name] for name in tensors.INPUTS}
  out = sharded_layer.forward(*layer_args, **inputs)
  return out | sharded_layer.backward(*layer_args, inputs | out, arrays['dy'])


@jax.jit
def by_rank_axis(inputs, dy):
  out = layer.forward(CONFIG, POLICY, **inputs)
  return out | layer_grad.backward(CONFIG, POLICY, inputs | out, dy)


def main(process: int, port: str) -> None:
  """Prints what differs on one process: of right data, and of wrong ones."""
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(f'127.0.0.1:{port}', PROCESSES, process)
  mesh_and_axis = jax.sharding.Mesh(np.array(jax.devices()), ('rank',)), 'rank'
  rng = test_util.generator('hosts')
  inputs = test_util.random_inputs(CONFIG, POLICY, rng, 0.3, False)
  dy = jnp.asarray(rng.integers(-3, 4, inputs['x'].shape), POLICY.storage)
  want = by_rank_axis(inputs, dy)
  arguments = mesh_and_axis, slice(process, process + 1, None), inputs, dy, want
  print(
    json.dumps(
      [differing(*arguments), differing(*arguments, fault=process == 1)]
    )
  )


def run() -> list:
  """Returns what each of the processes prints."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = str(free.getsockname()[1])
  environment = os.environ | dict(XLA_FLAGS='', JAX_PLATFORMS='cpu')
  program = [sys.executable, '-m', 'hpmoe.reference.sharded_layer_hosts_test']
  processes = [
    subprocess.Popen(
      [*program, str(process), port],
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for process in range(PROCESSES)
  ]
  try:
    outputs = [process.communicate(timeout=300) for process in processes]
  finally:
    for process in processes:
      process.kill()
  for process, (_, error) in zip(processes, outputs, strict=True):
    assert process.returncode == 0, error
  return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.slow
def test_two_processes_have_the_bits_of_one():
  (first, first_faulty), (second, second_faulty) = run()
  assert (first, second) == ([], [])
  # The second process has its experts' w_down exchanged: seen where it is read.
  assert {'expert_out', 'd_activation'} <= {*second_faulty}
  assert 'expert_out' not in first_faulty
  assert {'y', 'returned'} <= {*first_faulty} | {*second_faulty}


if __name__ == '__main__':
  main(int(sys.argv[1]), sys.argv[2])
