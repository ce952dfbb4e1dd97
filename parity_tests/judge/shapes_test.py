"""A kernel that is wrong at one awkward size fails there, and nowhere else."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import shapes
from hpmoe.parity_tests.judge import trial_testing as trial

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

KERNEL = trial.Kernel()
CASE = case_lib.Case(preset='tiny', ranks=2, direction='forward')


def _is_wrong(name, config, ids):
  counts = np.bincount(ids[ids >= 0], minlength=config.num_experts)
  return dict(
    nothing=False,
    one_token=config.num_tokens == 1,
    odd_tokens=config.num_tokens % 16 != 0,
    many_rows=counts.max() > 128,
    no_rows=counts.min() == 0 and config.num_tokens > 16,
    one_slot=config.top_k == 1,
    all_slots=config.top_k == config.num_experts,
    odd_width=config.d_model % 2 == 1,
    odd_hidden=config.d_ff % 2 == 1,
    one_rank=config.num_ranks == 1,
  )[name]


def build_candidate(name):
  """A kernel that loses its last token at some sizes."""

  def function(inputs, config, policy):
    y = KERNEL.forward(config, policy, inputs)['y']
    if _is_wrong(name, config, inputs['topk_ids']):
      y[:, -1] = 0
    return dict(y=y)

  function.activations = ('swiglu',)
  return in_process.Function(function)


# By what a kernel is wrong at: the kind of shape that shows it.
KINDS = dict(
  one_token='T',
  odd_tokens='T',
  many_rows='rows',
  no_rows='rows',
  one_slot='K',
  all_slots='K',
  odd_width='D',
  odd_hidden='F',
  one_rank='R',
)


def _run(candidate, kinds, tmp_path, case=CASE):
  request = request_lib.Request(case, candidate)
  return [
    shapes._run_shape(request, shape)
    for shape in shapes.list_shapes(case, str(tmp_path))
    if shape.kind in kinds
  ]


@pytest.mark.parametrize('name', KINDS)
@pytest.mark.few(3)
def test_what_is_wrong_at_one_size_fails_there_alone(name, tmp_path):
  # given: it passes a check of the preset
  candidate = build_candidate(name)
  request = request_lib.Request(
    CASE, candidate, judgement.Judgement(('bounded',), repeat=1)
  )
  assert shapes.check.run(request).verdict == 'pass'

  # when
  rows = _run(candidate, {KINDS[name]}, tmp_path)

  # then
  assert 'fail' in {row.verdict for row in rows}
  assert not shapes.is_right(rows)
  assert shapes.format_summary(rows).startswith('FAIL')


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('preset', ['tiny', 'odd', 'deepseek_v3_tiny'])
def test_a_right_kernel_passes_the_family(preset, dtype):
  case = dataclasses.replace(CASE, preset=preset, dtype=dtype)
  rows = shapes.run(request_lib.Request(case, build_candidate('nothing')))

  assert {row.verdict for row in rows} == {'pass'}
  assert {row.kind for row in rows} == {'T', 'rows', 'K', 'D', 'F', 'R'}


def test_experts_have_the_rows_that_are_said(tmp_path):
  (shape,) = [
    shape
    for shape in shapes.list_shapes(CASE, str(tmp_path))
    if shape.kind == 'rows'
  ]

  ids = shape.case.make().arrays['topk_ids']

  counts = np.bincount(ids.ravel(), minlength=8)
  assert tuple(counts[: len(shapes.ROWS)]) == shapes.ROWS


def test_a_kernel_that_raises_is_a_crash(tmp_path):
  def function(inputs, config, policy):
    raise RuntimeError('no kernel for this size')

  function.activations = ('swiglu',)

  rows = _run(in_process.Function(function), {'F'}, tmp_path)

  assert [row.verdict for row in rows] == [shapes.CRASH]
  assert 'no kernel for this size' in rows[0].reason
  assert not shapes.is_right(rows)


def test_given_inputs_have_one_shape():
  case = case_lib.Case(input=CASE.make().arrays)
  with pytest.raises(ValueError, match='^shapes: expected a preset'):
    shapes.run(request_lib.Request(case, build_candidate('nothing')))
