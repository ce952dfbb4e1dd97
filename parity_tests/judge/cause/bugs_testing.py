"""Kernels with known bugs, and what is to be said of each."""

import dataclasses

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.judge import trial_testing as trial

KERNEL = trial.Kernel(trial.ascending)


def changed(name, change):
  """A kernel that reads an input changed."""
  return lambda config, policy, arrays: KERNEL.forward(
    config, policy, {**arrays, name: change(arrays[name])}
  )


def multiplied(gemm):
  return dataclasses.replace(KERNEL, gemm=gemm).forward


def written(name, spoil, run=KERNEL.forward):
  """A kernel that spoils what it wrote, in place."""

  def kernel(config, policy, arrays):
    made = run(config, policy, arrays)
    spoil(made[name])
    return made

  return kernel


def held_output(name):
  """A kernel that leaves what its first call wrote."""
  held = {}

  def spoil(array):
    array[:] = held.setdefault(name, array.copy())

  return written(name, spoil)


def held_input(name):
  """A kernel that reads what its first call was given."""
  held = {}
  return changed(name, lambda array: held.setdefault(name, array.copy()))


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


def other_rank(y):
  y[1] = y[0]


def rank_alone(out):
  out[1] += 1


def first_rows(y):
  y[0, :4] *= 1.5


def transposed(w):
  return w.reshape(*w.shape[:2], w.shape[3], w.shape[2]).swapaxes(-1, -2)


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
  'transposed': (
    changed('w_down', transposed),
    'expert_out',
    'w_down was transposed where expert_out reads it',
    True,
  ),
  'other_rank': (
    written('y', other_rank),
    'y',
    'y was that of the rank before; on rank 1 alone',
    True,
  ),
  'rank_alone': (
    written('expert_out', rank_alone),
    'expert_out',
    'on rank 1 alone',
    False,
  ),
  'first_rows': (
    written('y', first_rows),
    'y',
    'in the first 4 rows alone, on rank 0 alone',
    True,
  ),
}
# As above, of the backward pass: (kernel, stage, what is said).
GRADS = {
  'grad_halves': (
    written('d_gate_up', lambda d: np.copyto(d, halves(d)), KERNEL.backward),
    'd_gate_up',
    "right as with layout 'R N 2F, up_gate': is it declared?",
  ),
  'grad_expert_after': (
    written(
      'd_w_gate_up', lambda d: np.copyto(d, experts(-1)(d)), KERNEL.backward
    ),
    'd_w_gate_up',
    'd_w_gate_up was that of the expert after',
  ),
}
TWENTY = {
  **{bug: row[:3] for bug, row in BUGS.items()},
  'tf32_operands': (
    dataclasses.replace(KERNEL, operand_bits=10).forward,
    'gate_up',
    'as if operands was rounded to tf32',
  ),
  **GRADS,
}


def function(kernel, grads=KERNEL.backward):
  """A kernel, and its backward pass, as users call them."""

  def forward(inputs, config, policy):
    return kernel(config, policy, inputs)

  forward.backward = lambda inputs, config, policy: grads(
    config, policy, inputs
  )
  return forward


def planted(bug):
  """The function that has one of `TWENTY`, and its pass."""
  kernel = TWENTY[bug][0]
  if bug in GRADS:
    return function(KERNEL.forward, kernel), 'backward'
  return function(kernel), 'forward'


def both(spoil_one, spoil_other):
  """A kernel that spoils two of what it wrote, each by (name, in place)."""

  def kernel(config, policy, arrays):
    made = KERNEL.forward(config, policy, arrays)
    for name, spoil in (spoil_one, spoil_other):
      spoil(made[name])
    return made

  return kernel


def third_rows(out):
  out[:, ::3] = 0


# Two at once: (function, direction, what is said of each, by stage).
PAIRS = {
  'two_stages': (
    function(both(('activation', neighbours), ('y', column_zero))),
    'forward',
    [
      ('activation', 'activation had neighbouring columns exchanged'),
      ('y', 'y was zero; in column 5 alone'),
    ],
  ),
  'one_stage': (
    function(both(('expert_out', shift), ('expert_out', third_rows))),
    'forward',
    [
      ('expert_out', 'expert_out was shifted by one column'),
      ('expert_out', 'expert_out was zero'),
    ],
  ),
  'two_passes': (
    function(TWENTY['weights_twice'][0], GRADS['grad_expert_after'][0]),
    'both',
    [
      ('y', 'topk_weights was applied twice'),
      ('d_w_gate_up', 'd_w_gate_up was that of the expert after'),
    ],
  ),
}
