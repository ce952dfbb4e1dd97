"""Layers with slots that no expert serves: what is right, and what is not."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CASE = case_lib.Case(
  'both', preset='tiny', ranks=2, tokens=13, routing='dropped'
)
CONFIG = config_testing.make_config(r=2, t=24, e=4, k=2, d=40, f=24)
KERNEL = trial.Kernel()


def _right(config, policy, arrays):
  """Returns all that a kernel makes of both passes, from what was saved."""
  forward = KERNEL.forward(config, policy, arrays)
  return forward | KERNEL.backward(config, policy, {**forward, **arrays})


def _by_last_expert(config, policy, arrays):
  """As an index of -1 has it."""
  ids = arrays['topk_ids']
  ids = np.where(ids < 0, np.int32(config.num_experts - 1), ids)
  config = dataclasses.replace(config, capacity=None)
  forward_inputs = {n: arrays[n] for n in (*tensors.INPUTS, 'dy')}
  return _right(config, policy, {**forward_inputs, 'topk_ids': ids})


def _renormalised(config, policy, arrays):
  """The weights of the slots that are left have the sum of all."""
  is_used, weights = arrays['topk_ids'] >= 0, arrays['topk_weights']
  left = (weights * is_used).sum(-1, keepdims=True)
  scale = weights.sum(-1, keepdims=True) / np.where(left == 0, 1, left)
  return _right(config, policy, {**arrays, 'topk_weights': weights * scale})


def _token_lost(config, policy, arrays):
  """A token without one of its slots has no other either."""
  ids = arrays['topk_ids']
  ids = np.where((ids < 0).any(-1, keepdims=True), np.int32(-1), ids)
  return _right(config, policy, {**arrays, 'topk_ids': ids})


def _stale(config, policy, arrays):
  """What nobody wrote comes home; a gradient is of it."""
  computed = _right(config, policy, arrays)
  unused = np.argwhere(arrays['topk_ids'] < 0)[0]
  computed['d_topk_weights'][tuple(unused)] = 2
  computed['y'][tuple(unused[:2])] += np.array(2, computed['y'].dtype)
  return computed


FAULTS = (_by_last_expert, _renormalised, _token_lost, _stale)


def _candidate(compute) -> in_process.Function:
  def forward(inputs, config, policy):
    arrays = {'dy': np.zeros_like(inputs['x']), **inputs}
    computed = compute(config, policy, arrays)
    return {name: computed[name] for name in ('returned', 'y')}

  def backward(inputs, config, policy):
    computed = compute(config, policy, inputs)
    return {n: computed[n] for n in ('d_returned', *passes.BACKWARD.results)}

  forward.backward = backward
  return in_process.Function(forward)


@pytest.fixture(scope='module')
def bench():
  return bench_lib.Bench(CASE, keep=True)


def _list_refused(bench, compute, direction, *lanes) -> set[tuple[str, str]]:
  case = dataclasses.replace(CASE, direction=direction)
  return numpy_testing.list_refused(bench, case, _candidate(compute), *lanes)


def test_a_right_kernel_passes_in_every_lane(bench):
  assert not _list_refused(bench, _right, 'both', *verdicts.LANES)


@pytest.mark.parametrize('direction', ('forward', 'backward'))
@pytest.mark.parametrize('compute', FAULTS)
@pytest.mark.few(3)
def test_no_fault_passes(bench, compute, direction):
  refused_rows = _list_refused(bench, compute, direction, 'exact', 'bounded')
  assert {lane for lane, _ in refused_rows} == {'exact', 'bounded'}


# One rank, and all of them.
@pytest.mark.parametrize('silent', ([1], [0, 1]), ids=('one', 'all'))
@pytest.mark.parametrize('placement', precision.PLACEMENTS)
@pytest.mark.few(5)
def test_ranks_that_send_nothing_are_judged(placement, silent):
  for storage in ('float32', 'bfloat16'):
    for direction in ('forward', 'backward'):
      _check_silent(storage, silent, placement, direction)


def _check_silent(storage, silent, placement, direction):
  policy = precision.PrecisionPolicy(storage, placement=placement)
  inputs = trial_verdicts.draw(CONFIG, policy, 0)
  inputs.arrays['topk_ids'][silent] = -1
  inputs = trial_verdicts.with_saved(inputs)
  outputs = KERNEL.results(inputs, direction == 'backward')
  results = trial_verdicts.judge_results(inputs, outputs, outputs)
  assert not [result for result in results.values() if result.failure]
  # One that adds a little where nothing is to be is refused.
  for array in outputs.values():
    array.reshape(-1)[-1] += 1
  results = trial_verdicts.judge_results(inputs, outputs, outputs)
  refused_names = [name for (name, _), r in results.items() if r.failure]
  assert {*outputs} == {*refused_names}


def test_our_backend_refuses_them():
  message = '^routing: expected one that uses every slot with backend_ascend'
  with pytest.raises(ValueError, match=message):
    check.run(check.Request(CASE))
  inputs = CASE.make()
  unused = (inputs.arrays['topk_ids'] == -1).sum()
  assert inputs.facts['unused_slots'] == unused > 0
  arrays = {name: inputs.arrays[name] for name in tensors.INPUTS}
  message = r'topk_ids: expected ids in \[0, 8\), got -1 at rank'
  with pytest.raises(ValueError, match=message):
    check.run(check.Request(case_lib.Case('forward', input=arrays)))
