"""Bytes of each system of CAIS against their sums, and its judgements."""

import pytest

from hpmoe.backend_ascend.simulator.reproduce import cais
from hpmoe.backend_ascend.simulator.reproduce import cais_systems
from hpmoe.backend_ascend.simulator.reproduce import factors

SUB_LAYER = cais_systems.SubLayer(tokens=4096, hidden=256, depth=64, width=512)
# A packet of 128 B is 9 flits, and one of a request.
DATA, ASK = 9 / 8, 1 / 8
SHARE = 1 / 8

# By system: of the activation's size, what each rank's link carries up, down.
LINK_BYTES = {
  # Sums of all eight, home and to all.
  'TP-NVLS': (
    DATA + SHARE * ASK + SHARE * DATA,
    ASK + SHARE * DATA + 7 * SHARE * DATA,
  ),
  # Of seven, as the owner reads its own.
  'SP-NVLS': (
    7 * SHARE * DATA + SHARE * ASK + SHARE * DATA,
    7 * SHARE * ASK + SHARE * DATA + 7 * SHARE * DATA,
  ),
  # Parts and tiles one by one.
  'CoCoNet': (14 * SHARE * DATA, 14 * SHARE * DATA),
  'T3': (14 * SHARE * DATA, 14 * SHARE * DATA),
  # Parts up, one sum down; one tile up, its copies down; requests of seven.
  'CAIS': (
    7 * SHARE * DATA + SHARE * DATA + 7 * SHARE * ASK,
    SHARE * DATA + 7 * SHARE * DATA + SHARE * ASK,
  ),
}
LINK_BYTES |= {
  'FuseLib': LINK_BYTES['CoCoNet'],
  'CoCoNet-N': LINK_BYTES['TP-NVLS'],
  'FuseLib-N': LINK_BYTES['TP-NVLS'],
  'T3-N': LINK_BYTES['SP-NVLS'],
  'CAIS-Partial': LINK_BYTES['CAIS'],
}


@pytest.fixture(name='machine', scope='module')
def _machine():
  return cais.WITNESS.load()[cais.MACHINE]


@pytest.mark.parametrize('system', LINK_BYTES)
def test_each_link_carries_what_a_system_sends(machine, system):
  timing = cais_systems.SYSTEMS[system](SUB_LAYER, machine)
  up, down = LINK_BYTES[system]
  assert timing.up_bytes == pytest.approx([SUB_LAYER.size * up] * 8, rel=1e-12)
  assert timing.down_bytes == pytest.approx(
    [SUB_LAYER.size * down] * 8, rel=1e-12
  )


def test_ranks_that_are_apart_do_not_merge(machine):
  # Given a table for a tenth of the skew, when ranks are apart, then the links
  # carry what merging would have saved; and nothing if they are not.
  unsynchronised = cais_systems.cais_base(SUB_LAYER, machine)
  close = machine.with_figures(request_skew=1e-12)
  unlimited = close.with_figures(merge_table=1e12, merge_timeout=0.0)
  synchronised = cais_systems.cais_base(SUB_LAYER, unlimited)
  assert synchronised.sessions['evicted'] == 0
  up, down = LINK_BYTES['CAIS']
  assert synchronised.up_bytes == pytest.approx(
    [SUB_LAYER.size * up] * 8, rel=1e-12
  )
  assert synchronised.down_bytes == pytest.approx(
    [SUB_LAYER.size * down] * 8, rel=1e-12
  )
  assert unsynchronised.down_bytes.sum() > 1.2 * synchronised.down_bytes.sum()


@pytest.mark.parametrize('waves', [False, True])
def test_coordination_keeps_within_the_table(machine, waves):
  sub_layer = cais.MODELS['LLaMA-7B'].sub_layers()['L2']
  timing = cais_systems._overlap_gemms(sub_layer, machine, waves)
  assert timing.sessions['evicted'] == timing.sessions['bypassed'] == 0
  assert timing.sessions['peak'] <= machine['merge_table']


def test_sizes_are_the_published_ones():
  # 75.5 MB of LLaMA-7B; a layer's GEMMs have its weights once each.
  model = cais.MODELS['LLaMA-7B']
  sub_layers = model.sub_layers()
  assert sub_layers['L1'].size == pytest.approx(75.5e6, rel=1e-3)
  weights = 4 * 4096**2 + 3 * 4096 * 11264
  forward = sub_layers['L1'].flops + sub_layers['L2'].flops
  assert forward == pytest.approx(2 * 9216 * weights / 8)
  assert sub_layers['L3'].flops + sub_layers['L4'].flops == forward


def test_no_rate_that_exists_gives_the_published_share(machine):
  # Given GEMMs at their peak, the most that a GPU can do, when LLaMA-7B runs
  # under TP-NVLS, then its communication is far below 1.6 of its computation.
  peak = machine.with_figures(cube_efficiency=1.0)
  times = {
    name: cais_systems.simulate_seconds('TP-NVLS', sub_layer, peak)
    for name, sub_layer in cais.MODELS['LLaMA-7B'].sub_layers().items()
  }
  assert cais._share(peak, times) < 0.6


@pytest.mark.parametrize('slow, holds', [(1.04, True), (1.06, False)])
def test_growth_is_judged(slow, holds):
  values = {cais.gpus_name(n): 1.0 for n in (8, 16, 32)}
  values[cais.gpus_name(32)] = slow
  assert (cais.growth(values) == '') == holds


def test_the_order_is_judged_where_it_is_published():
  name = factors.row_name
  values = {
    name('sub-layer', system, 'geomean'): mean
    for system, (_, mean) in cais.FACTORS['sub-layer'].items()
  }
  assert not cais.out_of_order(values)
  # FuseLib and CoCoNet are within 5 %; T3 is not of TP-NVLS.
  values[name('sub-layer', 'FuseLib', 'geomean')] = 2.0
  assert not cais.out_of_order(values)
  values[name('sub-layer', 'T3', 'geomean')] = 1.3
  assert cais.out_of_order(values) == (
    'T3 1.30, TP-NVLS 1.39; T3 1.30, T3-N 1.47; T3 1.30, CAIS-Base 1.47'
  )
