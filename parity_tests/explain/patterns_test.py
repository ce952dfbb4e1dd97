"""What is wrong is told by where it is, and by how much, not by chance."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests import api
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.explain import explain
from hpmoe.parity_tests.explain import locations
from hpmoe.parity_tests.explain import patterns
from hpmoe.parity_tests.judge import trial_testing as trial

KERNEL = trial.Kernel()


@dataclasses.dataclass(frozen=True)
class Padded(trial.Kernel):
  """Pads gate and up at the end of their concatenation before it is split."""

  def _gated(self, policy, gate_up):
    width = gate_up.shape[1] // 2
    padded = np.hstack([gate_up, np.zeros_like(gate_up)])
    gate, up = padded[:, :width], padded[:, width + 8 :][:, :width]
    return super()._gated(policy, np.hstack([gate, up]))


@dataclasses.dataclass(frozen=True)
class Clamped(trial.Kernel):
  """Clamps up as GPT-OSS does."""

  def _gated(self, policy, gate_up):
    gate, up, passes = super()._gated(policy, gate_up)
    return gate, np.clip(up, -7, 7), passes


def change_y(change):
  def run(config, policy, arrays):
    computed = KERNEL.forward(config, policy, arrays)
    change(computed['y'])
    return computed

  return run


def change_inputs(**changes):
  def run(config, policy, arrays):
    inputs = {n: change(arrays[n].copy()) for n, change in changes.items()}
    return KERNEL.forward(config, policy, {**arrays, **inputs})

  return run


def scale_element(y):
  y[0, 3, 6] = np.float32(1.01) * y[0, 3, 6].astype(np.float32)


def scale_token(y):
  y[0, 3] = np.float32(1.01) * y[0, 3].astype(np.float32)


def flip_sign(y):
  y[0, 3, 6] *= -1


def lose_tokens(y):
  y[:, y.shape[1] // 8 * 8 :] = 0


def round_token(weights):
  weights[0, 3] = weights[0, 3].astype(ml_dtypes.bfloat16)
  return weights


def exchange_experts(w):
  w[1, [0, 2]] = w[1, [2, 0]]
  return w


def saturating(gate):
  return trial.plain_silu(np.minimum(gate, np.float32(60)))


ROW = 'only in row 3, only on rank 0'
ELEMENT = 'only in row 3, only in column 6, only on rank 0'
EXCHANGED = 'as if experts 4 and 6 were exchanged; '
# By bug: the kernel, what is said, and what is said from y alone if not that.
BUGS = {
  'exchange': (
    change_inputs(w_gate_up=exchange_experts, w_down=exchange_experts),
    EXCHANGED + 'only in rows of experts 4 and 6',
    EXCHANGED + 'all bad tokens, and no others, went to expert 4 or 6',
  ),
  'one element': (change_y(scale_element), ELEMENT, ''),
  'one token': (change_y(scale_token), f'* expected; {ROW}', ''),
  'one sign': (change_y(flip_sign), f'opposite sign; {ELEMENT}', ''),
  'one weight': (
    change_inputs(topk_weights=round_token),
    f'topk_weights was rounded to bfloat16 where y reads it; {ROW}',
    '',
  ),
  'saturation': (
    dataclasses.replace(KERNEL, silu_of=saturating).forward,
    'had gate clamped to 60 where activation reads it',
    '',
  ),
  'clamp': (Clamped().forward, 'had up clamped to ±7 where activation', ''),
  'padding': (
    Padded().forward,
    'gate_up was padded at its end by 16 columns before it was split',
    '',
  ),
  'lost tokens': (
    change_y(lose_tokens),
    'as if y was zero; only in tokens past a multiple of 8',
    '',
  ),
}


def find_pattern(bug, dtype, everything):
  kernel = BUGS[bug][0]
  last = slice(None) if everything else slice(-1, None)

  def function(inputs, config, policy):
    computed = kernel(config, policy, inputs)
    names = ('expert_in', 'gate_up', 'activation', 'expert_out', 'returned')
    return {n: computed[n] for n in (*names, 'y')[last]}

  function.activations = ('swiglu',)
  tokens = 125 if bug == 'lost tokens' else None
  case = case_lib.Case(preset='small', dtype=dtype, tokens=tokens)
  report = api.check(function, case, lanes=('bitwise', 'bounded'), repeat=1)
  return report.first_failure.pattern


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
@pytest.mark.parametrize('everything', [False, True], ids=['y', 'all'])
@pytest.mark.parametrize('bug', BUGS)
@pytest.mark.few(1)
def test_a_bug_is_named_by_where_and_how_far(bug, everything, dtype):
  _, words, from_y = BUGS[bug]

  pattern = find_pattern(bug, dtype, everything)

  assert (words if everything or not from_y else from_y) in pattern
  assert 'other' not in pattern.replace('no others', '')
  assert explain.BESIDE not in pattern


@pytest.mark.parametrize(
  ('names', 'place'),
  [
    (('gate_up', 'y'), 'only in rows of expert 3'),
    (('y',), 'all bad tokens, and no others, went to expert 3'),
  ],
)
def test_one_expert_is_named_once_with_what_to_return(names, place):
  # given: expert 3 has a weight with noise, which has no name
  noise = np.random.default_rng(5).normal(size=256).astype(np.float32)

  def disturb(w):
    w.reshape(-1, *w.shape[2:])[3] *= noise[: w.shape[-1]]
    return w

  def function(inputs, config, policy):
    computed = change_inputs(w_gate_up=disturb)(config, policy, inputs)
    return {name: computed[name] for name in names}

  function.activations = ('swiglu',)
  # when
  case = case_lib.Case(preset='small', dtype='float32')
  report = api.check(function, case, lanes=('bounded',), repeat=1)
  # then
  failure = report.first_failure
  text = f'{failure.pattern}; {failure.hint}'
  assert failure.stage == names[0]
  assert text.count(place) == text.count('expert 3') == 1
  assert 'experts 3' not in text
  if len(names) == 1:
    assert 'return expert_in, gate_up' in failure.hint


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
@pytest.mark.few(1)
def test_dx_without_up_says_the_up_half(dtype):
  # given: dx alone lacks what comes through up
  def backward(inputs, config, policy):
    gate_alone = inputs['w_gate_up'].copy()
    gate_alone[..., config.d_ff :] = 0
    grads = KERNEL.backward(config, policy, inputs)
    grads_of_gate = KERNEL.backward(
      config, policy, {**inputs, 'w_gate_up': gate_alone}
    )
    dx = grads_of_gate['dx']
    names = 'd_w_down', 'd_w_gate_up', 'd_topk_weights'
    return dict(dx=dx, **{name: grads[name] for name in names})

  def function(inputs, config, policy):
    return dict(y=KERNEL.forward(config, policy, inputs)['y'])

  function.backward, function.activations = backward, ('swiglu',)

  # when
  case = case_lib.Case(
    preset='tiny', ranks=2, dtype=dtype, direction='backward'
  )
  report = api.check(function, case, lanes=('bounded',), repeat=1)

  # then
  failure = report.first_failure
  assert failure.stage == 'dx'
  assert 'lacked its up half' in failure.pattern


def test_a_row_is_no_other_row_where_only_its_large_columns_agree():
  # given: columns of very different sizes, and an error in a small one
  right = np.random.default_rng(3).normal(size=(6, 32)).astype(np.float32)
  right[:, 5] *= 2.0**30
  actual = right.copy()
  actual[2, 8:16] = right[2, 8:16][::-1]

  text = patterns.describe(actual, right, actual != right, right)

  assert text == ''


def test_a_row_is_another_in_columns_of_any_size():
  right = np.random.default_rng(3).normal(size=(6, 32)).astype(np.float32)
  right[:, 5] *= 2.0**30
  actual = right.copy()
  actual[2] = right[4]

  text = patterns.describe(actual, right, actual != right, right)

  assert text == "holds another row's values"


@pytest.mark.parametrize('zero', [True, False])
def test_a_row_that_is_zero_is_no_factor_of_rows_that_are_noise(zero):
  # given: a first row that is zero, and other rows that are unrelated
  generator = np.random.default_rng(7)
  right, actual = generator.normal(size=(2, 8, 32)).astype(np.float32)
  actual[0] = 0 if zero else right[0] / 2
  text = patterns.describe(actual, right, actual != right, right)
  assert 'expected' not in text


def test_rows_with_factors_of_their_own_are_said_to_be():
  right = np.random.default_rng(7).normal(size=(8, 32)).astype(np.float32)
  actual = right * np.arange(1, 9, dtype=np.float32)[:, None] / 8
  text = patterns.describe(actual, right, actual != right, right)
  assert text == 'got = 0.125 * expected, each row with a factor of its own'


@pytest.mark.parametrize(('right_tokens', 'is_named'), [(1, False), (40, True)])
def test_a_pair_of_experts_is_named_where_others_are_right(
  right_tokens, is_named
):
  is_wrong = np.arange(64) >= right_tokens
  assert locations._is_telling(is_wrong, 2) is is_named


@pytest.mark.parametrize('spares_a_token', [False, True])
@pytest.mark.few(1)
def test_an_expert_of_all_wrong_tokens_is_named_if_another_has_right_ones(
  spares_a_token,
):
  # given: half of the tokens have experts, and all of expert 0's are wrong
  inputs = case_lib.Case(preset='tiny', ranks=1).make().arrays
  ids = np.full(inputs['topk_ids'].shape, -1, np.int32)
  ids[0, :8, 0] = 0
  ids[0, 8, 0] = 1 if spares_a_token else 0
  inputs = {**inputs, 'topk_ids': ids}

  def function(arrays, config, policy):
    y = KERNEL.forward(config, policy, arrays)['y'].copy()
    y[0, :8] = np.flip(y[0, :8], axis=-1)
    y[0, 8] *= 1 if spares_a_token else -1
    return {'y': y}

  function.activations = ('swiglu',)
  # when
  report = api.check(
    function, case_lib.Case(input=inputs), lanes=('bounded',), repeat=1
  )
  # then
  text = report.first_failure.pattern + report.first_failure.hint
  assert ('expert 0' in text) == spares_a_token


def test_rows_where_nothing_belongs_are_said_to_be():
  # Given rows of zeros, to which a kernel adds one row, times a number each,
  expected = np.zeros((4, 8), np.float32)
  actual = np.outer([0, 1, 2, 3], np.arange(1, 9)).astype(np.float32)
  pattern = patterns.describe(actual, expected, actual != 0, expected)
  assert pattern == 'not zero, in rows that should be'


@pytest.mark.slow
def test_tokens_without_an_expert_are_named():
  # Given a kernel that leaves something in tokens that nobody serves,
  inputs = case_lib.Case(preset='tiny', ranks=1).make().arrays
  ids = np.array(inputs['topk_ids'])
  ids[0, 8:] = -1

  def function(arrays, config, policy):
    y = KERNEL.forward(config, policy, arrays)['y'].copy()
    is_served = (arrays['topk_ids'] >= 0).any(-1, keepdims=True)
    trash = arrays['topk_weights'][..., :1] * np.arange(y.shape[-1])
    return {'y': np.where(is_served, y, trash.astype(y.dtype))}

  function.activations = ('swiglu',)
  case = case_lib.Case(input={**inputs, 'topk_ids': ids})
  report = api.check(function, case, lanes=('bounded',), repeat=1)
  pattern = report.first_failure.pattern
  words = 'not zero, in rows that should be; only in tokens without an expert'
  assert pattern.startswith(words)
