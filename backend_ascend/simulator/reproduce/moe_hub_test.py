"""A hub's addresses, bytes of its exchange, and its judgements."""

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.reproduce import dysharp as exchange
from hpmoe.backend_ascend.simulator.reproduce import moe_hub

LAYER = exchange.Layer(
  64, 64, 16, 64, 4, 8, gemms=3, figure='cube_bf16', by_expert=True
)


@pytest.fixture(name='machine', scope='module')
def _machine():
  return moe_hub.WITNESS.load()[moe_hub.MACHINE]


@pytest.mark.parametrize(
  'parts', [moe_hub.Parts(), moe_hub.Parts(False, False)]
)
def test_each_row_has_an_address_of_its_own(machine, parts):
  # Given rows of eight ranks, when they arrive, then each expert's have the
  # addresses from 0 on, once each, but not those of ranks in turn: otherwise
  # arrival would be nothing to be judged.
  row = moe_hub.moe_hub(LAYER, machine, parts).timing.row
  experts = moe_hub.draw_experts(LAYER).ravel()
  rows_by_expert = [
    row[: len(experts)][experts == e] for e in range(LAYER.experts)
  ]
  for rows in rows_by_expert:
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(rows)))
  assert any((np.diff(rows) < 0).any() for rows in rows_by_expert)


def test_the_exchange_carries_rows_there_and_back(machine):
  timing = moe_hub.moe_hub(LAYER, machine).timing
  rank = moe_hub.draw_experts(LAYER) * LAYER.ranks // LAYER.experts
  out = (rank != np.arange(LAYER.ranks)[:, None, None]).sum((1, 2))
  # A row of 128 B is a packet of 9 flits; home goes a share of each tile's.
  expert_rows = np.bincount(
    moe_hub.draw_experts(LAYER).ravel(), minlength=LAYER.experts
  )
  home = np.zeros(LAYER.ranks)
  for expert, rows in enumerate(expert_rows):
    for tile in range(-(-rows // 128)):
      payload = min(128, rows - tile * 128) * 128 / 8
      flits = np.ceil(payload / 128) + np.ceil(payload / 16)
      home[expert // 2] += 7 * flits * 16
  np.testing.assert_allclose(timing.up_bytes, out * 144 + home, rtol=1e-12)


def test_each_part_takes_time_away(machine):
  whole = moe_hub.moe_hub(LAYER, machine)
  assert whole.window <= whole.timing.total
  plain = moe_hub.moe_hub(LAYER, machine, moe_hub.Parts(joins=False))
  assert plain.window > whole.window
  # A block that polls sees late, and takes its turn from a counter.
  for free in ('poll', 'aic_task'):
    free_machine = machine.with_figures(**{free: 0})
    assert (
      moe_hub.moe_hub(LAYER, free_machine, moe_hub.Parts(counts=False)).window
      > whole.window
    )


def test_the_fitted_row_is_met(machine):
  assert moe_hub._compute_exposed(machine) == pytest.approx(24, rel=1e-5)


def test_permutations_are_of_rows_in_memory(machine):
  # Four times 256 rows of 128 B, read and written, and a launch.
  permuted = 4 * (2 * 256 * 128 / machine['hbm'] + machine['launch'])
  alone = exchange.deepep(LAYER, machine).total
  assert moe_hub.megatron(LAYER, machine) == pytest.approx(
    alone + permuted, rel=1e-12
  )


def test_growth_and_the_most_exposed_are_judged():
  gains = {
    name: 1 + layer.tokens / 1e5 for name, layer in moe_hub.LAYERS.items()
  }
  values = {moe_hub.joins_name(name): gain for name, gain in gains.items()}
  assert not moe_hub.no_growth(values) and moe_hub.more_elsewhere(values)
  values[moe_hub.joins_name('Qwen2-MoE at 4096')] = 2.0
  assert not moe_hub.more_elsewhere(values)
  values[moe_hub.joins_name('Mixtral-8x7B at 4096')] = 1.0
  assert 'Mixtral-8x7B at 4096 1.000' in moe_hub.no_growth(values)


@pytest.mark.parametrize('order, count', [('source', 16), ('token', 64 * 4)])
def test_a_fixed_order_is_told_first_and_gives_no_addresses(
  machine, order, count
):
  # Given counts of 16 experts, or 64 tokens' 4 experts, of 4 B each, when all
  # are told to seven others, then links carry that besides, and nothing else.
  free = moe_hub.moe_hub(LAYER, machine).timing
  fixed = moe_hub.moe_hub(LAYER, machine, moe_hub.Parts(order=order)).timing
  packets = -(-count * 4 // 128)
  flits = packets + count * 4 // 16
  np.testing.assert_allclose(
    fixed.up_bytes - free.up_bytes, 7 * flits * 16, rtol=1e-12
  )
  assert (fixed.row == -1).all() and fixed.total > free.total


def test_rows_by_source_wait_for_one_source(machine):
  # Its tiles hold rows of a rank or two, which has many more to send first.
  layer = moe_hub.build_layer('Qwen2-MoE', 1024)
  took = {
    order: moe_hub.moe_hub(layer, machine, moe_hub.Parts(order=order)).window
    for order in ('source', 'token')
  }
  assert took['source'] > 1.2 * took['token']
