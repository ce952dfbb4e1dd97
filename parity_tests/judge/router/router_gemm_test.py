"""Kernels that compute their router's logits too, right and wrong."""

import dataclasses
import functools

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.judge import self_routing_test as plain
from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.parity_tests.judge.router import router_gemm
from hpmoe.parity_tests.judge.router import routing_task
from hpmoe.reference import routing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import router as router_lib

# No test here is of the roundings that a failure of a layer is put down to.
pytestmark = pytest.mark.verdict_alone

CASE = dataclasses.replace(plain.CASE, router_gemm=True)
ALL = ('router_logits', 'topk_ids', 'topk_weights')
BIASED = 'renormalize_biased'
LANES = ['bitwise', 'bounded']


def narrow(array, dtype=ml_dtypes.bfloat16):
  return array.astype(dtype).astype(np.float32)


def kernel(inputs, config, policy, word, change='', returns=ALL):
  """Returns y of a layer in numpy, and what its router computed."""
  x = inputs['x'].astype(np.float32)
  weights = inputs['router_w'].astype(np.float32)
  bias = inputs.get('router_bias')
  if change == 'operands in bf16':
    x, weights = narrow(x), narrow(weights)
  if change == 'column missing':
    weights = np.where(np.arange(16) == 5, 0, weights)
  if change == 'read as [E, D]':
    weights = weights.reshape(16, -1).T
  if change == 'next token':
    x = np.roll(x, -1, 1)
  logits = x @ weights
  if router_lib.RULES[word.partition(':')[0]].bias == 'logits':
    logits = logits + bias * (change != 'bias left out')
    word = 'renormalize'
  if change == 'bias in logits':
    logits = logits + bias
  if change == 'logits in bf16':
    logits = narrow(logits)
  if change == 'logits of a token are NaN':
    logits[:, 3] = np.nan
  if change == 'logits 0.1 % off':
    logits = logits * np.float32(1.001)
  dtype = policy.dtype('router_logits')
  own_logits = logits.astype(dtype)
  inner = {'router_logits': own_logits.astype(np.float32), **inputs}
  bug = 'the bias was in the weights' if change == 'biased weights' else ''
  outputs = plain.kernel(inner, config, policy, word, bug)
  outputs['router_logits'] = own_logits
  return {name: outputs[name] for name in ('y', *returns)}


def check(change='', returns=ALL, word=plain.DEEPSEEK, case=CASE, **options):
  function = functools.partial(
    kernel, word=word, change=change, returns=returns
  )
  case = dataclasses.replace(case, router=word)
  return hpmoe.check(function, case, **{'lanes': LANES, **options})


@pytest.mark.parametrize(
  'forms',
  [
    dict(rows='e4m3_1x128'),
    dict(quantised='int8_channel'),
    dict(x_form='mxfp8'),
  ],
  ids=lambda forms: next(iter(forms)),
)
def test_forms_of_experts_loosen_no_limit_of_logits(forms, seed):
  # Given a policy whose experts multiply codes, and one whose experts do not,
  plain_policy = precision.PrecisionPolicy()
  coded_policy = dataclasses.replace(plain_policy, **forms)
  rng = np.random.default_rng(seed)
  x = rng.standard_normal((2, 5, 128)).astype(np.float32)
  router_w = rng.standard_normal((128, 8)).astype(np.float32)
  # when the logits of the router, which multiplies no codes, are bounded,
  limits = [
    router_gemm.bound_logits(policy, x, router_w).bound()
    for policy in (plain_policy, coded_policy)
  ]
  # then the limits are the same.
  np.testing.assert_array_equal(*limits)


class TestRightKernels:
  @pytest.mark.parametrize(
    ('rule', 'returns'),
    [
      *((rule, ALL) for rule in ('renormalize', 'softmax', 'llama4', BIASED)),
      *((rule, ()) for rule in ('deepseek_v3', 'renormalize_naive')),
      ('deepseek_v3', ALL[:1]),
      ('renormalize', ALL[1:2]),
      ('minimax2', ALL[1:]),
    ],
  )
  @pytest.mark.few(2)
  def test_each_rule_passes_whatever_is_returned(self, rule, returns):
    report = check(returns=returns, word=plain.WORDS[rule])
    assert report.is_pass, str(report)
    for name in ALL:
      expected = 'pass' if name in returns else 'not judged'
      ids_unknown = name == 'topk_weights' and 'topk_ids' not in returns
      assert report.stages[name] == ('not judged' if ids_unknown else expected)

  @pytest.mark.parametrize('policy', ['', 'router_logits=f32'])
  @pytest.mark.few(1)
  def test_logits_of_bf16_tokens_have_the_dtype_that_is_declared(self, policy):
    case = dataclasses.replace(CASE, dtype='bf16', policy=policy)

    def layer(inputs, config, own):
      wide = {n: np.float32(a) for n, a in inputs.items() if n[:2] != 'to'}
      outputs = kernel(wide, config, own, plain.DEEPSEEK)
      return {n: outputs[n] for n in ALL} | {
        'y': outputs['y'].astype(own.storage)
      }

    report = hpmoe.check(layer, case, lanes=LANES)
    for name in ALL:
      assert report.stages[name] == 'pass', str(report)

  @pytest.mark.slow
  def test_operands_are_rounded_where_that_is_declared(self):
    case = dataclasses.replace(CASE, policy='operands=bf16')
    report = check('operands in bf16', case=case)
    assert report.stages['router_logits'] == 'pass', str(report)


# What a wrong kernel does, and its first failure with words of its cause.
WRONG = {
  'logits in bf16': ('router_logits', 'rounded to bfloat16'),
  'operands in bf16': ('router_logits', 'operands was rounded to bfloat16'),
  'column missing': ('router_logits', 'column of expert 5 of router_w'),
  'read as [E, D]': ('router_logits', 'router_w was read as [E, D]'),
  'next token': ('router_logits', 'x was that of the next token'),
  'bias in logits': ('router_logits', 'router_bias was added to router_logits'),
  'logits 0.1 % off': ('router_logits', ''),
  'biased weights': ('topk_weights', 'the bias was in the weights'),
}


class TestWrongKernels:
  @pytest.mark.parametrize('change', WRONG)
  @pytest.mark.few(1)
  def test_it_is_found_where_it_is(self, change):
    report = check(change)
    failure = report.first_failure
    stage, words = WRONG[change]
    assert failure is not None and failure.stage == stage, str(report)
    assert words in failure.pattern
    # What follows is judged under the kernel's own logits and choice.
    failed_stages = {n for n, v in report.stages.items() if v == 'fail'}
    assert failed_stages == {stage}

  def test_a_bias_of_the_gemm_is_named(self):
    failure = check('bias left out', word=BIASED).first_failure
    assert failure.stage == 'router_logits'
    assert 'router_bias was left out' in failure.pattern

  @pytest.mark.parametrize('change', ['logits in bf16', 'column missing'])
  @pytest.mark.few(1)
  def test_it_shows_in_y_alone_too(self, change):
    report = check(change, returns=())
    failure = report.first_failure
    assert failure is not None and failure.stage == 'y'
    assert failure.hint.startswith('return router_logits, topk_ids')

  @pytest.mark.parametrize('word', [plain.DEEPSEEK, BIASED])
  @pytest.mark.few(1)
  def test_nan_is_a_failure_of_logits(self, word):
    failure = check('logits of a token are NaN', word=word).first_failure
    assert failure.stage == 'router_logits'
    assert np.isnan(failure.actual) and failure.token == 3

  @pytest.mark.parametrize('name', ['x', 'router_w', 'router_bias'])
  def test_inputs_that_are_not_finite_are_refused(self, name):
    task = routing_task.Task.from_case(dataclasses.replace(CASE, router=BIASED))
    plain_case = dataclasses.replace(CASE, router='', router_gemm=False)
    inputs = {n: np.array(a) for n, a in plain_case.make().arrays.items()}
    inputs = {n: inputs[n] for n in ('x', 'w_gate_up', 'w_down')}
    inputs = {n: a.copy() for n, a in (inputs | task.gemm.inputs).items()}
    inputs[name].flat[3] = np.nan
    case = hpmoe.Case(input=inputs, router_gemm=True)
    with pytest.raises(ValueError, match=f'{name}: expected finite'):
      check(word=f'{BIASED}:top_k=4', case=case)

  def test_a_near_tie_tells_bf16_logits_by_their_choice(self):
    report = check('logits in bf16', returns=ALL[1:])
    assert report.first_failure.stage == 'topk_ids'


class TestData:
  @pytest.mark.parametrize('dtype', ['f32', 'bf16'])
  @pytest.mark.parametrize('rule', [*router_lib.RULES])
  def test_tokens_are_decided_and_the_first_is_near_a_tie(self, rule, dtype):
    case = dataclasses.replace(
      CASE, router=plain.WORDS[rule], dtype=dtype, policy='router_logits=f32'
    )
    task = routing_task.Task.from_case(case)
    assert not task.undecided
    coarse = 2.0**-8 * np.maximum(1, np.abs(task.inputs.logits))
    blurred = dataclasses.replace(task, spread=coarse)
    assert 0 in blurred.undecided

  def test_logits_are_of_order_one(self):
    task = routing_task.Task.from_case(CASE)
    assert 0.5 < np.std(task.inputs.logits) < 3

  def test_golden_logits_are_jaxs(self):
    gemm = routing_task.Task.from_case(CASE).gemm
    value, limit = gemm.bound_logits()
    actual = routing.compute_logits(
      jnp.asarray(gemm.x), jnp.asarray(gemm.router_w)
    )
    assert (np.abs(np.asarray(actual) - value) <= limit).all()


@pytest.mark.parametrize('rule', [*router_lib.RULES])
def test_weights_of_other_logits_are_within_their_spread(rule):
  # Given logits that are off at random,
  rng = np.random.default_rng(3)
  router = router_lib.parse_router(plain.WORDS[rule], 4)
  logits, bias = rng.normal(0, 1, (40, 16)), rng.normal(0, 0.1, 16)
  bias = bias if router.table.bias else None
  ids = routing.route(router, logits[None], bias).topk_ids[0]
  spread = np.full(logits.shape, 1e-2)
  limit = router_limits.spread_weights(router, logits, bias, ids, spread)
  weights = routing.weigh_choice(router, logits, bias, ids)
  worst = np.zeros_like(limit)
  for _ in range(50):
    side_logits = logits + rng.choice([-1, 1], logits.shape) * spread
    ends = routing.weigh_choice(router, side_logits, bias, ids)
    worst = np.maximum(worst, np.abs(ends - weights))
  # then weights are, and the limit is not far from the worst.
  assert (worst <= limit * (1 + 1e-9)).all()
  assert worst.max() > 0.6 * limit.max()


class TestRequests:
  @pytest.mark.parametrize(
    ('fields', 'words'),
    [
      (dict(router=''), 'router_gemm: expected --router with it, got none'),
      (dict(direction='both'), 'expected its backward pass as an attribute'),
      (dict(x_form='int8_token'), 'x_form: expected none with --router_gemm'),
      (dict(local_experts='4:4'), 'local_experts: expected none with --rou'),
      (dict(input={'x': np.zeros((1, 2, 3))}), r'expected router_w \[D, E\]'),
    ],
  )
  @pytest.mark.few(3)
  def test_what_does_not_suit_is_named(self, fields, words):
    case = dataclasses.replace(CASE, **fields)
    with pytest.raises(ValueError, match=words) as error:
      hpmoe.check(functools.partial(kernel, word=plain.DEEPSEEK), case)
    assert len(str(error.value)) < 300

  def test_inputs_may_be_the_users(self):
    task = routing_task.Task.from_case(CASE)
    arrays = (
      dataclasses.replace(CASE, router='', router_gemm=False).make().arrays
    )
    inputs = {n: np.array(arrays[n]) for n in ('x', 'w_gate_up', 'w_down')}
    word = f'{plain.DEEPSEEK}:top_k=4'
    case = hpmoe.Case(input=inputs | task.gemm.inputs, router_gemm=True)
    for change, passes in (('', True), ('column missing', False)):
      assert check(change, word=word, case=case).is_pass == passes

  @pytest.mark.slow
  def test_the_command_judges_a_file(self, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mine.py').write_text(
      'from hpmoe.parity_tests.judge.router import router_gemm_test as test\n'
      'def run(inputs, config, policy):\n'
      f'  return test.kernel(inputs, config, policy, {plain.DEEPSEEK!r})\n'
    )
    words = [
      *('check', '--candidate=mine.py:run', '--preset=tiny', '--experts=16'),
      *('--top_k=4', '--ranks=2', f'--router={plain.DEEPSEEK}'),
    ]
    assert main.main([*words, '--router_gemm']) == 0
    assert 'and its GEMM' in capsys.readouterr().out
