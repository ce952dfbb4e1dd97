"""Modes change when and whether tasks run, and nothing else."""

import functools

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import poison as poison_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage as storage_lib

Action = modes_lib.Action
Direction = layout.Direction
Kind = layout.Kind
Modes = modes_lib.Modes
CONFIG = config_testing.make_config(r=4, t=33, e=8, k=3, d=40, f=24)
BLOCKS = dict(row_block=16, col_block=16, num_aic=3, num_aiv=5)
PUTS = (Kind.DISPATCH, Kind.RETURN, Kind.DISPATCH_GRAD, Kind.RETURN_GRAD)
both_passes = pytest.mark.parametrize('direction', Direction)


@functools.cache
def case(
  direction,
  storage='float32',
  placement='combine',
  routing='uniform',
  **options,
):
  policy = precision.PrecisionPolicy(storage=storage, placement=placement)
  return testing.make_case(
    direction, CONFIG, policy, routing, **BLOCKS, **options
  )


def run(
  layer: testing.Case, modes=Modes(), **options
) -> modes_lib.LaunchResult:
  return runtime.run(layer.image, layer.inputs, modes=modes, **options)


def all_tasks(layer: testing.Case, action: Action) -> np.ndarray:
  return np.full(layer.num_tasks, action, np.uint8)


def bits(array: np.ndarray) -> np.ndarray:
  return array.view({2: np.uint16, 4: np.uint32}[array.itemsize])


def find_differences(actual: dict, want: dict) -> dict[str, np.ndarray]:
  """Returns, for each tensor whose bits differ, where."""
  differences = {name: bits(actual[name]) != bits(want[name]) for name in want}
  return {name: mask for name, mask in differences.items() if mask.any()}


def is_put(layer: testing.Case) -> np.ndarray:
  return np.isin(layer.image.tables['tasks']['kind'], PUTS)


def written_by(layer: testing.Case, tasks) -> dict[str, np.ndarray]:
  """Returns, by tensor, the elements that a task or tasks write."""
  accesses, _ = runtime.inspect(layer.image, layer.routing)
  masks = {}
  for box in accesses[
    np.isin(accesses['task'], tasks) & (accesses['write'] == 1)
  ]:
    name = layout.Buffer(box['buffer']).name.lower()
    shape = layer.right[name].shape
    if name in ('d_w_down', 'd_w_gate_up'):
      flat = (shape[0] * shape[1], *shape[2:])
    else:
      flat = (shape[0], -1, shape[-1])
    mask = masks.setdefault(name, np.zeros(shape, bool))
    mask.reshape(flat)[
      box['slab'],
      box['row_begin'] : box['row_end'],
      box['col_begin'] : box['col_end'],
    ] = True
  return {name: mask for name, mask in masks.items() if mask.any()}


class Follower:
  """Which tasks an image lets run, by a dumb reading of its tables."""

  def __init__(self, layer: testing.Case):
    tables = layer.image.tables
    _, signals = runtime.inspect(layer.image, layer.routing)
    self.queues = [
      list(tables['queue_tasks'][q['begin'] : q['begin'] + q['count']])
      for q in tables['queues']
    ]
    events = len(tables['events'])
    self.signallers = happens_before.group_pairs(signals[:, ::-1], events)
    self.waits = happens_before.group_pairs(
      happens_before.list_waits(layer.image), layer.num_tasks
    )
    self.done_tasks = set()

  def ready(self, task) -> bool:
    return all(
      self.done_tasks.issuperset(self.signallers[event])
      for event in self.waits[task]
    )


class TestPoison:
  def test_values_are_nans_that_no_kernel_computes(self):
    for dtype in (row.numpy for row in storage_lib.KERNEL_FORMATS.values()):
      array = np.full(3, poison_lib.poison(dtype))
      assert runtime.is_poison(array).all()
      assert np.isnan(array.astype(np.float32)).all()
      specials = np.array([0, 1, np.inf, np.nan, -np.nan], dtype)
      assert not runtime.is_poison(specials).any()

  def test_other_dtypes_are_refused(self):
    with pytest.raises(ValueError, match='array: expected one of'):
      runtime.is_poison(np.zeros(2))

  @pytest.mark.parametrize('storage', list(storage_lib.KERNEL_FORMATS))
  @both_passes
  def test_marks_what_no_task_wrote(self, direction, storage):
    # Given a tile that is not written, when launched, then it is poison, and
    # what is computed from it is another NaN.
    layer = case(direction, storage)
    task = faults.choose_target(layer.image, layer.routing, 'dropped_tile')
    fault = faults.Fault('dropped_tile', task)
    actual = runtime.launch(layer.image, layer.inputs, fault=fault)
    ((tensor, mask),) = written_by(layer, task).items()
    for name in runtime.list_written_tensors(layer.image):
      poisoned = runtime.is_poison(actual[name])
      assert (poisoned == (mask if name == tensor else False)).all(), name
    assert np.isnan(
      actual[testing.RESULTS[direction][0]].astype(np.float32)
    ).any()

  @both_passes
  def test_without_it_what_no_task_wrote_is_zero(self, direction):
    layer = case(direction)
    nothing = Modes(poison=False, actions=all_tasks(layer, Action(0)))
    actual = run(layer, nothing).outputs
    for name in runtime.list_written_tensors(layer.image):
      assert not bits(actual[name]).any(), name


class TestOrder:
  @both_passes
  def test_is_legal(self, direction):
    # When traced, then no task ends before those that it waits for.
    layer = case(direction)
    for modes in (
      Modes(trace=True),
      Modes(trace=True, permute=1),
      Modes(trace=True, late_puts=True),
      Modes(trace=True, late_puts=True, permute=2),
    ):
      for threads in (1, 3):
        order = run(layer, modes, threads=threads).order
        assert (np.sort(order) == np.arange(layer.num_tasks)).all()
        follower = Follower(layer)
        for task in np.argsort(order):
          assert follower.ready(task), (modes, threads, task)
          follower.done_tasks.add(task)

  @both_passes
  def test_a_task_out_of_its_turn_is_first_or_last(self, direction):
    layer = case(direction)
    for name, place in (('missing_wait', 0), ('early_signal', -1)):
      task = faults.choose_target(layer.image, layer.routing, name)
      actual = run(layer, Modes(trace=True), fault=faults.Fault(name, task))
      assert np.argsort(actual.order)[place] == task

  def test_is_none_unless_traced(self):
    layer = case(Direction.FORWARD)
    assert run(layer).order is None


class TestPermute:
  @both_passes
  def test_one_thread_does_what_the_seed_says(self, direction):
    layer = case(direction)

    def order(seed):
      modes = Modes(permute=seed, trace=True)
      return run(layer, modes, threads=1).order.tobytes()

    orders = [order(seed) for seed in range(20)]
    assert orders == [order(seed) for seed in range(20)]
    assert len(set(orders)) == 20

  def test_draws_every_ready_worker(self):
    # Given a layer whose first tasks are one put a worker, when drawn, then
    # each of them comes first in some run, none much more often than others.
    layer = case(Direction.FORWARD)
    first = np.zeros(layer.num_tasks, int)
    for seed in range(400):
      traced = run(layer, Modes(permute=seed, trace=True), threads=1)
      first[np.argmin(traced.order)] += 1
    workers = CONFIG.num_ranks * BLOCKS['num_aiv']
    assert (first > 0).sum() == workers
    assert first.max() < 4 * 400 / workers

  @pytest.mark.parametrize('seed', [-1, 2**64])
  def test_other_seeds_are_refused(self, seed):
    with pytest.raises(ValueError, match='modes.permute: expected a seed'):
      Modes(permute=seed)


class TestLatePuts:
  @both_passes
  def test_nothing_else_could_run_when_a_put_is_delivered(self, direction):
    # Given the order of a launch, when it is followed task by task, then at
    # every put each worker has nothing but a task that waits.
    layer = case(direction)
    modes = Modes(late_puts=True, trace=True)
    order = run(layer, modes, threads=1).order
    follower, puts = Follower(layer), is_put(layer)
    delivered = 0
    for task in np.argsort(order):
      if puts[task]:
        for queue in follower.queues:
          left = [
            t for t in queue if t not in follower.done_tasks and not puts[t]
          ]
          assert not left or not follower.ready(left[0]), (task, left[0])
        delivered += 1
      follower.done_tasks.add(task)
    assert delivered == puts.sum()

  @both_passes
  @pytest.mark.parametrize('permute', [None, 7])
  def test_puts_come_in_the_same_order_for_any_threads(
    self, direction, permute
  ):
    layer = case(direction)
    puts = np.flatnonzero(is_put(layer))
    modes = Modes(late_puts=True, trace=True, permute=permute)
    orders = set()
    for threads in (1, 2, 4):
      actual = run(layer, modes, threads=threads)
      assert not testing.differing(actual.outputs, layer.right)
      orders.add(puts[np.argsort(actual.order[puts])].tobytes())
    assert len(orders) == 1

  @pytest.mark.parametrize('grain', ['expert', 'row_block'])
  @pytest.mark.parametrize('placement', precision.LAUNCHED_PLACEMENTS)
  @both_passes
  def test_skipped_wait_reads_poison(self, direction, placement, grain):
    # Given a task that does not wait for puts, when launched as usual, then
    # its bits are right; with late puts they are not, whatever the threads.
    layer = case(direction, placement=placement, event_grain=grain)
    task = faults.choose_target(layer.image, layer.routing, 'skipped_wait')
    fault = faults.Fault('skipped_wait', task)
    usual = runtime.launch(layer.image, layer.inputs, threads=1, fault=fault)
    assert not testing.differing(usual, layer.right)
    ((tensor, mask),) = written_by(layer, task).items()
    for threads in (1, 2):
      late = run(layer, Modes(late_puts=True), threads=threads, fault=fault)
      late = late.outputs
      wrong = find_differences(late, layer.right)
      assert set(wrong) & set(testing.RESULTS[direction])
      assert wrong[tensor].any() and not wrong[tensor][~mask].any()
      assert np.isnan(late[tensor][wrong[tensor]]).all()

  @both_passes
  def test_a_deadlock_is_one_once_no_put_is_left(self, direction):
    layer = case(direction)
    _, signals = runtime.inspect(layer.image, layer.routing)
    giving = np.intersect1d(signals[:, 0], np.flatnonzero(is_put(layer)))
    for task in (giving[0], giving[-1]):
      fault = faults.Fault('missing_signal', int(task))
      for threads in (1, 3):
        with pytest.raises(runtime.WaitError) as error_info:
          run(layer, Modes(late_puts=True), threads=threads, fault=fault)
        differences = error_info.value.diagnosis
        assert differences.reason == 'deadlock'
        assert differences.suspects[0].index == task


class TestActions:
  @pytest.mark.parametrize('chain', [None, 16])
  @pytest.mark.parametrize('storage', list(storage_lib.KERNEL_FORMATS))
  @pytest.mark.parametrize('placement', precision.LAUNCHED_PLACEMENTS)
  @both_passes
  def test_capture_of_a_right_launch_is_its_output(
    self, direction, placement, storage, chain
  ):
    layer = case(
      direction, storage, placement, 'empty_experts', chain_rows=chain
    )
    actions = all_tasks(layer, Action.RUN | Action.CAPTURE)
    actual = run(layer, Modes(actions=actions))
    assert not testing.differing(actual.outputs, layer.right)
    rows = runtime.route(layer.image, layer.inputs['topk_ids']).counts
    rows = rows.sum(axis=0).reshape(CONFIG.num_ranks, -1).sum(axis=1)
    for name in runtime.list_written_tensors(layer.image):
      captures, right = actual.captures[name], layer.right[name]
      is_real = np.ones(right.shape, bool)
      if right.shape[1] == CONFIG.dims()['N']:
        is_real = np.arange(right.shape[1])[None, :] < rows[:, None]
        is_real = np.broadcast_to(is_real[..., None], right.shape)
      assert (bits(captures)[is_real] == bits(right)[is_real]).all(), name
      assert runtime.is_poison(captures[~is_real]).all(), name

  @pytest.mark.parametrize('chain', [None, 16])
  @pytest.mark.parametrize('placement', precision.LAUNCHED_PLACEMENTS)
  @pytest.mark.parametrize('action', [Action.HEAL, modes_lib.ISOLATED])
  @both_passes
  def test_healed_outputs_are_the_given_ones(
    self, direction, action, placement, chain
  ):
    # Given tensors that no run would give, when tasks are healed with them,
    # run or not, then they are what the launch leaves.
    layer = case(direction, placement=placement, chain_rows=chain)
    generator = testing.rng('healed', direction, placement)
    healing = {}
    for name in runtime.list_written_tensors(layer.image):
      values = generator.standard_normal(layer.right[name].shape)
      # Rows that do not exist stay zero.
      healing[name] = np.where(layer.right[name] == 0, 0, values).astype(
        np.float32
      )
    modes = Modes(actions=all_tasks(layer, action), heal_with=healing)
    actual = run(layer, modes, threads=2)
    assert not testing.differing(actual.outputs, healing)

  @pytest.mark.parametrize('placement', precision.LAUNCHED_PLACEMENTS)
  @both_passes
  def test_what_travels_beside_rows_is_healed_too(self, direction, placement):
    # Given one kind of task that is healed and not run, when the others run,
    # then they have all they need: outputs are right.
    layer = case(direction, placement=placement)
    kinds = layer.image.tables['tasks']['kind']
    for kind in np.unique(kinds):
      actions = np.where(kinds == kind, Action.HEAL, Action.RUN)
      actions = actions.astype(np.uint8)
      actual = run(layer, Modes(actions=actions, heal_with=layer.right))
      assert not testing.differing(actual.outputs, layer.right), Kind(kind)

  @pytest.mark.parametrize('chain', [None, 16])
  def test_weights_that_travel_are_captured_before_they_are_healed(self, chain):
    # Given wrong d_topk_weights to heal with, when captured, then what the
    # tasks computed is seen, and what they read is what was given.
    layer = case(Direction.BACKWARD, placement='before_down', chain_rows=chain)
    healing = dict(layer.right)
    healing['d_topk_weights'] = healing['d_topk_weights'] + 1
    actions = all_tasks(layer, modes_lib.ISOLATED)
    actual = run(layer, Modes(actions=actions, heal_with=healing))
    captures, right = actual.captures, layer.right['d_topk_weights']
    assert (captures['d_slot_weight'] == healing['d_topk_weights']).all()
    assert (captures['d_topk_weights'] == healing['d_topk_weights']).all()
    plan = runtime.route(layer.image, layer.inputs['topk_ids'])
    owner = layer.inputs['topk_ids'] // CONFIG.experts_per_rank
    grad_rows = captures['d_row_weight'][owner, plan.row_of_slot]
    assert (grad_rows == right).all()

  @both_passes
  def test_a_skipped_task_leaves_poison_and_still_signals(self, direction):
    layer = case(direction)
    for kind in np.unique(layer.image.tables['tasks']['kind']):
      task = testing.first_with_rows(layer, kind)
      actions = all_tasks(layer, Action.RUN)
      actions[task] = 0
      actual = run(layer, Modes(actions=actions)).outputs
      ((tensor, mask),) = written_by(layer, task).items()
      assert (runtime.is_poison(actual[tensor]) == mask).all(), Kind(kind)

  @pytest.mark.parametrize(
    'modes, message',
    [
      (dict(actions=np.ones(3, np.uint8)), r'modes.actions: .*got uint8'),
      (dict(actions=np.ones(684)), r'modes.actions: .*got float64'),
      (dict(actions=np.full(684, 8, np.uint8)), 'at most 7, got 8'),
      (dict(heal_with={}), 'modes.heal_with: expected None without actions'),
      (dict(actions=np.full(684, 4, np.uint8)), r'modes.heal_with: .*got \[\]'),
    ],
  )
  def test_what_does_not_fit_is_refused(self, modes, message):
    layer = case(Direction.FORWARD)
    with pytest.raises(ValueError, match=message):
      run(layer, Modes(**modes))

  def test_given_is_checked(self):
    layer = case(Direction.FORWARD)
    for wrong, message in (
      (layer.right['y'].astype(np.float64), 'expected dtype float32'),
      (layer.right['y'][:1], 'expected shape'),
    ):
      modes = Modes(
        actions=all_tasks(layer, Action.HEAL),
        heal_with=layer.right | {'y': wrong},
      )
      with pytest.raises(ValueError, match=rf"heal_with\['y'\]: {message}"):
        run(layer, modes)
