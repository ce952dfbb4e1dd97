"""Orders of arrival: launches against their oracles, bit for bit."""

import dataclasses
import json

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.parity_tests.ascend.determinism import arrival_orders
from hpmoe.parity_tests.ascend.determinism import interleavings
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.determinism import variants

_ARRIVAL = interleavings.Plan(
  interleavings=3, dtypes=('float32', 'bfloat16', 'float16')
)
_SWITCH = interleavings.Plan(
  preset='small', tokens=8, interleavings=3, dtypes=('float32', 'bfloat16')
)


_A3 = machine_lib.load('ascend_a3')
# The plan of an order, and the sums whose bits it changes.
_CHANGING = {
  'arrival': (_ARRIVAL, {'d_w_down', 'd_w_gate_up'}),
  'switch': (_SWITCH, {'y', 'dx'}),
}


def _silent(step):
  del step


def _by_tensor(rows, dtype='float32'):
  return {row.tensor: row for row in rows if row.dtype == dtype}


def test_arrival_changes_gradients_of_weights_alone():
  # Given rows that lie as they came, when launched, then tokens have the bits
  # that they had, gradients of weights have others, and each those of its
  # oracle.
  rows = arrival_orders.run(_ARRIVAL, 'arrival', _silent)
  assert arrival_orders.match_oracle(rows) and len(rows) == 3 * 5
  row_of_tensor = _by_tensor(rows)
  for name in ('y', 'dx', 'd_topk_weights'):
    assert row_of_tensor[name].apart == 0 and row_of_tensor[name].first is None
  for name in ('d_w_down', 'd_w_gate_up'):
    assert row_of_tensor[name].share > 0.3 and row_of_tensor[name].max_ulp > 0
  text = arrival_orders.text('arrival', rows)
  assert 'bits change by design for d_w_down, d_w_gate_up, and ' in text
  assert 'all as their oracle says' in text


def test_two_slots_have_no_order():
  plan = dataclasses.replace(_ARRIVAL, dtypes=('float32',))
  rows = arrival_orders.run(plan, 'switch', _silent)
  assert not any(row.apart for row in rows)


@pytest.mark.parametrize('order', _CHANGING)
@pytest.mark.parametrize('machine', [None, _A3], ids=['seeds', 'simulated'])
@pytest.mark.few(1)
def test_another_order_than_the_oracles_is_named(monkeypatch, order, machine):
  # Given launches that keep the fixed order, when an oracle expects another,
  # then exactly the sums over what is ordered are unlike it.
  plan, tensors = _CHANGING[order]
  original = arrival_orders._launches

  def launch_in_fixed_order(comes, layer_pass, layer_inputs, options):
    still = variants.as_it_is(layer_inputs.config, 'fixed')
    fixed_pair = variants.pair(layer_inputs, still)
    fixed_inputs = variants.inputs(layer_inputs, fixed_pair)
    for come, pair, _ in original(comes, layer_pass, layer_inputs, options):
      outputs = arrival_orders._launch(layer_pass, fixed_inputs, options, 0)
      yield (
        come,
        pair,
        {
          name: array if name in tensors else pair.map_tensor(name, array)
          for name, array in outputs.items()
          if name in layer_pass.results
        },
      )

  monkeypatch.setattr(arrival_orders, '_launches', launch_in_fixed_order)
  rows = arrival_orders.run(
    dataclasses.replace(plan, dtypes=('float32',)), order, _silent, machine
  )
  assert not arrival_orders.match_oracle(rows)
  assert {row.tensor for row in rows if row.unlike_oracle} == tensors
  assert 'NOT as their oracle says' in arrival_orders.text(order, rows)


@pytest.mark.parametrize(
  'order, machine, launches',
  [('arrival', _A3, 8), ('switch', _A3, 1), ('switch', None, 3)],
)
@pytest.mark.few(1)
def test_an_order_is_its_oracles(order, machine, launches):
  # Given what comes first on a machine, or by a seed, when each expert's rows
  # lie so, or each token's are added so, then bits are its oracle's, and those
  # of sums over what is ordered others than the law's.
  plan, tensors = _CHANGING[order]
  if machine:
    plan = dataclasses.replace(plan, dtypes=('float32',))
  rows = arrival_orders.run(plan, order, _silent, machine)
  assert arrival_orders.match_oracle(rows)
  assert {row.tensor for row in rows if row.apart} == tensors
  assert {row.launches for row in rows} == {launches}


def test_rows_arrive_when_their_puts_end():
  # Given a core that moves 1 MB/s over links, when its rank puts slices one
  # after the other, then a slice's rows are there at once, and none before all
  # bytes that the core has put until then.
  layer_inputs = interleavings.make_inputs(_ARRIVAL, 'float32')
  (layer_pass,) = passes.from_direction('forward')
  image = interleavings.compile_image(
    layer_pass, layer_inputs, next(_ARRIVAL.options())
  )
  assert image.options.num_aiv == 1
  slow = _A3.with_figures(aiv_link=1e6)
  ids, config = layer_inputs.arrays['topk_ids'], layer_inputs.config
  dispatch_times, return_times = (
    arrival_orders.simulate_arrivals(image, slow, ids, kind).reshape(ids.shape)
    for kind in (layout.Kind.DISPATCH, layout.Kind.RETURN)
  )
  size = 4e-6 * config.d_model
  for rank, (rank_ids, times) in enumerate(zip(ids, dispatch_times)):
    away = rank_ids // config.experts_per_rank != rank
    for expert in np.unique(rank_ids):
      (moment,) = np.unique(times[rank_ids == expert])
      assert moment >= size * np.sum(away & (times <= moment))
  assert (return_times > dispatch_times).all()


def test_a_seed_draws_an_order_of_its_own():
  layer_inputs = interleavings.make_inputs(_ARRIVAL, 'float32')
  orders = [
    arrival_orders._draw_variant('arrival', layer_inputs, seed).tokens
    for seed in range(3)
  ]
  for tokens in orders:
    np.testing.assert_array_equal(np.sort(tokens.ravel()), np.arange(64))
  assert (orders[0] != orders[1]).any() and (orders[1] != orders[2]).any()
  repeat = arrival_orders._draw_variant('arrival', layer_inputs, 1).tokens
  np.testing.assert_array_equal(orders[1], repeat)


def test_the_command_tells_and_writes_it(capsys, tmp_path):
  path = tmp_path / 'determinism.json'
  arguments = ('--interleavings=2', '--dtype=f32', f'--json={path}')
  assert main.main(('determinism', '--order=arrival', *arguments)) == cli.PARITY
  assert 'order of arrival: bits change' in capsys.readouterr().out
  report = json.loads(path.read_text())
  assert report['verdict'] == 'pass'
  assert any(row['most'] > 0 for row in report['rows'])
