"""The engine: modelled time of small images, and what must hold of it."""

import dataclasses
import pathlib

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as lowering
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.simulate_testing import DIRECTIONS
from hpmoe.backend_ascend.simulator.simulate_testing import image_of
from hpmoe.backend_ascend.simulator.simulate_testing import routing_of
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

CORPUS = pathlib.Path(__file__).parents[1] / 'compiler/testdata/image_corpus'


@pytest.fixture(scope='module', name='a3')
def _a3():
  return machine_lib.load('ascend_a3')


def run(image, machine, **options) -> simulate.Simulation:
  return simulate.simulate(image, machine, routing_of(image), **options)


@pytest.mark.parametrize('direction', DIRECTIONS)
@pytest.mark.parametrize('grain', lowering.GRAINS)
@pytest.mark.parametrize('shape', lowering.SHAPES)
class TestSimulate:
  def test_a_core_runs_its_queue_in_order_one_task_at_a_time(
    self, a3, shape, grain, direction
  ):
    image = image_of(shape, grain=grain, direction=direction)
    result = run(image, a3)
    assert result.total == result.end.max()
    for queue, busy in zip(image.tables['queues'], result.busy):
      run_of = image.tables['queue_tasks'][
        queue['begin'] : queue['begin'] + queue['count']
      ]
      start, end = result.start[run_of], result.end[run_of]
      assert (start[1:] >= end[:-1]).all()
      np.testing.assert_allclose(busy, (end - start).sum(), rtol=1e-12)
      np.testing.assert_allclose(
        result.wait_times[run_of], start - np.append(0, end[:-1]), atol=1e-18
      )

  def test_same_arguments_same_bits(self, a3, shape, grain, direction):
    image = image_of(shape, grain=grain, direction=direction)
    first, second = run(image, a3), run(image, a3)
    for field in dataclasses.fields(first):
      np.testing.assert_array_equal(
        getattr(first, field.name), getattr(second, field.name)
      )


class TestBadInput:
  @pytest.mark.parametrize(
    'of_image, options, message',
    [
      (dict(num_aic=25), {}, 'at most 24 AIC on ascend_a3, got 25'),
      ({}, dict(element='int4'), "element: expected .* got 'int4'"),
      ({}, dict(skip=('merge',)), "skip: expected .* got 'merge'"),
      ({}, dict(element_bytes=dict(z=1)), "element_bytes: .* got 'z'"),
    ],
  )
  def test_what_does_not_fit_is_named(self, a3, of_image, options, message):
    with pytest.raises(ValueError, match=message):
      run(image_of(**of_image), a3, **options)

  def test_operators_one_by_one_on_a_host(self):
    with pytest.raises(ValueError, match='barriers: expected none on host'):
      run(image_of(), machine_lib.load('host'), barriers=True)

  def test_a_routing_of_another_shape(self, a3):
    image = image_of()
    with pytest.raises(ValueError, match=r'topk_ids: expected shape \(2, 5, 2'):
      simulate.simulate(image, a3, routing_of(image)[:1])

  def test_a_flow_that_blocks_for_ever(self, a3):
    flow = lowering.lower()
    flow.waits['threshold'][:] += 1
    image = image_lib.load(image_lib.serialize(flow))
    with pytest.raises(ValueError, match='task .* waits for ever'):
      run(image, a3)

  def test_a_wait_for_a_later_kind_ends_but_not_operator_by_operator(self, a3):
    # Given an image that is proved, of which a task of the weight gradient
    # waits for one of the activation's gradient: nothing needs it.
    path = CORPUS / 'found-wait-for-a-later-kind'
    image = image_lib.Image(path.read_bytes())
    assert proofs.prove(image).proved
    # Then
    assert run(image, a3).total > 0
    with pytest.raises(ValueError, match='that ends operator by operator, got'):
      run(image, a3, barriers=True)


class TestOptions:
  def test_costs_are_what_a_task_takes_where_nothing_is_shared(self, a3):
    image = image_of('rank_per_expert')
    cost = simulate.costs(image, a3, routing_of(image), skip=('combine',))
    skipped = image.tables['tasks']['kind'] == layout.Kind.COMBINE
    assert skipped.any()
    result = run(image, a3, skip=('combine',))
    np.testing.assert_array_equal(result.start[skipped], result.end[skipped])
    assert (result.end > result.start)[~skipped].all()
    for field in dataclasses.fields(cost)[:8]:
      assert not getattr(cost, field.name)[skipped].any(), field.name
    # Memories and links so fast that only the core is left.
    fast = a3.with_figures(hbm=1e30, l2=1e30, die_link=1e30, bus_link=1e30)
    reads = fast.with_figures(aic_read=1e30, aiv_read=1e30)
    result = run(image, reads, skip=('combine',), sharing=False)
    cost = simulate.costs(image, reads, routing_of(image), skip=('combine',))
    np.testing.assert_allclose(
      result.end - result.start, cost.fixed + cost.own, atol=1e-18
    )

  @pytest.mark.parametrize('aic_write', [1e-3, 1.0, 1e3])
  def test_a_tile_is_written_beside_products(self, a3, aic_write):
    # Given products of 8 deep and of 4, when 2 of it run beside a write-out,
    # then a quarter or half of a product hides as much of the write-out.
    image = image_of('k_is_e')
    tasks = image.tables['tasks']
    aic = tasks['unit'] == layout.Unit.AIC
    a3 = a3.with_figures(aic_write=aic_write * a3['aic_write'])
    behind, beside, free = (
      simulate.costs(image, a3.with_figures(**figures), routing_of(image))
      for figures in ({}, dict(write_beside=2), dict(aic_write=1e30))
    )
    share = np.where(tasks['kind'] == layout.Kind.GATE_UP, 2 / 8, 2 / 4)
    write = behind.write_bytes / a3['aic_write']
    hidden = np.minimum(write, free.own * share)
    assert (hidden[aic & (behind.write_bytes > 0)] > 0).all()
    np.testing.assert_allclose(
      beside.own[aic], (free.own + write - hidden)[aic]
    )
    np.testing.assert_array_equal(beside.own[~aic], behind.own[~aic])

  @pytest.mark.parametrize('direction', DIRECTIONS)
  def test_a_put_is_held_up_by_what_is_on_its_way(self, a3, direction):
    # Given an AIV of 1 MB/s and a route of 1 s, when 1 kB at most is on its
    # way, then each byte for the other rank takes 1 ms and not 1 us; and a
    # window that the route does not fill changes nothing.
    image = image_of('rank_per_expert', direction=direction)
    a3 = a3.with_figures(
      aiv_link=1e6, die_latency=1, node_latency=1, aiv_read=1e30, aiv_write=1e30
    )
    free, wide, narrow = (
      simulate.costs(image, a3.with_figures(aiv_window=w), routing_of(image))
      for w in (0, 1e6, 1e3)
    )
    assert (free.linked > 0).any()
    np.testing.assert_array_equal(wide.own, free.own)
    held_up = free.linked * (1e-3 - 1e-6)
    np.testing.assert_allclose(narrow.own, free.own + held_up)

  @pytest.mark.parametrize(
    'd_model, rows, is_held_up',
    [(7168, 2, False), (1024, 2, True), (1024, 64, False)],
  )
  def test_short_rows_are_held_up_two_at_a_time(
    self, a3, d_model, rows, is_held_up
  ):
    # Given bfloat16 rows for ranks one hop away, when an AIV has two on their
    # way, one in each of its sets, then rows of 2 kB wait for the hop, and rows
    # of 14 kB fill its share of the link; 32 rows a set wait for nothing.
    config = config_testing.make_config(r=4, t=16, e=8, k=2, d=d_model, f=16)
    policy = precision.PrecisionPolicy(storage='bfloat16')
    image = compiler.compile_forward(config, policy).image
    routing = routing_of(image)
    window = rows * 2.0 * d_model

    free = simulate.costs(image, a3, routing)
    windowed = simulate.costs(
      image, a3.with_figures(aiv_window=window), routing
    )

    assert (free.linked > 0).any()
    assert (windowed.own > free.own).any() == is_held_up


# Memories and links so fast that only cores take time.
FAST = dict(hbm=1e30, l2=1e30, die_link=1e30, bus_link=1e30, aic_read=1e30)


class TestInterference:
  @pytest.mark.parametrize('share', [0.3, 0.5, 1.0])
  @pytest.mark.parametrize('aivs', [1, 2, 5])
  def test_a_product_slows_beside_puts_home(self, a3, share, aivs):
    # Given products and puts of a second, when each AIV that puts home takes a
    # share of the AIC beside it, then a product ends when what is left of its
    # rate adds up to its own time.
    image = image_of('rank_per_expert', num_aiv=aivs)
    machine = a3.with_figures(
      **FAST, home_beside=share, aiv_link=1e2, cube_bf16=1e3
    )
    cost = simulate.costs(image, machine, routing_of(image))
    result = run(image, machine)
    tasks, slowed = image.tables['tasks'], 0
    core = core_of(image)
    home = tasks['kind'] == layout.Kind.RETURN
    puts = np.flatnonzero(home & (cost.linked > 0))
    for t in np.flatnonzero(tasks['unit'] == layout.Unit.AIC):
      near = (tasks['rank'][puts] == tasks['rank'][t]) & (
        core[puts] * image.options.num_aic // aivs == core[t]
      )
      start, end = result.start[t], result.end[t] - cost.fixed[t]
      left = left_of_rate(result, puts[near], share, start, end)
      np.testing.assert_allclose(left, cost.own[t], rtol=1e-9, atol=1e-12)
      slowed += end - start > 1.01 * cost.own[t] > 0
    assert slowed > 0

  def test_what_goes_home_from_accumulators_is_sent_by_no_put(self, a3):
    # Given an AIC that stores to other ranks, when a layer is priced, then the
    # second product sends what puts sent before, and holds its core as long;
    # nothing of it is read again.
    image = image_of('rank_per_expert')
    kind = image.tables['tasks']['kind']
    puts, gemms = kind == layout.Kind.RETURN, kind == layout.Kind.DOWN
    put, home = (
      simulate.costs(image, a3.with_figures(aic_home=h), routing_of(image))
      for h in (0, 1e3)
    )
    assert put.linked[puts].sum() > 0
    assert home.linked[gemms].sum() == put.linked[puts].sum()
    np.testing.assert_allclose(home.link_bytes, put.link_bytes)
    assert not (home.linked + home.read + home.write_bytes)[puts].any()
    np.testing.assert_allclose(
      (home.own - home.linked / 1e3 - home.write_bytes / a3['aic_write'])[
        gemms
      ],
      (put.own - put.write_bytes / a3['aic_write'])[gemms],
      atol=1e-15,
    )
    other = ~(puts | gemms)
    np.testing.assert_array_equal(home.own[other], put.own[other])

  def test_returns_starve_dispatch_in_a_queue_in_order(self, a3):
    # Given puts whose windows differ a thousandfold, when links keep order,
    # then the last dispatch ends later than by fair shares.
    image = image_of('many_parts', num_aiv=5)
    dispatch = image.tables['tasks']['kind'] == layout.Kind.DISPATCH
    machine = a3.with_figures(die_link=1e3, bus_link=1e3, aic_home=1e9)
    fair = run(image, machine)
    half = run(image, machine.with_figures(home_trip=1e-3))
    np.testing.assert_array_equal(half.end, fair.end)
    machine = machine.with_figures(put_trip=1e-6, home_trip=1e-3)
    ordered = run(image, machine)
    assert ordered.end[dispatch].max() > 1.02 * fair.end[dispatch].max()


def core_of(image) -> np.ndarray:
  """Returns `[tasks]`: the core of its unit that runs each task."""
  queues = image.tables['queues']
  core = np.empty(len(image.tables['tasks']), int)
  entries = image.tables['queue_tasks']
  for queue in queues:
    core[entries[queue['begin'] : queue['begin'] + queue['count']]] = queue[
      'core'
    ]
  return core


def left_of_rate(result, puts, share, start, end) -> float:
  """Returns s at the whole rate that puts leave from `start` to `end`."""
  begins, ends = result.start[puts], result.end[puts]
  edges = np.unique(np.clip([start, end, *begins, *ends], start, end))
  middles = (edges[1:] + edges[:-1]) / 2
  running = (begins <= middles[:, None]) & (middles[:, None] < ends)
  return float(
    (np.maximum(0, 1 - share * running.sum(1)) * np.diff(edges)).sum()
  )


def test_an_image_of_codes_sends_half_and_multiplies_int8(a3):
  # Given a layer in bfloat16 and on codes, when both are priced, then a row on
  # a link is D bytes and a slot, a weight and a scale instead of 2 D and 8;
  # sums of four bytes are written where numbers of two were; cubes take the
  # steps of int8.
  config = config_testing.make_config(r=2, t=24, e=4, k=2, d=24, f=16)
  options = granularity.Options(row_block=4, col_block=3, num_aic=2, num_aiv=3)
  weights, rows = layout.QUANTISED[1]
  plain = precision.PrecisionPolicy('bfloat16')
  coded = dataclasses.replace(plain, quantised=weights, rows=rows)
  prices = []
  for policy in (plain, coded):
    image = compiler.compile_forward(config, policy, options).image
    tasks = image.tables['tasks']
    price = simulate.costs(image, a3, routing_of(image))
    kinds = {
      kind: np.flatnonzero(tasks['kind'] == kind)
      for kind in (layout.Kind.DISPATCH, layout.Kind.GATE_UP, layout.Kind.DOWN)
    }
    prices.append((price, kinds))
  (wide, kinds), (narrow, kinds_of_codes) = prices
  assert all((kinds[kind] == kinds_of_codes[kind]).all() for kind in kinds)
  puts = kinds[layout.Kind.DISPATCH]
  assert wide.linked[puts].sum() > 0
  np.testing.assert_allclose(
    narrow.linked[puts] * (2 * 24 + 8), wide.linked[puts] * (24 + 12)
  )
  for kind in (layout.Kind.GATE_UP, layout.Kind.DOWN):
    cubes = kinds[kind]
    np.testing.assert_allclose(
      narrow.write_bytes[cubes], 2 * wide.write_bytes[cubes]
    )
    np.testing.assert_allclose(narrow.flops[cubes], wide.flops[cubes])
  deep = a3['cube_int8'] / a3['cube_bf16']
  assert deep == pytest.approx(2, rel=0.1)
