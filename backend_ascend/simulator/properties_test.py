"""What must hold of modelled time, whatever the machine and the image."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as lowering
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator import simulate_testing as testing
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.reference.contract import tensors

DIRECTIONS = testing.DIRECTIONS
# With what a host and our device source have besides, which the file of the
# chip leaves at nothing.
PLAIN = machine_lib.load('ascend_a3').with_figures(product=1e-7, pack=1e-12)
A3 = PLAIN.with_figures(put_row=1e-7, aiv_add=1e-7, add_trip=1e-6, add_waits=2)
# Small, so that tiles take long beside what is fixed, and caches overflow.
SLOW = A3.with_figures(
  **{
    name: A3[name] / 1e4
    for name, figure in A3.figures.items()
    if figure.unit in ('B/s', 'flop/s', 'op/s')
  },
  l2_bytes=512,
)
# Where a read takes time if it misses only, and many do.
MISSES = A3.with_figures(hbm=1e6, l2_bytes=1500)
MACHINES = {'a3': A3, 'slow': SLOW, 'misses': MISSES}
RATES = sorted(
  name
  for name, figure in A3.figures.items()
  if figure.unit in ('B/s', 'flop/s', 'op/s', 'words')
)
TIMES = sorted(
  name for name, figure in A3.figures.items() if figure.unit in ('s', 's/B')
)
# Of the twin's pipes alone.
PIPES = ('aic_l0a', 'aic_l0b', 'move_head', 'product_head', 'read_latency')
# Nothing on this machine: of links in order, and of sums that no put sends.
QUEUES = ('put_trip', 'home_trip', 'aic_home')
UNUSED = ('cube_int8', 'cube_bf16', 'launch', 'host_link', *PIPES, *QUEUES)

CASES = st.builds(
  testing.image_of,
  st.sampled_from(sorted(testing.SHAPES)),
  grain=st.sampled_from(lowering.GRAINS),
  placement=st.sampled_from(lowering.PLACEMENTS),
  direction=st.sampled_from(DIRECTIONS),
  relay=st.booleans(),
  num_aic=st.integers(1, 3),
  num_aiv=st.integers(1, 4),
)
SETTINGS = hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)


@SETTINGS
@hypothesis.given(
  CASES,
  st.sampled_from(sorted(MACHINES)),
  st.sampled_from([n for n in RATES + TIMES if n not in UNUSED]),
  st.floats(1.001, 100),
  st.integers(0, 99),
)
def test_without_sharing_faster_is_never_later(
  image, machine, name, factor, seed
):
  """A rate that is greater, or a time that is less, delays no task."""
  ids = testing.routing_of(image, seed)
  slow = MACHINES[machine]
  better = slow[name] * factor if name in RATES else slow[name] / factor
  fast = slow.with_figures(**{name: better})
  before = simulate.simulate(image, slow, ids, sharing=False)
  after = simulate.simulate(image, fast, ids, sharing=False)
  # The sums are the same but for their roundings.
  room = 1e-12 * before.total
  assert (after.end <= before.end + room).all()
  assert (after.start <= before.start + room).all()


@pytest.mark.parametrize(
  'direction, grain, cores, name, seed',
  [
    ('backward', 'row_block', 1, 'aic_task', 73),
    ('backward', 'expert', 1, 'poll', 19),
    ('forward', 'row_block', 3, 'poll', 71),
  ],
)
def test_who_comes_first_does_not_decide_what_misses(
  direction, grain, cores, name, seed
):
  """Cases that are later if it does: near the edge of a small cache."""
  image = testing.image_of(
    'many_parts',
    direction=direction,
    grain=grain,
    num_aic=cores,
    num_aiv=cores + cores // 3,
  )
  ids = testing.routing_of(image, seed)
  for hbm in (1e5, 1e6, 1e8):
    for l2_bytes in (500, 1500, 16000):
      slow = PLAIN.with_figures(
        hbm=hbm, l2_bytes=l2_bytes, poll=0.7e-6, poll_miss=0
      )
      before = simulate.simulate(image, slow, ids, sharing=False)
      for factor in (2, 100):
        fast = slow.with_figures(**{name: slow[name] / factor})
        after = simulate.simulate(image, fast, ids, sharing=False)
        assert (after.end <= before.end + 1e-12 * before.total).all()


@pytest.mark.parametrize('name', [n for n in RATES + TIMES if n not in UNUSED])
def test_every_figure_moves_some_task(name):
  """Otherwise the test above would hold of nothing."""
  num_moved = 0
  for node in (2, 16):
    good = A3.with_figures(node=node)
    worse = good[name] / 1e4 if name in RATES else good[name] * 1e4
    bad = good.with_figures(**{name: worse})
    for direction in DIRECTIONS:
      image = testing.image_of('rank_per_expert', direction=direction)
      ids = testing.routing_of(image)
      before, after = (
        simulate.simulate(image, machine, ids, sharing=False).end
        for machine in (bad, good)
      )
      num_moved += (after < before).sum()
  assert num_moved > 0


@SETTINGS
@hypothesis.given(
  CASES,
  st.sampled_from(sorted(MACHINES)),
  st.booleans(),
  st.integers(0, 99),
  st.sampled_from([None, *simulate.ELEMENTS]),
  st.sampled_from([(), ('down',), ('dispatch', 'swiglu')]),
)
def test_no_time_beats_the_bound(image, machine, barriers, seed, element, skip):
  ids = testing.routing_of(image, seed)
  changes = dict(element=element, skip=skip)
  result = simulate.simulate(
    image, MACHINES[machine], ids, barriers=barriers, **changes
  )
  bound = simulate.bound(image, MACHINES[machine], ids, **changes)
  assert result.total >= bound.seconds * (1 - 1e-12), bound


def test_a_bound_is_of_the_element_and_of_what_is_not_skipped():
  # Given an image, when its products are of int8 in place of float32, or all
  # GEMMs are skipped, then the bound of the AIC is less, or nothing.
  image = testing.image_of()
  ids = testing.routing_of(image)
  machine = MACHINES['a3']

  def aic(**changes):
    return simulate.bound(image, machine, ids, **changes).parts['aic'].max()

  assert aic(element='int8') < aic(element='float32') == aic()
  assert aic(skip=('gate_up', 'down')) == 0


def _rows_sent(image, ids, once: bool):
  """Returns `[R, R]` rows from rank i to rank j: of slots, or of tokens."""
  dims = image.config.dims()
  owner = ids // (dims['E'] // dims['R'])
  is_owner = owner[..., None] == np.arange(dims['R'])
  return (is_owner.any(axis=2) if once else is_owner.sum(axis=2)).sum(axis=1)


@SETTINGS
@hypothesis.given(CASES, st.booleans(), st.booleans(), st.integers(0, 99))
def test_every_byte_that_is_put_crosses_each_link_of_its_route_once(
  image, barriers, sharing, seed
):
  ids = testing.routing_of(image, seed)
  ranks = image.config.num_ranks
  result = simulate.simulate(image, A3, ids, barriers=barriers, sharing=sharing)
  dims, relay = image.config.dims(), image.options.relay
  row = image.config.d_model * 4
  # Out with a header, or one for each copy, home without; a gradient of the
  # weight comes home where an expert's rank applied it.
  header = 12 * min(dims['K'], dims['E'] // dims['R']) if relay else 8
  grad = 4 if image.policy.placement in tensors.EARLY else 0
  home = row + (grad if image.direction == layout.Direction.BACKWARD else 0)
  payload = _rows_sent(image, ids, relay) * (row + header)
  payload += _rows_sent(image, ids, False).T * home
  np.fill_diagonal(payload, 0)
  links = A3.fabric.links(ranks)
  expected = np.zeros(len(links))
  for source in range(ranks):
    for destination in range(ranks):
      for link in A3.fabric.route(source, destination, ranks).links:
        expected[link] += payload[source, destination]
  bytes_of_link = {r.name: r.bytes for r in result.resources}
  np.testing.assert_array_equal(
    [bytes_of_link[link.name] for link in links], expected
  )
  assert result.link_bytes.sum() == payload.sum()
  # Each of them arrives in a memory, too.
  hbm = sum(r.bytes for r in result.resources if r.name == 'hbm')
  np.testing.assert_allclose(
    hbm, result.hbm_bytes.sum() + payload.sum(), rtol=1e-12
  )


@pytest.mark.parametrize('direction', DIRECTIONS)
def test_with_barriers_operators_do_not_overlap(direction):
  image = testing.image_of('k_is_e', direction=direction)
  machine = A3.with_figures(launch=1e-3)
  ids = testing.routing_of(image)
  result = simulate.simulate(image, machine, ids, barriers=True)
  tasks = image.tables['tasks']
  kinds = np.unique(tasks['kind'])
  for before, kind in zip(kinds, kinds[1:]):
    end = result.end[tasks['kind'] == before]
    start = result.start[tasks['kind'] == kind]
    assert start.min() >= end.max() + 1e-3 - 1e-9


CUTS = (
  dict(vector_rows=1),
  dict(vector_rows=2),
  dict(token_block=3),
  dict(put_rows=3),
  dict(col_block=5),
  dict(row_block=6),
  dict(chain_rows=4),
)


@pytest.mark.parametrize('relay', [False, True])
@pytest.mark.parametrize('direction', DIRECTIONS)
@pytest.mark.parametrize('shape', sorted(testing.SHAPES))
def test_the_same_bytes_come_from_memory_however_a_layer_is_cut(
  shape, direction, relay
):
  """Of an endless cache: each byte that nobody wrote, once."""

  def read_first(**cut):
    image = testing.image_of(shape, direction=direction, relay=relay, **cut)
    return simulate.costs(image, A3, testing.routing_of(image)).miss_bytes.sum()

  assert [read_first(**cut) for cut in CUTS] == [read_first()] * len(CUTS)
