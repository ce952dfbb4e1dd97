"""The rule of single writes: every element is written exactly once."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.proofs import proofs_testing
from hpmoe.backend_ascend.compiler.taskflow import layout


class TestOnce:
  @pytest.mark.parametrize('kind', list(layout.Kind))
  @proofs_testing.both_grains
  def test_a_missing_write(self, grain, kind):
    flow = proofs_testing.lower_kind(kind, grain)
    task = proofs_testing.of_kind(flow, kind)[1]
    write = proofs_testing.regions_of(flow, task)[1][0]
    report = proofs_testing.prove(proofs_testing.without_task(flow, task))
    proofs_testing.find_violation(report, 'once')
    violation = next(v for v in report.violations if 'no task writes' in v.text)
    assert violation.region == proofs.Region(
      layout.STAGE_OF_KIND[kind],
      'sender' if write['view'] else 'rows',
      int(write['rank']),
      int(write['group']),
      (int(write['row_begin']), int(write['row_end'])),
      (int(write['col_begin']), int(write['col_end'])),
    )

  @pytest.mark.parametrize('link', [0, 1, 2])
  @pytest.mark.parametrize('kind', proofs_testing.WEIGHT_GRADS)
  def test_a_weight_gradient_accumulated_twice(self, kind, link):
    # Given a chain of three links, when one does the work of another once
    # more, then both are named, and the rows that nobody sums any more.
    flow = proofs_testing.copy(proofs_testing.lower_kind(kind))
    chain = [
      t
      for t in proofs_testing.of_kind(flow, kind)
      if flow.tasks['expert'][t] == 1
      and flow.tasks['row_block'][t] == flow.tasks['col_block'][t] == 1
    ]
    task, other = chain[(link + 1) % 3], chain[link]
    flow.tasks['peer'][task] = link
    for index in (0, 1):
      proofs_testing.regions_of(flow, task)[index][:] = (
        proofs_testing.regions_of(flow, other)[index]
      )
    report = proofs_testing.prove(flow)
    pair = min(task, other), max(task, other)
    violation = proofs_testing.find_violation(report, 'once', *pair)
    assert violation.region.buffer == layout.STAGE_OF_KIND[kind]
    assert violation.region.group == 3 + link
    assert violation.text.count(f'link {link},') == 2
    assert 'both write' in violation.text
    missing = [v for v in report.violations if 'no task writes' in v.text]
    assert [v.region.group for v in missing] == [3 + (link + 1) % 3]

  @pytest.mark.parametrize(
    'kind, group, rows, cols',
    [
      (layout.Kind.SWIGLU, 0, (0, 12), (0, 5)),
      (layout.Kind.SWIGLU, 1, (0, 12), (0, 5)),
      (layout.Kind.DOWN_WEIGHT_GRAD, 1, (0, 5), (0, 9)),
      (layout.Kind.GATE_UP_WEIGHT_GRAD, 1, (0, 9), (0, 10)),
    ],
  )
  def test_an_expert_that_nobody_writes(self, kind, group, rows, cols):
    # Given one task a tile, when those of an expert are gone, then all of its
    # rows, or its gradient, would keep what stood there.
    flow = proofs_testing.lower_kind(kind, chain_rows=None)
    for task in reversed(proofs_testing.of_kind(flow, kind)):
      if flow.tasks['expert'][task] == 2 + group:
        flow = proofs_testing.without_task(flow, task)
    report = proofs_testing.prove(flow)
    assert kind == layout.Kind.SWIGLU or proofs_testing.refused_rules(
      report
    ) == {'once'}
    violation = next(v for v in report.violations if 'no task writes' in v.text)
    stage = layout.STAGE_OF_KIND[kind]
    assert violation.region == proofs.Region(
      stage, 'rows', 1, group, rows, cols
    )

  def test_an_overlap_of_one_column(self):
    flow = proofs_testing.copy(proofs_testing.lower())
    task = proofs_testing.of_kind(flow, layout.Kind.GATE_UP)[1]
    flow.tasks['col_begin'][task] -= 1
    reads, writes = proofs_testing.regions_of(flow, task)
    reads['col_begin'][1] -= 1  # of w_gate_up
    writes['col_begin'] -= 1
    report = proofs_testing.prove(flow)
    assert proofs_testing.refused_rules(report) == {'once'}
    violation = proofs_testing.find_violation(report, 'once', task_b=task)
    assert violation.region.cols == (2, 3)

  def test_every_writer_under_a_tall_box(self):
    # Given a task that writes all three row blocks, when proved, then it is
    # named with the writer of each block, and nothing is called missing.
    flow = proofs_testing.copy(proofs_testing.lower())
    tall, *below = [
      t
      for t in proofs_testing.of_kind(flow, layout.Kind.GATE_UP)
      if flow.tasks['expert'][t] == 0 and flow.tasks['col_block'][t] == 0
    ]
    proofs_testing.regions_of(flow, tall)[1]['row_end'] = 12
    violations = [
      v for v in proofs_testing.prove(flow).violations if v.rule == 'once'
    ]
    assert [(v.task_a, v.task_b) for v in violations] == [
      (tall, t) for t in below
    ]
    assert [v.region.rows for v in violations] == [(4, 8), (8, 12)]

  @pytest.mark.parametrize('kind', list(layout.Kind))
  def test_a_buffer_without_a_space(self, kind):
    flow = proofs_testing.lower_kind(kind)
    stage = layout.STAGE_OF_KIND[kind]
    spaces = flow.spaces[flow.spaces['buffer'] != layout.Buffer[stage.upper()]]
    report = proofs_testing.prove(dataclasses.replace(flow, spaces=spaces))
    assert proofs_testing.refused_rules(report) == {'once'}
    texts = [v.text for v in report.violations if v.rule == 'once']
    assert f'once: spaces of {stage}: expected one' in texts[0]
    assert any('has no space in that view' in text for text in texts)

  def test_a_buffer_written_in_two_views(self):
    flow = proofs_testing.copy(proofs_testing.lower())
    index = np.flatnonzero(flow.spaces['buffer'] == layout.Buffer.EXPERT_IN)[0]
    rows = flow.spaces[index : index + 1].copy()
    rows['view'] = layout.View.ROWS
    rows['groups'], rows['rows'] = 2, 12
    spaces = np.concatenate([flow.spaces, rows])
    report = proofs_testing.prove(dataclasses.replace(flow, spaces=spaces))
    assert (
      'spaces of expert_in: expected one'
      in proofs_testing.find_violation(report, 'once').text
    )
