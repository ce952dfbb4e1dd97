"""Right kernels stay inside, whatever their order; wrong ones do not."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.lanes import bounds
from hpmoe.parity_tests.lanes import lanes
from hpmoe.parity_tests.lanes import spread
from hpmoe.parity_tests.lanes import tiles
from hpmoe.parity_tests.lanes import trial
from hpmoe.parity_tests.lanes import ulp
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets

F32 = precision.PrecisionPolicy()
BF16 = precision.PrecisionPolicy(storage='bfloat16')
SMALL = dataclasses.replace(
  presets.config(presets.get('small'), 4, 64), capacity=1024
)


class TestLimits:
  """Each limit against draws that have exactly the probability it allows."""

  @pytest.mark.parametrize('groups', (1, 4, 100))
  def test_mean_square_is_rarely_above(self, groups):
    drawn = np.random.default_rng(groups).standard_normal((100_000, groups))
    limit = spread.mean_square_limit(np.array(groups), np.log(100))

    above = (np.square(drawn).mean(axis=1) >= limit).mean()

    # Chernoff is not wasteful either.
    assert 0.01 / 50 < above < 0.01

  @pytest.mark.parametrize('mean', (0.01, 1.0, 50.0))
  def test_count_is_rarely_above(self, mean):
    drawn = np.random.default_rng(3).poisson(mean, 100_000)
    limit = spread.count_limit(np.array(mean), np.array(1.0), np.log(100))

    assert (drawn >= limit).mean() < 0.01
    assert limit < mean + 4 * np.sqrt(mean) + 6

  def test_slope_is_rarely_above(self):
    drawn = np.random.default_rng(4).standard_normal(100_000) / np.sqrt(8)
    limit = spread.slope_limit(np.array(8.0), np.array(1.0), np.log(100))

    assert 0.01 / 20 < (np.abs(drawn) >= limit).mean() < 0.01

  def test_a_whole_run_has_the_false_alarm_that_is_stated(self):
    tests = 64 * 2 * (1000 + 1)

    assert tests * np.exp(-spread.log_share(1000)) == pytest.approx(1e-9)

  def test_groups_that_err_as_one_widen_the_limit(self):
    wide = spread.mean_square_limit(np.array([1, 128.0]), 35.0)

    assert wide[0] > 60 and wide[1] < 3


def _shares(policy, rows, weights, got, golden=None):
  """Returns what one tile `[n, y]` uses of each limit."""
  golden = golden or bounds.gemm(policy, bounds.exact(rows), weights)
  judge = spread.Judge(policy, policy.storage, spread.Independent(), 1)
  cut = tiles.cut_tokens(*(n for n in got.shape for _ in range(2)))
  expected = golden.value.astype(ulp.storage_dtype(policy.storage))
  wide = (a.astype(np.float64) for a in (got, expected))
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


@pytest.mark.parametrize('order', trial.ORDERS)
@pytest.mark.parametrize('kind', ('normal', 'positive', 'halves', 'outliers'))
@pytest.mark.parametrize('depth', (1, 24, 1000))
def test_every_order_of_a_sum_is_inside(depth, kind, order):
  rows, weights = _operands(depth, kind=kind)

  got = trial.ORDERS[order](rows, weights)

  assert max(_shares(F32, rows, weights, got).values()) < 1


@pytest.mark.parametrize('order', trial.ORDERS)
def test_every_order_of_a_narrow_sum_is_inside(order):
  rows, weights = _operands(1000, BF16)
  wide = (a.astype(np.float32) for a in (rows, weights))

  got = trial.ORDERS[order](*wide).astype(ulp.BFLOAT16)

  assert max(_shares(BF16, rows, weights, got).values()) < 1


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
  golden = bounds.Bounded(value * 2.0**10, variance=np.ones_like(value))
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
}


@pytest.mark.parametrize('wrong', _WRONG)
def test_wrong_layers_that_return_only_y_fail_in_every_tile(wrong):
  policy, how = _WRONG[wrong]
  made = trial.draw(SMALL, policy, 0)
  same = trial.Kernel(trial.pairwise).forward(SMALL, policy, made.arrays)

  y = trial.Kernel(**how).forward(SMALL, policy, made.arrays)
  result = trial.judge(made, y, same)[lanes.SPREAD_RULE]

  assert result.verdict == lanes.FAIL
  assert result.failed == result.tiles == 4
  assert 'times the limit' in result.why


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
@pytest.mark.parametrize('placement', precision.PLACEMENTS)
@pytest.mark.parametrize('order', ('blas', 'ascending', 'even_odd'))
def test_right_layers_that_return_only_y_pass(policy, placement, order):
  policy = dataclasses.replace(policy, placement=placement)
  made = trial.draw(SMALL, policy, 1)
  same = trial.Kernel(trial.pairwise).forward(SMALL, policy, made.arrays)

  kernel = trial.Kernel(trial.ORDERS[order])
  found = trial.judge(made, kernel.forward(SMALL, policy, made.arrays), same)

  assert {r.verdict for r in found.values()} == {lanes.PASS}
  # Neither limit is so wide that all would pass.
  assert found[lanes.SPREAD_RULE].values['error_of_bound'] < 0.6


@pytest.mark.slow
@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
def test_right_layers_pass_under_1000_seeds(policy):
  shares = [trial.share_of_seed(SMALL, policy, seed) for seed in range(1000)]

  print(f'worst share of a limit: {max(shares):.3g}')
  assert max(shares) < 1
