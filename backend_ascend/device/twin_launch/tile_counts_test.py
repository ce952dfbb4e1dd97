"""Counts of tiles follow from their shapes."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.device.twin_launch import tile_counts
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

# Columns and depths that no fractal divides.
CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=13, num_experts=4, top_k=2, d_model=40, d_ff=20
)
OPTIONS = granularity.Options(num_aic=2, num_aiv=3, row_block=8, col_block=24)


@pytest.fixture(scope='module', params=['float32', 'bfloat16'])
def table(request):
  policy = precision.PrecisionPolicy(request.param)
  image = compiler.compile_forward(CONFIG, policy, OPTIONS).image
  inputs = testing.make_inputs(CONFIG, policy)
  counts = runtime.route(image, inputs['topk_ids']).counts
  result = twin_runtime.run(image, inputs)
  size = 4 if request.param == 'float32' else 2
  tiles = tile_counts.list_tiles(image, counts, result.counts)
  return tiles, size, image, faults.real_rows(image, counts), result.counts


def _up(value: int, unit: int) -> int:
  return -(-value // unit)


def test_a_cube_tile_moves_and_multiplies_its_shape(table):
  tiles, size, *_ = table
  cube = [t for t in tiles if t.unit == 'aic' and t.rows > 0]
  assert {t.kind for t in cube} == {'gate_up', 'down'}
  for tile in cube:
    m, n, k = tile.rows, tile.cols, tile.depth
    assert k == (CONFIG.d_model if tile.kind == 'gate_up' else CONFIG.d_ff)
    means = tile.mean_counts
    assert means['bytes_fix'] == m * n * size
    steps = _up(m, 16) * _up(n, 16) * _up(k, 32 // size)
    assert means['cube_steps'] == steps
    # Operands once each; rows are filled up to 32 bytes.
    assert (m + n) * k * size <= means['bytes_mte2']
    assert means['vector_steps'] == 0


def test_a_vector_tile_has_no_cube_steps(table):
  tiles, size, *_ = table
  for tile in tiles:
    if tile.kind == 'swiglu' and tile.rows:
      assert tile.mean_counts['bytes_mte2'] >= 2 * tile.rows * tile.cols * size
      assert tile.mean_counts['bytes_mte3'] >= tile.rows * tile.cols * size
      assert tile.mean_counts['vector_steps'] > 0
    if tile.unit == 'aiv':
      assert tile.mean_counts['cube_steps'] == tile.depth == 0


def test_every_task_with_rows_is_counted_once(table):
  tiles, _, image, real, counts = table
  of_task = counts[counts['task'] >= 0]
  assert set(np.flatnonzero(real)) <= set(of_task['task'])
  assert len(of_task) == len(set(of_task['task']))
  tasks = image.tables['tasks'][of_task['task']]
  assert (of_task['unit'] == tasks['unit']).all()
  for kind in (layout.Kind.GATE_UP, layout.Kind.COMBINE):
    num_tasks = sum(t.tasks for t in tiles if t.kind == kind.name.lower())
    assert num_tasks == np.count_nonzero(tasks['kind'] == kind) > 0
