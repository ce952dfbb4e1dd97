"""Bytes of each exchange of DySHARP against their sums, and its judgements."""

import dataclasses
import functools

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.reproduce import dysharp
from hpmoe.backend_ascend.simulator.reproduce import factors

# A row is one packet: 8 flits of payload, one of header, one of a list.
LAYER = dysharp.Layer(
  hidden=64, ffn=64, experts=16, tokens=64, top_k=4, ranks=8
)
FLIT_BYTES, PLAIN_BYTES, LISTED_BYTES = 16, 9 * 16, 10 * 16
SYSTEMS = dict(deepep=dysharp.deepep, comet=dysharp.comet) | {
  name: functools.partial(dysharp.dysharp, parts=parts)
  for name, parts in dict(
    basic=dysharp.Parts(fused=False),
    fusion=dysharp.Parts(multicast=False),
    dysharp=dysharp.Parts(),
  ).items()
}


@pytest.fixture(name='machine', scope='module')
def _machine():
  return dysharp.WITNESS.load()[dysharp.MACHINE]


def _remote():
  """Returns `[R, T, R]` experts of each token on other ranks."""
  expert_counts = dysharp.count_experts(LAYER).astype(int)
  expert_counts[np.arange(LAYER.ranks), :, np.arange(LAYER.ranks)] = 0
  return expert_counts


def _pairs():
  """Returns copies that each rank sends, and that it gets."""
  copies = (_remote() > 0).sum(1)
  return copies.sum(1), copies.sum(0)


def _check(timing, up, down):
  np.testing.assert_array_equal(timing.up_bytes, up)
  np.testing.assert_array_equal(timing.down_bytes, down)


def test_each_token_names_its_experts():
  expert_counts = dysharp.count_experts(LAYER)
  assert (
    expert_counts.sum(2) == LAYER.top_k
  ).all() and expert_counts.max() <= LAYER.experts // LAYER.ranks
  # Drawn without preference: each rank has its share, within 5 deviations.
  share = expert_counts.sum((0, 1)) / expert_counts.sum()
  assert share == pytest.approx([1 / 8] * 8, abs=5 * (7 / 64 / 2048) ** 0.5)


@pytest.mark.parametrize('system', ['deepep', 'comet', 'fusion'])
def test_copies_go_and_come_back_one_by_one(machine, system):
  sends, arrivals = _pairs()
  link_bytes = PLAIN_BYTES * (sends + arrivals)
  _check(SYSTEMS[system](LAYER, machine), link_bytes, link_bytes)


@pytest.mark.parametrize('ids', [1, 8])
@pytest.mark.parametrize('parts', ['dysharp', 'basic'])
def test_a_token_goes_up_once_and_comes_home_once(machine, parts, ids):
  remote = _remote()
  _, arrivals = _pairs()
  is_remote = remote.sum(2) > 0
  heads = (FLIT_BYTES * (np.ceil(remote.sum(2) / ids) + is_remote)).sum(1)
  copies = (FLIT_BYTES * (np.ceil(remote / ids) + (remote > 0))).sum((0, 1))
  rows = 8 * FLIT_BYTES
  # A row told its targets, answers; requests of one packet.
  up = rows * is_remote.sum(1) + heads + LISTED_BYTES * arrivals + heads
  down = rows * arrivals + copies + copies + LISTED_BYTES * is_remote.sum(1)
  listing_machine = machine.with_figures(target_ids=ids)
  _check(SYSTEMS[parts](LAYER, listing_machine), up, down)


def test_all_tokens_go_to_all_ranks_over_nvls(machine):
  rows, requests = LAYER.tokens * PLAIN_BYTES, 32 * FLIT_BYTES
  _check(
    dysharp.nvls(LAYER, machine),
    [rows + requests + 8 * rows] * 8,
    [7 * rows + 8 * requests + rows] * 8,
  )


def test_the_null_model_is_the_one_that_is_known():
  # Two numbers give DeepEP and COMET within 2 %, and NVLS 20 % off.
  values = dysharp.WITNESS.roofline(dysharp.WITNESS.load())
  published = dict(DeepEP=(2.73, 2.31), COMET=(1.92, 1.82), NVLS=(8.45, 5.01))
  for system, expected in published.items():
    factors_of_system = [
      values[factors.row_name('layer', system, w)] for w in factors.STATISTICS
    ]
    assert factors_of_system == pytest.approx(expected, rel=0.006)


def test_the_packet_and_the_share_are_met(machine):
  assert dysharp.payload(machine) == pytest.approx(0.8, rel=1e-12)
  assert dysharp._share(machine) == pytest.approx(70.4, rel=1e-5)


def test_growth_is_judged():
  gpus = (4, 16, 64)
  values = {
    dysharp.gpus_name(size, n): 1 + n / 64 for size in 'SM' for n in gpus
  }
  assert dysharp.no_growth(dysharp.gpus_name, gpus, values) == ''
  values[dysharp.gpus_name('M', 64)] = 1.0
  assert dysharp.no_growth(dysharp.gpus_name, gpus, values) == (
    'S-8: 1.06, 1.25, 2.00; M-8: 1.06, 1.25, 1.00'
  )


def test_the_order_of_rows_moves_no_byte(machine):
  layer = dataclasses.replace(LAYER, tokens=512)
  free, fixed = (
    dysharp.dysharp(layer, machine, dysharp.Parts(by_source=by_source))
    for by_source in (False, True)
  )
  np.testing.assert_array_equal(free.up_bytes, fixed.up_bytes)
  np.testing.assert_array_equal(free.down_bytes, fixed.down_bytes)
  assert fixed.total > free.total
