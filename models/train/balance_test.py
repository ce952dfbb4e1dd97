"""Even loads: the losses of the papers, and the bias."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import routed as routed_lib
from hpmoe.models.jax import decoder
from hpmoe.models.train import balance

DEEPSEEK, QWEN = map(config_lib.load, ('deepseek_tiny', 'qwen3_moe_tiny'))


def _routed(config, scores, ids) -> routed_lib.Routed:
  return routed_lib.Routed(
    x=None,
    scores=jnp.asarray(scores, jnp.float32),
    topk_ids=jnp.asarray(ids, jnp.int32),
    topk_weights=None,
    loads=None,
    y=None,
  )


def _resize(config, experts, top_k):
  return dataclasses.replace(
    config,
    num_experts=experts,
    num_experts_per_tok=top_k,
    n_group=1,
    topk_group=1,
  )


class TestLoss:
  @pytest.mark.parametrize('config', [DEEPSEEK, QWEN], ids=['deepseek', 'qwen'])
  def test_is_that_of_its_paper(self, config, seed):
    # given 2 ranks that hold 4 sequences of 3 tokens
    rng = np.random.default_rng(seed)
    experts, top_k, sequences, length = 6, 2, 4, 3
    config = _resize(config, experts, top_k)
    scores = rng.standard_normal((2, 6, experts))
    ids = rng.permuted(np.tile(np.arange(experts), (2, 6, 1)), axis=-1)
    ids = ids[..., :top_k]
    # when
    actual = balance.loss(
      decoder.OPERATORS, config, _routed(config, scores, ids), sequences
    )
    # then, written with loops
    flat, choices = scores.reshape(-1, experts), ids.reshape(-1, top_k)
    if config.family.router == 'softmax':
      shares = np.exp(flat) / np.exp(flat).sum(1, keepdims=True)
      parts = [range(12)]
    else:
      shares = 1 / (1 + np.exp(-flat))
      shares /= shares.sum(1, keepdims=True)
      parts = [range(s * length, (s + 1) * length) for s in range(sequences)]
    want = np.mean(
      [
        sum(
          experts
          * np.mean([(choices[t] == e).sum() for t in part])
          / top_k
          * np.mean([shares[t, e] for t in part])
          for e in range(experts)
        )
        for part in parts
      ]
    )
    # A few hundred float32 roundings of terms below 1.
    assert actual == pytest.approx(want, rel=300 * 2.0**-24)


def test_the_bias_moves_up_where_too_few_down_where_too_many():
  bias = jnp.array([0.5, 0.5, 0.5], jnp.float32)
  loads = jnp.array([1, 2, 3], jnp.int32)
  bias_after = balance.moved_bias(bias, loads, 0.25)
  assert bias_after.tolist() == [0.75, 0.5, 0.25]
