"""What every entry of the oracle refuses: a row for each way to be wrong."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import differentiable
from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import sharded_layer
from hpmoe.reference import test_util
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CONFIG = config_testing.make_config(r=4, t=6, e=8, k=2, d=8, f=4)
FLOAT32 = precision.PrecisionPolicy()


def inputs():
  rng = test_util.generator('entry')
  return test_util.random_inputs(CONFIG, FLOAT32, rng)


def on_mesh(config, policy, **arrays):
  # The mesh is asked for its sizes before anything of it runs.
  mesh = jax.sharding.AbstractMesh((config.num_ranks,), ('rank',))
  return sharded_layer.forward(config, policy, mesh, 'rank', **arrays)


def on_shard(config, policy, **arrays):
  sharded = {name: value[:1] for name, value in arrays.items()}
  order = [sharded[name] for name in tensors.INPUTS]
  return sharded_layer.layer_of_shard(config, policy, 'rank', *order)


def differentiated(config, policy, **arrays):
  order = [arrays[name] for name in tensors.INPUTS]
  return differentiable.layer(config, policy, *order)


ENTRIES = [layer.forward, differentiated, on_mesh]


def ids_with(value, slot=0):
  ids = np.array(inputs()['topk_ids'])
  ids[1, 2, slot] = ids[1, 2, 1] if value is None else value
  return {'topk_ids': jnp.asarray(ids)}


WRONG = {
  'x of 2 of 4 ranks': (
    lambda a: {'x': a['x'][:2]},
    r'^x: expected float32 \[4, 6, 8\], got float32 \[2, 6, 8\]',
  ),
  'half of the tokens': (
    lambda a: {n: a[n][:, :3] for n in ('x', 'topk_ids', 'topk_weights')},
    r'^x: expected float32 \[4, 6, 8\], got float32 \[4, 3, 8\]',
  ),
  'ids of half of the tokens': (
    lambda a: {'topk_ids': a['topk_ids'][:, :3]},
    r'^topk_ids: expected int32 \[4, 6, 2\], got int32 \[4, 3, 2\]',
  ),
  'weights of fewer experts': (
    lambda a: {'w_down': a['w_down'][:, :1]},
    r'^w_down: expected float32 \[4, 2, 4, 8\], got float32 \[4, 1, 4, 8\]',
  ),
  'bf16 weights': (
    lambda a: {'w_gate_up': a['w_gate_up'].astype(jnp.bfloat16)},
    '^w_gate_up: expected float32 .*, got bfloat16 ',
  ),
  'routing weights in bf16': (
    lambda a: {'topk_weights': a['topk_weights'].astype(jnp.bfloat16)},
    '^topk_weights: expected float32 .*, got bfloat16 ',
  ),
  'ids as floats': (
    lambda a: {'topk_ids': a['topk_ids'].astype(jnp.float32)},
    '^topk_ids: expected int32 .*, got float32 ',
  ),
  'an id past the last expert': (
    lambda a: ids_with(8),
    r'^topk_ids: expected ids in \[0, 8\), .* got 8 at rank 1, token 2, slot 0',
  ),
  'an id below -1': (
    lambda a: ids_with(-2),
    r'^topk_ids: expected ids in \[0, 8\), .* got -2 at rank 1',
  ),
  'equal ids': (
    lambda a: ids_with(None),
    '^topk_ids: expected every expert at most once .* rank 1, token 2',
  ),
}


@pytest.mark.parametrize('entry', ENTRIES, ids=lambda entry: entry.__name__)
@pytest.mark.parametrize(('change', 'match'), WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_named(entry, change, match):
  arrays = inputs()
  with pytest.raises(ValueError, match=match):
    entry(CONFIG, FLOAT32, **(arrays | change(arrays)))


@pytest.mark.parametrize('name', ['num_tokens', 'd_model', 'd_ff', 'top_k'])
@pytest.mark.parametrize('entry', ENTRIES, ids=lambda entry: entry.__name__)
def test_a_config_of_other_sizes(entry, name):
  other = dataclasses.replace(CONFIG, **{name: getattr(CONFIG, name) - 1})
  with pytest.raises(ValueError, match='^(x|topk_ids|w_gate_up): expected '):
    entry(other, FLOAT32, **inputs())


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', ['x', 'topk_weights', 'w_gate_up', 'w_down'])
def test_values_that_are_not_finite(name, value):
  bad_array = np.array(inputs()[name])
  bad_array.flat[-1] = value
  last = [size - 1 for size in bad_array.shape]
  match = f'^{name}: expected finite values, got {value} at '
  with pytest.raises(ValueError, match=match) as error:
    checks.check_inputs(CONFIG, FLOAT32, inputs() | {name: bad_array})
  assert str(error.value).endswith(f'at {last}')


def test_more_rows_than_a_rank_holds():
  small = dataclasses.replace(CONFIG, capacity=5)
  with pytest.raises(ValueError, match='^capacity: expected at least'):
    checks.check_inputs(small, FLOAT32, inputs())


def test_a_shard_has_one_rank():
  arrays = inputs() | {'x': inputs()['x'][:, :3]}
  match = r'^x: expected float32 \[1, 6, 8\], got float32 \[1, 3, 8\]'
  with pytest.raises(ValueError, match=match):
    on_shard(CONFIG, FLOAT32, **arrays)


def test_under_jit_shapes_are_checked_and_values_are_not():
  arrays = inputs()
  trace = functools.partial(
    jax.eval_shape, jax.jit(functools.partial(layer.forward, CONFIG, FLOAT32))
  )
  trace(**(arrays | ids_with(8)))
  with pytest.raises(ValueError, match='^x: expected float32 '):
    trace(**(arrays | {'x': arrays['x'][:2]}))


@pytest.mark.parametrize(
  ('name', 'change'),
  [
    ('dy', lambda a: a[:2]),
    ('dy', lambda a: a.astype(jnp.bfloat16)),
    ('gate_up', lambda a: a[..., :4]),
    ('counts', lambda a: a[:, :4]),
    ('returned', lambda a: a.astype(jnp.float16)),
    ('topk_ids', lambda a: a + 1000),
  ],
)
def test_wrong_arguments_of_backward_are_named(name, change):
  # Given all that backward reads, as zeros, beside the inputs,
  codes = (*tensors.ROW_CODES, *tensors.TOKEN_CODES)
  names = {*tensors.INPUTS, *(spec.name for spec in codes)}
  specs = [s for s in tensors.SPECS.values() if s.name not in names]
  arrays = inputs() | {
    s.name: jnp.zeros(s.dims(**CONFIG.dims()), FLOAT32.dtype(s.name))
    for s in specs
  }
  # when one is of another layer, then it is named.
  arrays[name] = change(arrays[name])
  dy = arrays.pop('dy')
  with pytest.raises(ValueError, match=f'^{name}: expected '):
    layer_grad.backward(CONFIG, FLOAT32, arrays, dy)
