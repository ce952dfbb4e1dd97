"""Races are found in one run, whatever the run, with the edge that is missing.

What a race is is said here by what tasks access and what happens before what,
each from a module that the runtime's detector does not use.
"""

import functools
import re

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision

Direction = layout.Direction
Kind = layout.Kind
CONFIG = config_testing.make_config(r=4, t=33, e=8, k=3, d=40, f=24)
SMALL = config_testing.make_config(r=2, t=20, e=4, k=2, d=17, f=9)
ONE_RANK = config_testing.make_config(r=1, t=20, e=4, k=2, d=17, f=9)
GRAINS = ('expert', 'row_block')
BLOCKS = dict(row_block=16, col_block=16, num_aic=3, num_aiv=5)
RACES = modes_lib.Modes(races=True)
WAITING = [
  kind
  for kind in layout.select_kinds(relay=False)
  if layout.FORM_OF_KIND[kind] != layout.Form.SLICE_PUT
]
both_passes = pytest.mark.parametrize('direction', Direction)


@functools.cache
def case(
  direction, config=CONFIG, placement='combine', routing='uniform', **options
):
  policy = precision.PrecisionPolicy(placement=placement)
  return testing.make_case(
    direction, config, policy, routing, **(BLOCKS | options)
  )


def pass_of(kind: Kind) -> Direction:
  return layout.DIRECTION_OF_KIND[kind]


def run(
  layer: testing.Case, threads: int = 1, **kwargs
) -> modes_lib.LaunchResult:
  # Planted races are real ones: on more threads, a sanitizer finds them too.
  return runtime.run(
    layer.image, layer.inputs, threads=threads, modes=RACES, **kwargs
  )


def true_signals(layer: testing.Case) -> np.ndarray:
  _, signals = runtime.inspect(layer.image, layer.routing)
  return np.unique(signals, axis=0)


def without_waits(layer: testing.Case, task: int) -> image_lib.Image:
  """Returns the image with a task's waits taken out."""
  blob = bytearray(layer.image)
  image_lib.tables(blob)['tasks']['wait_count'][task] = 0
  return image_lib.Image(image_lib.seal(blob))


def overlapping(layer: testing.Case, task: int) -> set[tuple[int, int, int]]:
  """Returns (task, task, buffer) of all overlaps of a task with a write."""
  boxes, _ = runtime.inspect(layer.image, layer.routing)
  num_found = set()
  for own_signals in boxes[boxes['task'] == task]:
    hit = (boxes['buffer'] == own_signals['buffer']) & (
      boxes['slab'] == own_signals['slab']
    )
    hit &= (boxes['task'] != task) & (
      boxes['write'] | own_signals['write'] == 1
    )
    for side in ('row', 'col'):
      hit &= boxes[f'{side}_begin'] < own_signals[f'{side}_end']
      hit &= own_signals[f'{side}_begin'] < boxes[f'{side}_end']
    for other in np.unique(boxes['task'][hit]):
      num_found.add(
        (min(task, other), max(task, other), int(own_signals['buffer']))
      )
  return num_found


def unordered(layer: testing.Case, pairs, image) -> set:
  clocks = happens_before.compute_clocks(image, true_signals(layer))
  return {
    (a, b, buffer)
    for a, b, buffer in pairs
    if not clocks.before(a, b) and not clocks.before(b, a)
  }


def race_keys(result: modes_lib.LaunchResult) -> set[tuple[int, int, int]]:
  return {
    (r.first.index, r.second.index, layout.Buffer[r.tensor.upper()])
    for r in result.races
  }


class TestClean:
  @pytest.mark.parametrize(
    'direction, routing, placement, grain, chain',
    halved_testing.covering(
      Direction,
      testing.ROUTINGS,
      precision.LAUNCHED_PLACEMENTS,
      GRAINS,
      (None, 16),
    ),
  )
  def test_no_race_in_any_layout(
    self, direction, routing, placement, grain, chain
  ):
    for cores in ((1, 1), (3, 5), (24, 48)):
      layer = case(
        direction,
        SMALL,
        placement,
        routing,
        event_grain=grain,
        row_block=8,
        chain_rows=chain,
        num_aic=cores[0],
        num_aiv=cores[1],
      )
      for threads in (1, 3):
        actual = run(layer, threads=threads)
        assert not actual.races and not actual.num_races, (cores, threads)


class TestSkippedWait:
  @pytest.mark.parametrize(
    'kind, placement, grain',
    halved_testing.covering(WAITING, precision.LAUNCHED_PLACEMENTS, GRAINS),
  )
  @pytest.mark.few(5)
  def test_every_kind_that_waits(self, kind, placement, grain):
    # Given a task of each kind that does not wait, when launched, then the
    # races are just the overlaps that nothing orders without its waits, and
    # each names the event that would.
    # On few cores, other tasks of the core have waited for a weight gradient.
    layer = case(
      pass_of(kind), placement=placement, event_grain=grain, num_aic=64
    )
    tasks = waiting(layer, kind)
    if kind == Kind.TOPK_WEIGHT_GRAD and placement == 'combine':
      assert not tasks  # all that it reads are inputs
      return
    num_found = 0
    for task in tasks[:: max(1, len(tasks) // 4)]:
      image = without_waits(layer, task)
      want = unordered(layer, overlapping(layer, task), image)
      actual = run(layer, fault=faults.Fault('skipped_wait', task))
      assert actual.num_races == len(want)
      assert race_keys(actual) == want or len(want) > 64
      for race in actual.races:
        assert task in (race.first.index, race.second.index)
        if race.second.index == task:
          assert_names_the_wait(layer, race)
      num_found += len(want)
    assert num_found

  @both_passes
  @pytest.mark.few(1)
  def test_region_is_that_of_all_overlaps(self, direction):
    layer = case(direction, chain_rows=16 if direction else None, num_aic=64)
    tensors = set()
    for kind in WAITING:
      tasks = waiting(layer, kind) if pass_of(kind) == direction else []
      for task in {*tasks[:1], *tasks[-1:]}:
        for race in run(layer, fault=faults.Fault('skipped_wait', task)).races:
          tensors.add(race.tensor)
          assert (race.rank, race.rows, race.cols) == region(layer, race), race
    assert len(tensors) > 3
    assert ('d_w_down' in tensors) == bool(direction)

  @both_passes
  def test_is_the_same_in_every_run(self, direction):
    layer = case(direction)
    task = faults.choose_target(layer.image, layer.routing, 'skipped_wait')
    fault = faults.Fault('skipped_wait', task)
    want = run(layer, threads=1, fault=fault)
    assert not testing.differing(want.outputs, layer.right)
    assert {race.second.index for race in want.races} == {task}
    for seed in (None, *range(5)):
      for threads, late in ((1, False), (1, True), (2, True), (4, True)):
        modes = modes_lib.Modes(races=True, permute=seed, late_puts=late)
        actual = runtime.run(
          layer.image, layer.inputs, threads=threads, fault=fault, modes=modes
        )
        assert actual.races == want.races, (seed, threads, late)


def region(layer: testing.Case, race: modes_lib.Race):
  """Returns rank, rows and columns of what two tasks access both."""
  boxes, _ = runtime.inspect(layer.image, layer.routing)
  boxes = boxes[boxes['buffer'] == layout.Buffer[race.tensor.upper()]]
  bounds = [
    (
      a['slab'],
      *(
        bound(a[f'{side}_{end}'], b[f'{side}_{end}'])
        for side in ('row', 'col')
        for end, bound in (('begin', max), ('end', min))
      ),
    )
    for a in boxes[boxes['task'] == race.first.index]
    for b in boxes[boxes['task'] == race.second.index]
    if a['slab'] == b['slab'] and (a['write'] or b['write'])
  ]
  num_found = np.array([b for b in bounds if b[1] < b[2] and b[3] < b[4]])
  (slab,) = set(num_found[:, 0])
  local = CONFIG.experts_per_rank if race.tensor.startswith('d_w_') else 1
  low, high = num_found.min(axis=0), num_found.max(axis=0)
  return slab // local, (low[1], high[2]), (low[3], high[4])


def waiting(layer: testing.Case, kind: Kind) -> list[int]:
  """Returns tasks of a kind that wait for more than the one before them."""
  counts = runtime.route(layer.image, layer.inputs['topk_ids']).counts
  real = faults.real_rows(layer.image, counts) > 0
  tasks = layer.image.tables['tasks']
  waits = [
    set(events)
    for events in happens_before.group_pairs(
      happens_before.list_waits(layer.image), len(tasks)
    )
  ]
  before = happens_before.compute_clocks(layer.image).predecessor
  return [
    int(task)
    for task in np.flatnonzero((tasks['kind'] == kind) & real)
    if waits[task] - (waits[before[task]] if before[task] >= 0 else set())
  ]


def assert_names_the_wait(layer: testing.Case, race: modes_lib.Race):
  """The words name an event that one signals and the other waits for."""
  assert race.kind in ('write-read', 'write-write')
  tables = layer.image.tables
  second = tables['tasks'][race.second.index]
  begin = second['wait_begin']
  waits = tables['waits']['event'][begin : begin + second['wait_count']]
  own_signals = true_signals(layer)
  own_signals = own_signals[own_signals[:, 0] == race.first.index, 1]
  words = (
    f'{race.second} does not wait for event {{}}, which {race.first} signals'
  )
  common = set(map(int, waits)) & set(map(int, own_signals))
  assert race.missing in {words.format(event) for event in common}


class TestOrderFaults:
  @pytest.mark.parametrize(
    'name, kind, race_keys',
    [
      ('missing_wait', 1, 'runs before it waits for event'),
      ('early_signal', 0, 'signals event .* before it has done its work$'),
      ('zero_output', None, ''),  # faults of values are no races
    ],
  )
  @both_passes
  def test_races_of_all_that_overlaps(self, direction, name, kind, race_keys):
    layer = case(direction)
    task = faults.choose_target(layer.image, layer.routing, name)
    actual = run(layer, fault=faults.Fault(name, task))
    pairs = {
      pair[:2]
      for pair in overlapping(layer, task)
      if kind is not None and pair[kind] == task
    }
    assert pairs == {(r.first.index, r.second.index) for r in actual.races}
    for race in actual.races:
      assert race.kind == 'write-read' or not kind
      assert re.search(race_keys, race.missing)


class TestImages:
  """An image that is wrong itself; proofs would refuse it."""

  @staticmethod
  def change_case(layer, change) -> testing.Case:
    """Returns the case with tables that `change` edited in place."""
    blob = bytearray(layer.image)
    change(image_lib.tables(blob))
    image = image_lib.Image(image_lib.seal(blob))
    return testing.Case(image, layer.inputs, layer.right, layer.routing)

  @pytest.mark.parametrize(
    'fewer, race_keys',
    [(False, 'only until 2 of 3'), (True, '{} does not wait for event')],
  )
  def test_wait_taken_out_or_for_less_than_all(self, fewer, race_keys):
    layer = case(Direction.FORWARD)
    task = testing.first_with_rows(layer, Kind.SWIGLU)

    def change(tables):
      wait = tables['tasks'][task]['wait_begin']
      if fewer:
        tables['tasks'][task : task + 1]['wait_count'] = 0
      else:
        tables['waits'][wait : wait + 1]['threshold'] -= 1

    actual = run(self.change_case(layer, change))
    assert actual.num_races
    for race in actual.races:
      assert race.second.index == task
      assert race_keys.format(race.second) in race.missing

  def test_signal_taken_out(self):
    # Given the last task of the kind: rows of its expert are not the rank's
    # first ones.
    layer = case(Direction.FORWARD)
    real = faults.real_rows(layer.image, layer.routing.counts) > 0
    kinds = layer.image.tables['tasks']['kind']
    task = int(np.flatnonzero((kinds == Kind.GATE_UP) & real)[-1])
    (signalled,) = testing.signalled(layer.image.tables, task)

    def change(tables):
      (event,) = testing.signalled(tables, task)
      tables['tasks'][task : task + 1]['signal_count'] = 0
      tables['waits']['threshold'][tables['waits']['event'] == event] -= 1

    actual = run(self.change_case(layer, change))
    assert actual.num_races
    for race in actual.races:
      assert race.first.index == task
      words = f'{race.first} does not signal event {signalled}'
      assert words in race.missing

  def test_two_that_write_the_same(self):
    # Given tiles of one row block, on different cores, the second of which is
    # moved onto the first, then the two race by their writes alone.
    layer = case(Direction.FORWARD)
    first = testing.first_with_rows(layer, Kind.GATE_UP)
    tasks = layer.image.tables['tasks']
    same_kind = tasks['kind'] == Kind.GATE_UP
    for field in ('expert', 'row_begin'):
      same_kind &= tasks[field] == tasks[field][first]
    same_kind &= tasks['core'] != tasks['core'][first]
    second = int(np.flatnonzero(same_kind)[0])

    def change(tables):
      for field in ('col_begin', 'col_end'):
        tables['tasks'][field][second] = tables['tasks'][field][first]

    actual = run(self.change_case(layer, change))
    (race,) = actual.races
    assert (race.first.index, race.second.index) == (first, second)
    assert (race.kind, race.tensor) == ('write-write', 'gate_up')
    assert race.cols == (0, 16)

  @pytest.mark.parametrize('grain', ['expert', 'row_block'])
  @both_passes
  def test_a_queues_order_alone_between_a_put_and_its_reader(
    self, direction, grain
  ):
    # Given one core, whose sums stand behind the puts home that they read and
    # wait for none, then each pair is a race in any run, and what is read of
    # puts that are late was never written.
    one_core = dict(num_aic=1, num_aiv=1, event_grain=grain)
    layer = case(direction, ONE_RANK, **one_core)
    kind = Kind.COMBINE_GRAD if direction else Kind.COMBINE
    tensor = 'd_returned' if direction else 'returned'
    reader = testing.first_with_rows(layer, kind)

    def change(tables):
      tables['tasks'][reader : reader + 1]['wait_count'] = 0

    broken_case = self.change_case(layer, change)
    late = modes_lib.Modes(races=True, late_puts=True)
    for modes in (RACES, late):
      actual = runtime.run(
        broken_case.image, layer.inputs, threads=1, modes=modes
      )
      assert actual.num_races == len(actual.races)
      assert race_keys(actual) == overlapping(layer, reader) - {
        pair for pair in overlapping(layer, reader) if pair[0] == reader
      }
      for race in actual.races:
        assert (race.tensor, race.second.index) == (tensor, reader)
        assert f'{race.second} does not wait for event' in race.missing
    y = 'dx' if direction else 'y'
    begin, end = (
      int(layer.image.tables['tasks'][reader][f'row_{side}'])
      for side in ('begin', 'end')
    )
    assert np.isnan(actual.outputs[y].astype(np.float32)[0, begin:end]).all()

  def test_no_event_at_all(self):
    layer = case(Direction.FORWARD)

    def change(tables):
      tables['tasks']['signal_count'] = 0
      tables['tasks']['wait_count'] = 0

    actual = run(self.change_case(layer, change), threads=1)
    assert actual.num_races > len(actual.races) == 64
    assert list(actual.races) == sorted(
      actual.races, key=lambda r: (r.first.index, r.second.index)
    )
    assert all(r.missing.startswith('no event orders') for r in actual.races)
