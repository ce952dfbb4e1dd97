"""Levers: what each does to a layer, and that only what helps is kept."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.tune import levers
from hpmoe.backend_ascend.simulator.tune import space
from hpmoe.backend_ascend.simulator.tune import tuner
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

_CONFIG = config_testing.make_config(r=2, t=256, e=4, k=1, d=256, f=128)
_TILES = {w: space.GRID['tile'][w] for w in ('64x64', '128x128')}


def _layer(*rows: int) -> tuner.Layer:
  """Returns a layer with so many rows for each expert, on both ranks alike."""
  ids = np.repeat(np.arange(4, dtype=np.int32), rows)
  ids = np.tile(ids[None, :, None], (2, 1, 1))
  config = dataclasses.replace(_CONFIG, capacity=2 * (rows[0] + rows[1]))
  return tuner.Layer(
    config,
    precision.PrecisionPolicy(storage='bfloat16'),
    machine_lib.load('ascend_a3'),
    {'uneven': ids},
    'ascend',
    loads={'uneven': np.array(rows)},
  )


def test_other_batches_place_whole_experts():
  # Given 128 and 64 rows for the experts of rank 0 and 32 for the others, here
  # and in another batch, when placed, then ranks have 2 x 160 and 2 x 96 rows
  # in place of 2 x 192 and 64; without another batch they stay.
  layer = levers.apply_levers(_layer(128, 64, 32, 32), ['placement'])
  (ids,) = layer.cases.values()
  assert np.bincount(ids.ravel()).tolist() == [256, 64, 128, 64]
  assert layer.config.capacity == 320
  unknown = dataclasses.replace(layer, loads={})
  assert levers.apply_levers(unknown, ['placement']) is unknown


@pytest.mark.parametrize(
  'storage, terms', [('bfloat16', 256), ('float32', 128)]
)
def test_a_write_out_runs_beside_what_a_stage_of_l1_holds(storage, terms):
  # Given 256 KiB for 384 rows and columns, a multiple of the 128 or 64 terms
  # that a stage of L0 holds.
  layer = dataclasses.replace(
    _layer(64, 64, 64, 64), policy=precision.PrecisionPolicy(storage=storage)
  )
  pulled = levers.apply_levers(layer, ['write_out']).machine
  assert pulled['write_beside'] == terms
  # A lever changes how a core is used and no rate.
  assert pulled.changed_figures == ('write_beside',)


@pytest.mark.parametrize(
  'rows, helps', [((128, 64, 32, 32), True), ((64, 64, 64, 64), False)]
)
def test_only_what_helps_is_pulled_and_each_has_its_share(rows, helps):
  # Given uneven and even rows, when levers are pulled, then experts are spread
  # where they are uneven; without a lever that is kept all takes longer.
  layer = _layer(*rows)
  search = tuner.Tuner(layer)
  best = search.time(search.base)
  levered, shares = levers.pull(layer, best, _TILES)
  assert ('placement' in [share.choice for share in shares]) == helps
  assert levered.total('uneven') < best.total('uneven') or not shares
  for share in shares:
    longer = share.seconds['uneven'] / levered.total('uneven') - 1
    assert share.gain == pytest.approx(longer)
    assert share.gain > 0


def test_a_forward_pass_of_int8_pays_for_what_it_converts():
  # Given a pass of two bytes an element, when its products are of codes, then
  # weights are quantised before it and numbers made before the other pass, by
  # hand, at three bytes an element over HBM; and the image, which runs, takes
  # no longer.
  layer = _layer(64, 64, 64, 64)
  hbm = layer.machine['hbm']
  experts, width, hidden, rows = 2, 256, 128, 256
  front = 3 * experts * width * hidden * 3 / hbm
  conversion = rows * (width + hidden) * 3 / hbm
  fast = dataclasses.replace(
    layer, machine=layer.machine.with_figures(vector=1e18)
  )
  options = tuner.Tuner(fast).base
  whole = tuner.Tuner(fast).time(options).simulated_seconds['uneven']
  half = tuner.Tuner(levers.apply_levers(fast, ['forward'])).time(options)
  seconds = half.simulated_seconds['uneven']
  assert seconds['backward'] == pytest.approx(
    whole['backward'] + conversion, rel=1e-12
  )
  quantised = levers.apply_levers(fast, ['forward'])
  _, image = next(iter(tuner.Tuner(quantised).images(options)))
  assert image.policy.rows == 'int8_token'
  run = simulate.simulate(image, fast.machine, fast.cases['uneven'])
  assert seconds['forward'] == pytest.approx(front + run.total, rel=1e-12)
  assert run.total < whole['forward']


def test_no_assumed_rate_of_int8_is_a_lever():
  layer = dataclasses.replace(
    _layer(64, 64, 64, 64), machine=machine_lib.load('host')
  )
  assert levers.apply_levers(layer, ['forward']) == layer
