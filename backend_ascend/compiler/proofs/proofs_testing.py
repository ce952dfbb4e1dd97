"""Flows to break, and the violations that proofs must report."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as testing
from hpmoe.reference.contract import kinds

Kind = layout.Kind
Buffer = layout.Buffer
RULES = ('unit', 'regions', 'progress', 'event', 'once', 'order')
DIRECTIONS = ('forward', 'backward')
WEIGHT_GRADS = (Kind.DOWN_WEIGHT_GRAD, Kind.GATE_UP_WEIGHT_GRAD)
PUTS = layout.select_kinds(*layout.PUTS)
WHOLE_ROWS = (
  *(Kind.SWIGLU_GRAD, Kind.TOPK_WEIGHT_GRAD),
  *(Kind.NORM, Kind.NORM_GRAD),
)
COUNTING_KINDS = (Kind.RETURN, Kind.RETURN_GRAD, Kind.RELAY, Kind.RELAY_GRAD)
LAST = (
  *(Kind.COMBINE, Kind.COMBINE_GRAD, Kind.TOPK_WEIGHT_GRAD),
  Kind.GAIN_GRAD,
)
lower = testing.lower
regions_of = testing.regions_of
both_grains = pytest.mark.parametrize('grain', testing.GRAINS)
both_directions = pytest.mark.parametrize('direction', DIRECTIONS)


def lower_kind(kind, grain='row_block', **options) -> flow_lib.Flow:
  """Returns a flow that has the kind; weight gradients are chains of three."""
  path = kinds.PATH_OF_KIND[kind]
  relay = path == layout.Path.RELAYED
  shape = 'sublayer' if path == layout.Path.OF_SUBLAYER else 'ragged'
  options = dict(chain_rows=4, relay=relay) | options
  direction = DIRECTIONS[layout.DIRECTION_OF_KIND[kind]]
  return lower(shape, grain, direction=direction, **options)


def prove(flow) -> proofs.ProofReport:
  return proofs.prove(image_lib.serialize(flow))


def copy(flow) -> flow_lib.Flow:
  """Returns a flow whose tables may be written without harm."""
  tables = {name: getattr(flow, name).copy() for name in layout.TABLES}
  return dataclasses.replace(flow, **tables)


def of_kind(flow, kind) -> np.ndarray:
  return np.flatnonzero(flow.tasks['kind'] == kind)


def waits_of(flow, task) -> slice:
  t = flow.tasks[task]
  return slice(t['wait_begin'], int(t['wait_begin']) + int(t['wait_count']))


def signals_of(flow, task) -> slice:
  t = flow.tasks[task]
  begin = int(t['signal_begin'])
  return slice(begin, begin + int(t['signal_count']))


def drop_waits(flow, task, keep) -> int:
  """Keeps the waits for which keep(event) holds; returns how many went."""
  entries = waits_of(flow, task)
  waits = flow.waits[entries].copy()
  kept_waits = waits[[bool(keep(int(w['event']))) for w in waits]]
  flow.waits[entries.start : entries.start + len(kept_waits)] = kept_waits
  flow.tasks['wait_count'][task] = len(kept_waits)
  return len(waits) - len(kept_waits)


def queue_lists(flow) -> list[list[int]]:
  return [
    list(flow.queue_tasks[q['begin'] : int(q['begin']) + int(q['count'])])
    for q in flow.queues
  ]


def with_queues(flow, lists) -> flow_lib.Flow:
  """Returns the flow with other queue contents, cores set to match."""
  flow = copy(flow)
  count = np.array([len(tasks) for tasks in lists])
  flow.queues['begin'] = np.cumsum(count) - count
  flow.queues['count'] = count
  for queue, tasks in zip(flow.queues, lists):
    flow.tasks['core'][tasks] = queue['core']
  order = np.concatenate([np.array(tasks, int) for tasks in lists])
  return dataclasses.replace(flow, queue_tasks=order.astype('<u4'))


def without_task(flow, task) -> flow_lib.Flow:
  lists = [
    [t - (t > task) for t in map(int, tasks) if t != task]
    for tasks in queue_lists(flow)
  ]
  tasks = np.delete(flow.tasks, task)
  return with_queues(dataclasses.replace(flow, tasks=tasks), lists)


def with_wait(flow, task, event) -> flow_lib.Flow:
  """Returns the flow with one more wait of a task."""
  new_wait = np.array([(event, flow.events['threshold'][event])], layout.WAIT)
  waits = np.concatenate(
    [flow.waits, flow.waits[waits_of(flow, task)], new_wait]
  )
  flow = copy(dataclasses.replace(flow, waits=waits))
  flow.tasks['wait_count'][task] += 1
  flow.tasks['wait_begin'][task] = len(waits) - flow.tasks['wait_count'][task]
  return flow


def find_violation(report, rule, task_a=None, task_b=None) -> proofs.Violation:
  """Returns the one violation of a rule that names these tasks."""
  assert not report.proved
  outcome = {r.name: r.proved for r in report.rules}
  assert not outcome[rule], report.rules
  matches = [
    v
    for v in report.violations
    if v.rule == rule
    and (task_a is None or v.task_a == task_a)
    and (task_b is None or v.task_b == task_b)
  ]
  assert matches, '\n'.join(v.text for v in report.violations)
  assert matches[0].text.startswith(rule + ': ')
  assert '\n' not in matches[0].text
  return matches[0]


def refused_rules(report) -> set[str]:
  return {rule.name for rule in report.rules if not rule.proved}
