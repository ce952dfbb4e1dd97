"""No control passes, whatever is asked for and whatever is returned."""

import functools

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import controls_testing
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import storage

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

# 13 tokens: no multiple of the block; capacity leaves padding.
REQUEST = check.Request(
  case_lib.Case(preset='tiny', ranks=2, tokens=13, routing='zipf'),
  host.Megakernel(options=granularity.Options(row_block=4)),
  judgement.Judgement(lanes=('bitwise', 'bounded', 'standard')),
)
# What is returned beside the plan: results alone, and stages whose own sources
# stay away.  All that there is `lanes_test` has.
RETURNED_NAMES = {
  'forward': (('y',), ('gate_up', 'returned', 'y')),
  'backward': (('dx',), ('d_gate_up', 'd_returned', 'dx')),
}

# What kernels may do to an input that looks harmless on the usual ones.
CHANGES_OF_WEIGHTS = {
  'renormalised': lambda w: w / w.sum(-1, keepdims=True),
  'absolute': np.abs,
  'clamped': lambda w: np.clip(w, 0, 1),
}
CHANGES_OF_X = {
  'lost -0.0': lambda x: x + np.zeros_like(x),
  'flushed subnormals': lambda x: np.where(
    np.abs(x) < storage.FORMATS[str(x.dtype)].smallest_normal, 0 * x, x
  ),
}


# Printed rules without the clause for cancellation fail a right kernel.
def _select_fit(records):
  # A rule that excuses no rounding refuses right kernels where terms cancel.
  return tuple(n for n in records if standards.STANDARDS[n].excuse_rounding)


def _answering(request, answers, names):
  """Returns a request of a kernel that returns what is kept of answers."""
  answers = [{name: answer[name] for name in names} for answer in answers]
  kernel = controls_testing.Answers(request.candidate.options, answers)
  return request.but(candidate=kernel)


class Product:
  """One pass on one set of inputs, and what kernels answer to it."""

  def __init__(self, direction, dtype, placement):
    self.records = tuple(standards.names(dtype))
    self.request = REQUEST.but(
      direction=direction,
      dtype=dtype,
      placement=placement,
      standards=self.records,
    )
    self.bench = bench_lib.Bench(self.request.case, keep=True)
    self.layer_pass = passes.from_direction(direction)[0]
    self.name_sets = RETURNED_NAMES[direction]
    self.controls = controls_testing.controls(self.case('real'))

  @functools.cache  # noqa: B019, a fixture of the module holds it
  def case(self, data):
    inputs = self.bench.inputs(data)
    return self.bench.case(self.request.candidate, self.layer_pass, inputs)

  @functools.cache  # noqa: B019
  def answer(self, control, data):
    if control is not None:
      return controls_testing.answer(self.case(data), control)
    return self.case(data).run(self.request.candidate.run)

  def judge(self, control, names, **changes):
    request = self.request.but(**changes)
    exact = request.judgement.lanes == ('exact',)
    data = ('exact', 'wide', 'real') if exact else ('real',)
    answers = [self.answer(control, name) for name in data]
    return self.bench.judge(_answering(request, answers, names))


PRODUCTS = (
  ('forward', 'float32', 'combine'),
  ('forward', 'bfloat16', 'before_down'),
  ('backward', 'float32', 'before_down'),
  ('backward', 'bfloat16', 'combine'),
  ('forward', 'float16', 'combine'),
)


def _quick(products):
  """Returns them as parameters; one of each direction is not slow."""
  return [
    pytest.param(
      product,
      id='-'.join(product),
      marks=() if product in PRODUCTS[1:3] else pytest.mark.slow,
    )
    for product in products
  ]


@pytest.fixture(scope='module', params=_quick(PRODUCTS))
def product(request):
  return Product(*request.param)


def _is_always_judged(result):
  """Says whether a row is judged whatever was asked for."""
  movement = result.lane == 'bitwise'
  is_return = verdicts.tensor_of(result.stage) in ('returned', 'd_returned')
  layer = result.stage.startswith(verdicts.LAYER)
  layer |= result.rule == verdicts.EDGES_RULE
  return movement or (result.lane == 'bounded' and (layer or is_return))


def _alone(results, records):
  """Yields what each lane and each record says if it alone is asked for."""
  always = [r for r in results if _is_always_judged(r)]
  yield 'bitwise', always
  yield 'bounded', always + [r for r in results if r.lane == 'bounded']
  for name in records:
    yield name, always + [r for r in results if r.rule == name]


@pytest.mark.parametrize('name_set', range(2))
@pytest.mark.few(1)
def test_no_control_passes_any_lane_or_record_alone(product, name_set):
  for control in product.controls:
    names = product.name_sets[name_set]
    of_exact = product.judge(control, names, lanes=('exact',))
    results = product.judge(control, names)

    of_lanes = _alone(results, product.records)
    for name, rows in (('exact', of_exact), *of_lanes):
      failed_stages = [r.stage for r in rows if r.verdict == verdicts.FAIL]
      assert failed_stages, f'{control.name} passes {name}'


def _fails_with(product, name, change, names):
  """Asserts that a pass fails whose kernel changes an input."""
  answer = controls_testing.answer_with_changed_input(
    product.case('real'), name, change
  )
  request = product.request.but(standards=_select_fit(product.records))

  results = product.bench.judge(_answering(request, [answer], names))

  failed_stages = [r.stage for r in results if r.verdict == verdicts.FAIL]
  assert names[0] in {verdicts.tensor_of(stage) for stage in failed_stages}


@pytest.mark.parametrize('change', CHANGES_OF_WEIGHTS)
@pytest.mark.few(4)
def test_a_kernel_that_changes_its_weights_fails_on_real_data(product, change):
  change_weights = CHANGES_OF_WEIGHTS[change]
  _fails_with(
    product, 'topk_weights', change_weights, product.layer_pass.results
  )


# The backward pass reads x by way of expert_in, which the forward one saved.
@pytest.mark.parametrize('change', CHANGES_OF_X)
@pytest.mark.parametrize(
  'product',
  _quick(p for p in PRODUCTS if p[0] == 'forward'),
  indirect=True,
)
def test_a_kernel_that_changes_x_fails_on_real_data(product, change):
  _fails_with(product, 'x', CHANGES_OF_X[change], ('expert_in', 'y'))
