"""Wrong conversions of a small model's tensors, and how each is named."""

import numpy as np

from hpmoe.parity_tests.compare.weights import weight_testing

LAYER = 'model.layers.1.'
EXPERTS = f'{LAYER}mlp.experts.'
MATRICES = ('gate_proj', 'up_proj', 'down_proj')


def move_experts(tensors, order, router=False):
  before = dict(tensors)
  for place, source in enumerate(order):
    for name in MATRICES:
      key = f'{EXPERTS}{place}.{name}.weight'
      tensors[key] = before[f'{EXPERTS}{source}.{name}.weight']
  if router:
    gate = f'{LAYER}mlp.gate.weight'
    tensors[gate] = before[gate][list(order)]


def permute_experts(tensors):
  move_experts(tensors, [0, 1, 2, 4, 3, 5, 6, 7])


def reverse_experts(tensors):
  move_experts(tensors, range(7, -1, -1))


def repeat_expert(tensors):
  move_experts(tensors, [0, 1, 2, 3, 4, 4, 6, 7])


def permute_router(tensors):
  name = f'{LAYER}mlp.gate.weight'
  tensors[name] = tensors[name][[1, 0, 2, 3, 4, 5, 6, 7]]


def swap_halves(tensors):
  for e in range(8):
    gate, up = (f'{EXPERTS}{e}.{name}.weight' for name in MATRICES[:2])
    tensors[gate], tensors[up] = tensors[up], tensors[gate]


def interleave(tensors):
  stacked = weight_testing.stack_experts(tensors, 1)
  gate_up = stacked[f'{EXPERTS}gate_up_proj']
  gate, up = np.split(gate_up, 2, axis=1)
  turns = np.stack([gate, up], axis=2).reshape(gate_up.shape)
  return stacked | {f'{EXPERTS}gate_up_proj': turns}


def transpose_stacked(tensors):
  stacked = weight_testing.stack_experts(tensors, 1)
  down = f'{EXPERTS}down_proj'
  return stacked | {down: stacked[down].swapaxes(1, 2)}


def transpose_square(tensors):
  # [32, 32], whose shape does not show it.
  name = f'{LAYER}self_attn.q_proj.weight'
  tensors[name] = tensors[name].T


def lose_bias(tensors):
  for part in 'qkv':
    del tensors[f'{LAYER}self_attn.{part}_proj.bias']


def zero_bias(tensors):
  tensors[f'{LAYER}self_attn.q_proj.bias'][:] = 0


def add_one(tensors):
  tensors[f'{LAYER}input_layernorm.weight'] += 1


def pair_rope_rows(tensors):
  for part in 'qk':
    name = f'{LAYER}self_attn.{part}_proj.weight'
    heads = tensors[name].reshape(-1, 2, 4, 32)
    tensors[name] = heads.swapaxes(1, 2).reshape(-1, 32)


def swap_rope_halves(tensors):
  name = f'{LAYER}self_attn.q_proj.weight'
  heads = tensors[name].reshape(-1, 2, 4, 32)
  tensors[name] = heads[:, ::-1].reshape(-1, 32)


def misread_scales(tensors):
  # As if the scales of blocks of 128 x 128 had been left out.
  for e in range(8):
    tensors[f'{EXPERTS}{e}.up_proj.weight'] *= np.float32(37.5)


def exchange_layers(tensors):
  for name in [n for n in tensors if n.startswith(LAYER)]:
    other = name.replace('.1.', '.0.', 1)
    tensors[name], tensors[other] = tensors[other], tensors[name]


WRONG = {
  'experts_permuted': (
    permute_experts,
    'model.layers.1.mlp.experts: experts 3 and 4 are exchanged, but the '
    'router is not',
  ),
  'experts_reversed': (reverse_experts, 'experts are in reverse order'),
  'expert_twice': (
    repeat_expert,
    'expert 4 of left more than once, expert 5 nowhere',
  ),
  'router_permuted': (
    permute_router,
    "mlp.gate.weight: router's rows are exchanged|rows 0 and 1 are exchanged",
  ),
  'halves_swapped': (swap_halves, 'experts: gate and up are exchanged$'),
  'interleaved': (interleave, 'experts: gate and up by turns in right'),
  'transposed': (transpose_stacked, 'experts: down: transposed'),
  'transposed_square': (transpose_square, 'q_proj.weight: transposed'),
  'norm_plus_one': (
    add_one,
    "input_layernorm.weight: right is left's plus one",
  ),
  'rope_halves': (
    pair_rope_rows,
    'q_proj.weight: rope: rows of a pair are half a head apart in left, '
    'neighbours in right',
  ),
  'rope_exchanged': (
    swap_rope_halves,
    'q_proj.weight: rope: the halves of each head are exchanged',
  ),
  'scales_misread': (
    misread_scales,
    'experts: up: right is 37.5 times left: a scale misread',
  ),
}
