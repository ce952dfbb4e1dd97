"""Small costs of the device source: which figures they change, and a table."""

import re

from benchmarks import device_prices
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.reference.contract import presets
from hpmoe.tools import import_graph

DEVICE = machine_lib.load('ascend_a3_strips')
MEGAKERNEL = import_graph.ROOT / 'backend_ascend/device/megakernel'


def test_words_in_flight_are_those_of_the_device_source():
  source = (MEGAKERNEL / 'vector_memory.h').read_text()
  (count,) = re.findall(r'kSignalsInFlight = (\d+)', source)
  assert DEVICE['add_waits'] == int(count)
  assert f'{count} in flight' in device_prices.list_prices(DEVICE)


def test_every_line_but_the_first_changes_a_figure_of_the_layer():
  machine = machine_lib.load('ascend_a3')
  prices = device_prices.list_prices(DEVICE)
  assert prices.pop('none') == {}
  for name, values in prices.items():
    assert any(machine[figure] != value for figure, value in values.items()), (
      name
    )


def test_a_layer_is_timed_at_each_price():
  # Given a small layer and words that take longer than its tasks, when it is
  # timed, then they cost most where each is awaited.
  preset = presets.get('small:experts=16')
  layer = device_prices.make_layer(preset, presets.config(preset, 4, 64))
  rows = device_prices.time_prices(layer)
  assert {len(row) for row in rows} == {len(device_prices.COLUMNS)}
  times = {name: [float(cell) for cell in cells] for name, *cells in rows}
  awaited, free = times['words awaited'], times['none']
  assert all(a >= b for a, b in zip(awaited, free, strict=True))
  assert sum(awaited) > sum(free)
