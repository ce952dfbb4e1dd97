"""Sound flows are proved, and each broken task is named by its rule."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.proofs import proofs_testing
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as testing
from hpmoe.reference.contract import halved_testing


class TestSoundFlows:
  @pytest.mark.parametrize(
    'grain, direction, row_block, put, cores',
    halved_testing.covering(
      testing.GRAINS,
      proofs_testing.DIRECTIONS,
      (1, 3, 64),
      ((1, 2), (3, 1), (9, 9)),
      ((1, 1), (3, 5), (24, 48)),
    ),
  )
  def test_are_proved_at_odd_tile_sizes_on_any_cores(
    self, grain, direction, row_block, put, cores
  ):
    rows = dict(row_block=row_block, chain_rows=2 * row_block, col_block=100)
    rows |= dict(zip(('put_rows', 'token_block', 'num_aic'), (*put, cores[0])))
    flow = proofs_testing.lower(
      'ragged', grain, direction=direction, num_aiv=cores[1], **rows
    )
    report = proofs.require(image_lib.serialize(flow))
    num_checked = {rule.name: rule.num_checked for rule in report.rules}
    assert (
      list(num_checked) == list(proofs_testing.RULES)
      and report.violations == ()
    )
    n = len(flow.tasks)
    assert report.tasks == num_checked['unit'] == num_checked['regions'] == n
    assert num_checked['progress'] == num_checked['once'] == n
    assert report.events == num_checked['event'] == len(flow.events)
    assert num_checked['order'] >= np.sum(flow.tasks['wait_count'] > 0)

  @proofs_testing.both_directions
  def test_are_proved_when_capacity_cuts_the_slices(self, direction):
    assert proofs_testing.prove(
      proofs_testing.lower(
        'rank_per_expert', direction=direction, expert_capacity=4
      )
    ).proved

  @pytest.mark.parametrize(
    'kind', [layout.Kind.RETURN, layout.Kind.RETURN_GRAD]
  )
  def test_are_proved_whatever_the_order_of_a_tasks_signals(self, kind):
    flow = proofs_testing.copy(proofs_testing.lower_kind(kind))
    for task in proofs_testing.of_kind(flow, kind):
      entries = proofs_testing.signals_of(flow, task)
      flow.signals[entries] = flow.signals[entries][::-1].copy()
    assert proofs_testing.prove(flow).proved


def _flip(flow, task):
  flow.tasks['unit'][task] = 1 - flow.tasks['unit'][task]


def _read_another_link(flow, task):
  assert flow.tasks['peer'][task] == 2
  proofs_testing.regions_of(flow, task)[0]['group'][2] -= 1


def _narrow_write(flow, task):
  proofs_testing.regions_of(flow, task)[1]['col_end'] -= 1


def _lower_row_event(flow, task):
  event = flow.waits['event'][proofs_testing.waits_of(flow, task).start]
  flow.waits['threshold'][flow.waits['event'] == event] -= 1
  flow.events['threshold'][event] -= 1


def _lower(wait, event):
  def change(flow, task):
    index = proofs_testing.waits_of(flow, task).start
    flow.events['threshold'][flow.waits['event'][index]] -= event
    flow.waits['threshold'][index] -= wait

  return change


def _other_home(flow, task):
  flow.signals['rank'][proofs_testing.signals_of(flow, task).start] ^= 1


def _count_tasks(flow, task):
  index = proofs_testing.signals_of(flow, task).start
  flow.signals['amount'][index] += 2
  flow.signals['span'][index] = 1


def _count_twice(flow, task):
  entries = proofs_testing.signals_of(flow, task)
  flow.signals[entries.start + 1] = flow.signals[entries.start]


def _leave_a_partition_out(flow, task):
  flow.signals['span'][proofs_testing.signals_of(flow, task).start] -= 1


def _set(field, value):
  def change(flow, task):
    flow.tasks[field][task] = value

  return change


DISPATCHES = (layout.Kind.DISPATCH, layout.Kind.DISPATCH_GRAD)
FIRST_READERS = (
  layout.Kind.GATE_UP,
  layout.Kind.COMBINE,
  layout.Kind.DOWN_GRAD,
  layout.Kind.COMBINE_GRAD,
)
ALL = layout.STAGE_OF_KIND  # kind to the tensor that a violation names
# (rule, kinds, which of their tasks, change, words, buffer of the violation).
DEFECTS = {
  'unit': ('unit', layout.Kind, 0, _flip, '', None),
  'link': (
    'regions',
    proofs_testing.WEIGHT_GRADS,
    -1,
    _read_another_link,
    'link 2',
    ALL,
  ),
  'write': ('regions', layout.Kind, 0, _narrow_write, ' writes ', None),
  # The write region is whole, the columns are not.
  'whole': (
    *('regions', proofs_testing.WHOLE_ROWS, 0, _set('col_begin', 1)),
    *('writes whole rows: expected columns 0:', None),
  ),
  'none': (
    'regions',
    [layout.Kind.DOWN],
    0,
    _set('write_count', 0),
    '',
    None,
  ),
  'row': ('event', FIRST_READERS, 0, _lower_row_event, 'of the part', None),
  **{
    f'low {wait}{event}': (
      *('event', [layout.Kind.SWIGLU], 0, _lower(wait, event)),
      *('threshold: expected', None),
    )
    for wait, event in ((0, 1), (1, 0), (1, 1))
  },
  'home': ('event', DISPATCHES, 0, _other_home, '', None),
  'amount': ('event', DISPATCHES, 0, _count_tasks, '', None),
  'twice': (
    'event',
    proofs_testing.COUNTING_KINDS,
    0,
    _count_twice,
    'got it twice',
    None,
  ),
  'span': (
    'event',
    proofs_testing.PUTS,
    0,
    _leave_a_partition_out,
    'over all part',
    None,
  ),
}


BOTH_GRAINS = ('low 01', 'low 10', 'low 11', 'home', 'amount')
# Readers of an event are named, or nobody who is wrong for certain.
OF_READERS = ('row', 'amount')


@pytest.mark.parametrize(
  'defect, kind, grain',
  [
    (name, kind, grain)
    for name, row in DEFECTS.items()
    for kind in row[1]
    for grain in testing.GRAINS
    if grain == 'row_block' or name in BOTH_GRAINS
  ],
)
def test_a_broken_task_is_named(defect, kind, grain):
  rule, _, index, change, words, buffer = DEFECTS[defect]
  flow = proofs_testing.copy(proofs_testing.lower_kind(kind, grain))
  task = proofs_testing.of_kind(flow, kind)[index]
  change(flow, task)
  report = proofs_testing.prove(flow)
  proofs_testing.find_violation(
    report, rule, None if defect in OF_READERS else task
  )
  violations = [
    v for v in report.violations if v.rule == rule and words in v.text
  ]
  assert violations and (
    defect in OF_READERS or {v.task_a for v in violations} >= {task}
  )
  assert buffer is None or violations[0].region.buffer == buffer[kind]
  assert defect != 'unit' or proofs_testing.refused_rules(report) == {'unit'}


class TestReport:
  def test_require_raises_with_every_text(self):
    flow = proofs_testing.copy(proofs_testing.lower(num_aic=200, num_aiv=200))
    task = proofs_testing.of_kind(flow, layout.Kind.SWIGLU)[0]
    proofs_testing.drop_waits(flow, task, lambda _: False)
    image = image_lib.serialize(flow)
    with pytest.raises(proofs.ProofError, match='order: gate_up') as error:
      proofs.require(image)
    report = error.value.report
    assert str(error.value) == '\n'.join(v.text for v in report.violations)
    assert report == proofs.prove(image)

  def test_at_most_max_violations_per_rule_are_reported(self):
    flow = proofs_testing.copy(proofs_testing.lower())
    flow.tasks['wait_count'] = 0
    flow.tasks['unit'] = 1 - flow.tasks['unit']
    for limit in (1, 3, 8):
      report = proofs.prove(image_lib.serialize(flow), limit)
      rules = [v.rule for v in report.violations]
      assert rules.count('unit') == rules.count('order') == limit
    with pytest.raises(ValueError, match='max_violations: expected at least'):
      proofs.prove(image_lib.serialize(flow), 0)

  def test_a_corrupt_image_is_not_proved(self):
    with pytest.raises(ValueError, match='image: expected at least'):
      proofs.prove(b'')
