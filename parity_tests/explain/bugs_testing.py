"""Kernels with known bugs, and what is to be said of each."""

import dataclasses

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.judge import trial_testing as trial

KERNEL = trial.Kernel(trial.ascending)


def change_input(name, change):
  """A kernel that reads an input changed."""
  return lambda config, policy, arrays: KERNEL.forward(
    config, policy, {**arrays, name: change(arrays[name])}
  )


def multiply_by(gemm):
  return dataclasses.replace(KERNEL, gemm=gemm).forward


def spoil_output(name, spoil):
  """A kernel that spoils what it wrote, in place."""

  def kernel(config, policy, arrays):
    computed = KERNEL.forward(config, policy, arrays)
    spoil(computed[name])
    return computed

  return kernel


def change_outputs(*changes, run=KERNEL.forward):
  """A kernel that changes some of what it wrote, each (name, where, how)."""

  def kernel(config, policy, arrays):
    computed = run(config, policy, arrays)
    for name, index, change in changes:
      computed[name][index] = change(computed[name][index])
    return computed

  return kernel


def keep_output(name):
  """A kernel that leaves what its first call wrote."""
  first_outputs = {}

  def spoil(array):
    array[:] = first_outputs.setdefault(name, array.copy())

  return spoil_output(name, spoil)


def keep_input(name):
  """A kernel that reads what its first call was given."""
  first_inputs = {}
  return change_input(
    name, lambda array: first_inputs.setdefault(name, array.copy())
  )


def halves(w):
  gate, up = np.split(w, 2, axis=-1)
  return np.concatenate([up, gate], axis=-1)


def turns(w):
  return np.concatenate([w[..., ::2], w[..., 1::2]], axis=-1)


def experts(step):
  return lambda w: np.roll(w.reshape(-1, *w.shape[2:]), step, 0).reshape(
    w.shape
  )


def bfloat16(w):
  return w.astype(ml_dtypes.bfloat16).astype(np.float32)


def short_depth(a, b):
  return trial.ascending(a[:, :-8], b[:-8])


def first_twice(a, b):
  return trial.ascending(a, b) + trial.ascending(a[:, :8], b[:8])


def no_tail(a, b):
  product = trial.ascending(a, b)
  rest = len(a) % 4
  product[len(a) - rest :] = 0
  return product


def neighbours(out):
  return out.reshape(*out.shape[:-1], -1, 2)[..., ::-1].reshape(out.shape)


def shift(out):
  return np.roll(out, 1, axis=-1)


def transpose(w):
  return w.reshape(*w.shape[:2], w.shape[3], w.shape[2]).swapaxes(-1, -2)


COLUMN_ZERO = ('y', np.s_[:, :, 5], np.zeros_like)
# By bug: the kernel that has it.
KERNELS = {
  'halves': change_input('w_gate_up', halves),
  'turns': change_input('w_gate_up', turns),
  'expert_after': change_input('w_down', experts(-1)),
  'expert_before': change_input('w_gate_up', experts(1)),
  'no_weights': change_input('topk_weights', np.ones_like),
  'weights_twice': change_input('topk_weights', np.square),
  'rounded_weights': change_input('topk_weights', bfloat16),
  'other_slots': change_input('topk_weights', lambda w: w[..., ::-1]),
  'last_block': multiply_by(short_depth),
  'first_block_twice': multiply_by(first_twice),
  'tail': multiply_by(no_tail),
  'a_row': change_outputs(('y', np.s_[1, 3], lambda y: 2 * y)),
  'a_column': change_outputs(COLUMN_ZERO),
  'last_columns': change_outputs(
    ('activation', np.s_[..., -7:], lambda a: a + 1)
  ),
  'other_tokens': change_outputs(
    ('expert_in', np.s_[0, :4], lambda rows: rows[[1, 0, 3, 2]])
  ),
  'a_column_on': change_outputs(('expert_out', ..., shift)),
  'neighbours': change_outputs(('activation', ..., neighbours)),
  'transposed': change_input('w_down', transpose),
  'other_rank': change_outputs(('y', ..., lambda y: y[[0, 0]])),
  'rank_alone': change_outputs(('expert_out', 1, lambda out: out + 1)),
  'first_rows': change_outputs(('y', np.s_[0, :4], lambda y: 1.5 * y)),
}
# By stage that is named: what is said of a bug.
WORDS = {
  'expert_in': {
    'other_tokens': 'rows of expert_in were other rows of the same '
    'expert; only in rows of expert 0',
  },
  'gate_up': {
    'halves': "right if read with layout 'R N 2F, up_gate': is it declared?",
    'turns': 'had its columns read as interleaved',
    'expert_before': 'w_gate_up was that of the previous expert',
    'last_block': 'lacked the last 8 terms of its depth',
    'first_block_twice': 'had the first 8 terms of its depth twice',
    'tail': 'gate_up was zero; only in the last rows of experts, past a '
    'multiple of 4',
  },
  'activation': {
    'last_columns': 'only in the last 7 columns',
    'neighbours': 'activation had neighbouring columns swapped',
  },
  'expert_out': {
    'expert_after': 'w_down was that of the next expert',
    'a_column_on': 'expert_out was shifted by one column',
    'transposed': 'w_down was transposed where expert_out reads it',
    'rank_alone': 'only on rank 1',
  },
  'y': {
    'no_weights': 'topk_weights was left out',
    'weights_twice': 'topk_weights was applied twice',
    'rounded_weights': 'routing_weight was rounded to bfloat16',
    'other_slots': 'topk_weights had its slots in reverse order',
    'a_row': 'only in row 3',
    'a_column': 'y was zero; only in column 5',
    'other_rank': 'y was that of the previous rank; only on rank 1',
    'first_rows': 'only in the first 4 rows, only on rank 0',
  },
}
# (kernel, stage that is named, what is said)
BUGS = {
  bug: (KERNELS[bug], stage, text)
  for stage, words_of_bug in WORDS.items()
  for bug, text in words_of_bug.items()
}
# What is said from y alone: the same, but of these other words, or nothing.
NOT_FROM_Y = {
  *('other_tokens', 'tail', 'last_columns', 'neighbours'),
  *('a_column_on', 'rank_alone'),
}
FROM_Y = {
  bug: text for bug, (_, _, text) in BUGS.items() if bug not in NOT_FROM_Y
} | dict(halves='had its column halves swapped')
# As above, of the backward pass: (kernel, stage, what is said).
GRADS = {
  'grad_halves': (
    change_outputs(('d_gate_up', ..., halves), run=KERNEL.backward),
    'd_gate_up',
    "right if read with layout 'R N 2F, up_gate': is it declared?",
  ),
  'grad_expert_after': (
    change_outputs(('d_w_gate_up', ..., experts(-1)), run=KERNEL.backward),
    'd_w_gate_up',
    'd_w_gate_up was that of the next expert',
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


def plant(bug):
  """The function that has one of `TWENTY`, and its pass."""
  kernel = TWENTY[bug][0]
  if bug in GRADS:
    return function(KERNEL.forward, kernel), 'backward'
  return function(kernel), 'forward'


# Two at once: (function, direction, what is said of each, by stage).
PAIRS = {
  'two_stages': (
    function(change_outputs(('activation', ..., neighbours), COLUMN_ZERO)),
    'forward',
    [
      ('activation', 'activation had neighbouring columns swapped'),
      ('y', 'y was zero; only in column 5'),
    ],
  ),
  'one_stage': (
    function(
      change_outputs(
        ('expert_out', ..., shift),
        ('expert_out', np.s_[:, ::3], np.zeros_like),
      )
    ),
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
      ('d_w_gate_up', 'd_w_gate_up was that of the next expert'),
    ],
  ),
}
