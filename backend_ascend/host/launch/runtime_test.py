"""One launch gives the bits of the serial run, whatever the schedule.

Forward and backward; and the same bits however a weight gradient is cut into a
chain.
"""

import itertools
import os
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage as storage_lib
from hpmoe.reference.contract import tensors

FORWARD, BACKWARD = layout.Direction
Kind = layout.Kind
WORKERS = ((1, 1), (3, 5), (24, 48))
THREADS = (1, 2, 7)
GRAINS = ('expert', 'row_block')
# (row block, rows of a link of a weight gradient's chain).
BLOCKS = {
  FORWARD: ((16, None), (64, None)),
  BACKWARD: ((16, None), (16, 16), (8, 24), (64, None)),
}
LAYERS = testing.LAYERS
SMALL = LAYERS['two_ranks']
both_passes = pytest.mark.parametrize('direction', layout.Direction)


def policy(storage='float32', placement='combine', activation='swiglu'):
  return precision.PrecisionPolicy(
    storage=storage, placement=placement, activation=activation
  )


@both_passes
class TestSameBits:
  @pytest.mark.parametrize(
    'layer, grain, placement, storage',
    halved_testing.covering(
      LAYERS, GRAINS, precision.LAUNCHED_PLACEMENTS, storage_lib.KERNEL_FORMATS
    ),
  )
  @pytest.mark.few(11)
  def test_any_workers_threads_blocks_and_chains(
    self, direction, layer, grain, placement, storage
  ):
    # Given a layer, when it is launched on any number of workers and threads,
    # in blocks and chains of any size, then every tensor has the first serial
    # run's bits.
    config, pol = LAYERS[layer], policy(storage, placement)
    inputs = testing.inputs_of(direction, config, pol, name=grain)
    want = None
    for (aic, aiv), (block, chain) in itertools.product(
      WORKERS, BLOCKS[direction]
    ):
      image = testing.compiled(
        direction,
        config,
        pol,
        event_grain=grain,
        row_block=block,
        col_block=block,
        chain_rows=chain,
        num_aic=aic,
        num_aiv=aiv,
      )
      serial = runtime.launch_serial(image, inputs)
      want = want or serial
      assert not testing.differing(serial, want)
      for threads in THREADS:
        actual = runtime.launch(image, inputs, threads=threads)
        case = aic, aiv, block, chain, threads
        assert not testing.differing(actual, want), case
    for name, array in want.items():
      assert np.isfinite(array.astype(np.float32)).all(), name

  @pytest.mark.parametrize(
    'order, routing, grain',
    halved_testing.covering(('interleaved', 'last'), testing.ROUTINGS, GRAINS),
  )
  def test_odd_blocks_and_awkward_routings(
    self, direction, grain, routing, order
  ):
    # Given blocks that divide nothing and experts without rows, when launched,
    # then the bits are those of whole blocks and chains.
    config, pol = LAYERS['four_ranks'], policy('bfloat16', 'before_down')
    inputs = testing.inputs_of(direction, config, pol, routing)
    whole = testing.compiled(direction, config, pol)
    want = runtime.launch_serial(whole, inputs)
    backward = dict(chain_rows=7, order=granularity.WEIGHT_GRAD_ORDERS[order])
    image = testing.compiled(
      direction,
      config,
      pol,
      event_grain=grain,
      row_block=7,
      col_block=11,
      put_rows=5,
      token_block=3,
      num_aic=2,
      num_aiv=3,
      **backward if direction else {},
    )
    for threads in THREADS:
      actual = runtime.launch(image, inputs, threads=threads)
      assert not testing.differing(actual, want), threads

  # That exact data gives the oracle's bits, checks say (`parity_tests`).
  def test_outputs_have_the_contract_of_the_tensors(self, direction):
    pol = policy('bfloat16')
    inputs = testing.inputs_of(direction, SMALL, pol)
    actual = runtime.launch(testing.compiled(direction, SMALL, pol), inputs)
    names = tensors.GRADS if direction else tensors.PLAN + tensors.STAGES
    assert tuple(actual) == tuple(names)
    kinds = dict(storage=ml_dtypes.bfloat16, i32=np.int32, f32=np.float32)
    for name, array in actual.items():
      spec = tensors.SPECS[name]
      assert array.shape == spec.dims(**SMALL.dims()), name
      assert array.dtype == kinds[spec.kind], name


class TestInputs:
  def refusal(self, pol=policy(), **changes) -> str:
    inputs = testing.make_inputs(SMALL, pol)
    inputs |= {k: v(inputs[k].copy()) for k, v in changes.items()}
    image = testing.compile_layer(SMALL, pol)
    with pytest.raises(ValueError) as error:
      runtime.launch(image, inputs)
    return str(error.value)

  @pytest.mark.parametrize('name', ['x', 'topk_weights', 'w_gate_up', 'w_down'])
  @pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
  @pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
  def test_value_that_is_not_finite_is_named(self, name, bad, storage):
    def spoil(array):
      array[1, 2, 1] = bad
      return array

    index = (1, 2, 1) if name in ('x', 'topk_weights') else (1, 2, 1, 0)
    assert self.refusal(policy(storage), **{name: spoil}) == (
      f'{name}: expected finite values, got {np.float32(bad)} at {index}'
    )

  def test_dtype_shape_and_names(self):
    assert self.refusal(x=lambda a: a.astype(np.float64)) == (
      'x: expected dtype float32, got float64'
    )
    assert self.refusal(x=lambda a: a.astype(ml_dtypes.bfloat16)) == (
      'x: expected dtype float32, got bfloat16'
    )
    assert self.refusal(w_down=lambda a: a[:, :, :-1]) == (
      'w_down: expected shape (2, 3, 9, 17), got (2, 3, 8, 17)'
    )
    inputs = testing.make_inputs(SMALL, policy())
    del inputs['x']
    with pytest.raises(ValueError, match="expected .*'x'.*got"):
      runtime.launch(testing.compile_layer(SMALL, policy()), inputs)

  def test_strided_inputs_are_read_as_they_mean(self):
    inputs = testing.make_inputs(SMALL, policy())
    image = testing.compile_layer(SMALL, policy())
    want = runtime.launch(image, inputs)
    strided = {k: np.asfortranarray(v) for k, v in inputs.items()}
    assert not testing.differing(runtime.launch(image, strided), want)


class TestBackwardInputs:
  def refusal(self, pol=policy(), drop=(), image=None, **changes) -> str:
    inputs = testing.make_grad_inputs(SMALL, pol)
    inputs |= {
      k: v(inputs[k].copy()) if k in inputs else v(None)
      for k, v in changes.items()
    }
    for name in drop:
      del inputs[name]
    image = image or testing.compile_grad(SMALL, pol)
    with pytest.raises(ValueError) as error:
      runtime.launch(image, inputs)
    with pytest.raises(ValueError) as second_error:
      runtime.launch_serial(image, inputs)
    assert str(second_error.value) == str(error.value)
    return str(error.value)

  @pytest.mark.parametrize(
    'name', ['dy', 'expert_in', 'gate_up', 'activation', 'returned']
  )
  def test_saved_tensors_are_checked(self, name):
    assert self.refusal(**{name: lambda a: a[:, :-1]}).startswith(
      f'{name}: expected shape'
    )
    assert self.refusal(**{name: lambda a: a.astype(np.float16)}) == (
      f'{name}: expected dtype float32, got float16'
    )
    assert f"'{name}'" in self.refusal(drop=[name])

  def test_dy_is_finite(self):
    def spoil(array):
      array[0, 1, 2] = np.nan
      return array

    assert self.refusal(dy=spoil) == (
      'dy: expected finite values, got nan at (0, 1, 2)'
    )

  def test_a_forward_pass_that_overflowed_has_a_backward_pass(self):
    # Given inputs whose products are beyond float32, when what the forward
    # launch saved is launched backward, then it is no refusal, and the bits are
    # the serial run's.
    large = testing.make_inputs(SMALL, policy())
    large['x'] = np.full_like(large['x'], 3e38)
    forward_outputs = runtime.launch(
      testing.compile_layer(SMALL, policy()), large
    )
    assert not np.isfinite(forward_outputs['gate_up']).all()
    inputs = testing.make_grad_inputs(SMALL, policy())
    inputs = {name: forward_outputs.get(name, inputs[name]) for name in inputs}
    inputs |= {n: large[n] for n in inputs.keys() & large.keys()}
    image = testing.compile_grad(SMALL, policy())

    actual = runtime.launch(image, inputs)

    assert not testing.differing(runtime.launch_serial(image, inputs), actual)

  @pytest.mark.parametrize('placement', tensors.EARLY)
  def test_returned_is_not_read_where_weights_come_early(self, placement):
    # Given weights that experts' ranks apply, when `returned` is left out or
    # spoiled, then nothing changes; at combine both are refused.
    pol = policy(placement=placement)
    inputs = testing.make_grad_inputs(SMALL, pol)
    image = testing.compile_grad(SMALL, pol)
    want = runtime.launch(image, inputs)
    inputs['returned'][:] = np.nan
    assert not testing.differing(runtime.launch(image, inputs), want)
    del inputs['returned']
    assert not testing.differing(runtime.launch(image, inputs), want)
    assert not testing.differing(runtime.launch_serial(image, inputs), want)


class TestDiagnosis:
  @pytest.mark.parametrize('grain', GRAINS)
  @both_passes
  def test_every_kind_without_signal_is_found_at_once(self, direction, grain):
    # Given an image in which one task signals nothing, when launched, then
    # the launch ends at once and names a task that waits for it, by an event
    # that it should have signalled; a link of a chain is waited for by the
    # next one.
    pol = policy(placement='before_down' if direction else 'combine')
    inputs = testing.inputs_of(direction, SMALL, pol)
    image = testing.compiled(
      direction,
      SMALL,
      pol,
      event_grain=grain,
      row_block=16,
      num_aic=3,
      num_aiv=5,
      chain_rows=16 if direction else None,
    )
    tables = image_lib.load(image).tables
    kinds = layout.select_kinds(direction=direction, relay=False)
    ends = {Kind.COMBINE, Kind.COMBINE_GRAD, Kind.TOPK_WEIGHT_GRAD}
    after = dict(itertools.pairwise(kinds))
    for kind, threads in itertools.product(kinds, THREADS):
      task = int(np.flatnonzero(tables['tasks']['kind'] == kind)[0])
      signalled = testing.signalled(tables, task)
      assert bool(signalled) == (kind not in ends)
      if not signalled:
        continue
      begin = time.monotonic()
      with pytest.raises(runtime.WaitError) as error:
        runtime.launch(
          testing.without_signals(image, task), inputs, threads=threads
        )
      assert time.monotonic() - begin < 10
      diagnosis = error.value.diagnosis
      assert diagnosis.reason == 'deadlock'
      if direction == FORWARD:  # whose stages are one after the other
        assert diagnosis.task.kind == after[kind].name.lower()
      assert diagnosis.actual < diagnosis.expected
      # No task of the image signals in its place, and those that do are told.
      assert diagnosis.event in signalled
      assert 0 < diagnosis.missing <= diagnosis.expected - diagnosis.actual
      assert task not in [adder.index for adder in diagnosis.adders]
      for adder in diagnosis.adders:
        assert diagnosis.event in testing.signalled(tables, adder.index)
        assert str(adder) in str(diagnosis)
      text = f'never reached: {diagnosis.missing} too few are added in all, '
      assert text in str(diagnosis)
      assert error.value.plan.keys() == set(tensors.PLAN)
      assert error.value.plan['counts'].sum() == inputs['topk_ids'].size

  def test_deadline_stops_a_launch_that_is_too_slow(self):
    # Given idle threads and a deadline far below the length of a task (the
    # portable kernel takes its time), when launched, then it ends, and with
    # the same image a minute is enough.
    config = config_testing.make_config(r=1, t=256, e=1, k=1, d=512, f=512)
    pol = policy()
    inputs = testing.make_inputs(config, pol)
    image = testing.compile_layer(
      config, pol, row_block=256, col_block=1024, num_aic=1, num_aiv=2
    )
    with pytest.raises(runtime.WaitError) as error:
      runtime.launch(image, inputs, threads=3, deadline_s=1e-6, isa='portable')
    diagnosis = error.value.diagnosis
    assert diagnosis.reason == 'deadline'
    assert 'deadline' in str(error.value)
    runtime.launch(image, inputs, threads=3)

  def test_message_reads_as_a_sentence(self):
    # Given a signal that is left out, when launched, then the sentence names
    # who waits, for what, and who owes it.
    error, name = _run_into_deadlock('missing_signal', layout.Kind.SWIGLU)
    diagnosis = error.diagnosis
    assert diagnosis.missing == 0 and not diagnosis.adders
    assert str(error) == (
      f'deadlock: {diagnosis.task} waits for event {diagnosis.event}, '
      f'activation(rank 0, group 0, part 0): expected {diagnosis.expected}, '
      f'got {diagnosis.actual}; not signalled by: '
      f'{"; ".join(map(str, diagnosis.suspects))}'
    )
    assert diagnosis.suspects[0] == name

  def test_rows_that_do_not_arrive_are_told_with_their_put(self):
    # Given a put that leaves its rows out but counts them, when launched, then
    # it is blamed, not combine, which waits for what never comes home.
    error, name = _run_into_deadlock('dropped_tile', layout.Kind.DISPATCH)
    diagnosis = error.diagnosis
    assert diagnosis.task.kind == 'combine'
    assert (
      diagnosis.losers == (name,)
      and not diagnosis.missing
      and not diagnosis.suspects
    )
    assert str(diagnosis).endswith(
      f'; rows of expert_in did not arrive from: {name}'
    )


def _run_into_deadlock(
  fault, kind
) -> tuple[runtime.WaitError, runtime.TaskName]:
  """Returns how a launch ends whose first task of a kind commits a fault."""
  image = testing.compile_layer(SMALL, policy())
  tasks = image_lib.load(image).tables['tasks']
  task = int(np.flatnonzero(tasks['kind'] == kind)[0])
  inputs = testing.make_inputs(SMALL, policy())
  with pytest.raises(runtime.WaitError) as error:
    runtime.launch(image, inputs, fault=faults.Fault(fault, task))
  return error.value, runtime.task_name(image_lib.load(image), task)


STARVED = """
import resource
import ml_dtypes
import numpy as np
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

tokens = 1 << 17
image = testing.compile_layer(
    config_testing.make_config(r=1, t=tokens, e=1, k=1, d=64, f=64),
    precision.PrecisionPolicy('bfloat16'),
    row_block=tokens, put_rows=tokens, token_block=tokens,
    num_aic=1, num_aiv=1,
)
ones = lambda *shape: np.ones(shape, np.dtype('bfloat16'))
inputs = dict(
    x=ones(1, tokens, 64), topk_ids=np.zeros((1, tokens, 1), np.int32),
    topk_weights=np.ones((1, tokens, 1), np.float32),
    w_gate_up=ones(1, 1, 64, 128), w_down=ones(1, 1, 64, 64),
)
with open('/proc/self/statm') as file:
  held = int(file.read().split()[0]) * resource.getpagesize()
for more in range(0, 512, 8):
  limit = held + (more << 20)
  resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
  try:
    runtime.launch(image, inputs, threads=2)
    print('done')
    break
  except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(
  'san' in os.environ.get('LD_PRELOAD', ''),
  reason='a sanitizer needs the whole address space',
)
def test_too_little_memory_is_told():
  # Given too little memory for the tensors, then for the scratch of a thread,
  # then enough, when launched, then each is told and the process lives.
  starved = subprocess.run(
    [sys.executable, '-c', STARVED], capture_output=True, text=True
  )
  assert not starved.returncode, starved.stderr
  assert 'std::bad_alloc' in starved.stdout
  assert starved.stdout.endswith('done\n')
