"""What a verdict is worth: who must pass, and what no answer may hide."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import controls_testing
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import tolerance_lanes
from hpmoe.parity_tests.judge.limits import power
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
DRAWS = 12
MANY_DRAWS = 200
REAL = ('bitwise', 'bounded', 'standard')


def _judge(bench, request, *answers):
  kernel = controls_testing.Answers(request.candidate.options, answers)
  return bench.judge(request.but(candidate=kernel))


def _list_failures(results):
  return [
    (r.stage, r.lane, r.rule, r.reason)
    for r in results
    if r.verdict == verdicts.FAIL
  ]


def _fit(dtype):
  """The records that are meant for what rounding leaves of a sum."""
  # A rule that excuses no rounding refuses right kernels where terms cancel.
  names = standards.names(dtype)
  return tuple(n for n in names if standards.get(n, dtype).excuse_rounding)


def _list_returned(layer_pass):
  """Yields sets of returned tensors: results, all, and each stage beside."""
  yield layer_pass.results
  yield layer_pass.outputs
  for name in layer_pass.stages:
    yield from ((layer_pass.results[0], name), (*layer_pass.results, name))


class TestTheOraclesOwnOutput:
  @pytest.mark.parametrize('direction', ('forward', 'backward'))
  @pytest.mark.parametrize(
    ('dtype', 'placement'),
    [
      pytest.param(dtype, placement, marks=() if i == j else pytest.mark.slow)
      for i, dtype in enumerate(('float32', *NARROW))
      for j, placement in enumerate(precision.LAUNCHED_PLACEMENTS)
    ],
  )
  @pytest.mark.few(1)
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
    (layer_pass,) = passes.from_direction(direction)
    own = bench.case(request.candidate, layer_pass, bench.real_inputs).answer()

    for names in _list_returned(layer_pass):
      # when some of them are returned
      outputs = {name: own[name] for name in {*layer_pass.plan, *names}}
      results = _judge(bench, request, outputs)

      # then no lane and no record objects
      assert not _list_failures(results), names
      assert any(r.verdict == verdicts.PASS for r in results)

  @pytest.mark.slow
  def test_a_rule_for_one_operator_says_what_it_would_need(self):
    request = TINY.but(dtype='bfloat16', direction='backward', lanes=REAL)
    bench = bench_lib.Bench(request.case, keep=True)
    own = bench.case(
      request.candidate, passes.BACKWARD, bench.real_inputs
    ).answer()
    outputs = {name: own[name] for name in passes.BACKWARD.results}

    results = _judge(bench, request, outputs)

    (row,) = [
      r for r in results if (r.stage, r.rule) == ('d_w_gate_up', 'ecosystem_v1')
    ]
    assert (row.verdict, row.missing) == (verdicts.NOT_JUDGED, 'd_gate_up')
    # A record for whole passes has its row.
    assert ('d_w_gate_up', 'commercial_l1', verdicts.PASS) in {
      (r.stage, r.rule, r.verdict) for r in results
    }


@pytest.fixture(scope='module', params=NARROW)
def only_y(request):
  """A bench, its oracle's y, and a judge of another."""
  y_request = TINY.but(dtype=request.param, lanes=('bounded',))
  return OnlyY(y_request)


class OnlyY:
  """Judges kernels that return nothing but y."""

  def __init__(self, request):
    self._request = request
    self.bench = bench_lib.Bench(request.case, keep=True)
    self.case = self.bench.case(
      request.candidate, passes.FORWARD, self.bench.real_inputs
    )
    self.own = self.case.answer()

  @property
  def real_inputs(self):
    return self.bench.real_inputs

  def list_failures(self, y):
    outputs = self.bench.plan | {'y': y.astype(self.own['y'].dtype)}
    return _list_failures(_judge(self.bench, self._request, outputs))

  def find_refused(self, y):
    """Returns `[R, T, D]` bool, what the rounding edges refuse."""
    chain = tolerance_lanes.build_chain(self.case, 'y', {}, self.own)
    y = y.astype(self.own['y'].dtype)
    return np.stack(
      [
        chain.interval('y', rank, 0, y.shape[1]).refuses(y[rank])
        for rank in range(len(y))
      ]
    )


class TestFromYAlone:
  """Errors that wider limits let through."""

  @pytest.mark.few(1)
  def test_a_token_one_percent_off_fails(self, only_y):
    y = only_y.own['y'].astype(np.float32)
    y[1, 5] *= 1.01

    assert only_y.list_failures(y)

  def test_a_median_element_five_percent_off_fails(self, only_y):
    y = only_y.own['y'].astype(np.float32)
    middle = np.argsort(np.abs(y), axis=None)[y.size // 2]
    y.reshape(-1)[middle] *= 1.05

    assert only_y.list_failures(y)

  def test_an_element_of_gate_up_times_four_fails(self, only_y):
    computed = {'gate_up': only_y.own['gate_up'].copy()}
    computed['gate_up'][0, 0, 3] *= 4
    for name in ('activation', 'expert_out', 'returned', 'y'):
      computed[name] = only_y.case.recompute(name, computed)

    assert only_y.list_failures(computed['y'])

  def test_weights_of_a_token_in_bfloat16_fail(self, only_y):
    arrays = dict(only_y.real_inputs.arrays)
    weights = arrays['topk_weights'].copy()
    weights[0, 9] = weights[0, 9].astype(ulp.storage_dtype('bfloat16'))
    assert (weights != arrays['topk_weights']).any()
    y = trial.Kernel().forward(
      only_y.real_inputs.config,
      only_y.real_inputs.policy,
      arrays | {'topk_weights': weights},
    )['y']

    assert only_y.list_failures(y)

  @pytest.mark.few(1)
  def test_every_order_and_formula_passes(self, only_y):
    def exp2(gate):
      return gate / (1 + np.exp2(gate * np.float32(-np.log2(np.e))))

    for gemm in trial.ORDERS.values():
      for silu in (trial.plain_silu, exp2):
        kernel = trial.Kernel(gemm, silu_of=silu)
        inputs = only_y.real_inputs
        y = kernel.forward(inputs.config, inputs.policy, inputs.arrays)['y']

        assert not only_y.list_failures(y)

  def test_most_elements_have_one_right_value(self, only_y):
    own = only_y.own['y']
    up = np.nextafter(own, own.dtype.type(np.inf))

    assert not only_y.find_refused(own).any()
    assert only_y.find_refused(up).mean() > 0.5


def test_an_element_is_named_before_a_tensor_that_is_off_as_a_whole():
  def rounds_weights(inputs, config, policy):
    kernel = trial.Kernel(round_weights=True)
    return {'y': kernel.forward(config, policy, inputs)['y']}

  report = numpy_testing.check_unexplained(
    check.Request(
      case_lib.Case(preset='tiny', ranks=2, dtype='bfloat16'),
      in_process.Function(rounds_weights),
      judgement.Judgement(lanes=('bounded',)),
    )
  )

  failed_rules = {r.rule for r in report.results if r.verdict == verdicts.FAIL}
  assert failed_rules == {verdicts.SPREAD_RULE, verdicts.EDGES_RULE}
  assert report.first_failure.rule == verdicts.EDGES_RULE
  assert report.first_failure.bad_rows


def _plant_error(own, kind, size, rng):
  """Returns a tensor `[R, T, D]` with one error of a size, drawn by `rng`."""
  wrong = own.astype(np.float64)
  sign = rng.choice((-1, 1))
  rank, token, column = (rng.integers(n) for n in own.shape)
  if kind == 'element':
    row = np.sqrt(np.mean(np.square(wrong[rank, token])))
    wrong[rank, token, column] += sign * size * row
  elif kind == 'row':
    wrong[rank, token] *= 1 + sign * size
  else:
    wrong *= 1 + sign * size
  return wrong.astype(own.dtype)


@pytest.fixture(scope='module', params=('float32', *NARROW))
def stated(request):
  """What judges y alone, and the power that it states."""
  y_request = TINY.but(dtype=request.param, lanes=('bounded',))
  judge = OnlyY(y_request)
  outputs = judge.bench.plan | {'y': judge.own['y']}
  results = _judge(judge.bench, y_request, outputs)
  return judge, power.best(results)


class TestPower:
  """Errors of just above what is stated are found, smaller ones are not."""

  @pytest.mark.parametrize(
    'draws', (DRAWS, pytest.param(MANY_DRAWS, marks=pytest.mark.slow))
  )
  @pytest.mark.parametrize('kind', ('element', 'row', 'whole'))
  @pytest.mark.few(1)
  def test_draws_just_above_are_all_found(self, stated, kind, draws):
    judge, sizes = stated
    rng = np.random.default_rng(18)

    for _ in range(draws):
      wrong = _plant_error(judge.own['y'], kind, 1.05 * sizes[kind], rng)
      assert judge.list_failures(wrong), kind

  @pytest.mark.parametrize('kind', ('element', 'row', 'whole'))
  @pytest.mark.few(1)
  def test_some_far_below_are_not(self, stated, kind):
    judge, sizes = stated
    rng = np.random.default_rng(18)

    detected = [
      bool(
        judge.list_failures(
          _plant_error(judge.own['y'], kind, sizes[kind] / 8, rng)
        )
      )
      for _ in range(DRAWS)
    ]

    assert not all(detected)


class TestWithoutALimit:
  def test_a_check_that_judged_nothing_has_no_verdict(self):
    # given inputs whose partial sums come near the largest float32
    request = TINY.but(lanes=('bounded',))
    bench = bench_lib.Bench(request.case, keep=True)
    arrays = dict(bench.real_inputs.arrays)
    arrays['x'] = np.ones_like(arrays['x'])
    arrays['w_gate_up'] = np.full_like(arrays['w_gate_up'], 1 / 8)
    signs = 1 - 2 * (np.arange(arrays['w_down'].shape[2]) % 2)
    arrays['w_down'] = np.full_like(arrays['w_down'], 2e37) * signs[:, None]
    arrays['w_down'] = arrays['w_down'].astype(np.float32)
    bench.real_inputs = dataclasses.replace(bench.real_inputs, arrays=arrays)
    y = np.full_like(arrays['x'], 12345.0)

    # when a kernel answers the same everywhere, then that is no pass
    with pytest.raises(bench_lib.NothingToJudge, match='no element has a'):
      _judge(bench, request, bench.plan | {'y': y})

  def test_such_elements_are_counted(self):
    values = np.array([[1.0, 1.0, 0.0], [4.0, 0.0, 0.0]], np.float32)
    limit = np.array([[0.5, np.inf, 0.5], [3.0, 2.0, 3.0]])

    detectable = power.measure(
      values, limit, power.round_detectable(values, limit)
    )

    # In the second row the root mean square is 2.3.
    assert (detectable.elements, detectable.not_judged) == (6, 2)
    assert detectable.whole == pytest.approx(0.5, rel=1e-6)
    assert detectable.row == pytest.approx(0.75, rel=1e-6)

  @pytest.mark.parametrize('limit, not_judged', ((0.0, 0), (1e-30, 3)))
  def test_zeros_that_are_certain_are_judged(self, limit, not_judged):
    values, limits = np.zeros((1, 3), np.float32), np.full((1, 3), limit)

    detectable = power.measure(
      values, limits, power.round_detectable(values, limits)
    )

    assert detectable.not_judged == not_judged

  def test_a_row_of_zeros_is_judged_beside_others(self):
    values = np.array([[0.0, 0.0], [1.0, -1.0]], np.float32)
    limits = np.array([[1e-36, 1e-6], [1e-6, 1e-6]])

    detectable = power.measure(
      values, limits, power.round_detectable(values, limits)
    )

    assert detectable.not_judged == 1


@pytest.mark.slow
@pytest.mark.parametrize('storage', NARROW)
def test_right_kernels_pass_1000_seeds(storage):
  """Edges of every stage, as if nothing before it had been returned."""
  config = dataclasses.replace(
    presets.config(presets.get('tiny'), 2, 8), capacity=64
  )
  for seed in range(1000):
    placement = precision.LAUNCHED_PLACEMENTS[
      seed % len(precision.LAUNCHED_PLACEMENTS)
    ]
    policy = precision.PrecisionPolicy(storage=storage, placement=placement)
    assert not trial_verdicts.failed_edges(
      trial_verdicts.draw(config, policy, seed), seed
    )
