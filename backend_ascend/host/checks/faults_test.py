"""Each fault spoils the stage that the table names, and nothing before it."""

import contextlib

import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.checks import modes
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage as storage_lib

Kind = layout.Kind
Direction = layout.Direction
CONFIG = config_testing.make_config(r=4, t=33, e=8, k=3, d=40, f=24)
SMALLEST_LAYER = testing.LAYERS['one_of_everything']
STORAGES = tuple(storage_lib.KERNEL_FORMATS)
GRAINS = ('expert', 'row_block')
# All faults that do not hang, in every dtype in which they are sure to show;
# of weight gradients, in one link and in chains.
CASES = [
  pytest.param(
    spec,
    chain,
    storage,
    id=f'{spec.direction.name}-{spec.name}-{chain}-{storage}',
  )
  for spec in faults.TABLE
  if not spec.hangs and not spec.needs
  for chain in ((None, 16) if 'd_w_' in spec.stage else (None,))
  for storage in spec.storages
]


def layer(
  storage,
  placement,
  grain,
  config=CONFIG,
  activation='swiglu',
  direction=Direction.FORWARD,
  routing='uniform',
  chain=None,
):
  """Returns (image, inputs) of a small layer."""
  policy = precision.PrecisionPolicy(
    storage=storage, placement=placement, activation=activation
  )
  blocks = dict(row_block=16, col_block=16, num_aic=3, num_aiv=5)
  blocks |= dict(event_grain=grain, chain_rows=chain)
  image = testing.compiled(direction, config, policy, **blocks)
  inputs = testing.inputs_of(direction, config, policy, routing, name='faults')
  return image, inputs


def layer_of(spec, storage, placement, grain, chain=None):
  """Returns (image, inputs) of a layer in which the fault can be."""
  return layer(
    storage,
    placement,
    grain,
    direction=spec.direction,
    chain=chain,
    routing='empty_experts' if spec.empty else 'uniform',
  )


def target(image, inputs, name) -> faults.Fault:
  plan = runtime.route(image, inputs['topk_ids'])
  return faults.Fault(name, faults.choose_target(image, plan, name))


def effective(image, inputs, name) -> faults.Fault:
  """Returns the fault in the first task where it changes the layer's result."""
  plan = runtime.route(image, inputs['topk_ids'])
  parsed = image_lib.load(image)
  right = runtime.launch(image, inputs)
  for task in faults.candidates(parsed, plan, name):
    fault = faults.Fault(name, int(task))
    # A few elements of two bytes may be rounded alike, there or further on.
    with contextlib.suppress(faults.NoEffect):
      wrong = runtime.launch(image, inputs, fault=fault)
      if set(testing.differing(wrong, right)) & set(
        testing.RESULTS[parsed.direction]
      ):
        return fault
  raise AssertionError(f'{name} changes no result')


def in_order(names) -> list[str]:
  """Returns tensors in the order in which tasks write them."""
  return [
    stage for stage in layout.STAGE_OF_KIND.values() if stage in set(names)
  ]


def test_table_has_the_names_of_the_runtime():
  backward = faults.specs(Direction.BACKWARD)
  native = _native.fault_names()
  assert list(backward) == native
  assert list(faults.SPECS) == native[:19] + ['skipped_wait']
  for spec in faults.TABLE:
    for placement in precision.LAUNCHED_PLACEMENTS:
      kind, stage = spec.located(placement)
      assert (kind >= Kind.DISPATCH_GRAD) == bool(spec.direction)
      of_order = spec.hangs or spec.name == 'early_signal'
      assert of_order or stage == layout.STAGE_OF_KIND[kind]


# Each once; `make sweep` runs the other pairs.  That it is in its task's tile
# `faults_table_test` says.
@pytest.mark.parametrize(
  'grain, placement',
  halved_testing.halved(GRAINS, precision.LAUNCHED_PLACEMENTS),
)
@pytest.mark.parametrize('spec, chain, storage', CASES)
@pytest.mark.few(44)
def test_every_fault_is_first_seen_in_its_stage(
  spec, chain, grain, placement, storage
):
  # Given a right launch, when the fault is put into its task ...
  image, inputs = layer_of(spec, storage, placement, grain, chain)
  right = runtime.launch(image, inputs, threads=2)
  fault = effective(image, inputs, spec.name)
  wrong = runtime.launch(image, inputs, threads=1, fault=fault)
  # ... then its stage is the first that differs, and downstream follows;
  # the number of threads changes nothing.
  _, stage = spec.located(placement)
  changed_names = in_order(testing.differing(wrong, right))
  assert changed_names[0] == stage
  assert set(changed_names) & set(testing.RESULTS[spec.direction])
  for threads in (2, 7):
    second_run = runtime.launch(image, inputs, threads=threads, fault=fault)
    assert not testing.differing(second_run, wrong), threads


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize('direction', Direction)
@pytest.mark.parametrize(
  'name',
  ['dropped_tile', 'missing_wait', 'early_signal', 'empty_grad_not_zeroed'],
)
def test_what_is_read_or_left_unwritten_is_nan(name, direction, storage):
  # Given a fault after which nobody has written, when launched, then what is
  # wrong in its stage is NaN, not some earlier launch's number.
  if name not in faults.specs(direction):
    return
  spec = faults.specs(direction)[name]
  image, inputs = layer_of(spec, storage, 'combine', 'row_block')
  right = runtime.launch(image, inputs)
  wrong = runtime.launch(image, inputs, fault=target(image, inputs, name))
  actual = wrong[spec.stage].astype(np.float32)
  bad = actual != right[spec.stage].astype(np.float32)
  assert bad.any() and np.isnan(actual[bad]).all()
  if spec.empty:
    assert (right[spec.stage].astype(np.float32)[bad] == 0).all()


class TestWeightGrads:
  def launches(self, name, chain, task=None, exact=False):
    """Returns (right, wrong, image, task, inputs) in float32."""
    policy = precision.PrecisionPolicy(activation='absolute')
    inputs = testing.make_grad_inputs(CONFIG, policy, exact=exact)
    image = testing.compile_grad(
      CONFIG, policy, row_block=4, col_block=16, chain_rows=chain
    )
    fault = target(image, inputs, name)
    if task is not None:
      fault = faults.Fault(name, task)
    right = runtime.launch(image, inputs)
    wrong = runtime.launch(image, inputs, fault=fault)
    task = image_lib.load(image).tables['tasks'][fault.task]
    return right, wrong, task, inputs

  @pytest.mark.parametrize('chain', (None, 8))
  def test_twice_adds_the_rows_of_the_link_once_more(self, chain):
    # Given exact data, when a link sums its rows twice, then the gradient is
    # too great by just what its rows give.
    right, wrong, task, inputs = self.launches(
      'weight_grad_twice', chain, exact=True
    )
    rank, expert = int(task['rank']), int(task['expert'])
    local = CONFIG.experts_per_rank
    ids = inputs['topk_ids']
    first = int((ids // local == rank)[ids < expert].sum())
    count = int((ids == expert).sum())
    step = chain or count
    begin = int(task['peer']) * step
    rows = slice(first + begin, first + min(begin + step, count))
    extra = inputs['expert_in'][rank, rows].T @ right['d_gate_up'][rank, rows]
    tile = (
      slice(task['row_begin'], task['row_end']),
      slice(task['col_begin'], task['col_end']),
    )
    want = right['d_w_gate_up'].copy()
    want[rank, expert % local][tile] += extra[tile]
    assert extra[tile].any()
    assert (wrong['d_w_gate_up'] == want).all()

  @pytest.mark.parametrize('chain', (None, 8))
  def test_out_of_order_is_rounding_and_nothing_else(self, chain):
    # Given real data, when blocks are summed out of order, then the gradient
    # differs by rounding; given exact data, the fault changes nothing and is
    # refused.
    right, wrong, _, _ = self.launches('blocks_out_of_order', chain)
    assert testing.differing(wrong, right) == ['d_w_down']
    np.testing.assert_allclose(
      wrong['d_w_down'], right['d_w_down'], rtol=0, atol=1e-5
    )
    with pytest.raises(ValueError, match='output stays the same'):
      self.launches('blocks_out_of_order', chain, exact=True)


class TestTargets:
  @pytest.mark.parametrize(
    'name, message, changes',
    [
      ('bogus', 'fault: expected one of .*bogus', {}),
      ('weight_grad_twice', "got 'weight_grad_twice'", {}),
      *(
        (name, f'fault {name}: expected.*{value}', dict(config=SMALLEST_LAYER))
        for name, value in dict(
          swapped_experts='num_experts',
          lost_k_slot='top_k',
          misplaced_weight='top_k',
          stale_row='num_tokens',
          wrong_offset='d_model',
          off_by_one_row='task',
        ).items()
      ),
      (
        'early_rounding',
        'expected activation swiglu',
        dict(activation='absolute'),
      ),
      (
        'empty_grad_not_zeroed',
        'empty_grad.*expected a task that',
        dict(direction=Direction.BACKWARD),
      ),
      (
        'blocks_out_of_order',
        'expected storage float32',
        dict(direction=Direction.BACKWARD, storage='bfloat16'),
      ),
    ],
  )
  def test_layer_that_has_no_target_is_told(self, name, message, changes):
    policy_fields = dict(storage='float32', placement='combine', grain='expert')
    with pytest.raises(ValueError, match=message):
      target(*layer(**policy_fields | changes), name)

  def test_fault_or_task_that_is_none(self):
    image, inputs = layer('float32', 'combine', 'expert')
    with pytest.raises(ValueError, match='fault: .*bogus'):
      runtime.launch(image, inputs, fault=faults.Fault('bogus', 0))
    with pytest.raises(ValueError, match='fault.task: .*got 99999'):
      runtime.launch(image, inputs, fault=faults.Fault('zero_output', 99999))

  def test_target_has_real_rows(self):
    # Given a routing that leaves most experts empty, when a target is chosen,
    # then it is a task with rows.
    image, inputs = layer('float32', 'combine', 'row_block')
    inputs['topk_ids'] = testing.make_ids(
      CONFIG, 'empty_experts', testing.rng('targets')
    )
    for name in faults.SPECS:
      parsed = image_lib.load(image)
      fault = target(image, inputs, name)
      counts = runtime.route(image, inputs['topk_ids']).counts
      assert faults.real_rows(parsed, counts)[fault.task] > 0, name

  @pytest.mark.parametrize('direction', Direction)
  @pytest.mark.parametrize('grain', GRAINS)
  @pytest.mark.parametrize('routing', testing.ROUTINGS)
  def test_skipped_wait_races_in_every_candidate(
    self, routing, grain, direction
  ):
    # Given any routing, when any candidate skips its waits, then it races with
    # a put; and a task of its kind that is none does not.
    image, inputs = layer(
      'float32', 'combine', grain, direction=direction, routing=routing
    )
    plan = runtime.route(image, inputs['topk_ids'])
    parsed = image_lib.load(image)
    targets = faults.candidates(parsed, plan, 'skipped_wait')
    kind = faults.specs(direction)['skipped_wait'].kind
    real = faults.real_rows(parsed, plan.counts) > 0
    same_kind = np.flatnonzero((parsed.tables['tasks']['kind'] == kind) & real)
    other_tasks = np.setdiff1d(same_kind, targets)
    for task in (*targets[::4], *other_tasks[::4]):
      races = runtime.run(
        image,
        inputs,
        threads=1,
        fault=faults.Fault('skipped_wait', int(task)),
        modes=modes.Modes(races=True),
      ).races
      assert bool(races) == (task in targets), task
      assert {race.second.index for race in races} <= {task}

  @pytest.mark.parametrize('chain', (None, 16))
  def test_real_rows_of_gradients(self, chain):
    # Given a routing that leaves experts without rows, when real rows are
    # counted, then every chain sums its expert's rows and every put its slice.
    image, inputs = layer(
      'float32',
      'combine',
      'row_block',
      direction=Direction.BACKWARD,
      routing='empty_experts',
      chain=chain,
    )
    counts = runtime.route(image, inputs['topk_ids']).counts
    parsed = image_lib.load(image)
    tasks, rows = parsed.tables['tasks'], faults.real_rows(parsed, counts)
    for kind in (Kind.DOWN_WEIGHT_GRAD, Kind.DISPATCH_GRAD, Kind.RETURN_GRAD):
      per_expert = np.zeros(CONFIG.num_experts, int)
      tile = (tasks['kind'] == kind) & (tasks['col_block'] == 0)
      if kind == Kind.DOWN_WEIGHT_GRAD:
        tile &= tasks['row_block'] == 0
      np.add.at(per_expert, tasks['expert'][tile], rows[tile])
      assert (per_expert == counts.sum(axis=0)).all(), kind
    empty = target(image, inputs, 'empty_grad_not_zeroed').task
    assert rows[empty] == 0
