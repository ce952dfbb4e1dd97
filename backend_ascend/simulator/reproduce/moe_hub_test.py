"""A hub's addresses, bytes of its exchange, and its judgements."""

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.reproduce import dysharp_flows as exchange
from hpmoe.backend_ascend.simulator.reproduce import moe_hub
from hpmoe.backend_ascend.simulator.reproduce import moe_hub_flows as flows

OF = exchange.Layer(
  64, 64, 16, 64, 4, 8, gemms=3, figure='cube_bf16', by_expert=True
)


@pytest.fixture(name='machine', scope='module')
def _machine():
  return moe_hub.WITNESS.load()[moe_hub.MACHINE]


@pytest.mark.parametrize('parts', [flows.Parts(), flows.Parts(False, False)])
def test_each_row_has_an_address_of_its_own(machine, parts):
  # Given rows of eight ranks, when they arrive, then each expert's have the
  # addresses from 0 on, once each, but not those of ranks in turn: otherwise
  # arrival would be nothing to be judged.
  row = flows.moe_hub(OF, machine, parts).timed.row
  experts = flows.chosen(OF).ravel()
  given = [row[: len(experts)][experts == e] for e in range(OF.experts)]
  for rows in given:
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(rows)))
  assert any((np.diff(rows) < 0).any() for rows in given)


def test_the_exchange_carries_rows_there_and_back(machine):
  timed = flows.moe_hub(OF, machine).timed
  rank = flows.chosen(OF) * OF.ranks // OF.experts
  out = (rank != np.arange(OF.ranks)[:, None, None]).sum((1, 2))
  # A row of 128 B is a packet of 9 flits; home goes a share of each tile's.
  held = np.bincount(flows.chosen(OF).ravel(), minlength=OF.experts)
  home = np.zeros(OF.ranks)
  for expert, rows in enumerate(held):
    for tile in range(-(-rows // 128)):
      payload = min(128, rows - tile * 128) * 128 / 8
      flits = np.ceil(payload / 128) + np.ceil(payload / 16)
      home[expert // 2] += 7 * flits * 16
  np.testing.assert_allclose(timed.up_bytes, out * 144 + home, rtol=1e-12)


def test_each_part_takes_time_away(machine):
  whole = flows.moe_hub(OF, machine)
  assert whole.window <= whole.timed.total
  plain = flows.moe_hub(OF, machine, flows.Parts(joins=False))
  assert plain.window > whole.window
  # A block that polls sees late, and takes its turn from a counter.
  for free in ('poll', 'aic_task'):
    one = machine.with_figures(**{free: 0})
    assert (
      flows.moe_hub(OF, one, flows.Parts(counts=False)).window > whole.window
    )


def test_the_fitted_row_is_met(machine):
  assert moe_hub._exposed(machine) == pytest.approx(24, rel=1e-5)


def test_permutations_are_of_rows_in_memory(machine):
  # Four times 256 rows of 128 B, read and written, and a launch.
  permuted = 4 * (2 * 256 * 128 / machine['hbm'] + machine['launch'])
  alone = exchange.deepep(OF, machine).total
  assert flows.megatron(OF, machine) == pytest.approx(
    alone + permuted, rel=1e-12
  )


def test_growth_and_the_most_exposed_are_judged():
  gains = {name: 1 + of.tokens / 1e5 for name, of in moe_hub.LAYERS.items()}
  values = {moe_hub.joins_name(name): gain for name, gain in gains.items()}
  assert not moe_hub.no_growth(values) and moe_hub.more_elsewhere(values)
  values[moe_hub.joins_name('Qwen2-MoE at 4096')] = 2.0
  assert not moe_hub.more_elsewhere(values)
  values[moe_hub.joins_name('Mixtral-8x7B at 4096')] = 1.0
  assert 'Mixtral-8x7B at 4096 1.000' in moe_hub.no_growth(values)


@pytest.mark.parametrize('order, told', [('source', 16), ('token', 64 * 4)])
def test_a_fixed_order_is_told_first_and_gives_no_addresses(
  machine, order, told
):
  # Given counts of 16 experts, or 64 tokens' 4 experts, of 4 B each, when all
  # are told to seven others, then links carry that besides, and nothing else.
  free = flows.moe_hub(OF, machine).timed
  fixed = flows.moe_hub(OF, machine, flows.Parts(order=order)).timed
  packets = -(-told * 4 // 128)
  flits = packets + told * 4 // 16
  np.testing.assert_allclose(
    fixed.up_bytes - free.up_bytes, 7 * flits * 16, rtol=1e-12
  )
  assert (fixed.row == -1).all() and fixed.total > free.total


def test_rows_by_source_wait_for_one_source(machine):
  # Its tiles hold rows of a rank or two, which has many more to send first.
  of = moe_hub.layer('Qwen2-MoE', 1024)
  took = {
    order: flows.moe_hub(of, machine, flows.Parts(order=order)).window
    for order in ('source', 'token')
  }
  assert took['source'] > 1.2 * took['token']
