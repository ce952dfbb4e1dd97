r"""Prices the device source's small costs, on images of the published layer.

In modelled time, both passes of the paper's EP8 layer on an A3 die, in the
published schedule, in the tuned one, and in the one that uneven routing is
tuned to, whose puts of 8 rows add the most words.  Each line changes one price:
of rows that are put one at a time, of words that are added to events, awaited
or in flight, of polls that miss.

Example:
  python -m benchmarks.device_prices --keep
"""

from collections.abc import Mapping, Sequence
import dataclasses

from absl import app
import numpy as np

from benchmarks import uneven_routing
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.tune import space
from hpmoe.backend_ascend.simulator.tune import tuner
from hpmoe.parity_tests.case import text_router
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.tools.docs import figures

_PRESET, _RANKS = 'ep16:experts=64', 8
_ROUTING = 'balanced'
_MACHINE, _DEVICE = 'ascend_a3', 'ascend_a3_strips'
# What `hpmoe tune` finds of this layer.
SCHEDULE = dict(
  event_grain='row_block',
  tile='128x256',
  put_rows='32',
  vector_rows='32',
  token_block='16',
  lag='all',
  lead='all',
  row_order='interleaved',
  weight_grads='gate_last',
  swizzle='2',
)
COLUMNS = (
  *('cost', 'published: forward, ms', 'backward'),
  *('tuned: forward', 'backward', 'puts of 8 rows: forward', 'backward'),
)
_ADDS = ('aiv_add', 'add_trip', 'add_waits')


def list_prices(
  device: machine_lib.Machine,
) -> dict[str, Mapping[str, float]]:
  """Returns the figures that each line changes, by its name.

  Args:
    device: whose figures say how our device source uses a die.
  """
  adds = {name: device[name] for name in _ADDS}
  return {
    'none': {},
    'each row': {'put_row': device['put_row']},
    'words awaited': adds | {'add_waits': 0},
    f'{device["add_waits"]:.0f} in flight': adds,
    'missed polls free': {'poll_miss': 0},
  }


def make_layer(
  preset: presets.Preset, config: config_lib.MoEConfig
) -> tuner.Layer:
  """Returns a layer under balanced routing."""
  ids = text_router.topk_ids(_ROUTING, preset, config, 0)
  rows = int(np.bincount(ids.ravel() // config.experts_per_rank).max())
  return tuner.Layer(
    dataclasses.replace(config, capacity=rows),
    precision.PrecisionPolicy(storage='bfloat16'),
    machine_lib.load(_MACHINE),
    {_ROUTING: ids},
    'ascend',
  )


def compile_images(layer: tuner.Layer):
  """Yields (pass, image) of each schedule, in the order of COLUMNS."""
  search = tuner.Tuner(layer)
  options = search.base
  for name, option in SCHEDULE.items():
    options = space.replace_fields(
      options, {**space.GRID, **space.BESIDE}[name][option]
    )
  fine = uneven_routing.find_best(layer).options
  for schedule in (search.published, options, fine):
    yield from search.images(schedule)


def time_prices(layer: tuner.Layer) -> list[list[str]]:
  """Returns the rows of the table: the same images, other figures."""
  images = list(compile_images(layer))
  (ids,) = layer.cases.values()
  rows = []
  for name, prices in list_prices(machine_lib.load(_DEVICE)).items():
    machine = layer.machine.with_figures(**prices)
    priced_layer = dataclasses.replace(layer, machine=machine)
    seconds = [
      layer.seconds(priced_layer, direction, image, ids)
      for direction, image in images
    ]
    rows.append([name, *(f'{1e3 * s:.2f}' for s in seconds)])
  return rows


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  preset = presets.get(_PRESET)
  rows = time_prices(make_layer(preset, presets.config(preset, _RANKS)))
  for row in (COLUMNS, *rows):
    print(row[0].ljust(30), *(cell.rjust(24) for cell in row[1:]))
  if figures.KEEP.value:
    run = figures.run('python -m benchmarks.device_prices')
    run |= dict(processor=figures.ANY, load=figures.ANY)
    figures.write('device_prices', COLUMNS, rows, [run])


if __name__ == '__main__':
  app.run(main)
