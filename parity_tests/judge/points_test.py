"""Every rounding point: right under its policy, and in which stage without."""

import dataclasses
import itertools

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.reference.contract import policies
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Rounds = numpy_testing.Numpy


def check_rows(
  candidate, direction, words, dtype, lanes, preset='tiny', d_shared=0
):
  case = dict(direction=direction, policy=words, dtype=dtype, preset=preset)
  case |= dict(d_shared=d_shared)
  return numpy_testing.check_rows(candidate, lanes, **case)


def list_failed_stages(candidate, direction, words, dtype, d_shared=0):
  case = dict(direction=direction, policy=words, dtype=dtype)
  case |= dict(d_shared=d_shared)
  return numpy_testing.list_failed_stages(candidate, LANES[dtype], **case)


# A record of lane standard compares with float64, whatever the policy.
LANES = {
  'float32': ('exact', 'bounded'),
  'bfloat16': ('exact', 'bounded', 'standard'),
}
DIRECTIONS = passes.DIRECTIONS[:2]
# Point, dtype that it is rounded to.
ROUNDED = [
  (point.name, narrow)
  for point in precision.INSIDE
  for narrow in ('bfloat16', 'tf32', 'tf32_rz')[
    : 3 if point.name == 'operands' else 1
  ]
]


def choose_width(*points):
  """Returns the width of the shared experts that these points need."""
  return 8 if {*points} & {*precision.ROUTED_SUMS.values()} else 0


def build_policies(point, narrow):
  """Returns the words of a policy with one point, and of one without."""
  placement = 'before_down' if point == 'product' else 'combine'
  base = (f'placement={placement}',)
  return (f'{point}={narrow}', *base), base


@pytest.mark.parametrize('direction', DIRECTIONS)
@pytest.mark.parametrize('placement', precision.PLACEMENTS)
@pytest.mark.few(1)
def test_a_kernel_that_rounds_everywhere_is_right_under_its_policy(
  placement, direction
):
  dtype = 'float32' if placement in tensors.EARLY else 'bfloat16'
  everywhere = (f'{point.name}=bfloat16' for point in precision.INSIDE)
  orders = ('sum_order=expert', 'd_sum_order=expert_back')
  words = (*everywhere, f'placement={placement}', *orders)
  assert not list_failed_stages(Rounds(), direction, words, dtype)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [*LANES])
@pytest.mark.parametrize('point, narrow', ROUNDED)
@pytest.mark.parametrize('direction', DIRECTIONS)
def test_a_kernel_that_rounds_there_is_right_under_that_policy(
  direction, point, narrow, dtype
):
  words, _ = build_policies(point, narrow)
  d_shared = choose_width(point)
  assert not list_failed_stages(Rounds(), direction, words, dtype, d_shared)


@pytest.mark.slow
@pytest.mark.parametrize('everything', [True, False])
@pytest.mark.parametrize('direction', DIRECTIONS)
@pytest.mark.parametrize('name', policies.POLICIES)
def test_a_kernel_is_right_under_its_named_policy(name, direction, everything):
  candidate = Rounds(everything=everything)
  assert not list_failed_stages(candidate, direction, (name,), 'bfloat16')


# Two blocks of depth and a sum of four rows, which storage's dtype can round.
DEEP = 'tiny:top_k=4:d_model=160:d_ff=144'


def find_patterns(point, narrow, dtype):
  """Returns the words told of a kernel that rounds there unasked, by stage."""
  words, base = build_policies(point, narrow)
  pattern_by_stage = {}
  preset = 'tiny' if dtype == 'float32' else DEEP
  for direction in DIRECTIONS:
    arguments = direction, base, dtype, ('bounded',), preset
    d_shared = choose_width(point)
    results = check_rows(Rounds(words=words), *arguments, d_shared)
    pattern_by_stage |= {
      r.stage: r.failure.pattern for r in results if r.failure
    }
  return {
    stage: text
    for stage, text in pattern_by_stage.items()
    if stage in tensors.SPECS
  }


# Operands are stored in 16 bits already.
NARROW = [
  pytest.param(point.name, dtype, dtype, marks=pytest.mark.slow)
  for point in precision.INSIDE
  for dtype in ('bfloat16', 'float16')
  if point.name != 'operands'
]


@pytest.mark.slow
@pytest.mark.parametrize(
  'point, narrow, dtype',
  [(*point_and_dtype, 'float32') for point_and_dtype in ROUNDED] + NARROW,
)
@pytest.mark.few(1)
def test_a_kernel_that_rounds_there_unasked_is_wrong_there(
  point, narrow, dtype
):
  pattern_by_stage = find_patterns(point, narrow, dtype)
  assert {*pattern_by_stage} <= {*precision.POINTS[point].stages}
  assert pattern_by_stage
  for text in pattern_by_stage.values():
    assert f'{point} was rounded to {narrow}' in text


# A tensor that is stored narrower than all others, direction, preset.
NARROWER_TENSORS = [
  *((name, 'forward', 'small') for name in ('gate_up', 'activation')),
  ('expert_out', 'forward', 'tiny'),
  *(
    (name, 'backward', 'tiny')
    for name in ('d_expert_out', 'd_activation', 'd_gate_up', 'd_expert_in')
  ),
]


@pytest.mark.parametrize('name, direction, preset', NARROWER_TENSORS)
@pytest.mark.few(1)
def test_results_alone_are_judged_through_a_tensor_stored_narrower(
  name, direction, preset
):
  # given: a policy that stores one tensor of float32 in bfloat16
  case = case_lib.Case(
    preset=preset, ranks=2, direction=direction, policy=(f'{name}=bfloat16',)
  )
  bench = bench_lib.Bench(case)
  # when: a kernel stores it so, and one does not; each returns results alone
  right = Rounds(everything=False)
  wrong = dataclasses.replace(right, words=())
  # then
  assert not numpy_testing.list_refused(bench, case, right, 'bounded')
  assert numpy_testing.list_refused(bench, case, wrong, 'bounded')


def test_a_weight_and_its_bias_may_have_dtypes_that_share_none():
  case = case_lib.Case(
    preset='tiny', ranks=1, dtype='f16', bias=True, policy='w_gate_up=bf16'
  )
  bench = bench_lib.Bench(case)
  right = Rounds(everything=False)
  wrong = dataclasses.replace(right, kernel=trial.Kernel(silu=1.1))
  assert not numpy_testing.list_refused(bench, case, right, 'bounded')
  assert numpy_testing.list_refused(bench, case, wrong, 'bounded')


# A result that is stored in float32, direction, and a rounding that changes it.
WIDER_RESULTS = [
  ('y', 'forward', 'silu=bfloat16'),
  ('dx', 'backward', 'd_silu=bfloat16'),
  ('d_w_gate_up', 'backward', 'd_silu=bfloat16'),
  ('d_w_down', 'backward', 'd_expert_out=float32'),
]


@pytest.mark.parametrize('name, direction, change', WIDER_RESULTS)
@pytest.mark.few(1)
def test_a_result_in_float32_of_stages_in_bfloat16_is_judged(
  name, direction, change
):
  # given: one result in float32, as kernels that add up in it store y
  wide = f'{name}=float32'
  case = case_lib.Case(
    preset='tiny', ranks=2, dtype='bf16', direction=direction, policy=(wide,)
  )
  bench = bench_lib.Bench(case)
  # when: a kernel stores it so; another one rounds elsewhere too
  right = Rounds(everything=False)
  wrong = dataclasses.replace(right, words=(wide, change))
  # then
  assert not numpy_testing.list_refused(bench, case, right, 'bounded')
  failed_stages = numpy_testing.list_refused(bench, case, wrong, 'bounded')
  assert ('bounded', name) in failed_stages


@pytest.mark.parametrize('direction', DIRECTIONS)
@pytest.mark.few(1)
def test_shared_experts_round_as_the_policy_says(direction):
  # given: a rounding point inside stages, which shared experts have too
  case = case_lib.Case(
    preset='tiny',
    ranks=2,
    dtype='bf16',
    direction=direction,
    d_shared=8,
    policy=('silu=bfloat16',),
  )
  bench = bench_lib.Bench(case)
  # when: a kernel rounds there, and one does not
  right = Rounds()
  wrong = dataclasses.replace(right, words=())
  # then
  assert not numpy_testing.list_refused(bench, case, right, 'bounded')
  failed_stages = numpy_testing.list_refused(bench, case, wrong, 'bounded')
  forward = direction == 'forward'
  stage = 'shared_activation' if forward else 'd_shared_gate_up'
  assert ('bounded', stage) in failed_stages


class RoundsResult(numpy_testing.Numpy):
  """Rounds y to bfloat16 once, and returns it in float32."""

  def run(self, *arguments, **options):
    outputs = super().run(*arguments, **options)
    rounded = outputs['y'].astype(ml_dtypes.bfloat16)
    return {**outputs, 'y': rounded.astype(np.float32)}


@pytest.mark.slow
def test_a_result_that_is_rounded_once_is_no_running_sum():
  candidate = RoundsResult(everything=False)
  words = ('y=float32',)
  results = check_rows(candidate, 'forward', words, 'bfloat16', ('bounded',))
  patterns = {r.failure.pattern for r in results if r.failure}
  expected = 'as if y was rounded to bfloat16, and returned in float32'
  assert patterns == {f'{expected}: leaves no error'}


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('result', ['y', 'dx'])
@pytest.mark.few(1)
def test_a_sum_stored_before_shared_experts_are_added_is_judged_alone(
  result, dtype
):
  # given: shared experts whose output is added to what was rounded
  words = (f'{precision.ROUTED_SUMS[result]}=bfloat16',)
  case = case_lib.Case(
    preset='tiny',
    ranks=2,
    dtype=dtype,
    direction='forward' if result == 'y' else 'backward',
    d_shared=8,
    policy=words,
  )
  bench = bench_lib.Bench(case)
  # when: a kernel rounds there, and one does not; each returns results alone
  right = Rounds(everything=False)
  wrong = dataclasses.replace(right, words=())
  # then
  assert not numpy_testing.list_refused(bench, case, right, 'bounded')
  failed_stages = numpy_testing.list_refused(bench, case, wrong, 'bounded')
  assert ('bounded', result) in failed_stages


@pytest.mark.parametrize('order', precision.ROW_ORDERS[1:])
@pytest.mark.parametrize('field', precision.SUM_ORDERS)
@pytest.mark.few(1)
@pytest.mark.slow
def test_an_order_of_rows_is_right_where_asked_for_and_named_where_not(
  field, order
):
  # given: a sum of four rows in bfloat16
  backward = field == 'd_sum_order'
  base = (f'{"d_" if backward else ""}running_sum=bfloat16',)
  ordered_words = (*base, f'{field}={order}')
  case = 'bfloat16', ('exact', 'bounded'), DEEP

  # when
  right = check_rows(Rounds(), DIRECTIONS[backward], ordered_words, *case)
  wrong = check_rows(
    Rounds(words=ordered_words), DIRECTIONS[backward], base, *case
  )

  # then
  assert not [r for r in right if r.failure]
  expected = ' added by ' + order.replace('_back', ', from the last one back')
  pattern_by_stage = {r.stage: r.failure.pattern for r in wrong if r.failure}
  assert {*pattern_by_stage} == {precision.SUM_ORDERS[field]}, pattern_by_stage
  assert f'{expected}:' in pattern_by_stage[precision.SUM_ORDERS[field]]


@pytest.mark.slow
@pytest.mark.parametrize(
  'word',
  ['silu=bf16', 'routing_weight=bf16', 'weighted=bf16', 'placement=epilogue'],
)
def test_a_rounding_is_named_from_y_alone(word):
  candidate = Rounds(words=(word,), everything=False)
  results = check_rows(candidate, 'forward', (), 'bfloat16', ('bounded',))
  (pattern,) = {
    r.failure.pattern for r in results if r.stage == 'y' and r.failure
  }
  name, _, value = word.partition('=')
  expected = 'multiplied at epilogue' if name == 'placement' else f'{name} was'
  assert expected in pattern


# Forward points of which a kernel may have two; what bits cannot tell apart in
# storage of the same width is told with "or".
PAIRS = [
  pair
  for pair in itertools.combinations(
    [p.name for p in precision.INSIDE if 'd_' not in p.name], 2
  )
  if 'product' not in pair
]


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('pair', PAIRS, ids='+'.join)
def test_two_roundings_are_both_named(pair, dtype):
  narrow = 'bfloat16' if dtype == 'float32' else dtype
  words = tuple(f'{point}={narrow}' for point in pair)
  preset = 'tiny' if dtype == 'float32' else DEEP
  arguments = 'forward', (), dtype, ('bounded',), preset, choose_width(*pair)
  results = check_rows(Rounds(words=words), *arguments)
  pattern_by_stage = {r.stage: r.failure.pattern for r in results if r.failure}
  for stage in {*pattern_by_stage} & {*tensors.SPECS}:
    own_points = [p for p in pair if stage in precision.POINTS[p].stages]
    assert own_points, f'{stage} fails: {pattern_by_stage[stage]}'
    other_points = {p.name for p in precision.INSIDE} - {*pair}
    first = pattern_by_stage[stage].partition(' or as if ')[0]
    assert any(
      f'{point} was rounded' in pattern_by_stage[stage] for point in own_points
    ), pattern_by_stage
    assert not any(f'{point} was rounded' in first for point in other_points), (
      pattern_by_stage
    )
