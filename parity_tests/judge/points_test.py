"""Every rounding point: right under its policy, and in which stage without."""

import itertools

import pytest

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.reference.contract import policies
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Rounds = numpy_testing.Numpy


def verdicts(candidate, direction, words, dtype, lanes, preset='tiny'):
  case = dict(direction=direction, policy=words, dtype=dtype, preset=preset)
  return numpy_testing.judged(candidate, lanes, **case)


def failed(candidate, direction, words, dtype):
  case = dict(direction=direction, policy=words, dtype=dtype)
  return numpy_testing.failed(candidate, LANES[dtype], **case)


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
  for narrow in ('bfloat16', 'tf32')[: 1 + (point.name == 'operands')]
]


def alone(point, narrow):
  """Returns the words of a policy with one point, and of one without."""
  placement = 'before_down' if point == 'product' else 'combine'
  base = (f'placement={placement}',)
  return (f'{point}={narrow}', *base), base


@pytest.mark.parametrize('direction', DIRECTIONS)
@pytest.mark.parametrize('placement', precision.PLACEMENTS)
@pytest.mark.few(2)
def test_a_kernel_that_rounds_everywhere_is_right_under_its_policy(
  placement, direction
):
  dtype = 'float32' if placement in tensors.EARLY else 'bfloat16'
  everywhere = (f'{point.name}=bfloat16' for point in precision.INSIDE)
  orders = ('sum_order=expert', 'd_sum_order=expert_back')
  words = (*everywhere, f'placement={placement}', *orders)
  assert not failed(Rounds(), direction, words, dtype)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [*LANES])
@pytest.mark.parametrize('point, narrow', ROUNDED)
@pytest.mark.parametrize('direction', DIRECTIONS)
def test_a_kernel_that_rounds_there_is_right_under_that_policy(
  direction, point, narrow, dtype
):
  words, _ = alone(point, narrow)
  assert not failed(Rounds(), direction, words, dtype)


@pytest.mark.slow
@pytest.mark.parametrize('everything', [True, False])
@pytest.mark.parametrize('direction', DIRECTIONS)
@pytest.mark.parametrize('name', policies.POLICIES)
def test_a_kernel_is_right_under_its_named_policy(name, direction, everything):
  candidate = Rounds(everything=everything)
  assert not failed(candidate, direction, (name,), 'bfloat16')


# Two blocks of depth and a sum of four rows, which storage's dtype can round.
DEEP = 'tiny:top_k=4:d_model=160:d_ff=144'


def found_alone(point, narrow, dtype):
  """Returns the words told of a kernel that rounds there unasked, by stage."""
  words, base = alone(point, narrow)
  told = {}
  preset = 'tiny' if dtype == 'float32' else DEEP
  for direction in DIRECTIONS:
    asked = direction, base, dtype, ('bounded',), preset
    results = verdicts(Rounds(words=words), *asked)
    told |= {r.stage: r.failure.pattern for r in results if r.failure}
  return {stage: text for stage, text in told.items() if stage in tensors.SPECS}


# Operands are stored in 16 bits already.
NARROW = [
  pytest.param(point.name, dtype, dtype, marks=pytest.mark.slow)
  for point in precision.INSIDE
  for dtype in ('bfloat16', 'float16')
  if point.name != 'operands'
]


@pytest.mark.parametrize(
  'point, narrow, dtype', [(*one, 'float32') for one in ROUNDED] + NARROW
)
@pytest.mark.few(2)
def test_a_kernel_that_rounds_there_unasked_is_wrong_there(
  point, narrow, dtype
):
  told = found_alone(point, narrow, dtype)
  assert {*told} <= {*precision.POINTS[point].stages}
  assert told
  for text in told.values():
    assert f'{point} was rounded to {narrow}' in text


@pytest.mark.parametrize('order', precision.ROW_ORDERS[1:])
@pytest.mark.parametrize('field', precision.SUM_ORDERS)
@pytest.mark.few(1)
def test_an_order_of_rows_is_right_where_asked_for_and_named_where_not(
  field, order
):
  # given: a sum of four rows in bfloat16
  backward = field == 'd_sum_order'
  base = (f'{"d_" if backward else ""}running_sum=bfloat16',)
  asked = (*base, f'{field}={order}')
  case = 'bfloat16', ('exact', 'bounded'), DEEP

  # when
  right = verdicts(Rounds(), DIRECTIONS[backward], asked, *case)
  wrong = verdicts(Rounds(words=asked), DIRECTIONS[backward], base, *case)

  # then
  assert not [r for r in right if r.failure]
  said = ' added by ' + order.replace('_back', ', from the last one back')
  told = {r.stage: r.failure.pattern for r in wrong if r.failure}
  assert {*told} == {precision.SUM_ORDERS[field]}, told
  assert f'{said}:' in told[precision.SUM_ORDERS[field]]


@pytest.mark.parametrize(
  'word',
  ['silu=bf16', 'routing_weight=bf16', 'weighted=bf16', 'placement=epilogue'],
)
@pytest.mark.few(2)
def test_a_rounding_is_named_from_y_alone(word):
  candidate = Rounds(words=(word,), everything=False)
  results = verdicts(candidate, 'forward', (), 'bfloat16', ('bounded',))
  (told,) = {r.failure.pattern for r in results if r.stage == 'y' and r.failure}
  name, _, value = word.partition('=')
  said = 'multiplied at epilogue' if name == 'placement' else f'{name} was'
  assert said in told


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
  asked = 'forward', (), dtype, ('bounded',), preset
  results = verdicts(Rounds(words=words), *asked)
  told = {r.stage: r.failure.pattern for r in results if r.failure}
  for stage in {*told} & {*tensors.SPECS}:
    mine = [p for p in pair if stage in precision.POINTS[p].stages]
    assert mine, f'{stage} fails: {told[stage]}'
    others = {p.name for p in precision.INSIDE} - {*pair}
    first = told[stage].partition(' or as if ')[0]
    assert any(f'{point} was rounded' in told[stage] for point in mine), told
    assert not any(f'{point} was rounded' in first for point in others), told
