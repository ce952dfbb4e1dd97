"""Both frameworks choose experts as the oracle does, ties too."""

import jax.numpy as jnp
import mindspore as ms
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import routed
from hpmoe.models.jax import decoder as jax_decoder
from hpmoe.models.mindspore import decoder as mindspore_decoder
from hpmoe.models.mindspore import device
from hpmoe.reference import routing

TOKENS, EXPERTS = 48, 16
BIAS = 'gate.e_score_correction_bias'
FRAMEWORKS = {
  'jax': (jax_decoder.OPERATORS, jnp.asarray),
  'mindspore': (mindspore_decoder.OPERATORS, ms.Tensor),
}


@pytest.fixture(autouse=True)
def _cpu():
  device.use('cpu', 'host')


def config_of(router: str, **changes) -> config_lib.ModelConfig:
  name = 'qwen3_moe_tiny' if router == 'softmax' else 'deepseek_tiny'
  key = 'num_experts' if router == 'softmax' else 'n_routed_experts'
  file = config_lib.load(name).to_hf() | {key: EXPERTS} | changes
  return config_lib.from_hf(file)


def tied_scores() -> np.ndarray:
  """Returns `[2, T/2, E]` of few values, zeros of both signs among them."""
  integers = np.random.default_rng(0).integers(-2, 3, (2, TOKENS // 2, EXPERTS))
  zeros = np.where(np.arange(EXPERTS) % 2, -0.0, 0.0)
  out = np.where(integers == 0, zeros, integers / 2).astype(np.float32)
  # Shares of 0, of which the scores still tell which is more.
  out[0, 0] = -300 * np.arange(EXPERTS)[::-1]
  return out


def choose(framework: str, config, params) -> tuple[np.ndarray, np.ndarray]:
  nn, array = FRAMEWORKS[framework]
  params = {name: array(value) for name, value in params.items()}
  ids_weights = routed.choose(nn, config, params, array(tied_scores()))
  return tuple(
    np.asarray(getattr(x, 'asnumpy', lambda x=x: x)()) for x in ids_weights
  )


def check(framework: str, actual, want: routing.Routing) -> None:
  np.testing.assert_array_equal(actual[0], want.topk_ids)
  assert actual[0].dtype == np.int32 and actual[1].dtype == np.float32
  if framework == 'jax':
    np.testing.assert_array_equal(actual[1], want.topk_weights)
  # Of each side two sums over experts, and four roundings beside them.
  unit = 2.0**-24
  rtol = 2 * (2 * EXPERTS + 4) * unit
  np.testing.assert_allclose(actual[1], want.topk_weights, rtol=rtol)


@pytest.mark.parametrize('framework', FRAMEWORKS)
class TestChoose:
  @pytest.mark.parametrize('normalize', [True, False])
  @pytest.mark.parametrize('top_k', [1, 5, EXPERTS])
  def test_by_softmax(self, framework, top_k, normalize):
    config = config_of(
      'softmax', num_experts_per_tok=top_k, norm_topk_prob=normalize
    )
    want = routing.softmax_topk(jnp.asarray(tied_scores()), top_k, normalize)
    check(framework, choose(framework, config, {}), want)

  @pytest.mark.parametrize('biased', [True, False])
  @pytest.mark.parametrize(
    'groups, top_groups', [(1, 1), (8, 3), (4, 4), (2, 1)]
  )
  @pytest.mark.few(8)
  def test_by_groups_of_sigmoids(self, framework, groups, top_groups, biased):
    config = config_of(
      'sigmoid_group',
      num_experts_per_tok=4,
      n_group=groups,
      topk_group=top_groups,
    )
    bias = np.where(np.arange(EXPERTS) % 3, 0.25, -0.5).astype(np.float32)
    bias = bias * np.float32(biased)
    want = routing.sigmoid_group_topk(
      jnp.asarray(tied_scores()),
      jnp.asarray(bias),
      *(
        4,
        groups,
        top_groups,
        config.norm_topk_prob,
        config.routed_scaling_factor,
      ),
    )
    check(framework, choose(framework, config, {BIAS: bias}), want)
