"""A layer whose tokens go to all experts is a dense MLP, cut over ranks."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import twin_candidate
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import tensor_parallel as dense


def _case(ranks=2, preset='tp', **fields):
  return case_lib.Case(preset=preset, ranks=ranks, tokens=5, **fields)


def _results(layer_inputs, backward=False):
  as_computed = lambda name, values: values
  return dense.compute_mlp(
    layer_inputs.policy, layer_inputs.arrays, as_computed, backward
  )


def _difference(layer_inputs, name, index, result, grad_name) -> float:
  """Returns the slope of a result, weighed by its gradient, in one element."""
  wide = {n: a.astype(np.float64) for n, a in layer_inputs.arrays.items()}
  wide['topk_ids'] = layer_inputs.arrays['topk_ids']

  def slope(step):
    shifted = wide[name].copy()
    shifted[index] += step
    arrays = {**wide, name: shifted}
    out = _results(dataclasses.replace(layer_inputs, arrays=arrays))[result]
    return (out * wide[grad_name]).sum() / 2e-6

  return slope(1e-6) - slope(-1e-6)


class TestTensorParallel:
  @pytest.mark.parametrize('ranks', [1, 3])
  def test_is_one_mlp_of_all_shards(self, ranks):
    layer_inputs = _case(ranks).make()
    w_in, w_out = (
      layer_inputs.arrays[n][:, 0].astype(np.float64)
      for n in ('w_gate_up', 'w_down')
    )
    x = layer_inputs.arrays['x'].astype(np.float64)
    gate, up = (
      np.concatenate(w, -1) for w in zip(*(np.split(w, 2, -1) for w in w_in))
    )
    with np.errstate(over='ignore'):
      act = x @ gate / (1 + np.exp(-(x @ gate))) * (x @ up)
    assert (layer_inputs.arrays['topk_weights'] == 1).all()
    y = act @ np.concatenate(w_out)
    np.testing.assert_allclose(
      _results(layer_inputs)['y'], y, rtol=1e-10, atol=1e-10
    )

  @pytest.mark.parametrize(
    'name, index',
    [
      ('x', (1, 2, 3)),
      ('topk_weights', (0, 4, 1)),
      ('w_gate_up', (0, 0, 4, 5)),
      ('w_gate_up', (1, 0, 4, 85)),
      ('b_gate_up', (1, 0, 85)),
      ('w_down', (1, 0, 3, 2)),
      ('b_down', (0, 0, 2)),
    ],
  )
  def test_gradients_are_those_of_differences(self, name, index):
    # Gates that differ, slots that are not in the order of experts.
    layer_inputs = _case(routing='balanced', bias=True).make()
    grad = _results(layer_inputs, backward=True)[
      'dx' if name == 'x' else f'd_{name}'
    ]
    expected = _difference(layer_inputs, name, index, 'y', 'dy')
    assert grad[index] == pytest.approx(expected, rel=1e-4, abs=1e-6)

  @pytest.mark.parametrize('exact', [False, True], ids=['normed', 'plain'])
  @pytest.mark.parametrize(
    'name, index',
    [
      ('activation', (1, 4, 3)),
      ('w_down', (0, 0, 3, 2)),
      ('w_norm', (1, 7)),
      ('w_gate_up', (1, 0, 4, 5)),
    ],
  )
  def test_gradients_of_a_sublayer_are_those_of_differences(
    self, name, index, exact
  ):
    layer_inputs = _case(preset='tp_norm').make()
    if exact:
      layer_inputs = layer_inputs.with_policy(activation='absolute')
    grad = _results(layer_inputs, backward=True)[f'd_{name}']
    expected = _difference(layer_inputs, name, index, 'gate_up', 'd_gate_up')
    assert grad[index] == pytest.approx(expected, rel=1e-4, abs=1e-5)

  @pytest.mark.parametrize(
    'fields',
    [
      dict(placement='epilogue'),
      dict(d_shared=16),
      dict(policy=('running_sum=bf16',)),
      dict(routing='dropped'),
      dict(preset='tiny'),
    ],
    ids=lambda fields: next(iter(fields)),
  )
  def test_another_layer_is_none(self, fields):
    case = dataclasses.replace(_case(), **fields)
    layer_inputs = case.make()
    assert not dense.applies(
      layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
    )

  def test_fewer_slots_are_refused(self):
    with pytest.raises(
      ValueError, match='top_k: expected num_experts=2.*got 1'
    ):
      dataclasses.replace(_case(), preset='tp:top_k=1').make()


def _list_failed(direction, **fields):
  request = request_lib.Request(
    _case(direction=direction, dtype='bfloat16', **fields), host.Megakernel()
  )
  results = check.run(request).results
  assert any(r.rule == dense.RULE for r in results)
  return {
    (r.lane, verdicts.tensor_of(r.stage))
    for r in results
    if r.verdict == verdicts.FAIL
  }


class TestJudgesALayer:
  @pytest.mark.parametrize(
    'direction, spoilt',
    [('forward', {'y'}), ('backward', {'dx', 'd_w_gate_up'})],
  )
  @pytest.mark.few(1)
  def test_by_both_of_its_matrices(self, monkeypatch, direction, spoilt):
    assert not _list_failed(direction)
    compute_mlp = dense.compute_mlp

    def of_other_shards(policy, arrays, store, backward):
      swapped = {**arrays, 'w_down': arrays['w_down'][::-1]}
      return compute_mlp(policy, swapped, store, backward)

    monkeypatch.setattr(dense, 'compute_mlp', of_other_shards)
    failures = _list_failed(direction)
    for lane in ('exact', 'bounded'):
      assert {(lane, name) for name in spoilt} <= failures

  @pytest.mark.slow
  @pytest.mark.parametrize('ranks', [1, 2])
  def test_and_a_sublayer_by_its_norm(self, monkeypatch, ranks):
    # Rows of zeros, small and large ones, and tokens that no block divides are
    # in it.
    fields = dict(preset='tp_norm', ranks=ranks)
    assert not _list_failed('both', **fields)
    rms = dense._rms

    def centred(policy, y, gain):  # what a LayerNorm does beside
      return rms(policy, y - y.mean(-1, keepdims=True), gain)

    def of_another_epsilon(policy, y, gain):  # exact data have no epsilon
      wide = dataclasses.replace(policy, epsilon=1e-5)
      return rms(wide, y, gain)

    for wrong, lanes in (
      (centred, ('exact', 'bounded')),
      (of_another_epsilon, ('bounded',)),
    ):
      monkeypatch.setattr(dense, '_rms', wrong)
      failures = _list_failed('both', **fields)
      assert {(lane, 'gate_up') for lane in lanes} <= failures


def test_who_has_no_norm_refuses_a_sublayer():
  with pytest.raises(ValueError, match='preset: expected a whole layer with'):
    twin_candidate.Twin().ready(_case(preset='tp_norm'))
