"""Published plans are plans; scale, copies, and why one is not the first."""

import pytest

from hpmoe.backend_ascend.simulator.plan import collectives
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.reproduce import null
from hpmoe.backend_ascend.simulator.reproduce import pangu

_RUNS = {
  'after': pangu._AFTER,
  'before': pangu._BEFORE,
  'larger': pangu._LARGER,
} | {name: run for name, (run, _, _) in pangu._GPU_RUNS.items()}


@pytest.fixture(name='machines', scope='module')
def _machines():
  return pangu.WITNESS.load()


@pytest.mark.parametrize(
  'name, devices, ranks',
  [
    ('after', 6144, 32),
    ('before', 4096, 32),
    ('larger', 10240, 32),
    ('DeepSeek-V3, 2048 H800', 2048, 64),
    ('DeepSeek-V3, 1024 H100', 1024, 64),
    ('Qwen3-235B, 256 H100', 256, 32),
    ('Qwen3-30B, 16 H100', 16, 8),
  ],
)
def test_published_plans_divide_and_have_their_devices_and_expert_groups(
  machines, name, devices, ranks
):
  run = _RUNS[name]
  assert run.setting(machines).refusal(run.plan) == ''
  assert (run.plan.devices, run.plan.tp * run.plan.ep) == (devices, ranks)


def test_the_scale_scales_rates_and_no_ratio(machines):
  half = dict(machines)
  half[pangu.NPU] = machines[pangu.NPU].with_figures(
    run_share=machines[pangu.NPU]['run_share'] / 2
  )
  rates = [pangu.Rates(m, print) for m in (machines, half)]
  whole, scaled = (
    [rate(run) for run in (pangu._AFTER, pangu._BEFORE)] for rate in rates
  )
  assert scaled == pytest.approx([rate / 2 for rate in whole])


def test_copies_by_hand(machines):
  # Three other nodes, and of eight rows six lie there.
  assert pangu._copies(machines[pangu.NPU]) == 3 / 6


def test_the_roofline_of_the_run_before_by_hand(machines):
  # Given links between nodes that are slow, then rows take longest there: six
  # of eight, there and back in both passes of 58 layers and an MTP head.
  slow = dict(machines)
  slow[pangu.NPU] = machines[pangu.NPU].with_figures(rdma_link=1e9)
  rows = 59 * 4 * 2048 * 6
  seconds = 2048 / pangu.Peaks(slow)(pangu._BEFORE)
  assert seconds == pytest.approx(rows * 7680 * 2 / 1e9)


def test_links_decide_by_bytes(machines):
  layer = pangu._BEFORE.setting(machines).share(pangu._BEFORE.plan)
  routed = layer.unit('moe').routed
  machine = machines[pangu.NPU]
  rate = collectives.link_rate(machine, 'rdma_out')
  assert moe_layer.link_seconds(machine, routed) == pytest.approx(
    6 * 2048 * 7680 * 2 / rate
  )


def test_null_predictors_know_every_row_but_the_fitted_one(machines):
  predictions = null.predictions(pangu.WITNESS, machines)[null.ROOFLINE]
  assert set(predictions) == {row.name for row in pangu.WITNESS.rows}


def test_who_is_first_instead_is_told():
  values = {
    pangu._PLANS: 12000.0,
    pangu._SLOWER: 1.25,
    **{f'best {n}': 2.0 for n in ('tp', 'pp', 'vpp', 'ep', 'micro_batch')},
  }
  assert 'of 12,000 plans TP2 PP2 VPP2 EP2 MBS2 is first, 1.25' in (
    pangu.why_not_first(values)
  )
  assert pangu.why_not_first(values | {pangu._SLOWER: 1.0}) == ''
  # Fewer plans would prove less.
  assert pangu.why_not_first(values | {pangu._SLOWER: 1.0, pangu._PLANS: 9e3})
