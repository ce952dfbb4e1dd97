"""What a check holds kernels to is what users of the oracle call."""

import jax
import numpy as np
import pytest

from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case.values import real_data
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import stages
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import tensors


@pytest.mark.slow
@pytest.mark.parametrize(
  ('dtype', 'placement'),
  [('float32', 'before_down'), ('bfloat16', 'combine')],
)
def test_answers_have_the_bits_of_what_users_call(dtype, placement):
  # Given a layer whose last rank has rows to spare,
  layer_inputs = inputs.make_inputs(
    presets.get('tiny'), 2, 13, dtype, 'empty_experts', placement=placement
  )
  dy = real_data.draw_dy(layer_inputs.config, layer_inputs.arrays['x'].dtype, 3)
  layer_arguments = layer_inputs.config, layer_inputs.policy

  # when a check asks for both passes, stage by stage,
  forward = pass_reference.run_oracle(
    oracle_lib.Oracle(*layer_arguments, layer_inputs.arrays), passes.FORWARD
  )
  backward_arrays = {**layer_inputs.arrays, **forward, 'dy': dy}
  backward = pass_reference.run_oracle(
    oracle_lib.Oracle(*layer_arguments, backward_arrays), passes.BACKWARD
  )

  # then each tensor is that of the pass under jit, as one function.
  whole = jax.jit(layer.forward, static_argnums=(0, 1))(
    *layer_arguments,
    **{name: layer_inputs.arrays[name] for name in tensors.INPUTS},
  )
  grads = jax.jit(layer_grad.backward, static_argnums=(0, 1))
  whole |= grads(
    *layer_arguments,
    {
      n: backward_arrays[n]
      for n in layer_grad.reads(layer_inputs.config, layer_inputs.policy)
    },
    dy,
  )
  assert set(forward | backward) == set(whole)
  for name, value in (forward | backward).items():
    users_bits = ulp.bits(np.asarray(whole[name]))
    np.testing.assert_array_equal(ulp.bits(value), users_bits, name)


def _twice(function, name):
  def wrong(*args, **kwargs):
    out = function(*args, **kwargs)
    return {**out, name: out[name] * 2} if isinstance(out, dict) else out * 2

  return wrong


@pytest.mark.parametrize(
  ('module', 'function_name', 'direction', 'stage'),
  [
    (layer, 'forward', 'forward', 'y'),
    (layer_grad, 'backward', 'backward', 'd_topk_weights'),
    (stages, '_STAGES', 'backward', 'd_topk_weights'),
  ],
  ids=lambda value: value if isinstance(value, str) else '',
)
@pytest.mark.few(1)
def test_a_bug_in_what_users_call_fails_a_check(
  module, function_name, direction, stage, monkeypatch
):
  # Given an oracle of which one tensor is twice what it should be,
  run = oracle_lib.stage
  if module is stages:
    wrong = _twice(stages._STAGES[stage], stage)
    monkeypatch.setitem(stages._STAGES, stage, wrong)
    run = programs.Program('hpmoe.reference.stages:run', 3)
    jax.clear_caches()
  else:
    monkeypatch.setattr(
      module, function_name, _twice(getattr(module, function_name), stage)
    )

  # when a backend that is right is checked, then they part there.
  request = request_lib.Request(
    case_lib.Case(
      preset='tiny', ranks=2, tokens=13, dtype='bfloat16', direction=direction
    ),
    judgement=judgement.Judgement(('exact',)),
  )
  # What is kept is right.
  with cache_folder.activate(None), oracle_lib.use_stages(run):
    report = check.run(request)
  failed_stages = {r.stage for r in report.results if r.verdict == 'fail'}
  if module is stages:
    jax.clear_caches()
  stages_of = {*tensors.STAGES, *tensors.GRADS}
  assert failed_stages & stages_of == {stage}


@pytest.mark.parametrize(
  ('dtype', 'placement'), [('float32', 'combine'), ('bfloat16', 'epilogue')]
)
@pytest.mark.slow
def test_golden_stands_in_for_the_oracle_on_exact_data(dtype, placement):
  # Given a layer with every part and exact data,
  case = case_lib.Case(
    direction='both',
    preset='tiny',
    ranks=2,
    tokens=5,
    dtype=dtype,
    placement=placement,
    bias=True,
    d_shared=6,
  )
  exact_inputs = case.data(case.make(), 'exact')

  # when both passes are made of the oracle's stages, and of golden rows,
  def tensors_of_passes():
    oracle = oracle_lib.Oracle(
      exact_inputs.config, exact_inputs.policy, exact_inputs.arrays
    )
    forward = oracle.forward()
    return forward | oracle.backward(
      {**exact_inputs.arrays, **forward}, exact_inputs.arrays['dy']
    )

  expected = tensors_of_passes()
  with oracle_lib.use_stages(pass_reference.store_golden):
    actual = tensors_of_passes()

  # then each tensor has the same values.
  assert actual.keys() == expected.keys()
  for name, value in expected.items():
    assert actual[name].dtype == value.dtype
    np.testing.assert_array_equal(actual[name], value, err_msg=name)
