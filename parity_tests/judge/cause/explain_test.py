"""Bugs are called by their names, and noise is called nothing."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests import api
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import trial
from hpmoe.parity_tests.judge.cause import explain
from hpmoe.reference.contract import stable_random

KERNEL = trial.Kernel(trial.ascending)
CASE = case_lib.Case(preset='tiny', ranks=2)


def changed(name, change):
  """A kernel that reads an input changed."""
  return lambda config, policy, arrays: KERNEL.forward(
    config, policy, {**arrays, name: change(arrays[name])}
  )


def multiplied(gemm):
  return dataclasses.replace(KERNEL, gemm=gemm).forward


def written(name, spoil):
  """A kernel that spoils what it wrote, in place."""

  def kernel(config, policy, arrays):
    made = KERNEL.forward(config, policy, arrays)
    spoil(made[name])
    return made

  return kernel


def halves(w):
  gate, up = np.split(w, 2, axis=-1)
  return np.concatenate([up, gate], axis=-1)


def turns(w):
  return np.concatenate([w[..., ::2], w[..., 1::2]], axis=-1)


def experts(by):
  return lambda w: np.roll(w.reshape(-1, *w.shape[2:]), by, 0).reshape(w.shape)


def bfloat16(w):
  return w.astype(ml_dtypes.bfloat16).astype(np.float32)


def short_depth(a, b):
  return trial.ascending(a[:, :-8], b[:-8])


def first_twice(a, b):
  return trial.ascending(a, b) + trial.ascending(a[:, :8], b[:8])


def no_tail(a, b):
  made = trial.ascending(a, b)
  rest = len(a) % 4
  made[len(a) - rest :] = 0
  return made


def row_twice(y):
  y[1, 3] *= 2


def column_zero(y):
  y[:, :, 5] = 0


def last_columns(out):
  out[..., -7:] += 1


def other_tokens(rows):
  rows[0, :4] = rows[0, [1, 0, 3, 2]]


def shift(out):
  out[:] = np.roll(out, 1, axis=-1)


def neighbours(out):
  out[:] = out.reshape(*out.shape[:-1], -1, 2)[..., ::-1].reshape(out.shape)


GATE_UP = changed('w_gate_up', halves)
# (kernel, stage that is named, what is said, and from y alone: the same, other
# words, or nothing)
BUGS = {
  'halves': (
    GATE_UP,
    'gate_up',
    "right as with layout 'R N 2F, up_gate': is it declared?",
    'had its halves of columns exchanged',
  ),
  'turns': (
    changed('w_gate_up', turns),
    'gate_up',
    'had its columns taken for such by turns',
    True,
  ),
  'expert_after': (
    changed('w_down', experts(-1)),
    'expert_out',
    'w_down was that of the expert after',
    True,
  ),
  'expert_before': (
    changed('w_gate_up', experts(1)),
    'gate_up',
    'w_gate_up was that of the expert before',
    True,
  ),
  'no_weights': (
    changed('topk_weights', np.ones_like),
    'y',
    'topk_weights was left out',
    True,
  ),
  'weights_twice': (
    changed('topk_weights', np.square),
    'y',
    'topk_weights was applied twice',
    True,
  ),
  'rounded_weights': (
    changed('topk_weights', bfloat16),
    'y',
    'routing_weight was rounded to bfloat16',
    True,
  ),
  'other_slots': (
    changed('topk_weights', lambda w: w[..., ::-1]),
    'y',
    'topk_weights had its slots backwards',
    True,
  ),
  'last_block': (
    multiplied(short_depth),
    'gate_up',
    'lacked its last 8 of depth',
    True,
  ),
  'first_block_twice': (
    multiplied(first_twice),
    'gate_up',
    'had its first 8 of depth twice',
    True,
  ),
  'tail': (
    multiplied(no_tail),
    'gate_up',
    'gate_up was zero; in the last rows of experts alone, past a multiple of 4',
    False,
  ),
  'a_row': (written('y', row_twice), 'y', 'in row 3 alone', True),
  'a_column': (
    written('y', column_zero),
    'y',
    'y was zero; in column 5 alone',
    True,
  ),
  'last_columns': (
    written('activation', last_columns),
    'activation',
    'in the last 7 columns alone',
    False,
  ),
  'other_tokens': (
    written('expert_in', other_tokens),
    'expert_in',
    'rows of expert_in were those of others of the same expert; in rows of '
    'expert 0 alone',
    False,
  ),
  'a_column_on': (
    written('expert_out', shift),
    'expert_out',
    'expert_out was shifted by one column',
    False,
  ),
  'neighbours': (
    written('activation', neighbours),
    'activation',
    'activation had neighbouring columns exchanged',
    False,
  ),
}


def pattern(kernel, case, names=(), activations=('swiglu', 'absolute')):
  """Returns the first failure's stage and pattern."""

  def function(inputs, config, policy):
    made = kernel(config, policy, inputs)
    return {name: made[name] for name in names or made}

  function.activations = activations
  failure = api.check(function, case).first_failure
  return (failure.stage, failure.pattern) if failure else ('', '')


@pytest.mark.parametrize(
  'bug, dtype',
  [
    *((bug, 'float32') for bug in BUGS),
    *((bug, 'bfloat16') for bug in ('tail', 'rounded_weights', 'turns')),
  ],
)
def test_a_bug_is_named(bug, dtype):
  # given
  kernel, stage, said, _ = BUGS[bug]

  # when
  found = pattern(kernel, dataclasses.replace(CASE, dtype=dtype))

  # then
  assert found[0] == stage
  assert said in found[1]


@pytest.mark.parametrize('bug', [bug for bug in BUGS if BUGS[bug][3]])
def test_a_bug_is_named_from_y_alone(bug):
  # given
  kernel, _, same, said = BUGS[bug]

  # when
  found = pattern(kernel, CASE, names=('y',))

  # then
  assert found[0] == 'y'
  assert (same if said is True else said).split('; ')[-1] in found[1]


@pytest.mark.parametrize('bug', ['halves', 'expert_after', 'rounded_weights'])
def test_a_bug_is_named_on_real_data_alone(bug):
  # given
  kernel, stage, said, _ = BUGS[bug]

  # when
  found = pattern(kernel, CASE, activations=('swiglu',))

  # then
  assert found[0] == stage
  assert said in found[1]


def test_operands_of_tf32_are_named():
  # given
  kernel = dataclasses.replace(KERNEL, operand_bits=10).forward

  # when / then
  stage, said = pattern(kernel, CASE)
  assert stage == 'gate_up'
  assert said.startswith('as if operands was rounded to tf32')


def test_a_nan_says_of_which_gates():
  # given: exp of what is large, over itself
  def sigmoid(gate):
    with np.errstate(over='ignore', invalid='ignore'):
      return gate * (np.exp(gate) / (1 + np.exp(gate)))

  kernel = dataclasses.replace(KERNEL, silu_of=sigmoid).forward

  # when
  stage, said = pattern(kernel, CASE, activations=('swiglu',))

  # then
  assert stage == 'activation'
  assert 'NaN where gate is' in said and 'or more' in said


def test_noise_has_no_name():
  # given
  for seed in range(12):
    noise = stable_random.normal(
      stable_random.seed_of('noise', seed), (2, 16, 32)
    )

    def spoil(y, noise=noise, size=4.0 ** (seed % 12 - 6)):
      y += (noise * size).astype(y.dtype)

    # when
    _, said = pattern(written('y', spoil), CASE, activations=('swiglu',))

    # then
    assert 'as if' not in said, seed


def test_few_elements_have_no_name():
  # given: one element that another bug would have given as well
  def spoil(y):
    y[0, 2, 3] = y[0, 2, 2]

  # when / then
  assert 'as if' not in pattern(written('y', spoil), CASE)[1]


def test_words_are_of_axes_that_a_tensor_has():
  # given
  weights = {c.says for c in explain._of('w_down', explain._WEIGHTS)}
  rows = {c.says for c in explain._of('activation', explain._COLUMNS)}

  # then
  assert len(weights) == 3
  assert not any('halves' in said for said in rows)
