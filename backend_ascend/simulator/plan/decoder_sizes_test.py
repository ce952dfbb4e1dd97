"""Parameters counted by hand."""

import dataclasses

import pytest

from hpmoe.backend_ascend.simulator.plan import decoder_sizes
from hpmoe.backend_ascend.simulator.plan import published

TINY = decoder_sizes.Model(
  name='tiny',
  layers=3,
  dense=(0,),
  hidden=8,
  vocabulary=32,
  heads=2,
  kv_heads=1,
  qk_dim=4,
  v_dim=4,
  dense_width=16,
  experts=4,
  top_k=2,
  expert_width=4,
  shared_width=4,
)


def test_a_tiny_model_by_hand():
  # Attention: 8 x 8 queries, 8 x 4 keys and values each, 8 x 8 out.
  attention = 64 + 32 + 32 + 64
  moe = 8 * 4 + 4 * 96 + 96  # router, four experts of 3 x 8 x 4, shared
  assert TINY.count() == 3 * (attention + 16) + 384 + 2 * moe + 2 * 256
  # Two of four experts, and no embedding.
  assert TINY.active() == TINY.count() - 2 * 2 * 96 - 256
  # Six a parameter, and three layers of two heads: 4 + 4 wide, 5 keys each.
  assert TINY.flops(10) == 6 * TINY.active() + 6 * 3 * 2 * 8 * 5


@pytest.mark.parametrize(
  'model, total, active, embeddings',
  [
    (published.PANGU_ULTRA_MOE, 719.1e9, 39.1e9, 0),
    (published.DEEPSEEK_V3, 671e9, 37e9, 0),
    # Qwen counts what a token looks up, too.
    (published.QWEN3_235B, 235e9, 22e9, 1),
    (published.QWEN3_30B, 30.5e9, 3.3e9, 1),
  ],
)
def test_published_models_have_their_parameters(
  model, total, active, embeddings
):
  # Told in two or three digits.
  assert model.count() == pytest.approx(total, rel=0.002)
  looked_up = embeddings * model.parameters()['embedding']
  assert model.active() + looked_up == pytest.approx(active, rel=0.02)


def test_units_are_every_layer_once():
  assert TINY.units() == ('embedding', 'dense', 'moe', 'moe', 'head')
  with_mtp = dataclasses.replace(TINY, mtp=1)
  assert with_mtp.units()[-2:] == ('mtp', 'head')


@pytest.mark.parametrize(
  'changes, text',
  [
    (dict(layers=0), 'layers: expected an integer of at least 1, got 0'),
    (dict(heads=-2), 'heads: expected an integer of at least 1, got -2'),
    (dict(top_k=5), 'top_k: expected at most experts=4, got 5'),
    (dict(dense=(3,)), 'dense: expected numbers below layers=3'),
  ],
)
def test_a_wrong_size_is_named(changes, text):
  with pytest.raises(ValueError, match=text):
    dataclasses.replace(TINY, **changes)
