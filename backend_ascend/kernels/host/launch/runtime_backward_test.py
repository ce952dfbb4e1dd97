"""One backward launch gives the bits of the serial run, whatever the schedule.

And the same bits however a weight gradient is cut into a chain.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest

from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

WORKERS = ((1, 1), (3, 5), (24, 48))
THREADS = (1, 2, 7)
LAYERS = {
  'one_of_everything': config_lib.MoEConfig(
    num_ranks=1, num_tokens=1, num_experts=1, top_k=1, d_model=1, d_ff=1
  ),
  'one_rank': config_lib.MoEConfig(
    num_ranks=1, num_tokens=33, num_experts=5, top_k=2, d_model=24, d_ff=20
  ),
  'two_ranks': config_lib.MoEConfig(
    num_ranks=2, num_tokens=37, num_experts=6, top_k=3, d_model=17, d_ff=9
  ),
  'all_experts': config_lib.MoEConfig(
    num_ranks=2, num_tokens=5, num_experts=4, top_k=4, d_model=8, d_ff=8
  ),
  'four_ranks': config_lib.MoEConfig(
    num_ranks=4, num_tokens=19, num_experts=8, top_k=3, d_model=20, d_ff=12
  ),
}
SMALL = LAYERS['two_ranks']


def policy(storage='float32', placement='combine', activation='swiglu'):
  return precision.PrecisionPolicy(
    storage=storage, placement=placement, activation=activation
  )


class TestSameBits:
  @pytest.mark.parametrize('storage', ['float32', 'bfloat16', 'float16'])
  @pytest.mark.parametrize('placement', precision.LAUNCHED)
  @pytest.mark.parametrize('grain', ['expert', 'row_block'])
  @pytest.mark.parametrize('layer', LAYERS)
  def test_any_workers_threads_blocks_and_chains(
    self, layer, grain, placement, storage
  ):
    # Given a layer, when its backward pass is launched on any number of
    # workers and threads, in blocks and chains of any size, then every tensor
    # has the first serial run's bits.
    config, pol = LAYERS[layer], policy(storage, placement)
    inputs = testing.make_grad_inputs(config, pol, name=grain)
    want = None
    for (aic, aiv), (block, chain) in itertools.product(
      WORKERS, ((16, None), (16, 16), (8, 24), (64, None))
    ):
      image = testing.compile_grad(
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
        got = runtime.launch(image, inputs, threads=threads)
        case = aic, aiv, block, chain, threads
        assert not testing.differing(got, want), case
    for name, array in want.items():
      assert np.isfinite(array.astype(np.float32)).all(), name

  @pytest.mark.parametrize('order', ['interleaved', 'last'])
  @pytest.mark.parametrize('routing', testing.ROUTINGS)
  @pytest.mark.parametrize('grain', ['expert', 'row_block'])
  def test_odd_blocks_and_awkward_routings(self, grain, routing, order):
    # Given blocks that divide nothing and experts without rows, when launched,
    # then the bits are those of whole chains.
    config, pol = LAYERS['four_ranks'], policy('bfloat16', 'before_down')
    inputs = testing.make_grad_inputs(config, pol, routing)
    whole = testing.compile_grad(config, pol)
    want = runtime.launch_serial(whole, inputs)
    image = testing.compile_grad(
      config,
      pol,
      event_grain=grain,
      row_block=7,
      col_block=11,
      put_rows=5,
      token_block=3,
      num_aic=2,
      num_aiv=3,
      chain_rows=7,
      order=flow_lib.WEIGHT_GRAD_ORDERS[order],
    )
    for threads in THREADS:
      got = runtime.launch(image, inputs, threads=threads)
      assert not testing.differing(got, want), threads

  @pytest.mark.parametrize('chain', [None, 4])
  def test_many_launches_in_a_row(self, chain):
    # Races are rare: many short launches, more threads than cores.
    pol = policy('float32', 'before_down')
    inputs = testing.make_grad_inputs(SMALL, pol)
    image = testing.compile_grad(
      SMALL,
      pol,
      row_block=4,
      col_block=8,
      num_aic=3,
      num_aiv=5,
      chain_rows=chain,
    )
    want = runtime.launch_serial(image, inputs)
    for launch in range(50):
      got = runtime.launch(image, inputs, threads=1 + launch % 5)
      assert not testing.differing(got, want), launch


class TestAgainstLoops:
  @pytest.mark.parametrize('routing', testing.ROUTINGS)
  @pytest.mark.parametrize('placement', precision.LAUNCHED)
  @pytest.mark.parametrize('storage', ['float32', 'bfloat16', 'float16'])
  @pytest.mark.parametrize('layer', LAYERS)
  def test_exact_data_gives_the_loops_bits(
    self, layer, storage, placement, routing
  ):
    # Given integers so small that every stored value is exact, when launched,
    # then every tensor equals the loop's: gradients of experts without rows
    # and rows past the last valid one are zero, not what was there.
    config = LAYERS[layer]
    pol = policy(storage, placement, 'absolute')
    inputs = testing.make_grad_inputs(config, pol, routing, exact=True)
    want = testing.dumb_grad(config, pol, inputs)
    for name, array in want.items():
      stored = np.float32 if name == 'd_topk_weights' else inputs['dy'].dtype
      assert (array.astype(stored).astype(np.float64) == array).all(), name
    for grain, chain in itertools.product(('expert', 'row_block'), (None, 16)):
      image = testing.compile_grad(
        config,
        pol,
        event_grain=grain,
        row_block=16,
        col_block=16,
        num_aic=2,
        num_aiv=3,
        chain_rows=chain,
      )
      got = runtime.launch(image, inputs, threads=2)
      assert set(got) == set(want)
      for name in want:
        assert (got[name].astype(np.float64) == want[name]).all(), name

  def test_outputs_have_the_contract_of_the_tensors(self):
    pol = policy('bfloat16')
    inputs = testing.make_grad_inputs(SMALL, pol)
    got = runtime.launch(testing.compile_grad(SMALL, pol), inputs)
    specs = [tensors.SPECS[name] for name in tensors.GRADS]
    assert list(got) == [s.name for s in specs]
    for spec in specs:
      array = got[spec.name]
      kind = {'storage': ml_dtypes.bfloat16, 'f32': np.float32}[spec.kind]
      assert array.shape == spec.dims(**SMALL.dims()), spec.name
      assert array.dtype == kind, spec.name


class TestInputs:
  def refusal(self, pol=policy(), drop=(), image=None, **changes) -> str:
    inputs = testing.make_grad_inputs(SMALL, pol)
    inputs |= {
      k: v(inputs[k].copy()) if k in inputs else v(None)
      for k, v in changes.items()
    }
    for name in drop:
      del inputs[name]
    image = image or testing.compile_grad(SMALL, pol)
    with pytest.raises(ValueError) as raised:
      runtime.launch(image, inputs)
    with pytest.raises(ValueError) as again:
      runtime.launch_serial(image, inputs)
    assert str(again.value) == str(raised.value)
    return str(raised.value)

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
    saved = runtime.launch(testing.compile_layer(SMALL, policy()), large)
    assert not np.isfinite(saved['gate_up']).all()
    inputs = testing.make_grad_inputs(SMALL, policy())
    inputs = {name: saved.get(name, inputs[name]) for name in inputs}
    inputs |= {n: large[n] for n in inputs.keys() & large.keys()}
    image = testing.compile_grad(SMALL, policy())

    got = runtime.launch(image, inputs)

    assert not testing.differing(runtime.launch_serial(image, inputs), got)

  def test_forward_inputs_are_not_backward_inputs(self):
    message = self.refusal(image=testing.compile_layer(SMALL, policy()))
    assert message.startswith("inputs: expected ['topk_ids', ")
    assert "'x']" in message
    assert "'y'" in self.refusal(y=lambda _: np.zeros(1, np.float32))

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
  @pytest.mark.parametrize('threads', THREADS)
  @pytest.mark.parametrize('grain', ['expert', 'row_block'])
  def test_every_kind_without_signal_is_found_at_once(self, grain, threads):
    # Given an image in which one task signals nothing, when launched, then
    # the launch ends and names an event that the task should have signalled;
    # a link of a chain is waited for by the next one.
    pol = policy(placement='before_down')
    inputs = testing.make_grad_inputs(SMALL, pol)
    image = testing.compile_grad(
      SMALL,
      pol,
      event_grain=grain,
      row_block=16,
      num_aic=3,
      num_aiv=5,
      chain_rows=16,
    )
    tables = image_lib.load(image).tables
    kinds = set()
    for kind in layout.kinds(direction=layout.Direction.BACKWARD, relay=False):
      task = int(np.flatnonzero(tables['tasks']['kind'] == kind)[0])
      if not testing.signalled(tables, task):
        continue
      kinds.add(kind)
      with pytest.raises(runtime.WaitError) as error:
        runtime.launch(
          testing.without_signals(image, task), inputs, threads=threads
        )
      found = error.value.diagnosis
      assert found.reason == 'deadlock'
      assert found.actual < found.expected
      assert found.event in testing.signalled(tables, task)
    ends = {layout.Kind.COMBINE_GRAD, layout.Kind.TOPK_WEIGHT_GRAD}
    assert len(kinds) == 7 and not kinds & ends
