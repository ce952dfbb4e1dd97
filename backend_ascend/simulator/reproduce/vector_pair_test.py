"""Two vector operators: bytes, hits and dispatch by hand."""

import dataclasses

import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import vector_pair


@pytest.fixture(scope='module')
def machine():
  return machine_lib.load('ascend_a3')


def _pair(rows, interleaved, tile_rows=128):
  return vector_pair.Pair(rows, 2048, tile_rows, 24, interleaved)


def test_an_interleaved_tile_finds_what_it_handed_over(machine):
  # Given reads of 2F, F and F elements of which one F is handed over, when the
  # operators are interleaved, then a quarter of the reads are hits.
  assert vector_pair.run(_pair(32768, True), machine).hit_rate == 0.25


def test_serial_operators_hit_only_where_l2_holds_all_of_the_first(machine):
  # Given 3F elements a row between hand-over and use, when that is less than
  # L2 holds, then serial is as good as interleaved, and else it is not.
  fits = int(machine['l2_bytes']) // (3 * 2048 * 2) // 128 * 128 - 128
  for rows, hit_rate in ((fits, 0.25), (2 * fits, 0.0)):
    serial = vector_pair.run(_pair(rows, False), machine)
    interleaved = vector_pair.run(_pair(rows, True), machine)
    assert serial.hit_rate == hit_rate
    if hit_rate:
      assert serial.seconds == pytest.approx(interleaved.seconds)
    else:
      assert serial.seconds > interleaved.seconds


def test_a_slow_hbm_carries_each_byte_once(machine):
  # Given an HBM far slower than all else, when a pair runs, then the time is
  # its bytes: 6F elements a row serial, 5F interleaved.
  slow = machine.with_figures(hbm=1e9)
  row = 2048 * 2
  for interleaved, widths in ((False, 6), (True, 5)):
    timed = vector_pair.run(_pair(49152, interleaved), slow)
    bytes_moved = 49152 * row * widths
    assert timed.seconds == pytest.approx(bytes_moved / 1e9, rel=1e-3)


def test_each_round_pays_for_its_dispatch(machine):
  # Given 48 tiles on 24 cores, when a dispatch takes a second more, then the
  # pair takes four.
  pair = _pair(48 * 128, True)
  slower = machine.with_figures(aiv_task=machine['aiv_task'] + 1)
  more = vector_pair.run(pair, slower).seconds
  assert more == pytest.approx(4 + vector_pair.run(pair, machine).seconds)
  alone = dataclasses.replace(pair, rows=128)
  assert vector_pair.run(alone, slower).seconds > 2
