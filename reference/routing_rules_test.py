"""Every published routing rule against loops over one token's experts."""

import math
import zlib

import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import numerics
from hpmoe.reference import routing
from hpmoe.reference.contract import router as router_lib

# Random layers of a rule, forward and backward.
_DRAWS, _BACKWARD_DRAWS = 300, 100


def _sigmoid(z: float) -> float:
  return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


def _softmax(values: list[float]) -> list[float]:
  powers = [math.exp(v - max(values)) for v in values]
  return [p / math.fsum(powers) for p in powers]


def _top(values: dict[int, float], count: int) -> list[int]:
  return sorted(values, key=lambda key: (-values[key], key))[:count]


def _route_token(rule, z, bias, top_k, groups, top_groups, scale):
  """Returns ids and weights of a token, by the rule's published words."""
  experts = range(len(z))
  if rule == 'softmax':
    shares = _softmax(z)
    ids = _top(dict(enumerate(shares)), top_k)
    weights = [shares[e] for e in ids]
  elif rule in ('renormalize', 'renormalize_biased'):
    logits = [a + b for a, b in zip(z, bias)] if 'biased' in rule else z
    ids = _top(dict(enumerate(logits)), top_k)
    weights = _softmax([logits[e] for e in ids])
  elif rule == 'renormalize_naive':
    shares = _softmax(z)
    ids = _top(dict(enumerate(shares)), top_k)
    weights = [shares[e] / sum(shares[i] for i in ids) for e in ids]
  elif rule == 'topk':
    ids = _top(dict(enumerate(z)), top_k)
    weights = [z[e] for e in ids]
  else:
    logit_bias = bias if rule == 'llama4_biased' else [0.0] * len(z)
    shares = [_sigmoid(value + b) for value, b in zip(z, logit_bias)]
    is_biased = rule.startswith('deepseek') or rule == 'minimax2'
    choice = {e: shares[e] + bias[e] * is_biased for e in experts}
    if groups > 1:
      size = len(z) // groups
      scores = {
        g: sum(sorted(choice[e] for e in experts if e // size == g)[-2:])
        for g in range(groups)
      }
      best = _top(scores, top_groups)
      choice = {e: choice[e] for e in experts if e // size in best}
    ids = _top(choice, top_k)
    weights = [shares[e] for e in ids]
    if rule in ('deepseek_v3', 'minimax2', 'sigmoid_renorm'):
      total = sum(weights)
      weights = [w / (total + 1e-20) for w in weights]
  return ids, [w * scale for w in weights]


@pytest.mark.parametrize('rule', [*router_lib.RULES])
def test_a_rule_is_as_its_words_say(rule):
  rng = np.random.default_rng(zlib.crc32(rule.encode()))
  is_grouped = router_lib.RULES[rule].grouped
  for _ in range(_DRAWS):
    # Given logits of random sizes, some of them equal,
    groups = int(rng.choice([1, 2, 4])) if is_grouped else 1
    experts = groups * int(rng.integers(2, 9))
    top_groups = int(rng.integers(1, groups + 1))
    top_k = int(rng.integers(1, top_groups * (experts // groups) + 1))
    logits = rng.normal(size=(1, 3, experts)) * 3
    logits[0, 1] = np.round(logits[0, 1])
    bias = rng.normal(size=experts) / 4
    router = router_lib.Router(rule, top_k, groups, top_groups, 1.5)
    # when they are routed in float64,
    routed = routing.route(router, logits, bias)
    # then ids and weights are those of a loop.
    for token in range(3):
      ids, weights = _route_token(
        rule,
        logits[0, token].tolist(),
        bias.tolist(),
        top_k,
        groups,
        top_groups,
        1.5,
      )
      assert routed.topk_ids[0, token].tolist() == ids
      np.testing.assert_allclose(
        routed.topk_weights[0, token], weights, rtol=1e-13
      )


@pytest.mark.parametrize(
  'count', [2, pytest.param(_BACKWARD_DRAWS, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('rule', [*router_lib.RULES])
def test_gradients_are_slopes_of_its_words(rule, count):
  rng = np.random.default_rng(zlib.crc32(rule.encode()) + 2)
  has_bias = router_lib.RULES[rule].bias == 'logits'
  for _ in range(count):
    # Given random logits, a bias, and gradients of weights,
    experts = int(rng.integers(2, 13))
    top_k = int(rng.integers(1, experts + 1))
    logits, bias = rng.normal(size=experts), rng.normal(size=experts) / 4
    d_weights = rng.normal(size=top_k)
    words = rule, top_k, 1, 1, 1.5
    ids, _ = _weigh_token(words, logits, bias)
    # when a token's weights are differentiated in float64,
    router = router_lib.Router(rule, top_k, scale=1.5)
    arrays = logits[None, None], bias, np.array([[ids]]), d_weights[None, None]
    with numerics.use_x64():
      grads = np.asarray(routing.weigh_choice_grad(router, *arrays))[0, 0]
    # then they are slopes of the loop, by logits, and by a bias of logits.
    step = 2.0**-20 * np.eye(experts)
    for expert in range(experts):
      sides = [logits + step[expert], logits - step[expert]]
      slope = _find_slope(words, [(z, bias) for z in sides], d_weights, step)
      np.testing.assert_allclose(grads[expert], slope, rtol=1e-7, atol=1e-8)
      sides = [bias + step[expert], bias - step[expert]]
      slope = _find_slope(words, [(logits, b) for b in sides], d_weights, step)
      expected = grads[expert] * has_bias
      np.testing.assert_allclose(expected, slope, rtol=1e-7, atol=1e-8)


def _weigh_token(words, logits, bias):
  rule, *numbers = words
  return _route_token(rule, logits.tolist(), bias.tolist(), *numbers)


def _find_slope(words, sides, d_weights, step) -> float:
  """Returns how a token's weights, times numbers, differ at two places."""
  totals = [
    math.fsum(d_weights * np.array(_weigh_token(words, *side)[1]))
    for side in sides
  ]
  return (totals[0] - totals[1]) / (2 * step.max())


@pytest.mark.parametrize('rule', [*router_lib.RULES])
def test_jax_and_numpy_agree(rule):
  rng = np.random.default_rng(zlib.crc32(rule.encode()) + 1)
  logits = rng.normal(size=(2, 8, 16)).astype(np.float32)
  bias = rng.normal(size=16).astype(np.float32) / 8
  router = router_lib.Router(rule, 3)
  in_numpy = routing.route(router, logits, bias)
  in_jax = routing.route(router, jnp.asarray(logits), jnp.asarray(bias))
  np.testing.assert_array_equal(in_numpy.topk_ids, in_jax.topk_ids)
  np.testing.assert_allclose(
    in_numpy.topk_weights, in_jax.topk_weights, rtol=3e-6, atol=1e-7
  )


@pytest.mark.parametrize(
  ('fields', 'text'),
  [
    (dict(rule='best', top_k=1), 'rule: expected one of'),
    (dict(rule='softmax', top_k=0), 'top_k: expected a positive'),
    (dict(rule='softmax', top_k=1, groups=2), 'groups: expected 1 with rule'),
    (
      dict(rule='deepseek_v3', top_k=1, groups=2, top_groups=3),
      'top_groups: expected 1 to groups=2',
    ),
  ],
)
def test_a_router_that_cannot_be_is_refused(fields, text):
  with pytest.raises(ValueError, match=text):
    router_lib.Router(**fields)


@pytest.mark.parametrize(
  ('router', 'experts', 'text'),
  [
    (router_lib.Router('deepseek_v3', 1, 3, 1), 8, 'groups: expected a divis'),
    (router_lib.Router('deepseek_v3', 5, 2, 1), 8, 'top_k: expected at most 4'),
    (router_lib.Router('softmax', 9), 8, 'top_k: expected at most 8'),
  ],
)
def test_experts_that_do_not_suit_are_refused(router, experts, text):
  with pytest.raises(ValueError, match=text):
    routing.route(router, np.zeros((1, 1, experts)))
