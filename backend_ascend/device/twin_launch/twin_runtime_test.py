"""One image, the host runtime and the twin: the same bytes, the same tensors.

Cheap cases; `hpmoe check --backend=ascend_twin` and `make sweep` have the rest.
"""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

# Rows, columns and depths that no block divides.
CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=13, num_experts=4, top_k=2, d_model=24, d_ff=20
)
OPTIONS = granularity.Options(
  num_aic=2, num_aiv=3, row_block=8, col_block=16, chain_rows=8
)
FORWARD, BACKWARD = layout.Direction.FORWARD, layout.Direction.BACKWARD
EXACT = dict(activation='absolute')


def policy_of(storage='float32', placement='combine', **changes):
  return precision.PrecisionPolicy(storage, placement=placement, **changes)


def case(direction, policy, routing='uniform', options=OPTIONS, exact=True):
  """Returns an image and its inputs; the forward pass's are the host's."""
  image = compiler.COMPILE[direction](CONFIG, policy, options).image
  inputs = testing.make_inputs(CONFIG, policy, routing, exact=exact)
  if direction == FORWARD:
    return image, inputs
  forward = compiler.compile_forward(CONFIG, policy, options).image
  outputs = runtime.launch(forward, inputs)
  dy = testing.make_inputs(CONFIG, policy, exact=exact, name='dy')['x']
  unread = {'returned'} if policy.placement == 'before_down' else set()
  values = inputs | outputs | dict(dy=dy)
  names = set(arrays.INPUTS[BACKWARD]) - unread
  return image, {name: values[name] for name in names}


def launch_with_fault(fault, error, headers=''):
  """Returns the error of a launch with a fault, and the faulty task."""
  image, inputs = case(FORWARD, policy_of(**EXACT))
  plan = runtime.route(image, inputs['topk_ids'])
  task = faults.choose_target(image, plan, fault)
  modes = twin_runtime.Modes(include=headers)
  with pytest.raises(error) as error_info:
    twin_runtime.run(
      image, inputs, modes=modes, fault=faults.Fault(fault, task)
    )
  return error_info.value, task


def list_differing(actual, expected) -> list[str]:
  return [
    name
    for name in expected
    if not np.array_equal(
      arrays.bits(actual[name]), arrays.bits(expected[name])
    )
  ]


# tools/sync/probe_test.py tests that exact data have the host's bits in every
# order.
class TestOneImageInBoth:
  @pytest.mark.parametrize('direction', [FORWARD, BACKWARD])
  @pytest.mark.few(1)
  def test_serial_kernels_have_equal_bits_on_real_data(self, direction):
    policy = policy_of('bfloat16', 'before_down')
    image, inputs = case(direction, policy, exact=False)
    for mmad_order in twin_runtime.MMAD_ORDERS:
      auto_sync = direction == FORWARD
      modes = twin_runtime.Modes(mmad_order=mmad_order, auto_sync=auto_sync)
      want = twin_runtime.launch_serial(image, inputs, modes=modes)
      assert not list_differing(
        twin_runtime.launch(image, inputs, modes=modes), want
      )

  def test_the_order_of_sums_is_a_policy_that_shows(self):
    image, inputs = case(FORWARD, policy_of(), exact=False)
    bits_of_order = {
      order: twin_runtime.launch(
        image, inputs, modes=twin_runtime.Modes(mmad_order=order)
      )['gate_up'].tobytes()
      for order in twin_runtime.MMAD_ORDERS
    }
    assert len(set(bits_of_order.values())) == len(bits_of_order)


def test_a_task_that_does_not_wait_is_found():
  error, task = launch_with_fault('missing_wait', twin_runtime.TwinError)
  first = error.findings[0]
  assert task in [name.index for name in first.tasks if name]
  assert 'cube_load.h' in first.file


@twin_testing.needs_asc_devkit
class TestRealHeaders:
  """One source gives the same bits over real headers and our own."""

  @pytest.mark.parametrize('direction', [FORWARD, BACKWARD])
  @pytest.mark.parametrize('order', twin_runtime.ORDERS)
  def test_have_equal_bits_and_tasks_on_real_data(self, direction, order):
    image, inputs = case(direction, policy_of('bfloat16'), exact=False)
    own_run, devkit_run = (
      twin_runtime.run(
        image, inputs, modes=twin_runtime.Modes(order, include=headers)
      )
      for headers in ('', twin_testing.ASC_DEVKIT)
    )
    assert not list_differing(devkit_run.outputs, own_run.outputs)
    for unit in ('cube_steps', 'bytes_mte1', 'bytes_mte2', 'bytes_mte3'):
      assert devkit_run.counts[unit].sum() == own_run.counts[unit].sum()

  def test_find_the_same_in_the_same_place(self):
    own_finding, devkit_finding = (
      launch_with_fault('missing_wait', twin_runtime.TwinError, headers)[
        0
      ].findings[0]
      for headers in ('', twin_testing.ASC_DEVKIT)
    )
    assert (devkit_finding.kind, devkit_finding.line) == (
      own_finding.kind,
      own_finding.line,
    )
    assert devkit_finding.tasks == own_finding.tasks
    # It is the other code that ran: of those headers' intrinsics.
    assert 'DataCopy reads' in own_finding.text
    assert 'copy_gm_to_cbuf_multi_nd2nz' in devkit_finding.text


def test_a_folder_without_headers_is_named(tmp_path):
  image, inputs = case(FORWARD, policy_of(**EXACT))
  modes = twin_runtime.Modes(include=str(tmp_path))
  with pytest.raises(ValueError, match='^include: expected a folder that'):
    twin_runtime.run(image, inputs, modes=modes)


class TestRefusals:
  @pytest.mark.parametrize(
    'changes, message',
    [
      (dict(storage='float16'), r'^policy.storage: expected float32'),
      (
        dict(accumulation_order='even_odd_32'),
        r'^policy.accumulation_order: expected ascending for ascend, got '
        r'even_odd_32$',
      ),
      (
        dict(placement='epilogue'),
        r'^policy.placement: expected combine or before_down for ascend, got '
        r'epilogue$',
      ),
    ],
  )
  def test_what_the_source_has_no_tiles_for(self, changes, message):
    policy = policy_of(**dict(storage='bfloat16', **EXACT) | changes)
    image, inputs = case(FORWARD, policy)
    with pytest.raises(ValueError, match=message):
      twin_runtime.launch(image, inputs)

  def test_a_tile_that_does_not_fit(self):
    config = config_lib.MoEConfig(
      num_ranks=1, num_tokens=600, num_experts=1, top_k=1, d_model=16, d_ff=512
    )
    options = granularity.Options(
      num_aic=1, num_aiv=1, row_block=512, col_block=1024
    )
    image = compiler.compile_forward(config, policy_of(), options).image
    refusal = _native.find_refusal(image)
    assert refusal.startswith(
      'row_block, col_block: expected tiles that fit in '
    )
    assert 'of L0C' in refusal

  def test_weight_tiles_as_high_as_they_are_wide(self):
    # Given an NPU's own tiles, all fit; were those of weight gradients 256 x
    # 256, their sums would not.
    config = config_lib.MoEConfig(
      num_ranks=1, num_tokens=8, num_experts=1, top_k=1, d_model=512, d_ff=512
    )
    high = dataclasses.replace(granularity.NPU_OPTIONS, weight_rows=None)
    for options, fits in ((granularity.NPU_OPTIONS, True), (high, False)):
      for storage in ('float32', 'bfloat16'):
        policy = policy_of(storage)
        image = compiler.compile_backward(config, policy, options).image
        refusal = _native.find_refusal(image)
        assert (refusal is None) == fits
        assert fits or 'of L0C' in refusal

  def test_inputs_that_are_not_the_image_s(self):
    image, inputs = case(FORWARD, policy_of(**EXACT))
    with pytest.raises(ValueError, match=r'^x: expected shape'):
      twin_runtime.launch(image, inputs | dict(x=inputs['x'][:, 1:]))
    inputs['topk_ids'][0, 0] = 0
    with pytest.raises(ValueError, match='distinct experts'):
      twin_runtime.launch(image, inputs)

  def test_modes_that_do_not_exist(self):
    for name in ('order', 'mmad_order', 'exp'):
      with pytest.raises(ValueError, match=f'^{name}: expected one of'):
        twin_runtime.Modes(**{name: 'sideways'})


# twin_commands_test.py has the task that does not wait.
def test_a_task_that_does_not_signal_is_diagnosed():
  error, task = launch_with_fault('missing_signal', runtime.WaitError)
  diagnosis = error.diagnosis
  assert (
    diagnosis.task.kind == 'swiglu'
    and diagnosis.expected == diagnosis.actual + 1
  )
  assert task in [suspect.index for suspect in diagnosis.suspects]
  assert set(error.plan) == set(tensors.PLAN)
