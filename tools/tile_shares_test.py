"""Tiles of the device source reach the share of the peak that they should."""

import pytest

from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.tools import tile_shares

# Of the peak; `cube_efficiency` of the machine is the most that any reaches.
_MIN_SHARES = {768: 0.75, 2048: 0.85}


@pytest.fixture(scope='module')
def machine():
  return machine_lib.load('ascend_a3')


@pytest.mark.parametrize(
  'dtype, rate', [('bfloat16', 1), ('float32', 1), ('bfloat16', 2)]
)
@pytest.mark.parametrize('depth', _MIN_SHARES)
def test_a_large_tile_is_bound_by_the_cube(machine, dtype, rate, depth):
  # Half the rate of the write-out is still hidden.
  slow = machine.with_figures(aic_write=machine['aic_write'] / rate)
  share = tile_shares.measure(slow, 128, 256, depth, dtype)
  assert _MIN_SHARES[depth] <= share.peak <= machine['cube_efficiency']
  assert rate > 1 or share.busy['m'] == max(share.busy.values()) > 0.98


def test_a_share_is_that_of_the_pipe_that_binds(machine):
  slow = machine.with_figures(aic_read=machine['aic_read'] / 4)
  share = tile_shares.measure(slow, 128, 256, 768, 'bfloat16')
  # (128 + 256) x 768 elements of 2 bytes a tile.
  ns = (128 + 256) * 768 * 2 / slow['aic_read'] * 1e9
  assert share.ns == pytest.approx(ns, rel=0.02)
  assert share.busy['mte2'] == max(share.busy.values())


@pytest.mark.parametrize('rate', [1, 4, 16])
@pytest.mark.parametrize('dtype, width', [('bfloat16', 2), ('float32', 4)])
def test_the_figure_of_the_overlap_is_what_flags_give(dtype, width, rate):
  # Given write-outs that are hidden, and such that are not, then the time is
  # that of the cost model: a part of the product, as deep as a stage of L1, is
  # beside a write-out.  Heads of products are not in it.
  machine = machine_lib.load('ascend_a3_strips')
  machine = machine.with_figures(aic_write=machine['aic_write'] / rate)
  rows, cols, depth = 128, 256, 768
  _, cube, _ = simulate.ELEMENTS[dtype]
  product = 2 * rows * cols * depth / machine[cube] / machine['cube_efficiency']
  beside = machine['write_beside'] * 2 / width / depth
  write_seconds = rows * cols * width / machine['aic_write']
  seconds = product + max(0, write_seconds - product * beside)
  share = tile_shares.measure(machine, rows, cols, depth, dtype)
  assert share.ns / 1e9 == pytest.approx(seconds, rel=0.015)
  assert share.ns / 1e9 > seconds
