"""One stage of the oracle equals the same stage of its whole layer."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.reference import layer_grad
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import stable_random

_NEEDS = {
  'd_activation': 'd_expert_out',
  'd_w_down': 'd_expert_out',
  'd_gate_up': 'd_activation',
  'd_expert_in': 'd_gate_up',
  'd_w_gate_up': 'd_gate_up',
  'd_returned': 'd_expert_in',
  'dx': 'd_returned',
}


@pytest.fixture(
  scope='module',
  params=[('float32', 'combine'), ('bfloat16', 'before_down')],
  ids='-'.join,
)
def run(request):
  """Returns (oracle, what backward may read, dy, gradients)."""
  storage, placement = request.param
  layer_inputs = inputs.make_inputs(
    presets.get('tiny'),
    2,
    13,
    storage,
    'zipf',
    placement=placement,
    capacity=56,
  )
  oracle = oracle_lib.Oracle(
    layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
  )
  forward = {**layer_inputs.arrays, **oracle.forward()}
  dy = stable_random.normal(stable_random.seed_of('dy'), forward['x'].shape)
  dy = dy.astype(forward['x'].dtype)
  saved_tensors = {
    n: forward[n]
    for n in layer_grad.reads(layer_inputs.config, layer_inputs.policy)
  }
  return oracle, {**saved_tensors, 'dy': dy}, oracle.backward(forward, dy)


@pytest.mark.few(1)
def test_passes_that_compile_less_have_the_same_bits(run):
  oracle, saved_tensors, grads = run
  expected = {**oracle.forward(), **grads}

  with oracle_lib.compile_less():
    actual = oracle.forward()
    actual |= oracle.backward({**saved_tensors, **actual}, saved_tensors['dy'])

  assert actual.keys() == expected.keys()
  for name, value in expected.items():
    assert actual[name].dtype == value.dtype
    assert actual[name].tobytes() == value.tobytes(), name


def test_each_stage_follows_what_was_captured(run):
  # Given a captured gradient that is twice the right one,
  oracle, saved_tensors, grads = run
  for name, needs in _NEEDS.items():
    # when the stage after it runs, which is linear in it, then that is too;
    actual = oracle.stage(name, {**saved_tensors, needs: grads[needs] * 2})
    np.testing.assert_array_equal(actual, grads[name] * 2)
    # and without it there is nothing to run on.
    with pytest.raises(KeyError, match=needs):
      oracle.stage(name, saved_tensors)


def test_weight_gradient_reads_d_activation_only_where_it_must(run):
  oracle, saved_tensors, grads = run
  if oracle.policy.placement == 'combine':
    actual = oracle.stage('d_topk_weights', saved_tensors)
    assert actual.tobytes() == grads['d_topk_weights'].tobytes()
  else:
    with pytest.raises(KeyError, match='d_activation'):
      oracle.stage('d_topk_weights', saved_tensors)


def test_unknown_gradient_is_refused(run):
  oracle, saved_tensors, grads = run
  with pytest.raises(KeyError, match='dy'):
    oracle.stage('dy', {**saved_tensors, **grads})
  with pytest.raises(ValueError, match='^gate_up: expected .* got nothing'):
    oracle.backward(
      {n: a for n, a in saved_tensors.items() if n != 'gate_up'},
      saved_tensors['dy'],
    )


def test_a_plan_is_compiled_once_for_all_columns():
  # given: layers that differ in columns and in what multiplies where
  requests = []

  def run(name, config, policy, arrays):
    requests.append((config, policy))
    return oracle_lib.stage(name, config, policy, arrays)

  with oracle_lib.use_stages(run):
    for placement, columns in (('combine', 8), ('returned', 12)):
      preset = dataclasses.replace(presets.get('tiny'), d_model=columns)
      layer_inputs = inputs.make_inputs(preset, 2, 3, placement=placement)
      # when
      oracle = oracle_lib.Oracle(
        layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
      )
      assert oracle.plan

  # then each of the plan's tensors has one program
  assert len({*requests}) == 1
