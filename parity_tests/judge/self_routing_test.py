"""Kernels that route by themselves, right and wrong, on every rule."""

import dataclasses
import functools
import json

import ml_dtypes
import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.router import router_data
from hpmoe.parity_tests.judge.router import routing_task
from hpmoe.reference import routing
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import router as router_lib

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

GROUPED = ':groups=4:top_groups=2:scale=2.5'
WORDS = {
  name: name + (GROUPED if rule.grouped else '')
  for name, rule in router_lib.RULES.items()
}
DEEPSEEK = WORDS['deepseek_v3']
CASE = hpmoe.Case(preset='tiny:experts=16:top_k=4', ranks=2, router=DEEPSEEK)


def kernel(inputs, config, policy, word, change='', returns=True):
  """Returns y of a layer in numpy, and the routing that it computed."""
  del policy
  router = router_lib.parse_router(word, config.top_k)
  logits, bias = inputs['router_logits'], inputs.get('router_bias')
  if change == 'scores in bf16':
    logits = logits.astype(ml_dtypes.bfloat16).astype(np.float32)
  if change == 'groups ignored':
    router = dataclasses.replace(router, groups=1, top_groups=1)
  if change == 'bias left out':
    bias = None
  ids, weights = routing.route(router, logits, bias)
  first, _ = inputs.get('local_experts', (0, 0))
  if change in MISTAKES:
    ids, _ = routing.route(router, logits, bias)
    weights = MISTAKES[change](logits, bias, ids).astype(np.float32)
  if change == 'slots backwards':
    ids, weights = ids[..., ::-1].copy(), weights[..., ::-1].copy()
  if change == 'weights of 1 % more':
    weights = weights * np.float32(1.01)
  if change == 'weights of NaN':
    weights[:, 3] = np.nan
  if change == 'an expert twice':
    ids[..., 1] = ids[..., 0]
  y = _compute_experts(inputs, config, ids - first, weights)
  if change == 'others are -1':
    ids = np.where(ids < 8, ids, -1).astype(np.int32)
  if change == 'y of 1 % more':
    y = y * np.float32(1.01)
  routed = {'topk_ids': ids, 'topk_weights': weights}
  return {'y': y, **(routed if returns else {})}


def _take(scores, ids):
  return np.take_along_axis(scores, ids, -1)


def _share(weights):
  return 2.5 * weights / weights.sum(-1, keepdims=True)


def _sigmoid(logits):
  return 1 / (1 + np.exp(-logits))


def _softmax(logits):
  exp = np.exp(logits - logits.max(-1, keepdims=True))
  return exp / exp.sum(-1, keepdims=True)


# Weights of DeepSeek-V3's rule, by what is wrong of them.
MISTAKES = {
  'they were not renormalised': lambda z, bias, ids: (
    2.5 * _take(_sigmoid(z), ids)
  ),
  'the scale 2.5 was forgotten': lambda z, bias, ids: (
    _share(_take(_sigmoid(z), ids)) / 2.5
  ),
  'the bias was in the weights': lambda z, bias, ids: _share(
    _take(_sigmoid(z) + bias, ids)
  ),
  'softmax was in place of sigmoid': lambda z, bias, ids: _share(
    _take(_softmax(z), ids)
  ),
}


def _compute_experts(inputs, config, ids, weights):
  y = np.zeros_like(inputs['x'])
  for expert in range(config.num_experts):
    owner, local = divmod(expert, config.experts_per_rank)
    rank, token, slot = np.nonzero(ids == expert)
    rows = inputs['x'][rank, token] @ inputs['w_gate_up'][owner, local]
    gate, up = np.split(rows, 2, -1)
    with np.errstate(over='ignore'):
      rows = gate / (1 + np.exp(-gate)) * up @ inputs['w_down'][owner, local]
    np.add.at(y, (rank, token), rows * weights[rank, token, slot, None])
  return y


def _compute_exactly(inputs, config, ids):
  """Returns y with the activation |gate| up of exact data."""
  y = np.zeros_like(inputs['x'])
  for expert in range(config.num_experts):
    rank, token, slot = np.nonzero(ids == expert)
    rows = inputs['x'][rank, token] @ inputs['w_gate_up'][0, expert]
    gate, up = np.split(rows, 2, -1)
    rows = np.abs(gate) * up @ inputs['w_down'][0, expert]
    weights = inputs['topk_weights'][rank, token, slot, None]
    np.add.at(y, (rank, token), rows * weights)
  return y


def check(change='', returns=True, word=DEEPSEEK, case=CASE, **options):
  """Returns the report of a kernel that computes the rule of `word`."""
  function = functools.partial(
    kernel, word=word, change=change, returns=returns
  )
  lanes = options.pop('lanes', ['bitwise', 'bounded'])
  return hpmoe.check(function, case, lanes=lanes, **options)


class TestRightKernels:
  @pytest.mark.parametrize(
    ('rule', 'returns'),
    [
      *((rule, True) for rule in router_lib.RULES),
      ('deepseek_v3', False),
      ('renormalize', False),
    ],
  )
  @pytest.mark.few(3)
  def test_each_rule_passes(self, rule, returns):
    case = dataclasses.replace(CASE, router=WORDS[rule])
    report = check(word=WORDS[rule], returns=returns, case=case)
    assert report.is_pass, str(report)
    rows = {report.stages[name] for name in ('topk_ids', 'topk_weights')}
    assert rows == {'pass' if returns else 'not judged'}

  def test_slots_in_another_order_pass(self):
    assert check('slots backwards').is_pass

  def test_scores_in_the_dtype_that_is_declared_pass(self):
    # Logits are drawn so that bfloat16 decides.
    coarse_case = dataclasses.replace(CASE, router=f'{DEEPSEEK}:dtype=bfloat16')
    report = check('scores in bf16', case=coarse_case)
    assert report.stages['topk_ids'] == 'pass'

  def test_x_and_weights_may_be_codes(self):
    case = dataclasses.replace(
      CASE, preset='tiny:d_model=128:d_ff=64:experts=16:top_k=4'
    )
    coded = dataclasses.replace(case, x_form='int8_token')

    def dequantise(inputs, config, policy):
      scales = inputs['x_scales']
      x = inputs['x_codes'].astype(np.float32) * scales
      return kernel({**inputs, 'x': x}, config, policy, DEEPSEEK)

    assert hpmoe.check(dequantise, coded, lanes=['bounded']).is_pass


class TestWrongKernels:
  @pytest.mark.parametrize(
    ('change', 'words'),
    [
      ('scores in bf16', 'chose expert'),
      ('groups ignored', 'chose'),
      ('bias left out', 'chose'),
    ],
  )
  @pytest.mark.few(1)
  def test_a_wrong_choice_is_the_first_failure(self, change, words):
    report = check(change)
    failure = report.first_failure
    assert failure is not None and failure.stage == 'topk_ids'
    assert words in failure.pattern
    assert 'left out' in failure.pattern or 'keeps' in failure.pattern

  @pytest.mark.parametrize('change', ['scores in bf16', 'groups ignored'])
  @pytest.mark.few(1)
  def test_the_rest_is_judged_under_the_choice_of_the_kernel(self, change):
    assert check(change).stages['y'] == 'pass'

  @pytest.mark.parametrize('change', ['scores in bf16', 'groups ignored'])
  @pytest.mark.few(1)
  def test_a_wrong_choice_shows_in_y_alone_too(self, change):
    report = check(change, returns=False)
    failure = report.first_failure
    assert failure is not None and failure.stage == 'y'

  def test_the_router_comes_before_what_follows_it(self):
    def compute(inputs, config, policy):
      outputs = kernel(inputs, config, policy, DEEPSEEK, 'groups ignored')
      return outputs | {'y': outputs['y'] * np.float32(1.01)}

    report = hpmoe.check(compute, CASE, lanes=['bitwise', 'bounded'])
    assert report.stages['y'] == 'fail'
    failure = report.first_failure
    assert failure is not None and failure.stage == 'topk_ids'

  def test_a_wrong_weight_is_no_error_of_y(self):
    report = check('weights of 1 % more')
    assert report.stages['topk_ids'] == report.stages['y'] == 'pass'
    failure = report.first_failure
    assert failure is not None and failure.stage == 'topk_weights'

  def test_a_weight_of_nan_is_a_failure(self):
    failure = check('weights of NaN').first_failure
    assert failure.stage == 'topk_weights' and failure.token == 3
    assert np.isnan(failure.actual)

  def test_an_error_behind_the_router_is_none_of_the_router(self):
    report = check('y of 1 % more')
    failure = report.first_failure
    assert failure is not None and failure.stage == 'y'

  @pytest.mark.parametrize('change', ['an expert twice', 'others are -1'])
  @pytest.mark.few(1)
  def test_what_is_no_expert_is_no_choice(self, change):
    report = check(change)
    failure = report.first_failure
    assert failure is not None and failure.stage == 'topk_ids'
    assert '4 different experts of the whole layer, 0 to 15' in failure.pattern
    assert failure.bad_rows > 8

  def test_all_wrong_tokens_are_counted(self):
    right, wrong = (check(change) for change in ('', 'groups ignored'))
    assert right.is_pass
    failure = wrong.first_failure
    assert failure is not None and failure.bad_rows > 3
    assert 'where the rule keeps 2' in failure.pattern

  def test_y_alone_asks_for_the_routing(self):
    failure = check('groups ignored', returns=False).first_failure
    assert failure is not None
    assert failure.hint.startswith('return topk_ids, topk_weights, expert_in')

  @pytest.mark.slow
  def test_an_answer_kept_by_shape_fails(self):
    answers = {}

    def by_shape(inputs, config, policy):
      return answers.setdefault(
        inputs['x'].shape, kernel(inputs, config, policy, DEEPSEEK)
      )

    assert not hpmoe.check(by_shape, CASE, lanes=['bounded']).is_pass


def differentiate(inputs, config, policy, word, change='', returns=()):
  """Returns gradients of a layer in numpy, those of logits by JAX."""
  grads = trial.Kernel().backward(config, policy, inputs)
  router = router_lib.parse_router(word, config.top_k)
  d_weights = grads['d_topk_weights']
  if change == 'scale forgotten':
    router = dataclasses.replace(router, scale=1.0)
  if change == 'slots exchanged':
    d_weights = d_weights[..., ::-1]
  if change == 'weights in place of gradients':
    d_weights = inputs['topk_weights']
  d_logits = np.array(
    routing.weigh_choice_grad(
      router,
      inputs['router_logits'],
      inputs.get('router_bias'),
      inputs['topk_ids'],
      d_weights,
    )
  )
  if change == 'an expert that was not chosen':
    left_out = np.setdiff1d(np.arange(16), inputs['topk_ids'][1, 2])[0]
    d_logits[1, 2, left_out] = 1e-3
  names = ('dx', 'd_w_down', 'd_w_gate_up', *returns)
  outputs = {name: grads[name] for name in names}
  if change != 'not returned':
    outputs['d_router_logits'] = d_logits
  return outputs


# What is wrong of gradients, and the cause that is told.
GRADIENTS = {
  'scale forgotten': 'as if the scale 2.5 was forgotten',
  'slots exchanged': 'as if gradients of weights were in reverse order',
  'weights in place of gradients': 'as if weights were in place of their gra',
  'an expert that was not chosen': 'experts that were not chosen have gradien',
}


class TestGradients:
  def _check(self, change='', returns=(), direction='both', **fields):
    word = fields.setdefault('router', DEEPSEEK)

    def layer(inputs, config, policy):
      own = change if change == 'scores in bf16' else ''
      return kernel(inputs, config, policy, word, own)

    def backward(inputs, config, policy):
      return differentiate(inputs, config, policy, word, change, returns)

    layer.backward = backward
    backward.recomputes = True
    # The forward pass of a right kernel saves what the oracle's does.
    case = dataclasses.replace(CASE, direction=direction, **fields)
    return hpmoe.check(layer, case, lanes=['bounded'])

  @pytest.mark.parametrize('rule', ['renormalize', 'deepseek_v3', 'softmax'])
  @pytest.mark.few(1)
  def test_a_right_kernel_passes(self, rule):
    report = self._check(router=WORDS[rule])
    assert report.is_pass, str(report)
    assert report.stages['d_router_logits'] == 'pass'

  @pytest.mark.parametrize('placement', ['before_down', 'epilogue', 'input'])
  @pytest.mark.few(1)
  def test_it_passes_wherever_the_weight_multiplies(self, placement):
    returns = ('d_topk_weights',)
    report = self._check('', returns, 'backward', placement=placement)
    assert report.stages['d_router_logits'] == 'pass', str(report)

  @pytest.mark.slow
  def test_it_passes_under_its_own_choice(self):
    # Given a kernel whose choice is wrong, and its gradients right under that,
    report = self._check('scores in bf16')
    # then no gradient is.
    assert report.stages['topk_ids'] == 'fail'
    assert report.stages['dx'] == report.stages['d_router_logits'] == 'pass'

  @pytest.mark.parametrize('returns', [(), ('d_topk_weights',)])
  @pytest.mark.parametrize(
    'change',
    GRADIENTS,
  )
  @pytest.mark.few(1)
  def test_a_wrong_gradient_is_the_only_failure(self, change, returns):
    report = self._check(change, returns, 'backward')
    failed_stages = {
      n for n, verdict in report.stages.items() if verdict == 'fail'
    }
    assert failed_stages == {'d_router_logits'}
    failure = report.first_failure
    row = next(r for r in report.check_report.results if r.failure)
    assert 'times what roundings of the rule allow' in row.reason
    assert GRADIENTS[change] in failure.pattern
    if change == 'an expert that was not chosen':
      assert failure.index[:2] == (1, 2) and failure.token == 2

  @pytest.mark.slow
  def test_one_without_a_limit_is_not_judged(self):
    # Given scores of 128 experts in bfloat16, whose sum has no digit left,
    word = 'softmax:dtype=bfloat16'
    preset = 'tiny:experts=128:top_k=4:d_model=8:d_ff=8'
    report = self._check('', (), 'backward', router=word, preset=preset)
    row = next(
      r for r in report.check_report.results if r.stage == 'd_router_logits'
    )
    assert (row.verdict, row.reason) == ('not judged', verdicts.NO_LIMIT)

  def test_one_that_is_not_returned_is_not_judged(self):
    report = self._check('not returned', direction='backward')
    assert report.is_pass
    assert report.stages['d_router_logits'] == 'not judged'


def draw_layer() -> dict[str, np.ndarray]:
  """Returns the inputs of `CASE`, with logits and a bias."""
  plain = dataclasses.replace(CASE, router='').make()
  names = ('x', 'w_gate_up', 'w_down')
  arrays = {name: np.array(plain.arrays[name]) for name in names}
  task = routing_task.Task.from_case(CASE)
  logits, bias = task.inputs.logits.copy(), task.inputs.bias.copy()
  return arrays | {'router_logits': logits, 'router_bias': bias}


class TestMaskedExperts:
  # Rules whose bias is minus infinity for experts that nobody may choose.
  RULES = tuple(name for name, rule in router_lib.RULES.items() if rule.bias)

  def check(self, rule, change='', returns=True):
    layer, word = draw_layer(), f'{WORDS[rule]}:top_k=4'
    layer['router_bias'][3:5] = -np.inf
    case = hpmoe.Case(input=layer, router=word)
    return check(change, returns, word, case, lanes=['bounded'])

  @pytest.mark.parametrize('rule', RULES)
  @pytest.mark.few(1)
  def test_a_right_kernel_passes(self, rule):
    report = self.check(rule)
    assert report.is_pass, str(report)

  @pytest.mark.few(1)
  @pytest.mark.parametrize('rule', RULES)
  def test_a_choice_of_one_fails(self, rule):
    failure = self.check(rule, 'bias left out').first_failure
    assert failure is not None and failure.stage == 'topk_ids'
    assert 'chose' in failure.pattern

  @pytest.mark.parametrize('value', [np.nan, np.inf])
  def test_what_masks_nobody_is_refused(self, value):
    layer = draw_layer()
    layer['router_bias'][3] = value
    case = hpmoe.Case(input=layer, router=f'{DEEPSEEK}:top_k=4')
    with pytest.raises(ValueError, match='router_bias: expected finite'):
      check(case=case)

  def test_a_bias_of_other_experts_is_refused(self):
    layer = draw_layer()
    layer['router_bias'] = layer['router_bias'][:8]
    case = hpmoe.Case(input=layer, router=f'{DEEPSEEK}:top_k=4')
    with pytest.raises(ValueError, match=r'router_bias: expected \[16\]'):
      check(case=case)


class TestNearTies:
  @pytest.fixture
  def layer(self):
    """Returns inputs in which two experts of token 1 score the same."""
    arrays = draw_layer()
    logits = arrays['router_logits']
    bias = np.zeros_like(arrays['router_bias'])
    logits[0, 1] = np.linspace(2, -2, 16)
    logits[0, 1, 4] = logits[0, 1, 3]
    return arrays | {'router_logits': logits, 'router_bias': bias}

  def _case(self, layer):
    return hpmoe.Case(input=layer, router=f'{DEEPSEEK}:top_k=4')

  @pytest.mark.parametrize('ids', [(0, 1, 2, 3), (0, 1, 2, 4)])
  @pytest.mark.few(1)
  def test_an_undecided_token_follows_the_kernel(self, layer, ids):
    def choose(inputs, config, policy):
      del policy
      router = router_lib.parse_router(DEEPSEEK, 4)
      bias = inputs['router_bias'].copy()
      if ids[-1] == 4:  # the other of the two
        bias[3] -= 1e-3
      scores = inputs['router_logits']
      chosen_ids = routing.route(router, scores, inputs['router_bias']).topk_ids
      other_ids = routing.route(router, scores, bias).topk_ids
      is_tied = scores[..., 3] == scores[..., 4]
      chosen_ids = np.where(is_tied[..., None], other_ids, chosen_ids)
      task = routing_task.Task(
        router, router_data.RouterInputs(scores, inputs['router_bias'])
      )
      weights = task.weigh(chosen_ids).astype(np.float32)
      y = _compute_experts(inputs, config, chosen_ids, weights)
      return {'y': y, 'topk_ids': chosen_ids, 'topk_weights': weights}

    report = hpmoe.check(choose, self._case(layer), lanes=['bounded'])
    assert report.is_pass, str(report)
    assert 'token 1: undecided between (0, 1, 2, 3) or (0, 1, 2, 4)' in str(
      report
    )

  def test_y_alone_does_not_say_which_choice_was_made(self, layer):
    with pytest.raises(ValueError, match='leaves 1 tokens undecided'):
      check(returns=False, case=self._case(layer))

  @pytest.mark.parametrize('rule', [*router_lib.RULES])
  def test_drawn_tokens_are_decided_and_near_a_tie(self, rule):
    config = config_lib.MoEConfig(
      num_ranks=2,
      num_tokens=13,
      num_experts=16,
      top_k=4,
      d_model=8,
      d_ff=8,
      capacity=64,
    )
    router = router_lib.parse_router(WORDS[rule], 4)
    inputs = router_data.draw(config, router, 0)
    task = routing_task.Task(router, inputs)
    assert not task.undecided
    # What bfloat16 leaves open are the planted ones, where scores are computed.
    narrow = routing_task.Task(
      dataclasses.replace(router, dtype='bfloat16'), inputs
    )
    if rule in ('renormalize', 'topk'):  # logits are compared as they come
      best = -np.sort(-inputs.logits[:, 0], -1)
      assert (best[:, 3] - best[:, 4] < 1e-4).all()
    else:
      assert {0, 13} <= {*narrow.undecided}


class TestLocalExperts:
  CASE = dataclasses.replace(CASE, ranks=1, tokens=24, local_experts='4:8')

  @pytest.mark.parametrize('returns', [True, False])
  @pytest.mark.few(1)
  def test_a_kernel_that_routes_and_holds_some_experts_passes(self, returns):
    report = check(case=self.CASE, returns=returns)
    assert report.is_pass, str(report)
    assert 'experts 4 to 11 of 16' in report.check_report.config['routing']

  def test_a_wrong_choice_of_another_rank_s_expert_is_found_too(self):
    failure = check('groups ignored', case=self.CASE).first_failure
    assert failure is not None and failure.stage == 'topk_ids'

  @pytest.mark.parametrize('right', [True, False])
  def test_a_given_routing_is_of_all_experts(self, right):
    def compute(inputs, config, policy):
      first, count = inputs['local_experts']
      assert (first, count, config.num_experts) == (4, 8, 8)
      assert inputs['topk_ids'].max() == 15
      ids = inputs['topk_ids'] - first if right else inputs['topk_ids']
      if policy.activation != 'swiglu':
        return {'y': _compute_exactly(inputs, config, ids)}
      y = _compute_experts(inputs, config, ids, inputs['topk_weights'])
      return {'y': y}

    case = dataclasses.replace(self.CASE, router='')
    report = hpmoe.check(compute, case, lanes=['exact', 'bounded'])
    assert report.is_pass == right
    if right:
      passing_lanes = {
        r.lane for r in report.check_report.results if r.verdict == 'pass'
      }
      assert passing_lanes == {'exact', 'bounded'}

  @pytest.mark.parametrize(
    ('fields', 'words'),
    [
      (dict(local_experts='4'), 'local_experts: expected FIRST:COUNT'),
      (dict(local_experts='0:3'), 'expected COUNT of at least K=4, got 0:3'),
      (dict(local_experts='9:8'), 'expected FIRST . COUNT of at most 16'),
      (dict(ranks=2), 'ranks: expected 1 with --local_experts=4:8, got 2'),
      (dict(input={'x': np.zeros(1)}), 'expected none with --input'),
      (dict(direction='both'), 'direction: expected forward with --local_e'),
    ],
  )
  @pytest.mark.few(3)
  def test_what_does_not_suit_is_named(self, fields, words):
    with pytest.raises(ValueError, match=words) as error:
      check(case=dataclasses.replace(self.CASE, **fields))
    assert len(str(error.value)) < 300


class TestRequests:
  def test_words_of_a_rule(self):
    router = router_lib.parse_router('deepseek_v3:groups=8:top_groups=4', 8)
    assert router == router_lib.Router('deepseek_v3', 8, 8, 4)

  @pytest.mark.parametrize(
    ('fields', 'words'),
    [
      (dict(router='deepseek'), 'router: rule: expected one of'),
      (dict(router='softmax:group=2'), 'router: expected RULE:NAME=NUMBER'),
      (dict(router='softmax:scale=x'), 'router: expected RULE:NAME=NUMBER'),
      (dict(router='softmax:groups=2'), 'groups: expected 1 with rule softmax'),
      (dict(router='softmax:dtype=int8'), 'dtype: expected one of'),
      (dict(router='deepseek_v3:groups=3'), 'groups: expected a divisor of'),
      (dict(routing='zipf'), 'routing: expected experts that router'),
      (dict(direction='both'), 'expected its backward pass as an attribute'),
      (dict(input={'x': np.zeros((1, 2, 3))}), 'input: expected router_logits'),
    ],
  )
  @pytest.mark.few(3)
  def test_what_does_not_suit_is_named(self, fields, words):
    with pytest.raises(ValueError, match=words) as error:
      check(case=dataclasses.replace(CASE, **fields))
    assert len(str(error.value)) < 300

  def test_lane_exact_alone_is_refused(self):
    with pytest.raises(ValueError, match='lanes: expected some of bitwise'):
      check(lanes=['exact'])

  def test_our_own_backend_routes_elsewhere(self):
    with pytest.raises(
      ValueError, match='router, local_experts: expected a function'
    ):
      hpmoe.check(None, CASE)

  def test_other_commands_say_that_they_cannot(self):
    with pytest.raises(ValueError, match='router: expected none here'):
      CASE.make()

  def test_the_command_judges_a_file(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mine.py').write_text(
      'from hpmoe.parity_tests.judge import self_routing_test as test\n\n\n'
      'def run(inputs, config, policy):\n'
      f'  return test.kernel(inputs, config, policy, {DEEPSEEK!r})\n'
    )
    words = [
      *('check', '--candidate=mine.py:run', '--preset=tiny', '--experts=16'),
      *('--top_k=4', '--ranks=2', f'--router={DEEPSEEK}', '--json=out.json'),
    ]
    assert main.main(words) == 0
    report = json.loads((tmp_path / 'out.json').read_text())
    assert report['config']['routing'] == f'router {DEEPSEEK}'
    assert f'--router={DEEPSEEK}' in report['config']['command']


@pytest.mark.parametrize('returns', [True, False], ids=['weights', 'y'])
@pytest.mark.parametrize('mistake', MISTAKES)
@pytest.mark.few(1)
def test_a_mistake_of_weights_is_named(mistake, returns):
  report = check(mistake, returns=returns)
  failure = report.first_failure
  assert failure.stage == ('topk_weights' if returns else 'y')
  assert f'{mistake};' in failure.pattern + ';'
  if returns:
    row = next(r for r in report.check_report.results if r.failure)
    assert 'float32 roundings allow' in row.reason
    assert row.reason != failure.pattern


def check_local_experts(begin):
  """Returns the report of a kernel whose experts 4 to 7 begin elsewhere."""

  def layer(inputs, config, policy):
    ids, (first, _) = inputs['topk_ids'], inputs['local_experts']
    local_ids = ids - first - (begin - 4)
    weights = inputs['topk_weights']
    return {'y': _compute_experts(inputs, config, local_ids, weights)}

  layer.activations = ('swiglu',)
  case = hpmoe.Case(
    preset='tiny:experts=16', ranks=1, local_experts='4:4', direction='forward'
  )
  return hpmoe.check(layer, case, lanes=['bitwise', 'bounded'])


@pytest.mark.parametrize('begin', [0, 3, 5])
@pytest.mark.few(1)
def test_local_experts_that_begin_elsewhere_are_named(begin):
  failure = check_local_experts(begin).first_failure
  assert f'as if the local experts began at expert {begin}' in failure.pattern


def test_slots_are_those_of_the_whole_layer():
  assert 'K 2 of 16,' in str(check_local_experts(4))
