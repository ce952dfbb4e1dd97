"""A test of a fused MoE kernel, to copy beside one's own.

The case beside it was made by

    hpmoe export --preset=tiny --ranks=1 --tokens=8 --dtype=bf16 --out=...

and has inputs for every lane.  docs/api.md tells more.
"""

import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hpmoe

CASE = pathlib.Path(__file__).with_name('fused_moe_case')
# The hpmoe of another environment, where this one has none.
HPMOE = [sys.executable, '-m', 'hpmoe.parity_tests.commands.main']


def fused_moe(x, ids, weights, w_gate_up, w_down, act):
  """Returns y [T, D]: the kernel under test; yours is imported."""
  order = jnp.argsort(ids.reshape(-1))
  sizes = jnp.bincount(ids.reshape(-1), length=len(w_down))
  rows = jax.lax.ragged_dot(x[order // ids.shape[1]], w_gate_up, sizes)
  gate, up = jnp.split(rows.astype(jnp.float32), 2, -1)
  rows = (act(gate) * up).astype(x.dtype)
  rows = jax.lax.ragged_dot(rows, w_down, sizes)[jnp.argsort(order)]
  rows = rows.reshape(*ids.shape, -1).astype(jnp.float32)
  return (rows * weights[..., None]).sum(1).astype(x.dtype)


def moe(inputs, layer, policy):
  """Calls it on the tensors of a case; their first axis is the rank."""
  act = jnp.abs if policy.activation == 'absolute' else jax.nn.silu
  names = ('x', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down')
  y = fused_moe(*(jnp.asarray(inputs[name][0]) for name in names), act)
  return {'y': np.asarray(y)[None]}


def rounded_weights(inputs, layer, policy):
  """The same with a bug: routing weights in bfloat16."""
  weights = np.asarray(inputs['topk_weights']).astype(jnp.bfloat16)
  held = {**inputs, 'topk_weights': weights.astype(np.float32)}
  return moe(held, layer, policy)


def test_fused_moe():
  hpmoe.assert_parity(moe, hpmoe.Case.from_folder(CASE))


def test_fused_moe_where_hpmoe_is_not_installed(tmp_path):
  # `hpmoe export` lays this file beside a case; the tree of hpmoe has it once.
  sys.path += [str(CASE), str(CASE.parents[1] / 'parity_tests/case')]
  import read_case  # it needs numpy alone

  case = read_case.load(CASE)
  for data, table in case.data.items():
    case.policy.activation = table.activation
    found = moe(read_case.inputs(case, data), case.layer, case.policy)
    read_case.write(tmp_path, case, data, found)
  command = [*HPMOE, 'check', f'--case={CASE}', f'--outputs={tmp_path}']
  subprocess.run(command, check=True)


def test_a_bug_is_found():
  with pytest.raises(AssertionError, match='first failure: y'):
    hpmoe.assert_parity(rounded_weights, hpmoe.Case.from_folder(CASE))
