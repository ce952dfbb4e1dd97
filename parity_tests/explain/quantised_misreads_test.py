"""Scales of x that a kernel takes from elsewhere are named from y alone."""

import numpy as np
import pytest

import hpmoe

# By what is said: what a kernel makes of scales `[R, T, groups]`.
CHANGES = {
  'the previous group': lambda s: np.roll(s, 1, -1),
  'the next group': lambda s: np.roll(s, -1, -1),
  'the next token': lambda s: np.roll(s, -1, 1),
  'its first group throughout': lambda s: np.broadcast_to(s[..., :1], s.shape),
  'no scales': np.ones_like,
}


def build_layer(change):
  def layer(inputs, config, policy):
    scales = change(inputs['x_scales'])
    x = inputs['x_codes'].astype(np.float32) * np.repeat(scales, 128, -1)
    ids, weights = inputs['topk_ids'], inputs['topk_weights']
    y = np.zeros(x.shape, np.float32)
    for expert in range(config.num_experts):
      place = divmod(expert, config.experts_per_rank)
      rank, token, slot = np.nonzero(ids == expert)
      rows = x[rank, token] @ inputs['w_gate_up'][place]
      gate, up = np.split(rows, 2, -1)
      with np.errstate(over='ignore'):
        rows = gate / (1 + np.exp(-gate)) * up @ inputs['w_down'][place]
      y[rank, token] += weights[rank, token, slot, None] * rows
    return {'y': y}

  layer.activations = ('swiglu',)
  return layer


def check(change):
  case = hpmoe.Case(
    preset='tiny:d_model=384:d_ff=64',
    ranks=2,
    direction='forward',
    x_form='e4m3_1x128',
  )
  layer = build_layer(change)
  return hpmoe.check(layer, case, lanes=['bounded'], repeat=1)


def test_right_scales_pass():
  assert check(lambda scales: scales).is_pass


@pytest.mark.parametrize('words', CHANGES)
@pytest.mark.few(1)
def test_scales_of_elsewhere_are_named(words):
  failure = check(CHANGES[words]).first_failure
  assert f'as if x had {words}' in failure.pattern.replace('the scales of ', '')
