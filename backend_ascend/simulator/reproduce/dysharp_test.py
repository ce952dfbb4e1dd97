"""Bytes of each exchange of DySHARP against their sums, and its judgements."""

import dataclasses
import functools

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.reproduce import dysharp
from hpmoe.backend_ascend.simulator.reproduce import dysharp_flows as flows
from hpmoe.backend_ascend.simulator.reproduce import factors

# A row is one packet: 8 flits of payload, one of header, one of a list.
OF = flows.Layer(hidden=64, ffn=64, experts=16, tokens=64, top_k=4, ranks=8)
FLIT, PLAIN, LISTED = 16, 9 * 16, 10 * 16
SYSTEMS = dict(deepep=flows.deepep, comet=flows.comet) | {
  name: functools.partial(flows.dysharp, parts=parts)
  for name, parts in dict(
    basic=flows.Parts(fused=False),
    fusion=flows.Parts(many=False),
    dysharp=flows.Parts(),
  ).items()
}


@pytest.fixture(name='machine', scope='module')
def _machine():
  return dysharp.WITNESS.load()[dysharp.MACHINE]


def _remote():
  """Returns `[R, T, R]` experts of each token on other ranks."""
  on = flows.experts_on(OF).astype(int)
  on[np.arange(OF.ranks), :, np.arange(OF.ranks)] = 0
  return on


def _pairs():
  """Returns copies that each rank sends, and that it gets."""
  copies = (_remote() > 0).sum(1)
  return copies.sum(1), copies.sum(0)


def _check(timed, up, down):
  np.testing.assert_array_equal(timed.up_bytes, up)
  np.testing.assert_array_equal(timed.down_bytes, down)


def test_each_token_names_its_experts():
  on = flows.experts_on(OF)
  assert (on.sum(2) == OF.top_k).all() and on.max() <= OF.experts // OF.ranks
  # Drawn without preference: each rank has its share, within 5 deviations.
  share = on.sum((0, 1)) / on.sum()
  assert share == pytest.approx([1 / 8] * 8, abs=5 * (7 / 64 / 2048) ** 0.5)


@pytest.mark.parametrize('system', ['deepep', 'comet', 'fusion'])
def test_copies_go_and_come_back_one_by_one(machine, system):
  sent, got = _pairs()
  both = PLAIN * (sent + got)
  _check(SYSTEMS[system](OF, machine), both, both)


@pytest.mark.parametrize('ids', [1, 8])
@pytest.mark.parametrize('parts', ['dysharp', 'basic'])
def test_a_token_goes_up_once_and_comes_home_once(machine, parts, ids):
  remote = _remote()
  _, got = _pairs()
  away = remote.sum(2) > 0
  heads = (FLIT * (np.ceil(remote.sum(2) / ids) + away)).sum(1)
  copies = (FLIT * (np.ceil(remote / ids) + (remote > 0))).sum((0, 1))
  rows = 8 * FLIT
  # A row told its targets, answers; requests of one packet.
  up = rows * away.sum(1) + heads + LISTED * got + heads
  down = rows * got + copies + copies + LISTED * away.sum(1)
  listed = machine.with_figures(target_ids=ids)
  _check(SYSTEMS[parts](OF, listed), up, down)


def test_all_tokens_go_to_all_ranks_over_nvls(machine):
  rows, asked = OF.tokens * PLAIN, 32 * FLIT
  _check(
    flows.nvls(OF, machine),
    [rows + asked + 8 * rows] * 8,
    [7 * rows + 8 * asked + rows] * 8,
  )


def test_the_null_model_is_the_one_that_is_known():
  # Two numbers give DeepEP and COMET within 2 %, and NVLS 20 % off.
  values = dysharp.WITNESS.roofline(dysharp.WITNESS.load())
  known = dict(DeepEP=(2.73, 2.31), COMET=(1.92, 1.82), NVLS=(8.45, 5.01))
  for system, expected in known.items():
    got = [values[factors.row_name('layer', system, w)] for w in factors.WHICH]
    assert got == pytest.approx(expected, rel=0.006)


def test_the_packet_and_the_share_are_met(machine):
  assert dysharp.payload(machine) == pytest.approx(0.8, rel=1e-12)
  assert dysharp._share(machine) == pytest.approx(70.4, rel=1e-5)


def test_growth_is_judged():
  over = (4, 16, 64)
  values = {
    dysharp.gpus_name(size, n): 1 + n / 64 for size in 'SM' for n in over
  }
  assert dysharp.no_growth(dysharp.gpus_name, over, values) == ''
  values[dysharp.gpus_name('M', 64)] = 1.0
  assert dysharp.no_growth(dysharp.gpus_name, over, values) == (
    'S-8: 1.06, 1.25, 2.00; M-8: 1.06, 1.25, 1.00'
  )


def test_the_order_of_rows_moves_no_byte(machine):
  of = dataclasses.replace(OF, tokens=512)
  free, fixed = (
    flows.dysharp(of, machine, flows.Parts(by_source=by))
    for by in (False, True)
  )
  np.testing.assert_array_equal(free.up_bytes, fixed.up_bytes)
  np.testing.assert_array_equal(free.down_bytes, fixed.down_bytes)
  assert fixed.total > free.total
