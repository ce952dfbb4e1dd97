"""Relay's traffic against its formula, and the judgement of the ablation."""

import math

import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import uniep
from hpmoe.reference.contract import config_testing


def test_distinct_ranks_follow_the_formula():
  # K experts drawn without putting back: a rank has none of them with
  # C(E - L, K) / C(E, K).  Deviation of a mean over 8192 tokens: 0.01.
  config = config_testing.make_config(r=8, t=1024, e=512, k=8, d=8, f=4)
  absent_share = math.comb(512 - 64, 8) / math.comb(512, 8)
  assert uniep.distinct_ranks(config) == pytest.approx(
    8 * (1 - absent_share), abs=0.05
  )
  # With one rank they all lie there.
  single_rank = config_testing.make_config(r=1, t=64, e=16, k=8, d=8, f=4)
  assert uniep.distinct_ranks(single_rank) == 1


def test_the_roofline_is_a_formula():
  # Given eight ranks, when a token's experts are drawn one by one, then it has
  # 5.25 of them, as published; and relay never slows a roofline down.
  values = uniep.WITNESS.roofline(uniep.WITNESS.load())
  assert values[uniep.WITNESS.rows[0].name] == pytest.approx(5.25, abs=0.01)
  assert all(values[f'relay, {name}'] >= 1 for name in uniep.LAYERS)


def test_relay_puts_each_token_on_a_link_once(monkeypatch):
  # Given a small layer, when its rows are relayed, then dispatch sends as much
  # less as distinct ranks are fewer than experts, headers aside.
  monkeypatch.setitem(uniep.LAYERS, 'small', (64, 256, 128, 128))
  machine = machine_lib.load(uniep.MACHINE)
  plain, relayed = (
    uniep.run(machine, 'small', uniep.Point(relay=relay))
    for relay in (False, True)
  )
  ratio = uniep.count_dispatch_bytes(relayed) / uniep.count_dispatch_bytes(
    plain
  )
  distinct = uniep.distinct_ranks(
    config_testing.make_config(r=8, t=128, e=64, k=8, d=256, f=128)
  )
  # A row of 512 B has 8 B beside it, a relayed one 12 B for each of 8 copies.
  headers = (512 + 96) / (512 + 8)
  assert ratio == pytest.approx(distinct / 8 * headers, rel=0.01)


@pytest.mark.parametrize(
  'relay, tuner, relay_gains, tuner_gains',
  [(1.2, 1.5, True, True), (0.9, 1.1, False, True), (1.2, 1.1, True, False)],
)
def test_the_order_of_the_ablation_is_judged(
  relay, tuner, relay_gains, tuner_gains
):
  good = {f'relay, {n}': 1.2 for n in uniep.LAYERS}
  good |= {f'tuner and priority, {n}': 1.5 for n in uniep.LAYERS}
  last = list(uniep.LAYERS)[-1]
  values = good | {
    f'relay, {last}': relay,
    f'tuner and priority, {last}': tuner,
  }
  values |= {f'relay that costs nothing, {last}': 1.05}
  text = uniep.no_relay_gain(values)
  assert (
    (text == '') == relay_gains == (f'{last}: {relay:.2f}x, and' not in text)
  )
  assert (uniep.no_tuner_gain(values) == '') == tuner_gains
