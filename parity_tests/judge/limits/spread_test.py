"""Right kernels stay inside, whatever their order; wrong ones do not."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import spread
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import tensors

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

F32 = precision.PrecisionPolicy()
BF16 = precision.PrecisionPolicy(storage='bfloat16')
F16 = precision.PrecisionPolicy(storage='float16')
SMALL = dataclasses.replace(
  presets.config(presets.get('small'), 4, 64), capacity=1024
)


class TestLimits:
  """Each limit against draws that have exactly the probability it allows."""

  @pytest.mark.parametrize('groups', (1, 4, 100))
  def test_mean_square_is_rarely_above(self, groups):
    samples = np.random.default_rng(groups).standard_normal((100_000, groups))
    limit = spread.mean_square_limit(np.array(groups), np.log(100))

    above = (np.square(samples).mean(axis=1) >= limit).mean()

    # Chernoff is not wasteful either.
    assert 0.01 / 50 < above < 0.01

  @pytest.mark.parametrize('mean', (0.01, 1.0, 50.0))
  def test_count_is_rarely_above(self, mean):
    samples = np.random.default_rng(3).poisson(mean, 100_000)
    limit = spread.count_limit(np.array(mean), np.array(1.0), np.log(100))

    assert (samples >= limit).mean() < 0.01
    assert limit < mean + 4 * np.sqrt(mean) + 6

  def test_slope_is_rarely_above(self):
    samples = np.random.default_rng(4).standard_normal(100_000) / np.sqrt(8)
    limit = spread.slope_limit(np.array(8.0), np.array(1.0), np.log(100))

    assert 0.01 / 20 < (np.abs(samples) >= limit).mean() < 0.01

  def test_a_whole_run_has_the_false_alarm_that_is_stated(self):
    # 23 comparisons, two numbers of two parts each, tiles and the tensor.
    tests = 23 * 2 * 2 * (1000 + 1)

    assert tests * np.exp(-spread.log_share(1000, 23)) == pytest.approx(1e-9)

  def test_more_comparisons_widen_the_limits(self):
    judges = [_judge(F32, comparisons=number) for number in (1, 64)]
    sums = spread.Sums(np.array(100), np.array(1), square=np.array(100.0))

    few, share_of_64 = (float(judge.shares(sums)['rms']) for judge in judges)

    assert share_of_64 < few

  def test_a_part_in_common_widens_the_limits(self):
    sums = spread.Sums(
      np.array(1000), np.array(1), np.array(1000.0), 10.0, 1000.0
    )
    apart, common, all_ = (
      _judge(F32, independent=spread.Independent(common=c)).shares(sums)
      for c in (0.0, 0.1, 1.0)
    )

    for number in ('rms', 'slope'):
      assert apart[number] > common[number] > all_[number]
    # All in common: one group, as if there were one element.
    one_group = dataclasses.replace(sums, alike=np.array(1000))
    assert all_['rms'] == pytest.approx(_judge(F32).shares(one_group)['rms'])

  def test_gate_and_up_of_a_feature_count_as_one(self):
    cut = tiles.cut_tokens(8, 8, 4, 4)
    value = np.random.default_rng(0).standard_normal((8, 4))

    single, double = (
      spread.Independent(rows=False, pairs=pairs).alike(
        cut, 0, cut.lines(value)
      )
      for pairs in (False, True)
    )

    np.testing.assert_array_equal([single, double], [[[8]], [[16]]])


def _judge(policy, comparisons=verdicts.COMPARISONS, independent=None):
  independent = independent or spread.Independent()
  return spread.Judge(
    policy, policy.storage, independent, num_tiles=1, comparisons=comparisons
  )


class TestAFalseAlarmIsShared:
  @pytest.mark.parametrize(
    'layer, expected',
    [
      (tensors.Parts(), 6 + 1 + 9 + 4),
      (tensors.Parts(bias=True), 6 + 1 + 11 + 6),
      (tensors.Parts(d_shared=4), 9 + 1 + 14 + 6),
    ],
  )
  def test_among_all_tensors_that_a_run_judges(self, layer, expected):
    # Each tensor of both passes, and each result of a fused layer.
    rows = {row for row in verdicts.order(layer) if row not in tensors.PLAN}

    rows -= {spec.name for spec in tensors.RELAYED}
    assert len(rows) == expected <= verdicts.comparisons(layer)
    assert verdicts.comparisons(tensors.Parts()) == verdicts.COMPARISONS

  def test_a_tensor_that_is_judged_twice_is_refused(self):
    row = verdicts.Result('gate_up', 'bounded', verdicts.SPREAD_RULE)
    other = dataclasses.replace(row, stage='y')
    bound = dataclasses.replace(row, rule=verdicts.BOUND_RULE)

    verdicts.check_each_once([row, other, bound, bound])

    with pytest.raises(AssertionError, match='got twice: gate_up'):
      verdicts.check_each_once([row, other, row])


def _shares(policy, rows, weights, actual, golden=None):
  """Returns what one tile `[n, y]` uses of each limit."""
  golden = golden or gemm_bounds.gemm(
    policy, bounded_values.exact(rows), weights
  )
  judge = _judge(policy)
  cut = tiles.cut_tokens(*(n for n in actual.shape for _ in range(2)))
  expected = golden.value.astype(ulp.storage_dtype(policy.storage))
  wide = (a.astype(np.float64) for a in (actual, expected))
  return {
    name: float(share.max())
    for name, share in judge.shares(judge.sums(cut, 0, *wide, golden)).items()
  }


def _operands(depth, policy=F32, kind='normal'):
  rng = np.random.default_rng(depth)
  rows, weights = rng.standard_normal((2, 64, depth)).astype(np.float32)
  if kind == 'positive':
    rows, weights = np.abs(rows), np.abs(weights)
  if kind == 'halves':  # prefixes grow far above the total
    rows, weights = np.abs(rows), np.abs(weights)
    rows[:, : depth // 2] *= -1
  if kind == 'outliers':
    rows[rng.random(rows.shape) < 1e-2] *= 1000
  dtype = ulp.storage_dtype(policy.storage)
  return rows.astype(dtype), np.ascontiguousarray(weights.T).astype(dtype)


@pytest.mark.parametrize(
  'policy, depth, kind',
  [
    *itertools.product(
      (F32,), (1, 24, 1000), ('normal', 'positive', 'halves', 'outliers')
    ),
    *((policy, 1000, 'normal') for policy in (BF16, F16)),
  ],
)
def test_every_order_of_a_sum_is_inside(policy, depth, kind):
  rows, weights = _operands(depth, policy, kind)
  wide = [a.astype(np.float32) for a in (rows, weights)]
  for name, order in trial.ORDERS.items():
    actual = order(*wide).astype(ulp.storage_dtype(policy.storage))

    assert max(_shares(policy, rows, weights, actual).values()) < 1, name


@pytest.mark.parametrize('depth', (64, 1024, 16384))
@pytest.mark.parametrize('digits', (10, 7), ids=('tf32', 'bf16'))
def test_narrow_operands_are_seen_in_a_single_tile(depth, digits):
  rows, weights = _operands(depth)

  right = _shares(F32, rows, weights, trial.blas(rows, weights))
  cut = [trial.cut_bits(a, digits) for a in (rows, weights)]
  wrong = _shares(F32, rows, weights, trial.blas(*cut))

  assert max(right.values()) < 1 < wrong['rms']


def test_a_scale_that_the_mean_square_hides_shows_as_a_slope():
  # Given errors as wide as the model says, and a scale off by half of that,
  rng = np.random.default_rng(0)
  value, noise = rng.standard_normal((2, 64, 4096))
  golden = bounded_values.Bounded(value * 2.0**10, variance=np.ones_like(value))
  right = golden.value + noise

  shares = _shares(F32, None, None, right + 0.5 * value, golden)

  # then the slope tells.
  assert max(_shares(F32, None, None, right, golden).values()) < 1
  assert shares['slope'] > 1 > shares['rms']


# The kernels of the issue, by the storage in which each must fail.
_WRONG = {
  'silu 1e-5 off': (F32, dict(silu=1 + 1e-5)),
  'silu 1e-4 off': (F32, dict(silu=1 + 1e-4)),
  'routing weights in bf16, f32': (F32, dict(round_weights=True)),
  'TF32 operands': (F32, dict(operand_bits=10)),
  'bf16 operands': (F32, dict(operand_bits=7)),
  'silu 1e-3 off': (BF16, dict(silu=1 + 1e-3)),
  'routing weights in bf16': (BF16, dict(round_weights=True)),
  'truncation': (BF16, dict(truncate=True)),
  'silu 1e-3 off, f16': (F16, dict(silu=1 + 1e-3)),
  'silu 1e-4 off, f16': (F16, dict(silu=1 + 1e-4)),
  'routing weights in f16': (F16, dict(round_weights=True)),
  'bf16 operands, f16': (F16, dict(operand_bits=7)),
  'truncation, f16': (F16, dict(truncate=True)),
}


# So small that a tile has too few elements: the tensor of all tiles tells.
_BY_TENSOR = ('silu 1e-4 off, f16', 'routing weights in f16')


@pytest.mark.parametrize('wrong', _WRONG)
@pytest.mark.few(1)
def test_wrong_layers_that_return_only_y_fail(wrong):
  policy, mistake = _WRONG[wrong]
  layer_inputs = trial_verdicts.draw(SMALL, policy, 0)
  right_results = trial.Kernel(trial.pairwise).results(layer_inputs)

  y = trial.Kernel(**mistake).results(layer_inputs)
  result = trial_verdicts.judge_results(layer_inputs, y, right_results)[
    'y', verdicts.SPREAD_RULE
  ]

  assert result.verdict == verdicts.FAIL
  assert result.tiles == 4
  assert result.failed_tiles == (0 if wrong in _BY_TENSOR else 4)
  assert 'times the limit' in result.reason


_POLICIES = {
  f'{policy.storage}-{placement}': dataclasses.replace(
    policy, placement=placement
  )
  for policy in (F32, BF16, F16)
  for placement in precision.LAUNCHED_PLACEMENTS
}


# Of each policy one pass by one order; the slow test below has all.
@pytest.mark.parametrize(
  'policy, backward, order',
  [
    (policy, i % 2 == 0, ('blas', 'even_odd')[i // 2 % 2])
    for i, policy in enumerate(_POLICIES)
  ],
)
@pytest.mark.few(1)
def test_right_layers_that_return_only_results_pass(policy, backward, order):
  layer_inputs, right_results = _bench(policy, backward)

  actual = trial.Kernel(trial.ORDERS[order]).results(layer_inputs, backward)
  results_by_rule = trial_verdicts.judge_results(
    layer_inputs, actual, right_results
  )

  assert {r.verdict for r in results_by_rule.values()} == {verdicts.PASS}
  # Each has a row, and no limit is so wide that all would pass.
  for name in actual:
    assert (
      results_by_rule[name, verdicts.SPREAD_RULE].values['error_of_bound'] < 0.6
    )


@functools.cache
def _bench(policy, backward):
  """Returns inputs of a layer, and what a right kernel returns."""
  layer_inputs = trial_verdicts.draw(SMALL, _POLICIES[policy], 1)
  if backward:
    layer_inputs = trial_verdicts.with_saved(layer_inputs)
  return layer_inputs, trial.Kernel(trial.pairwise).results(
    layer_inputs, backward
  )


_SLOPE = ('dx', 'd_w_gate_up')
_NOT_DOWN = ('dx', 'd_w_gate_up', 'd_topk_weights')
_GRADS = passes.BACKWARD.results
_ROWS = ('dx', 'd_w_gate_up', 'd_w_down')

# Backward kernels: how each is wrong, and all gradients that this reaches; by
# placement where they differ.  A weight gradient that no slope of silu enters
# cannot show that it is off.
_WRONG_GRADS = {
  "f32 silu' 1e-5 off": (F32, dict(slope=1 + 1e-5), *[_SLOPE] * 3),
  'f32 silu 1e-5 off': (F32, dict(silu=1 + 1e-5), _SLOPE, _NOT_DOWN, _SLOPE),
  'TF32 operands': (F32, dict(operand_bits=10), *[_GRADS] * 3),
  'f32 routing weights in bf16': (
    F32,
    dict(round_weights=True),
    *(_ROWS, _SLOPE, _ROWS),
  ),
  "bf16 silu' 1e-3 off": (BF16, dict(slope=1 + 1e-3), *[_SLOPE] * 3),
  'bf16 silu 1e-3 off': (BF16, dict(silu=1 + 1e-3), _SLOPE, _NOT_DOWN, _SLOPE),
  'bf16 routing weights': (
    BF16,
    dict(round_weights=True),
    _ROWS,
    _SLOPE,
    _ROWS,
  ),
  'bf16 truncation': (BF16, dict(truncate=True), _ROWS, _GRADS, _GRADS),
}


@pytest.mark.parametrize(
  'wrong, placement',
  halved_testing.halved(_WRONG_GRADS, precision.LAUNCHED_PLACEMENTS),
)
@pytest.mark.few(1)
def test_wrong_gradients_fail_each_alone(wrong, placement):
  policy, mistake, *reached_names = _WRONG_GRADS[wrong]
  names = reached_names[precision.LAUNCHED_PLACEMENTS.index(placement)]
  layer_inputs, right_results = _bench(f'{policy.storage}-{placement}', True)

  actual = trial.Kernel(**mistake).results(layer_inputs, backward=True)
  results_by_rule = trial_verdicts.judge_results(
    layer_inputs, actual, right_results
  )

  for name in _GRADS:
    result = results_by_rule[name, verdicts.SPREAD_RULE]
    assert result.verdict == (
      verdicts.FAIL if name in names else verdicts.PASS
    ), name
    if name in names:
      # silu alone enters but the columns of up, its slope those of gate.
      half = name == 'd_w_gate_up' and {'silu', 'slope'} & mistake.keys()
      assert result.failed_tiles >= result.tiles // (2 if half else 1), name


def _clamped(gate):
  return gate / (1 + np.exp(np.minimum(-gate, 20)))


def _of_positive_exp(gate):
  e = np.exp(gate)
  return gate * (e / (1 + e))


def _times_exp(gate):
  e = np.exp(gate)
  return gate * (e * (1 / (1 + e)))


def _slope_times_exp(gate):
  e = np.exp(-gate)
  s = 1 / (1 + e)
  return s * (1 + gate * (e * s))


# Ways to compute silu or its slope that are right where no exp overflows: inf
# over inf, inf times 0, and an exp clamped against both.  With that, silu of a
# low gate is 1e-7 and not 0, which no sum shows, but `activation` does.
_OVERFLOWS = {
  'inf over inf': dict(silu_of=_of_positive_exp),
  'inf times 0': dict(silu_of=_times_exp),
  'exp clamped at 20': dict(silu_of=_clamped),
  'slope, inf times 0': dict(slope_of=_slope_times_exp),
}


@pytest.mark.parametrize('wrong', _OVERFLOWS)
@pytest.mark.few(1)
def test_silu_that_overflows_fails_on_the_default_inputs_alone(wrong):
  for preset in ('tiny', 'small', 'odd'):
    assert _fails(wrong, _default(preset)), preset
  # Where gates are of order one it is right.
  assert not _fails(wrong, _bench('float32-combine', True)[0])


def _fails(wrong, layer_inputs):
  kernel = trial.Kernel(**_OVERFLOWS[wrong])
  if 'slope_of' in _OVERFLOWS[wrong]:
    grads = kernel.results(layer_inputs, backward=True)
    results_by_rule = trial_verdicts.judge_results(
      layer_inputs, {'d_w_gate_up': grads['d_w_gate_up']}
    )
  else:
    stages = kernel.forward(
      layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
    )
    results_by_rule = trial_verdicts.judge_stages(layer_inputs, stages)
  return any(
    result.verdict == verdicts.FAIL for result in results_by_rule.values()
  )


@functools.cache
def _default(preset):
  """Returns inputs as hpmoe check draws them, saved tensors beside them."""
  return trial_verdicts.with_saved(inputs.make_inputs(presets.get(preset), 4))


@pytest.mark.slow
@pytest.mark.parametrize('policy', _POLICIES)
@pytest.mark.parametrize('backward', (False, True), ids=passes.DIRECTIONS[:2])
def test_right_layers_pass_under_1000_seeds(policy, backward):
  shares = [
    trial_verdicts.share_of_seed(SMALL, _POLICIES[policy], seed, backward)
    for seed in range(1000)
  ]

  print(f'worst share of a limit: {max(shares):.3g}')
  assert max(shares) < 1
