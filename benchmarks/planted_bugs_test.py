"""Bugs of quantised kernels are found at their stage, and the page says so."""

import numpy as np
import pytest

from benchmarks import coded_kernel
from benchmarks import planted_bugs
from benchmarks import planted_changes
from hpmoe.tools.docs import figures

_LAYERS = planted_changes.LAYERS
_BUGS = [bug for layer in _LAYERS.values() for bug in layer.bugs]
_OUTCOMES = {
  (row['layer'], row['bug']): row
  for row in figures.load('planted_bugs')['outcomes']
}
# One of each kind; `make sweep` tries all.
_QUICK = (
  ('int4', 'codes are read as packed along the columns'),
  ('int4', 'nibbles of w_down are swapped'),
  ('uint4', 'zero points are one more'),
  ('int8', 'codes of x wrap at 128'),
  ('int8', 'the activation has the scales of the first GEMM'),
  ('fp8_dropped', 'a token without an expert reads what memory holds'),
  ('contest', 'the activation is rounded to bfloat16'),
)


def _mark(bug: planted_changes.Bug):
  marks = [] if (bug.layer, bug.bug) in _QUICK else [pytest.mark.slow]
  return pytest.param(bug, marks=marks, id=f'{bug.layer}: {bug.bug}')


def _judge(layer: str, bug: planted_changes.Bug | None):
  table = _LAYERS[layer]
  judge = planted_bugs.judge_case if table.case else planted_bugs.judge_solution
  return judge(table, bug)


@pytest.mark.parametrize('bug', [*map(_mark, _BUGS)])
@pytest.mark.few(1)
def test_a_bug_is_found_at_its_stage(bug):
  outcome = _judge(bug.layer, bug)
  assert outcome.stage == bug.stage
  row = _OUTCOMES[bug.layer, bug.bug]
  assert outcome.y_alone == row['y_alone']
  accepting = [name for name, value in outcome.accepts.items() if value]
  assert accepting == row['accepted_by']


@pytest.mark.parametrize(
  'layer',
  [
    'int4',
    *(pytest.param(n, marks=pytest.mark.slow) for n in _LAYERS if n != 'int4'),
  ],
)
def test_a_right_kernel_passes(layer):
  outcome = _judge(layer, None)
  assert outcome.stage == outcome.y_alone == planted_bugs.PASSES


def test_there_are_enough_bugs_and_none_is_twice():
  names = [(bug.layer, bug.bug) for bug in _BUGS]
  assert len(names) == len({*names}) >= 60
  assert {*_QUICK} <= {*names}
  kernels = [(b.layer, b.point, b.change, str(b.fields)) for b in _BUGS]
  assert len({*kernels}) == len(kernels)


@pytest.mark.parametrize('layer', ['int8', 'uint4'])
def test_every_bug_changes_what_the_kernel_computes(layer):
  # A point that no kernel passes would plant nothing.
  table = _LAYERS[layer]
  inputs = planted_bugs.make_case(table).make()
  arguments = inputs.arrays, inputs.config.num_rows
  right = coded_kernel.compute_case(table.make_kernel(), *arguments)
  for bug in table.bugs:
    wrong = coded_kernel.compute_case(table.make_kernel(bug), *arguments)
    changed_stages = [
      n for n in right if not np.array_equal(right[n], wrong[n])
    ]
    assert bug.stage in changed_stages, bug.bug


def test_the_page_has_every_bug():
  assert [*_OUTCOMES] == [(bug.layer, bug.bug) for bug in _BUGS]
  assert [row['stage'] for row in _OUTCOMES.values()] == [
    bug.stage for bug in _BUGS
  ]
