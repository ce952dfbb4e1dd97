"""Each fault spoils the stage that the table names, and nothing before it."""

import numpy as np
import pytest

from backend_ascend import _native
from backend_ascend.kernels.host import faults
from backend_ascend.kernels.host import runtime
from backend_ascend.kernels.host import runtime_testing as testing
from backend_ascend.taskflow import image as image_lib
from backend_ascend.taskflow import layout
from reference import config as config_lib
from reference import precision
from reference import tensors

CONFIG = config_lib.MoEConfig(4, 33, 8, 3, 40, 24)
STORAGES = ('float32', 'bfloat16')
GRAINS = ('expert', 'row_block')


def layer(storage, placement, grain, config=CONFIG, activation='swiglu'):
  """Returns (image, inputs) of a small layer."""
  policy = precision.PrecisionPolicy(
      storage=storage, placement=placement, activation=activation
  )
  image = testing.compile_layer(
      config, policy, event_grain=grain, row_block=16, col_block=16,
      num_aic=3, num_aiv=5,
  )  # fmt: skip
  return image, testing.make_inputs(config, policy, name='faults')


def target(image, inputs, name) -> faults.Fault:
  counts = runtime.make_plan(image, inputs['topk_ids'])['counts']
  return faults.Fault(name, faults.choose_target(image, counts, name))


def test_table_has_the_names_of_the_runtime():
  assert list(faults.SPECS) == _native.fault_names()
  for kind in faults.TABLE:
    assert kind.stage in tensors.STAGES


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize('placement', precision.PLACEMENTS)
@pytest.mark.parametrize('grain', GRAINS)
class TestEveryFault:

  @pytest.mark.parametrize(
      'name', [kind.name for kind in faults.TABLE if not kind.hangs]
  )
  def test_is_first_seen_in_its_stage_and_the_same_for_any_threads(
      self, name, grain, placement, storage
  ):
    kind = faults.SPECS[name]
    # Given a right launch, when the fault is put into its task ...
    image, inputs = layer(storage, placement, grain)
    right = runtime.launch(image, inputs, threads=2)
    fault = target(image, inputs, name)
    wrong = runtime.launch(image, inputs, threads=1, fault=fault)
    # ... then its stage is the first that differs, and downstream follows;
    # the number of threads changes nothing.
    _, stage = kind.located(placement)
    changed = testing.differing(wrong, right)
    assert changed[0] == stage
    assert 'y' in changed
    for threads in (2, 7):
      again = runtime.launch(image, inputs, threads=threads, fault=fault)
      assert not testing.differing(again, wrong), threads

  # Faults that are located where they are committed.
  @pytest.mark.parametrize(
      'name', sorted(set(faults.SPECS) - {'missing_signal', 'early_signal'})
  )
  def test_changes_only_the_tile_it_was_put_in(
      self, name, grain, placement, storage
  ):
    kind = faults.SPECS[name]
    image, inputs = layer(storage, placement, grain)
    right = runtime.launch(image, inputs)
    fault = target(image, inputs, name)
    wrong = runtime.launch(image, inputs, fault=fault)
    task_kind, stage = kind.located(placement)
    parsed = image_lib.parse(image)
    task = parsed.tables['tasks'][fault.task]
    assert task['kind'] == task_kind
    as_int = np.int16 if storage == 'bfloat16' else np.int32
    bad = np.argwhere(wrong[stage].view(as_int) != right[stage].view(as_int))
    assert {tuple(i[:2]) for i in bad} <= written_rows(parsed, task, right)
    width = right[stage].shape[-1]
    columns = (0, width) if kind.kind in (0, 4) else (
        task['col_begin'], task['col_end']
    )
    assert (columns[0] <= bad[:, -1]).all() and (bad[:, -1] < columns[1]).all()


def written_rows(parsed, task, outputs) -> set[tuple[int, int]]:
  """Returns (rank, row or token) that a task may write, by looking all up."""
  counts, base = outputs['counts'], outputs['row_base']
  kind, rank, expert = task['kind'], int(task['rank']), int(task['expert'])
  rows = range(int(task['row_begin']), int(task['row_end']))
  if kind == layout.Kind.COMBINE:
    return {(rank, t) for t in rows}
  if kind == layout.Kind.DISPATCH:
    owner = expert // parsed.config.experts_per_rank
    return {
        (owner, int(base[rank, expert]) + j)
        for j in rows
        if j < counts[rank, expert]
    }
  first = int(base[0, expert])
  total = int(counts[:, expert].sum())
  if kind == layout.Kind.RETURN:
    slice_of = int(task['peer'])
    if slice_of >= 0:
      first, total = int(base[slice_of, expert]), int(counts[slice_of, expert])
    sent = {first + j for j in rows if j < total}
    local = parsed.config.experts_per_rank
    return {
        (r, t)
        for r, t, k in np.ndindex(outputs['row_of_slot'].shape)
        if outputs['row_of_slot'][r, t, k] in sent
        and base[r, expert] <= outputs['row_of_slot'][r, t, k]
        and rank == expert // local
    }
  return {(rank, first + j) for j in rows if j < total}


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize(
    'name', ['dropped_tile', 'missing_wait', 'early_signal']
)
def test_what_is_read_or_left_unwritten_is_nan(name, storage):
  # Given a fault after which nobody has written, when launched, then what is
  # wrong in its stage is NaN, not some earlier launch's number.
  image, inputs = layer(storage, 'combine', 'row_block')
  right = runtime.launch(image, inputs)
  wrong = runtime.launch(image, inputs, fault=target(image, inputs, name))
  stage = faults.SPECS[name].stage
  got = wrong[stage].astype(np.float32)
  bad = got != right[stage].astype(np.float32)
  assert bad.any() and np.isnan(got[bad]).all()


class TestHangs:

  @pytest.mark.parametrize('threads', (1, 2, 7))
  @pytest.mark.parametrize('grain', GRAINS)
  def test_missing_signal_ends_with_the_cause(self, grain, threads):
    # Given a task that never signals, when launched, then the diagnosis names
    # its consumer as blocked and the task as the first suspect.
    image, inputs = layer('float32', 'combine', grain)
    fault = target(image, inputs, 'missing_signal')
    with pytest.raises(runtime.WaitError) as error:
      runtime.launch(image, inputs, threads=threads, fault=fault)
    found = error.value.diagnosis
    parsed = image_lib.parse(image)
    stage = layout.STAGE_OF_KIND[layout.Kind[found.task.kind.upper()]]
    assert stage == faults.SPECS['missing_signal'].stage
    assert found.suspects[0] == runtime.task_name(parsed, fault.task)
    assert found.task.expert == found.suspects[0].expert
    assert found.actual == found.expected - 1


class TestTargets:

  def test_unknown_name(self):
    image, inputs = layer('float32', 'combine', 'expert')
    with pytest.raises(ValueError, match='fault: expected one of .*bogus'):
      target(image, inputs, 'bogus')
    with pytest.raises(ValueError, match='fault: .*bogus'):
      runtime.launch(image, inputs, fault=faults.Fault('bogus', 0))
    with pytest.raises(ValueError, match='fault.task: .*got 99999'):
      runtime.launch(image, inputs, fault=faults.Fault('zero_output', 99999))

  @pytest.mark.parametrize('name, what', [
      ('swapped_experts', 'num_experts'), ('lost_k_slot', 'top_k'),
      ('misplaced_weight', 'top_k'), ('stale_row', 'num_tokens'),
      ('wrong_offset', 'd_model'), ('off_by_one_row', 'task'),
  ])  # fmt: skip
  def test_layer_too_small(self, name, what):
    config = config_lib.MoEConfig(1, 1, 1, 1, 1, 1)
    image, inputs = layer('float32', 'combine', 'expert', config)
    with pytest.raises(ValueError, match=f'fault {name}: expected.*{what}'):
      target(image, inputs, name)

  def test_early_rounding_needs_silu(self):
    image, inputs = layer('float32', 'combine', 'expert', activation='product')
    with pytest.raises(ValueError, match='expected activation swiglu'):
      target(image, inputs, 'early_rounding')

  def test_target_has_real_rows(self):
    # Given a routing that leaves most experts empty, when a target is chosen,
    # then it is a task with rows.
    image, inputs = layer('float32', 'combine', 'row_block')
    inputs['topk_ids'] = testing.make_ids(
        CONFIG, 'empty_experts', testing.rng('targets')
    )
    for name in faults.SPECS:
      parsed = image_lib.parse(image)
      fault = target(image, inputs, name)
      counts = runtime.make_plan(image, inputs['topk_ids'])['counts']
      assert faults.real_rows(parsed, counts)[fault.task] > 0, name

  def test_fault_without_effect_is_refused(self):
    # Given equal weights, when one is misplaced, then nothing can change.
    image, inputs = layer('float32', 'combine', 'expert')
    inputs['topk_weights'] = np.full_like(inputs['topk_weights'], 0.5)
    fault = target(image, inputs, 'misplaced_weight')
    with pytest.raises(ValueError, match='output stays the same'):
      runtime.launch(image, inputs, fault=fault)
