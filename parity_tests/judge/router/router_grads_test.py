"""Backward passes through a router's GEMM, right and wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.judge import self_routing_test as plain
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.router import router_gemm_test as forward
from hpmoe.parity_tests.judge.router import router_grads_testing as testing
from hpmoe.reference import expert_gemm_grad
from hpmoe.reference import numerics
from hpmoe.reference import routing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import router as router_lib

# No test here is of the roundings that a failure of a layer is put down to.
pytestmark = pytest.mark.verdict_alone

ALL = testing.ALL
differentiate = testing.differentiate


def check(
  change='',
  returns=ALL,
  word=plain.DEEPSEEK,
  direction='backward',
  returned_ahead=forward.ALL,
  **fields,
):
  """Returns the report of a kernel with a router of its own."""

  def layer(inputs, config, policy):
    return forward.kernel(inputs, config, policy, word, '', returned_ahead)

  def backward(inputs, config, policy):
    return differentiate(inputs, config, policy, word, change, returns)

  layer.backward = backward
  backward.recomputes = direction == 'both'
  case = dataclasses.replace(
    forward.CASE, router=word, direction=direction, **fields
  )
  return hpmoe.check(layer, case, lanes=['bounded'])


class TestRightKernels:
  @pytest.mark.few(1)
  @pytest.mark.parametrize('rule', [*router_lib.RULES])
  def test_each_rule_passes(self, rule):
    report = check(word=plain.WORDS[rule])
    assert report.is_pass, str(report)
    for name in (*ALL, 'dx'):
      assert report.stages[name] == 'pass'

  @pytest.mark.parametrize('returns', [(), ALL[:1], ALL[1:]])
  @pytest.mark.parametrize('dtype', ['f32', 'bf16'])
  @pytest.mark.few(1)
  def test_it_passes_whatever_is_returned(self, dtype, returns):
    report = check('', returns, dtype=dtype)
    assert report.is_pass, str(report)
    for name in ALL:
      verdict = 'pass' if name in returns else 'not judged'
      assert report.stages[name] == verdict

  @pytest.mark.parametrize('seed', range(5))
  @pytest.mark.few(1)
  def test_it_passes_on_other_data(self, seed):
    policy = 'd_router_in=f32' if seed % 2 else ''
    report = check(seed=seed, returns=ALL[: seed % 4], policy=policy)
    assert report.is_pass, str(report)

  def test_gradients_follow_the_logits_that_the_forward_pass_returned(self):
    report = check(direction='both')
    assert report.is_pass, str(report)
    assert report.stages['router_logits'] == report.stages['dx'] == 'pass'

  def test_a_forward_pass_returns_the_logits_that_are_read_again(self):
    with pytest.raises(ValueError, match='expected router_logits among the'):
      check(direction='both', returned_ahead=forward.ALL[1:])

  @pytest.mark.slow
  def test_shared_experts_have_a_part_beside_it(self):
    def backward(inputs, config, policy):
      shared = trial.Kernel().backward(config, policy, inputs)
      outputs = differentiate(inputs, config, policy, plain.DEEPSEEK)
      outputs['dx'] = outputs['dx'] + shared['d_shared_in']
      names = ('d_w_shared_gate_up', 'd_w_shared_down')
      return outputs | {name: shared[name] for name in names}

    def layer(inputs, config, policy):
      raise AssertionError('no forward pass was asked for')

    layer.backward = backward
    case = dataclasses.replace(forward.CASE, d_shared=16, direction='backward')
    report = hpmoe.check(layer, case, lanes=['bounded'])
    assert report.stages['dx'] == 'pass', str(report)


# What a wrong kernel does, what it does not return, its first failure, words.
WRONG = {
  'left out': ((), 'dx', 'd_router_in was left out'),
  'added twice': (ALL, 'dx', 'd_router_in'),
  'read as [E, D]': ((), 'dx', 'router_w was read as [E, D]'),
  'not renormalised': ((), 'dx', 'weights that are not renormalised'),
  'scale forgotten': ((), 'dx', 'the scale 2.5 was forgotten'),
  'one rank': (ALL, 'd_router_w', 'tokens of rank 0 alone'),
  'mean of ranks': (ALL, 'd_router_w', 'divided by 2, the number of ranks'),
  'next token': (ALL, 'd_router_w', 'x was that of the next token'),
  'written as [E, D]': (ALL, 'd_router_w', 'it was written as [E, D]'),
}


class TestWrongKernels:
  @pytest.mark.parametrize('change', WRONG)
  @pytest.mark.few(1)
  def test_it_is_found_and_named(self, change):
    returns, stage, words = WRONG[change]
    report = check(change, returns)
    failure = report.first_failure
    assert failure is not None and failure.stage == stage, str(report)
    assert words in failure.pattern
    failed_stages = {n for n, v in report.stages.items() if v == 'fail'}
    assert failed_stages <= {stage, 'layer dx'}

  @pytest.mark.parametrize(
    ('change', 'stage', 'words'),
    [
      ('read as [E, D]', 'd_router_in', 'router_w was read as [E, D]'),
      ('not renormalised', 'd_router_logits', 'that are not renormalised'),
    ],
  )
  @pytest.mark.few(1)
  def test_it_is_found_at_its_stage_where_that_is_returned(
    self, change, stage, words
  ):
    failure = check(change).first_failure
    assert failure.stage == stage and words in failure.pattern

  @pytest.mark.slow
  def test_weights_alone_tell_a_wrong_rule(self):
    failure = check('not renormalised', ALL[2:]).first_failure
    assert failure.stage == 'dx'
    rows = check('not renormalised', ALL[2:]).check_report.results
    row = next(r for r in rows if r.stage == 'd_router_w' and r.failure)
    assert row.verdict == verdicts.FAIL
    assert 'weights that are not renormalised' in row.failure.pattern
    assert len(row.failure.index) == 2


@pytest.mark.parametrize('rule', [*router_lib.RULES])
@pytest.mark.few(5)
def test_golden_gradients_are_those_of_jax(rule):
  # Given a layer of one matrix for each expert, in JAX and float64,
  rng = np.random.default_rng(4)
  router = router_lib.parse_router(plain.WORDS[rule], 4)
  x, router_w = rng.normal(size=(1, 6, 8)), rng.normal(size=(8, 16))
  experts, dy = rng.normal(size=(16, 8, 8)), rng.normal(size=(1, 6, 8))
  bias = rng.normal(size=16) if router.table.bias else None
  with numerics.use_x64():
    ids = routing.route(router, x @ router_w, bias).topk_ids

    def compute(x, router_w):
      logits = x @ router_w
      weights = routing.weigh_choice(router, logits, bias, ids)
      rows = jnp.einsum('rtd,edf->rtef', x, experts)
      rows = jnp.take_along_axis(rows, ids[..., None], 2)
      return (rows * weights[..., None] * dy[:, :, None]).sum()

    dx, d_router_w = jax.grad(compute, (0, 1))(x, router_w)
    # then the two parts of dx, and the gradient of the weights, are its.
    rows = np.take_along_axis(
      np.einsum('rtd,edf->rtef', x, experts), ids[..., None], 2
    )
    logits = jnp.asarray(x @ router_w)
    d_logits = routing.weigh_choice_grad(
      router, logits, bias, ids, (rows * dy[:, :, None]).sum(-1)
    )
    policy = precision.PrecisionPolicy(storage='float64', accumulate='float64')
    part = expert_gemm_grad.router_rows_grad(policy, d_logits, router_w)
    weights = routing.weigh_choice(router, logits, bias, ids)
    through = np.einsum('rtf,rtkdf->rtkd', dy, experts[ids])
    of_experts = (through * np.asarray(weights)[..., None]).sum(2)
    np.testing.assert_allclose(of_experts + part, dx, rtol=1e-9, atol=1e-12)
    of_weights = expert_gemm_grad.router_weight_grad(policy, x, d_logits)
    np.testing.assert_allclose(of_weights, d_router_w, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_the_command_judges_a_file(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'mine.py').write_text(
    'from hpmoe.parity_tests.judge.router import router_grads_test as test\n'
    'def run(inputs, config, policy):\n'
    '  return test.forward.kernel(inputs, config, policy, WORD)\n'
    'def back(inputs, config, policy):\n'
    '  return test.differentiate(inputs, config, policy, WORD)\n'
    f'WORD = {plain.DEEPSEEK!r}\n'
    'run.backward = back\n'
    'back.recomputes = True\n'
  )
  words = [
    *('check', '--candidate=mine.py:run', '--preset=tiny', '--experts=16'),
    *('--top_k=4', '--ranks=2', f'--router={plain.DEEPSEEK}', '--router_gemm'),
  ]
  assert main.main([*words, '--direction=both', '--lane=bounded']) == 0
  assert 'd_router_w' in capsys.readouterr().out
