"""Every rounding point: right under its policy, and in which stage without."""

import dataclasses
import itertools
from typing import ClassVar

import pytest

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import trial
from hpmoe.reference.contract import policies
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

LAYER = dict(preset='tiny', ranks=2)


@dataclasses.dataclass(frozen=True)
class Rounds(candidates.Candidate):
  """A kernel in numpy that rounds where it likes.

  Attributes:
    words: of its policy, whatever was asked for; None: as that.
    returns: everything, or results alone.
  """

  can: ClassVar[candidates.Can] = candidates.Can(orders=None, rounds=True)
  words: tuple[str, ...] | None = None
  everything: bool = True
  name: str = 'mine:layer'

  def run(self, config, policy, inputs, which=passes.FORWARD, given=None):
    del given
    own = policy
    if self.words is not None:
      fields = policies.fields(self.words)
      own = dataclasses.replace(policy, **{'points': (), **fields})
    kernel = trial.Kernel()
    run = kernel.forward if which is passes.FORWARD else kernel.backward
    made = run(config, own, inputs)
    names = which.of_layer(config).results
    if not self.everything:
      made = {name: made[name] for name in names}
    return user_candidate.check_outputs(
      self.name, config, policy, made, which, names
    )


def verdicts(candidate, direction, words, dtype, lanes):
  request = request_lib.Request(
    case_lib.Case(direction, dtype=dtype, policy=words, **LAYER),
    candidate,
    judgement.Judgement(lanes),
  )
  return check.run(request).results


def failed(*arguments):
  results = verdicts(*arguments)
  assert 'pass' in {r.verdict for r in results}
  return {r.stage for r in results if r.verdict == 'fail'}


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
def test_a_kernel_that_rounds_everywhere_is_right_under_its_policy(
  placement, direction
):
  dtype = 'float32' if placement in tensors.EARLY else 'bfloat16'
  everywhere = (f'{point.name}=bfloat16' for point in precision.INSIDE)
  words = (*everywhere, f'placement={placement}', 'sum_order=expert')
  assert not failed(Rounds(), direction, words, dtype, LANES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [*LANES])
@pytest.mark.parametrize('point, narrow', ROUNDED)
@pytest.mark.parametrize('direction', DIRECTIONS)
def test_a_kernel_that_rounds_there_is_right_under_that_policy(
  direction, point, narrow, dtype
):
  words, _ = alone(point, narrow)
  assert not failed(Rounds(), direction, words, dtype, LANES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize('everything', [True, False])
@pytest.mark.parametrize('direction', DIRECTIONS)
@pytest.mark.parametrize('name', policies.POLICIES)
def test_a_kernel_is_right_under_its_named_policy(name, direction, everything):
  candidate = Rounds(everything=everything)
  lanes = LANES['bfloat16']
  assert not failed(candidate, direction, (name,), 'bfloat16', lanes)


def found_alone(point, narrow, dtype):
  """Returns the words told of a kernel that rounds there unasked, by stage."""
  words, base = alone(point, narrow)
  told = {}
  for direction in DIRECTIONS:
    results = verdicts(Rounds(words), direction, base, dtype, ('bounded',))
    told |= {r.stage: r.failure.pattern for r in results if r.failure}
  return {stage: text for stage, text in told.items() if stage in tensors.SPECS}


@pytest.mark.parametrize('point, narrow', ROUNDED)
def test_a_kernel_that_rounds_there_unasked_is_wrong_there(point, narrow):
  told = found_alone(point, narrow, 'float32')
  assert {*told} <= {*precision.POINTS[point].stages}
  assert told
  for text in told.values():
    assert f'{point} was rounded to {narrow}' in text


@pytest.mark.parametrize(
  'word',
  ['silu=bf16', 'routing_weight=bf16', 'weighted=bf16', 'placement=epilogue'],
)
def test_a_rounding_is_named_from_y_alone(word):
  candidate = Rounds((word,), everything=False)
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
  results = verdicts(Rounds(words), 'forward', (), dtype, ('bounded',))
  told = {r.stage: r.failure.pattern for r in results if r.failure}
  for stage in {*told} & {*tensors.SPECS}:
    mine = [p for p in pair if stage in precision.POINTS[p].stages]
    assert mine, f'{stage} fails: {told[stage]}'
    others = {p.name for p in precision.INSIDE} - {*pair}
    first = told[stage].partition(' or as if ')[0]
    assert any(f'{point} was rounded' in told[stage] for point in mine), told
    assert not any(f'{point} was rounded' in first for point in others), told
