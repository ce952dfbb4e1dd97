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
@pytest.mark.few(1)
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


def test_rows_that_too_few_experts_cannot_have_are_said_not_to_be_tried(
  monkeypatch,
):
  monkeypatch.setattr(
    shapes,
    '_run_shape',
    lambda request, shape: shapes.Row(shape.kind, shape.says, 'pass'),
  )
  case = dataclasses.replace(CASE, preset='tiny:experts=4')

  rows = shapes.run(request_lib.Request(case, None))

  summary = shapes.format_summary(rows)
  assert summary.endswith('; not tried: experts of 0, 1, 128, 129 rows')
  assert shapes.is_right(rows)


def test_a_kernel_that_raises_is_a_crash(tmp_path):
  def function(inputs, config, policy):
    raise RuntimeError('no kernel for this size')

  function.activations = ('swiglu',)

  rows = _run(in_process.Function(function), {'F'}, tmp_path)

  assert [row.verdict for row in rows] == [shapes.CRASH]
  assert 'no kernel for this size' in rows[0].reason
  assert not shapes.is_right(rows)


def _route(logits, top_k):
  """Returns ids and weights of the rule renormalize."""
  ids = np.argsort(-logits, axis=-1, kind='stable')[..., :top_k]
  exp = np.exp(np.take_along_axis(logits, ids, -1).astype(np.float64))
  weights = exp / exp.sum(-1, keepdims=True)
  return ids.astype(np.int32), weights.astype(np.float32)


def test_a_kernel_that_routes_by_itself_has_all_shapes(tmp_path):
  # given: logits are drawn that choose the experts of a shape's routing
  rows = {}

  def function(inputs, config, policy):
    ids, weights = _route(inputs['router_logits'], config.top_k)
    counts = np.bincount(ids.ravel(), minlength=config.num_experts)
    rows[config.num_tokens, config.top_k] = counts
    inputs = {**inputs, 'topk_ids': ids, 'topk_weights': weights}
    y = KERNEL.forward(config, policy, inputs)['y']
    return dict(y=y, topk_ids=ids, topk_weights=weights)

  function.activations = ('swiglu',)
  case = dataclasses.replace(CASE, router='renormalize')

  # when
  checks = _run(in_process.Function(function), {'rows', 'K'}, tmp_path, case)

  # then
  assert [(row.verdict, row.reason) for row in checks] == [('pass', '')] * 3
  ((tokens, _), counts), (_, k_1), _ = rows.items()
  assert tuple(counts[: len(shapes.ROWS)]) == shapes.ROWS, tokens
  assert np.ptp(k_1) <= 1


def test_a_router_that_cannot_choose_so_is_told_without_our_files(tmp_path):
  case = dataclasses.replace(CASE, router='renormalize', router_gemm=True)

  rows = _run(build_candidate('nothing'), {'rows'}, tmp_path, case)

  assert [row.verdict for row in rows] == [shapes.NOT_TRIED]
  assert 'routing: expected text with --router_gemm' in rows[0].reason
  assert str(tmp_path) not in rows[0].reason


@pytest.mark.parametrize(
  ('row_verdicts', 'outcome'),
  [
    (['pass', shapes.NOT_TRIED], 'pass'),
    (['pass', 'fail'], 'fail'),
    (['fail', shapes.CRASH, 'pass'], shapes.CRASH),
    ([shapes.NOT_TRIED], shapes.NOT_TRIED),
  ],
)
def test_all_shapes_amount_to_what_one_would(row_verdicts, outcome):
  rows = [shapes.Row('T', 'T 1', verdict) for verdict in row_verdicts]

  assert shapes.find_outcome(rows) == outcome


def test_a_failure_is_replayed_at_its_shape(tmp_path):
  request_command = ('check', '--preset=tiny', '--d_ff=16', '--candidate=a:b')
  request = request_lib.Request(
    CASE, build_candidate('one_slot'), command=request_command
  )
  (shape,) = (
    shape
    for shape in shapes.list_shapes(CASE, str(tmp_path))
    if shape.says == 'K 1'
  )

  row = shapes._run_shape(request, shape)

  words = row.report.first_failure.replay.split()
  assert '--preset=tiny:top_k=1' in words and '--routing=balanced' in words
  assert '--candidate=a:b' in words and '--d_ff=16' not in words


def test_given_inputs_have_one_shape():
  case = case_lib.Case(input=CASE.make().arrays)
  with pytest.raises(ValueError, match='^shapes: expected a preset'):
    shapes.run(request_lib.Request(case, build_candidate('nothing')))
