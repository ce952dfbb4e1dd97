"""Gradients of a router's bias, and lane standard of those of its weights."""

import dataclasses

import jax
import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.judge import self_routing_test as plain
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.router import router_gemm_test as forward
from hpmoe.parity_tests.judge.router import router_grads_testing as testing
from hpmoe.reference import numerics
from hpmoe.reference import routing
from hpmoe.reference.contract import router as router_lib

# No test here is of the roundings that a failure of a layer is put down to.
pytestmark = pytest.mark.verdict_alone

BIAS = 'd_router_bias'
WORD = forward.BIASED


def check(change='', gemm=True, returns=testing.ALL, word=WORD, **fields):
  """Returns the report of a backward pass that returns the bias's gradient."""
  lanes = fields.pop('lanes', ['bounded'])

  def backward(inputs, config, policy):
    if gemm:
      grads = testing.differentiate(inputs, config, policy, word)
    else:
      grads = plain.differentiate(inputs, config, policy, word)
    d_logits = grads['d_router_logits'].astype(np.float32)
    if change == 'one rank':
      d_logits[1:] = 0
    if change == 'next expert':
      d_logits = np.roll(d_logits, -1, 2)
    total = d_logits.sum((0, 1), dtype=np.float32)
    if change == 'mean of tokens':
      total /= np.float32(d_logits[..., 0].size)
    if change == 'opposite':
      total = -total
    if change == 'in bf16':
      total = forward.narrow(total)
    grads = {n: a for n, a in grads.items() if n not in testing.ALL}
    own = testing.differentiate if gemm else plain.differentiate
    own = own(inputs, config, policy, word)
    grads |= {n: own[n] for n in returns if n in own}
    return grads | {BIAS: total}

  def layer(inputs, config, policy):
    raise AssertionError('no forward pass was asked for')

  layer.backward = backward
  case = dataclasses.replace(
    plain.CASE, router=word, router_gemm=gemm, direction='backward', **fields
  )
  return hpmoe.check(layer, case, lanes=lanes)


class TestRightKernels:
  @pytest.mark.parametrize('gemm', [True, False])
  @pytest.mark.parametrize('dtype', ['f32', 'bf16'])
  @pytest.mark.parametrize('returns', [testing.ALL, ()])
  @pytest.mark.few(1)
  def test_it_passes_whatever_is_returned(self, gemm, dtype, returns):
    report = check(gemm=gemm, dtype=dtype, returns=returns)
    assert report.is_pass, str(report)
    assert report.stages[BIAS] == 'pass'

  @pytest.mark.parametrize('seed', range(3))
  @pytest.mark.few(1)
  def test_it_passes_on_other_data(self, seed):
    assert check(seed=seed, returns=testing.ALL[seed:]).is_pass

  def test_one_that_is_not_returned_is_not_judged(self):
    report = plain.TestGradients()._check(router=WORD, direction='backward')
    assert report.is_pass and report.stages[BIAS] == 'not judged'


WRONG = {
  'one rank': 'the sum was over tokens of rank 0 alone',
  'next expert': 'columns were those of the next expert',
  'mean of tokens': 'divided by 32, the number of tokens',
  'opposite': 'it had the opposite sign',
  'in bf16': '',
}


@pytest.mark.parametrize('gemm', [True, False])
@pytest.mark.parametrize('returns', [testing.ALL, ()])
@pytest.mark.parametrize('change', WRONG)
@pytest.mark.few(2)
def test_a_wrong_gradient_is_the_only_failure(change, returns, gemm):
  report = check(change, gemm, returns)
  failure = report.first_failure
  failed_stages = {n for n, v in report.stages.items() if v == 'fail'}
  if change == 'in bf16' and not returns:
    assert failed_stages <= {BIAS}  # its limit may have room
    return
  assert failed_stages == {BIAS}
  assert WRONG[change] in failure.pattern
  assert len(failure.index) == 1


@pytest.mark.parametrize('word', [plain.DEEPSEEK, 'minimax2', 'renormalize'])
def test_a_bias_of_the_choice_alone_has_no_gradient(word):
  with pytest.raises(ValueError, match=f"among .*, got '{BIAS}'"):
    check(word=word)


class TestLaneStandard:
  @pytest.mark.parametrize('returns', [testing.ALL, testing.ALL[1:]])
  def test_sums_over_tokens_are_judged_as_other_gradients_are(self, returns):
    report = check(returns=returns, lanes=['bounded', 'standard'])
    assert report.is_pass, str(report)
    for name in (BIAS, 'd_router_w', 'd_router_in'):
      rows = self._list_rows(report, name)
      row_verdicts = {r.verdict for r in rows if r.lane == 'standard'}
      assert verdicts.PASS in row_verdicts or 'd_router_logits' not in returns
      assert row_verdicts <= {verdicts.PASS, verdicts.NOT_JUDGED}

  def test_a_wrong_sum_fails_there_too(self):
    report = check('one rank', lanes=['standard'])
    rows = self._list_rows(report, BIAS)
    assert verdicts.FAIL in {r.verdict for r in rows if r.lane == 'standard'}

  def _list_rows(self, report, name):
    return [r for r in report.check_report.results if r.stage == name]


def test_the_gradient_is_that_of_jax():
  # Given one token's weights times numbers, in JAX and float64,
  rng = np.random.default_rng(8)
  router = router_lib.parse_router(WORD, 4)
  logits, bias = rng.normal(size=(2, 6, 16)), rng.normal(size=16)
  factors = rng.normal(size=(2, 6, 4))
  with numerics.use_x64():
    ids = routing.route(router, logits, bias).topk_ids

    def compute(bias):
      weights = routing.weigh_choice(router, logits, bias, ids)
      return (weights * factors).sum()

    expected = jax.grad(compute)(bias)
    d_logits = routing.weigh_choice_grad(router, logits, bias, ids, factors)
  # then a sum of the gradients of logits over tokens is that of the bias.
  total = np.asarray(d_logits).sum((0, 1))
  np.testing.assert_allclose(total, expected, rtol=1e-9, atol=1e-12)
