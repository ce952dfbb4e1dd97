"""Tiles of the device source reach the share of the peak that they should."""

import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.tools import tile_shares

# Of the peak; `cube_efficiency` of the machine is the most that any reaches.
_LEAST = {768: 0.75, 2048: 0.85}


@pytest.fixture(scope='module')
def machine():
  return machine_lib.load('ascend_a3')


@pytest.mark.parametrize('dtype', tile_shares.DTYPES)
@pytest.mark.parametrize('depth', _LEAST)
def test_a_large_tile_is_bound_by_the_cube(machine, dtype, depth):
  share = tile_shares.measure(machine, 128, 256, depth, dtype)
  assert _LEAST[depth] <= share.peak <= machine['cube_efficiency']
  assert share.busy['m'] == max(share.busy.values()) > 0.98


def test_half_the_rate_of_the_write_out_is_still_hidden(machine):
  slow = machine.with_figures(aic_write=machine['aic_write'] / 2)
  for depth, least in _LEAST.items():
    assert tile_shares.measure(slow, 128, 256, depth, 'bfloat16').peak >= least


def test_a_share_is_that_of_the_pipe_that_binds(machine):
  slow = machine.with_figures(aic_read=machine['aic_read'] / 4)
  share = tile_shares.measure(slow, 128, 256, 768, 'bfloat16')
  # (128 + 256) x 768 elements of 2 bytes a tile.
  ns = (128 + 256) * 768 * 2 / slow['aic_read'] * 1e9
  assert share.ns == pytest.approx(ns, rel=0.02)
  assert share.busy['mte2'] == max(share.busy.values())
