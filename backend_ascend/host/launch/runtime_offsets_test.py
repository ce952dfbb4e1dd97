"""Offsets beyond 2**31 elements, in memory of which few pages are touched."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

Buffer = layout.Buffer
BF16 = precision.PrecisionPolicy(storage='bfloat16')
# Few rows of many: those of the last rank lie past 2**31 elements.
FEW = config_testing.make_config(r=4, t=3, e=4, k=2, d=512, f=512)
CAPACITY = 1_400_000
# Rows so wide that the slots of the last ranks do.
WIDE = config_testing.make_config(
  r=4, t=2048, e=4, k=2, d=1 << 18, f=64, n=5000
)
PACKED_BUFFERS = ('expert_in', 'gate_up', 'activation', 'expert_out')


def test_tiles_and_puts_of_rows_far_apart():
  # Given room for many more rows than there are, when launched, then the rows
  # have the bits that they have side by side.
  far = dataclasses.replace(FEW, capacity=CAPACITY)
  assert 3 * CAPACITY * 512 > 2**31
  inputs = testing.make_inputs(FEW, BF16, name='offsets')
  blocks = dict(row_block=4, col_block=256, num_aic=2, num_aiv=2)
  want = runtime.launch(testing.compile_layer(FEW, BF16, **blocks), inputs)
  actual = runtime.run(
    testing.compile_layer(far, BF16, **blocks),
    inputs,
    modes=modes_lib.Modes(poison=False, races=True),
  )
  assert not actual.num_races
  num_rows = want['counts'].sum(axis=0)
  assert num_rows[-1]
  for name in PACKED_BUFFERS:
    for rank, rows in enumerate(num_rows):
      own_rows = actual.outputs[name][rank, :rows]
      assert own_rows.tobytes() == want[name][rank, :rows].tobytes(), (
        name,
        rank,
      )
  for name in ('returned', 'y'):
    assert actual.outputs[name].tobytes() == want[name].tobytes()


def find_coverage(layer: image_lib.Image, boxes, buffer) -> np.ndarray:
  """Returns how many columns of each row of a buffer boxes have, `[R, rows]`.

  Those of the tensor, without what travels beside it.
  """
  config = layer.config
  slots = config.num_tokens * config.top_k
  rows = {Buffer.RETURNED: slots, Buffer.D_RETURNED: slots}.get(
    buffer, config.capacity
  )
  columns = np.zeros((config.num_ranks, rows + 1), np.int64)
  boxes = boxes[boxes['buffer'] == buffer]
  boxes = boxes[boxes['col_begin'] < config.d_model]
  width = boxes['col_end'] - boxes['col_begin']
  np.add.at(columns, (boxes['slab'], boxes['row_begin']), width)
  np.add.at(columns, (boxes['slab'], boxes['row_end']), -width)
  return columns.cumsum(axis=1)[:, :-1]


@pytest.mark.parametrize('direction', layout.Direction)
def test_puts_and_sums_of_wide_rows(direction):
  # Given rows so wide that 32 bits do not count their elements, then the
  # addresses that puts and sums are given cover each row once, and no other.
  assert 3 * WIDE.num_tokens * WIDE.top_k * WIDE.d_model > 2**31
  compiled = (testing.compile_layer, testing.compile_grad)[direction]
  image = compiled(
    WIDE, BF16, row_block=512, col_block=WIDE.d_model, num_aic=2, num_aiv=2
  )
  ids = testing.make_ids(WIDE, 'uniform', testing.rng('wide'))
  plan = runtime.route(image, ids)
  boxes, _ = runtime.inspect(image, plan)
  num_rows = plan.counts.sum(axis=0)
  kinds = image.tables['tasks']['kind'][boxes['task']]
  sent_kind, home, combine = (
    (layout.Kind.DISPATCH, layout.Kind.RETURN, layout.Kind.COMBINE),
    (
      layout.Kind.DISPATCH_GRAD,
      layout.Kind.RETURN_GRAD,
      layout.Kind.COMBINE_GRAD,
    ),
  )[direction]
  rows, slots = (
    (Buffer.EXPERT_IN, Buffer.RETURNED),
    (Buffer.D_EXPERT_OUT, Buffer.D_RETURNED),
  )[direction]
  exists = np.arange(WIDE.capacity) < num_rows[:, None]
  actual = find_coverage(image, boxes[kinds == sent_kind], rows)
  assert (actual == exists * WIDE.d_model).all()
  for kind in (home, combine):
    assert (
      find_coverage(image, boxes[kinds == kind], slots) == WIDE.d_model
    ).all()
