"""Counts of tiles are what their shapes say."""

import csv
import io

import numpy as np
import pytest

from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.kernels.ascendc.twin.launch import tile_counts
from hpmoe.backend_ascend.kernels.ascendc.twin.launch import twin_runtime
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

# Columns and depths that no fractal divides.
CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=13, num_experts=4, top_k=2, d_model=40, d_ff=20
)
OPTIONS = flow_lib.Options(num_aic=2, num_aiv=3, row_block=8, col_block=24)


@pytest.fixture(scope='module', params=['float32', 'bfloat16'])
def table(request):
  policy = precision.PrecisionPolicy(request.param)
  image = compiler.compile_forward(CONFIG, policy, OPTIONS).image
  inputs = testing.make_inputs(CONFIG, policy)
  counts = runtime.route(image, inputs['topk_ids']).counts
  launched = twin_runtime.run(image, inputs)
  size = 4 if request.param == 'float32' else 2
  return tile_counts.tiles(image, counts, launched.counts), size, image


def _up(value: int, unit: int) -> int:
  return -(-value // unit)


def test_a_cube_tile_moves_and_multiplies_its_shape(table):
  tiles, size, _ = table
  cube = [t for t in tiles if t.unit == 'aic' and t.rows > 0]
  assert {t.kind for t in cube} == {'gate_up', 'down'}
  for tile in cube:
    m, n, k = tile.rows, tile.cols, tile.depth
    assert k == (CONFIG.d_model if tile.kind == 'gate_up' else CONFIG.d_ff)
    got = tile.counted
    assert got['bytes_fix'] == m * n * size
    steps = _up(m, 16) * _up(n, 16) * _up(k, 32 // size)
    assert got['cube_steps'] == steps
    # Operands once each; rows are filled up to 32 bytes.
    assert (m + n) * k * size <= got['bytes_mte2']
    assert got['vector_steps'] == 0


def test_a_vector_tile_has_no_cube_steps(table):
  tiles, size, _ = table
  for tile in tiles:
    if tile.kind == 'swiglu' and tile.rows:
      assert tile.counted['bytes_mte2'] >= 2 * tile.rows * tile.cols * size
      assert tile.counted['bytes_mte3'] >= tile.rows * tile.cols * size
      assert tile.counted['vector_steps'] > 0
    if tile.unit == 'aiv':
      assert tile.counted['cube_steps'] == tile.depth == 0


def test_every_task_with_rows_is_counted_once(table):
  tiles, _, image = table
  kinds = image.tables['tasks']['kind']
  for kind in (layout.Kind.GATE_UP, layout.Kind.COMBINE):
    name = kind.name.lower()
    counted = sum(t.tasks for t in tiles if t.kind == name)
    assert 0 < counted <= int(np.count_nonzero(kinds == kind))


def test_csv_is_read_back(table):
  tiles, _, _ = table
  file = io.StringIO()
  tile_counts.write_csv(tiles, file)
  rows = list(csv.DictReader(io.StringIO(file.getvalue())))
  assert len(rows) == len(tiles)
  for row, tile in zip(rows, tiles):
    assert row['kind'] == tile.kind
    assert float(row['bytes_mte2']) == pytest.approx(
      tile.counted['bytes_mte2'], rel=1e-5
    )
