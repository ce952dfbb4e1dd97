"""What a verdict is worth: who must pass, and what no answer may hide."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import host
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import judging
from hpmoe.parity_tests.judge import trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets

NARROW = ('bfloat16', 'float16')
TINY = check.Request(
  case_lib.Case(preset='tiny', ranks=2, tokens=64),
  host.Megakernel(),
  judgement.Judgement(),
)
REAL = ('bitwise', 'bounded', 'standard')


class Kernel(candidates.Candidate):
  """Answers with tensors that were computed before, call after call."""

  name = 'kernel'
  options = TINY.candidate.options

  def __init__(self, *answers):
    self._answers = iter(answers)

  def run(self, config, policy, inputs, which=passes.FORWARD, given=None):
    return next(self._answers)


def _judge(bench, request, *answers):
  return bench.judge(request.but(candidate=Kernel(*answers)))


def _failed(results):
  return [
    (r.stage, r.lane, r.rule, r.why)
    for r in results
    if r.verdict == verdicts.FAIL
  ]


def _fit(dtype):
  """The records that are meant for what rounding leaves of a sum."""
  return tuple(n for n in standards.names(dtype) if 'letter' not in n)


def _returned(which):
  """Yields sets of returned tensors: results, all, and each stage beside."""
  yield which.results
  yield which.outputs
  for name in which.stages:
    yield from ((which.results[0], name), (*which.results, name))


class TestTheOraclesOwnOutput:
  @pytest.mark.parametrize('placement', ('combine', 'before_down'))
  @pytest.mark.parametrize('direction', ('forward', 'backward'))
  @pytest.mark.parametrize('dtype', ('float32', *NARROW))
  def test_passes_whatever_is_returned(self, dtype, direction, placement):
    # given the oracle's tensors
    request = TINY.but(
      dtype=dtype,
      direction=direction,
      placement=placement,
      lanes=REAL,
      standards=_fit(dtype),
    )
    bench = bench_lib.Bench(request.case, keep=True)
    (which,) = passes.of(direction)
    own = bench.case(request.candidate, which, bench.made).answer()

    for names in _returned(which):
      # when some of them are returned
      got = {name: own[name] for name in {*which.plan, *names}}
      results = _judge(bench, request, got)

      # then no lane and no record objects
      assert not _failed(results), names
      assert any(r.verdict == verdicts.PASS for r in results)

  def test_a_rule_for_one_operator_says_what_it_would_need(self):
    request = TINY.but(dtype='bfloat16', direction='backward', lanes=REAL)
    bench = bench_lib.Bench(request.case, keep=True)
    own = bench.case(request.candidate, passes.BACKWARD, bench.made).answer()
    got = {name: own[name] for name in passes.BACKWARD.results}

    results = _judge(bench, request, got)

    (row,) = [
      r for r in results if (r.stage, r.rule) == ('d_w_gate_up', 'ecosystem_v1')
    ]
    assert (row.verdict, row.missing) == (verdicts.NOT_JUDGED, 'd_gate_up')
    # A record for whole passes has its row.
    assert ('d_w_gate_up', 'commercial_l1', verdicts.PASS) in {
      (r.stage, r.rule, r.verdict) for r in results
    }


class TestLaneExact:
  def test_silu_one_percent_off_fails(self):
    # given a kernel whose swiglu is wrong, and right with |gate|
    request = TINY.but(lanes=('exact',))
    bench = bench_lib.Bench(request.case, keep=True)
    answers = []
    for data in inputs_lib.DATA:
      made = bench.inputs(data)
      if data == 'real':
        kernel = trial.Kernel(silu=1.01)
        tensors = kernel.forward(made.config, made.policy, made.arrays)
        answers.append(bench.plan | tensors)
      else:
        answers.append(
          bench.case(request.candidate, passes.FORWARD, made).answer()
        )

    # when lane exact alone is asked for
    results = _judge(bench, request, *answers)

    # then the layer, on real data, is wrong
    assert {stage for stage, *_ in _failed(results)} == {'layer'}


@pytest.fixture(scope='module', params=NARROW)
def only_y(request):
  """A bench, its oracle's y, and a judge of another."""
  asked = TINY.but(dtype=request.param, lanes=('bounded',))
  return OnlyY(asked)


class OnlyY:
  """Judges kernels that return nothing but y."""

  def __init__(self, request):
    self._request = request
    self.bench = bench_lib.Bench(request.case, keep=True)
    self.case = self.bench.case(
      request.candidate, passes.FORWARD, self.bench.made
    )
    self.own = self.case.answer()

  @property
  def made(self):
    return self.bench.made

  def failed(self, y):
    got = self.bench.plan | {'y': y.astype(self.own['y'].dtype)}
    return _failed(_judge(self.bench, self._request, got))

  def refused(self, y):
    """Returns `[R, T, D]` bool, what the rounding edges refuse."""
    chain = judging.chain(self.case, 'y', {}, self.own)
    y = y.astype(self.own['y'].dtype)
    return np.stack(
      [
        chain.interval('y', rank, 0, y.shape[1]).refuses(y[rank])
        for rank in range(len(y))
      ]
    )


class TestFromYAlone:
  """Each was passed once, see issue 18."""

  def test_a_token_one_percent_off_fails(self, only_y):
    y = only_y.own['y'].astype(np.float32)
    y[1, 5] *= 1.01

    assert only_y.failed(y)

  def test_a_median_element_five_percent_off_fails(self, only_y):
    y = only_y.own['y'].astype(np.float32)
    middle = np.argsort(np.abs(y), axis=None)[y.size // 2]
    y.reshape(-1)[middle] *= 1.05

    assert only_y.failed(y)

  def test_an_element_of_gate_up_times_four_fails(self, only_y):
    made = {'gate_up': only_y.own['gate_up'].copy()}
    made['gate_up'][0, 0, 3] *= 4
    for name in ('activation', 'expert_out', 'returned', 'y'):
      made[name] = only_y.case.recompute(name, made)

    assert only_y.failed(made['y'])

  def test_weights_of_a_token_in_bfloat16_fail(self, only_y):
    arrays = dict(only_y.made.arrays)
    weights = arrays['topk_weights'].copy()
    weights[0, 9] = weights[0, 9].astype(ulp.storage_dtype('bfloat16'))
    assert (weights != arrays['topk_weights']).any()
    y = trial.Kernel().forward(
      only_y.made.config,
      only_y.made.policy,
      arrays | {'topk_weights': weights},
    )['y']

    assert only_y.failed(y)

  def test_every_order_and_formula_passes(self, only_y):
    def exp2(gate):
      return gate / (1 + np.exp2(gate * np.float32(-np.log2(np.e))))

    for gemm in trial.ORDERS.values():
      for silu in (trial.plain_silu, exp2):
        kernel = trial.Kernel(gemm, silu_of=silu)
        made = only_y.made
        y = kernel.forward(made.config, made.policy, made.arrays)['y']

        assert not only_y.failed(y)

  def test_most_elements_have_one_right_value(self, only_y):
    own = only_y.own['y']
    up = np.nextafter(own, own.dtype.type(np.inf))

    assert not only_y.refused(own).any()
    assert only_y.refused(up).mean() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize('storage', NARROW)
def test_right_kernels_pass_1000_seeds(storage):
  """Edges of every stage, as if nothing before it had been returned."""
  config = dataclasses.replace(
    presets.config(presets.get('tiny'), 2, 8), capacity=64
  )
  for seed in range(1000):
    placement = precision.PLACEMENTS[seed % 2]
    policy = precision.PrecisionPolicy(storage=storage, placement=placement)
    assert not trial.failed_edges(trial.draw(config, policy, seed), seed)
