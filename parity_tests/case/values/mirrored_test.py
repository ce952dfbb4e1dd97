"""Mirrored data: every input changes, and every result is the mirrored one."""

import numpy as np
import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case.values import mirrored
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import tensors

KERNEL = trial.Kernel(trial.ascending)


def _draw(dtype, placement, **parts):
  return inputs_lib.make_inputs(
    presets.get('tiny'), 2, dtype=dtype, placement=placement, **parts
  )


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('placement', [*tensors.WEIGHTED])
@pytest.mark.parametrize('parts', [{}, dict(bias=True, d_shared=24)])
def test_results_are_those_of_the_mirrored_layer(dtype, placement, parts):
  # given
  layer = _draw(dtype, placement, **parts)
  unchanged = {'d_w_shared_down', 'd_b_down'}
  if placement == 'input':
    unchanged = {'d_w_shared_down', 'd_w_gate_up', 'd_b_gate_up'}
  arguments = layer.config, layer.policy
  for layer_pass, run in (
    (passes.FORWARD, KERNEL.forward),
    (passes.BACKWARD, KERNEL.backward),
  ):
    layer_pass = layer_pass.of_layer(layer.config)
    arrays = layer.arrays
    if layer_pass.name == 'backward':
      arrays = trial_verdicts.with_saved(layer).arrays
    mirror = mirrored.build_mirror(*arguments, arrays, layer_pass)

    # when
    first = run(*arguments, arrays)
    second = run(*arguments, mirror.reflect_inputs(arrays))

    # then
    reflected = mirror.reflect({n: second[n] for n in layer_pass.results})
    for name, result in reflected.items():
      np.testing.assert_array_equal(result, first[name], name)
      if name not in unchanged:
        assert (second[name] != first[name]).any(), name


def test_every_input_changes():
  layer = _draw('float32', 'combine')
  arrays = {n: layer.arrays[n] for n in layer.arrays if n != 'dy'}
  mirror = mirrored.build_mirror(
    layer.config, layer.policy, arrays, passes.FORWARD
  )

  for name, array in mirror.reflect_inputs(arrays).items():
    assert (array != arrays[name]).any(), name


def test_tokens_are_flipped_where_weights_multiply_the_input(monkeypatch):
  monkeypatch.setattr(mirrored, '_MOST_BYTES', 0)
  layer = _draw('float32', 'input', d_shared=24)
  mirror = mirrored.build_mirror(
    layer.config, layer.policy, layer.arrays, passes.FORWARD
  )

  reflected = mirror.reflect_inputs(layer.arrays)

  first = KERNEL.forward(layer.config, layer.policy, layer.arrays)['y']
  second = KERNEL.forward(layer.config, layer.policy, reflected)['y']
  assert (second != first).any()
  np.testing.assert_array_equal(mirror.reflect({'y': second})['y'], first)


def test_of_a_large_layer_no_weight_is_copied(monkeypatch):
  monkeypatch.setattr(mirrored, '_MOST_BYTES', 0)
  layer = _draw('float32', 'combine')
  mirror = mirrored.build_mirror(
    layer.config, layer.policy, layer.arrays, passes.FORWARD
  )

  reflected = mirror.reflect_inputs(layer.arrays)

  assert reflected['w_down'] is layer.arrays['w_down']
  assert (reflected['topk_weights'] == -layer.arrays['topk_weights']).all()
  second = KERNEL.forward(layer.config, layer.policy, reflected)['y']
  first = KERNEL.forward(layer.config, layer.policy, layer.arrays)['y']
  assert (second == -first).all()


def test_shared_experts_in_codes_have_another_run():
  # given: rows in codes of routed and shared experts, forward
  case = case_lib.Case(
    preset='tiny', ranks=2, d_shared=32, quantised='mxfp8', rows='mxfp8'
  )
  layer = case.make()
  arguments = layer.config, layer.policy
  mirror = mirrored.build_mirror(*arguments, layer.arrays, passes.FORWARD)
  # when
  first, second = (
    oracle_lib.Oracle(*arguments, arrays).forward()['y']
    for arrays in (layer.arrays, mirror.reflect_inputs(layer.arrays))
  )
  # then
  assert (second != first).any()
  np.testing.assert_array_equal(mirror.reflect({'y': second})['y'], first)


def test_gradients_of_shared_experts_in_codes_have_another_run():
  # given: operands of all GEMMs in codes
  case = case_lib.Case(
    'both', preset='tiny', ranks=2, d_shared=32, recipe='mxfp8'
  )
  layer = case.make()
  arguments = layer.config, layer.policy
  forward = oracle_lib.Oracle(*arguments, layer.arrays).forward()
  tensors_of_forward = {**layer.arrays, **forward}
  mirror = mirrored.build_mirror(
    *arguments, tensors_of_forward, passes.BACKWARD
  )
  # when
  first, second = (
    oracle_lib.Oracle(*arguments, arrays).backward(arrays, arrays['dy'])
    for arrays in (
      tensors_of_forward,
      mirror.reflect_inputs(tensors_of_forward),
    )
  )
  # then
  for name in passes.BACKWARD.of_layer(layer.config).results:
    reflected = mirror.reflect({name: second[name]})[name]
    np.testing.assert_array_equal(reflected, first[name], name)
    assert (second[name] != first[name]).any(), name
