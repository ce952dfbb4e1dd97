"""The rules of units and regions: each on its core, as its kind says."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.proofs import proofs_testing
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import precision


class TestUnit:
  def test_an_aiv_task_on_an_aic_queue(self):
    flow = proofs_testing.lower()
    lists = proofs_testing.queue_lists(flow)
    aic, aiv = 0, 2
    assert flow.queues[aic]['unit'] == layout.Unit.AIC
    task = next(
      t for t in lists[aiv] if flow.tasks['kind'][t] == layout.Kind.SWIGLU
    )
    lists[aiv].remove(task)
    lists[aic].append(task)
    report = proofs_testing.prove(proofs_testing.with_queues(flow, lists))
    violation = proofs_testing.find_violation(report, 'unit', task_a=task)
    assert 'swiglu(rank 0' in violation.text
    assert 'on an AIC queue' in violation.text
    assert violation.region.buffer == 'activation'


class TestRegions:
  @proofs_testing.both_directions
  @pytest.mark.parametrize('placement', precision.LAUNCHED_PLACEMENTS)
  @proofs_testing.both_grains
  def test_every_read_that_is_not_declared(self, grain, placement, direction):
    # Given each kind's declared reads, when one loses a row or a column at
    # any of its four sides, then the task that still reads it is named.
    # A link in the middle of its chain sums two row blocks.
    sound = proofs_testing.lower(
      'ragged', grain, placement, direction, row_block=2, chain_rows=4
    )
    num_refused = 0
    for kind in np.unique(sound.tasks['kind']):
      tasks = proofs_testing.of_kind(sound, kind)
      if kind in proofs_testing.WEIGHT_GRADS:
        tasks = tasks[sound.tasks['peer'][tasks] == 1]
      task = tasks[-1]
      for index in range(sound.tasks['read_count'][task]):
        for field in ('row_begin', 'row_end', 'col_begin', 'col_end'):
          flow = proofs_testing.copy(sound)
          step = 1 if field.endswith('begin') else -1
          proofs_testing.regions_of(flow, task)[0][field][index] += step
          report = proofs_testing.prove(flow)
          violation = proofs_testing.find_violation(
            report, 'regions', task_a=task
          )
          assert ' reads ' in violation.text
          assert proofs_testing.refused_rules(report) == {'regions'}
          num_refused += 1
    reads = {
      ('forward', 'combine'): 9,
      ('forward', 'before_down'): 10,
      ('forward', 'epilogue'): 10,
      ('backward', 'combine'): 18,
      ('backward', 'before_down'): 19,
      ('backward', 'epilogue'): 21,
    }
    assert num_refused == 4 * reads[direction, placement]
