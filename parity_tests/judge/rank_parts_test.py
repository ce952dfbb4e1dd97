"""Layers with biases, a clamped activation and shared experts: right and wrong.

A right kernel passes whatever order it sums in; each that gets one thing wrong
fails, by its results alone.
"""

import dataclasses
import functools

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

CONFIG = config_testing.make_config(
  r=2, t=24, e=4, k=2, d=40, f=24, bias=True, s=28
)
CASE = case_lib.Case(
  'both',
  preset='tiny',
  ranks=2,
  tokens=13,
  placement='before_down',
  activation='gpt_oss',
  bias=True,
  d_shared=20,
)
RIGHT = trial.Kernel()
# They sum in another order, and begin with the bias.
OTHER = trial.Kernel(trial.pairwise, add_bias=trial.begins_with)
# Where the routing weight multiplies for a fault to be seen; '': anywhere.
PLACEMENT_OF_FAULT = {
  ('backward', 'b_down forgotten'): 'before_down',
  ('backward', 'd_b_down unweighted'): 'before_down',
}
# Only lane exact has values at the limit, and no exp.
AT_LIMIT, NO_EXP = 'no gradient at the limit', 'no alpha'
# What y hides in some storage: sigmoid(-12) is nearly as small as 0.
HIDDEN = {('bfloat16', 'gate clamped below')}
# Of one that rounds twice see below: in float32 there is nothing to see.
*WRONG_SHARED, TWICE_ROUNDED = trial.WRONG_SHARED
FAULTS = [
  *(('forward', wrong) for wrong in (*trial.WRONG, *WRONG_SHARED)),
  *(('backward', wrong) for wrong in (*trial.WRONG_GRADS, *WRONG_SHARED)),
]


@functools.cache
def _draw(storage, placement, direction):
  policy = precision.PrecisionPolicy(
    storage, placement=placement, **precision.activation_of('gpt_oss')
  )
  inputs = trial_verdicts.draw(CONFIG, policy, 0)
  return (
    trial_verdicts.with_saved(inputs) if direction == 'backward' else inputs
  )


@functools.cache
def _compute_right(storage, placement, direction):
  inputs = _draw(storage, placement, direction)
  return OTHER.results(inputs, direction == 'backward')


def _list_failed(kernel, storage, placement, direction) -> set[str]:
  """Returns the results of a kernel that lane bounded refuses."""
  inputs = _draw(storage, placement, direction)
  outputs = kernel.results(inputs, direction == 'backward')
  results = trial_verdicts.judge_results(
    inputs, outputs, _compute_right(storage, placement, direction)
  )
  return {
    name
    for (name, _), result in results.items()
    if result.verdict == verdicts.FAIL
  }


def _of_expert_before(bias):
  return np.roll(bias.reshape(-1, bias.shape[-1]), 1, 0).reshape(bias.shape)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'wrong', 'expected'),
  [
    ('b_gate_up', np.zeros_like, 'was left out'),
    ('b_down', np.zeros_like, 'was left out'),
    ('b_gate_up', lambda bias: bias + bias, 'was added twice'),
    ('b_down', _of_expert_before, 'was that of the previous expert'),
  ],
)
def test_a_wrong_bias_is_named(name, wrong, expected):
  # Given: a kernel that returns y alone.
  def function(inputs, config, policy):
    inputs[name] = wrong(inputs[name])
    return {'y': RIGHT.forward(config, policy, inputs)['y']}

  # When.
  case = dataclasses.replace(CASE, direction='forward')
  report = check.run(check.Request(case, in_process.Function(function)))
  # Then.
  assert f'{name} {expected}' in report.first_failure.pattern


@pytest.mark.parametrize(
  ('direction', 'wrong', 'expected'),
  [
    ('forward', 'forgotten', 'shared_out was left out'),
    ('backward', 'twice', 'd_shared_in was added twice'),
  ],
)
@pytest.mark.few(1)
def test_wrong_shared_experts_are_named(direction, wrong, expected):
  kernel = dataclasses.replace(RIGHT, wrong=f'shared experts {wrong}')
  case = dataclasses.replace(CASE, direction=direction)
  candidate = numpy_testing.Numpy(kernel, everything=False)
  report = check.run(check.Request(case, candidate))
  assert expected in report.first_failure.pattern


DIRECTIONS = pytest.mark.parametrize('direction', ('forward', 'backward'))


@DIRECTIONS
@pytest.mark.parametrize('storage', ('float32', 'bfloat16', 'float16'))
@pytest.mark.few(1)
def test_a_right_kernel_is_within_its_bounds(storage, direction):
  for placement in precision.PLACEMENTS:
    for kernel in (RIGHT, OTHER):
      assert not _list_failed(kernel, storage, placement, direction), placement


@pytest.mark.parametrize('storage', ('float32', 'bfloat16'))
@pytest.mark.few(1)
def test_each_fault_is_out_of_bounds(storage):
  for direction, wrong in FAULTS:
    if wrong != AT_LIMIT and (storage, wrong) not in HIDDEN:
      kernel = dataclasses.replace(RIGHT, wrong=wrong)
      placement = PLACEMENT_OF_FAULT.get((direction, wrong), 'combine')
      assert _list_failed(kernel, storage, placement, direction), wrong


@DIRECTIONS
@pytest.mark.parametrize('storage', ('bfloat16', 'float16'))
def test_a_sum_that_is_rounded_twice_is_out_of_bounds(direction, storage):
  inputs = _draw(storage, 'combine', direction)
  arguments = inputs.config, inputs.policy, inputs.arrays
  for kernel, stages in (
    (RIGHT, set()),
    (dataclasses.replace(RIGHT, wrong=TWICE_ROUNDED), {'y', 'dx'}),
  ):
    outputs = (
      kernel.forward(*arguments)
      if direction == 'forward'
      else kernel.backward(*arguments)
    )
    results = trial_verdicts.judge_stages(inputs, outputs).items()
    assert {n for (n, _), result in results if result.failure} == stages & {
      *outputs
    }


@pytest.fixture(scope='module')
def bench():
  return bench_lib.Bench(CASE, keep=True)


def _list_refused(bench, kernel, direction, *lanes) -> set[tuple[str, str]]:
  case = dataclasses.replace(CASE, direction=direction)
  candidate = numpy_testing.Numpy(kernel, everything=False)
  return numpy_testing.list_refused(bench, case, candidate, *lanes)


@pytest.mark.slow
def test_a_right_kernel_passes_in_every_lane(bench):
  assert not _list_refused(bench, RIGHT, 'both', *verdicts.LANES)


@pytest.mark.slow
def test_no_fault_passes_lane_exact(bench):
  for direction, wrong in FAULTS:
    kernel = dataclasses.replace(RIGHT, wrong=wrong)
    refused_rows = _list_refused(bench, kernel, direction, 'exact')
    assert bool(refused_rows) == (wrong != NO_EXP), wrong


@pytest.mark.parametrize(
  'change', ('', '+ b_down', '+ np.float32(policy.offset)', ', 0, 0')
)
def test_a_case_with_parts_is_judged_elsewhere(bench, tmp_path, change):
  # Given a kernel that knows numpy alone, right or without a part of the layer,
  # when it ran elsewhere on a case that was written,
  instead = ', 1, 1' if change == ', 0, 0' else '+ 0'
  report = numpy_testing.check_elsewhere(bench, tmp_path, (change, instead))
  # then its y says so.
  failed_rows = {(r.stage, r.lane) for r in report.results if r.failure}
  expected = {('y', 'exact'), ('y', 'bounded'), ('layer', 'bounded')}
  assert failed_rows & expected == (expected if change else set())


def test_a_plain_case_says_nothing_of_parts(tmp_path):
  plain = case_lib.Case(preset='tiny', ranks=2)
  folder_writer.write(tmp_path, 'forward', {'real': plain.make()})
  text = (tmp_path / 'case.toml').read_text()
  assert 'swiglu' in text
  for word in ('bias', 'b_gate_up', 'alpha', 'limit', 'offset', 'shared'):
    assert word not in text


@pytest.mark.parametrize('name', ('b_down', 'w_shared_down'))
def test_given_inputs_have_all_of_a_part_or_none(bench, tmp_path, name):
  arrays = dict(bench.real_inputs.arrays)
  config = input_files.from_arrays(arrays).config
  assert (config.bias, config.d_shared) == (True, 20)
  input_files.save_safetensors(tmp_path / 'one.safetensors', arrays)
  assert (
    input_files.load_safetensors(tmp_path / 'one.safetensors').config == config
  )
  flat = arrays | {name: arrays[name].reshape(-1)}
  with pytest.raises(ValueError, match=f'^{name}: expected '):
    input_files.from_arrays(flat)
  del arrays[name]
  with pytest.raises(ValueError, match=f'^{name}: expected x, .*, {name}'):
    input_files.from_arrays(arrays)


def test_exact_data_reach_a_limit_or_are_refused():
  far = dataclasses.replace(CASE, activation='swiglu:limit=5000')
  part = dataclasses.replace(CASE, activation='swiglu:limit=7.5')
  for case, error, message in (
    (far, exact_limits.ExactnessError, 'limit: expected one that exact data'),
    (part, ValueError, 'limit: expected an integer in the exact lane'),
  ):
    with pytest.raises(error, match=message):
      case.data(case.make(), 'exact')


def test_our_backend_refuses_parts():
  clamped = dataclasses.replace(CASE, bias=False, d_shared=0)
  shared = dataclasses.replace(CASE, bias=False, activation='swiglu')
  gelu = dataclasses.replace(clamped, activation='geglu_tanh')
  for case, message in (
    (gelu, "policy.activation: expected one of .*, got 'geglu_tanh'"),
    (CASE, 'bias: expected False for the megakernel, got True'),
    (shared, 'd_shared: expected 0 for the megakernel, got 20'),
    (
      clamped,
      r"policy.activation: expected one of \['swiglu', 'absolute'\] for the "
      "megakernel, .* got 'swiglu:alpha=1.702:limit=7:offset=1'",
    ),
  ):
    inputs = case.make()
    with pytest.raises(ValueError, match=message):
      compiler.compile_forward(inputs.config, inputs.policy)


@pytest.mark.parametrize('name', ('bias', 'activation', 'd_shared'))
def test_a_check_of_our_backend_refuses_parts_at_once(name):
  case = case_lib.Case(**{name: getattr(CASE, name)})
  with pytest.raises(ValueError, match=f'^{name}: expected .* backend_ascend'):
    check.run(check.Request(case))
