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


# By bug: the kernel that has it.
KERNELS = {
  'halves': changed('w_gate_up', halves),
  'turns': changed('w_gate_up', turns),
  'expert_after': changed('w_down', experts(-1)),
  'expert_before': changed('w_gate_up', experts(1)),
  'no_weights': changed('topk_weights', np.ones_like),
  'weights_twice': changed('topk_weights', np.square),
  'rounded_weights': changed('topk_weights', bfloat16),
  'other_slots': changed('topk_weights', lambda w: w[..., ::-1]),
  'last_block': multiplied(short_depth),
  'first_block_twice': multiplied(first_twice),
  'tail': multiplied(no_tail),
  'a_row': written('y', row_twice),
  'a_column': written('y', column_zero),
  'last_columns': written('activation', last_columns),
  'other_tokens': written('expert_in', other_tokens),
  'a_column_on': written('expert_out', shift),
  'neighbours': written('activation', neighbours),
  'transposed': changed('w_down', transposed),
  'other_rank': written('y', other_rank),
  'rank_alone': written('expert_out', rank_alone),
  'first_rows': written('y', first_rows),
}
# By stage that is named: what is said of a bug.
SAID = {
  'expert_in': {
    'other_tokens': 'rows of expert_in were those of others of the same '
    'expert; in rows of expert 0 alone',
  },
  'gate_up': {
    'halves': "right as with layout 'R N 2F, up_gate': is it declared?",
    'turns': 'had its columns taken for such by turns',
    'expert_before': 'w_gate_up was that of the expert before',
    'last_block': 'lacked its last 8 of depth',
    'first_block_twice': 'had its first 8 of depth twice',
    'tail': 'gate_up was zero; in the last rows of experts alone, past a '
    'multiple of 4',
  },
  'activation': {
    'last_columns': 'in the last 7 columns alone',
    'neighbours': 'activation had neighbouring columns exchanged',
  },
  'expert_out': {
    'expert_after': 'w_down was that of the expert after',
    'a_column_on': 'expert_out was shifted by one column',
    'transposed': 'w_down was transposed where expert_out reads it',
    'rank_alone': 'on rank 1 alone',
  },
  'y': {
    'no_weights': 'topk_weights was left out',
    'weights_twice': 'topk_weights was applied twice',
    'rounded_weights': 'routing_weight was rounded to bfloat16',
    'other_slots': 'topk_weights had its slots backwards',
    'a_row': 'in row 3 alone',
    'a_column': 'y was zero; in column 5 alone',
    'other_rank': 'y was that of the rank before; on rank 1 alone',
    'first_rows': 'in the first 4 rows alone, on rank 0 alone',
  },
}
# (kernel, stage that is named, what is said)
BUGS = {
  bug: (KERNELS[bug], stage, text)
  for stage, said in SAID.items()
  for bug, text in said.items()
}
# What is said from y alone: the same, but of these other words, or nothing.
NOT_FROM_Y = {
  *('other_tokens', 'tail', 'last_columns', 'neighbours'),
  *('a_column_on', 'rank_alone'),
}
FROM_Y = {
  bug: text for bug, (_, _, text) in BUGS.items() if bug not in NOT_FROM_Y
} | dict(halves='had its halves of columns exchanged')
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
  **BUGS,
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
