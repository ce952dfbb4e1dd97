"""Golden gradients of logits against JAX, and wrong ones, on every rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.parity_tests.judge.limits import router_grad
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference import routing
from hpmoe.reference.contract import router as router_lib

NUM_TOKENS, NUM_EXPERTS, TOP_K = 24, 16, 4
SCALE = 2.5
# What each rule weighs, in words of its own.
SIGMOIDS = ('deepseek_v3_plain', 'sigmoid', 'llama4', 'llama4_biased')
SIGMOID_SHARES = ('deepseek_v3', 'minimax2', 'sigmoid_renorm')
OF_CHOSEN = ('renormalize', 'renormalize_biased')
OF_BIASED_LOGITS = ('renormalize_biased', 'llama4_biased')
RULES = [*router_lib.RULES]
# Bugs, and the rules that can have each.
WRONG = {
  'scale forgotten': RULES,
  'second term of the sum forgotten': (*SIGMOID_SHARES, 'renormalize_naive'),
  'slope of the sigmoid missing': (*SIGMOIDS, *SIGMOID_SHARES),
  'gradient of an expert that is not chosen': [
    r for r in RULES if r not in ('softmax', 'renormalize_naive')
  ],
  'softmax of chosen experts alone': ('softmax',),
  'slots exchanged': RULES,
}


def weigh(rule: str, logits, bias, ids):
  """Returns weights `[T, K]` as the rule is published, without the choice."""

  def choose(of_experts):
    return jnp.take_along_axis(of_experts, ids, axis=-1)

  own = logits + bias if rule in OF_BIASED_LOGITS else logits
  if rule == 'softmax':
    weights = choose(jax.nn.softmax(logits, axis=-1))
  elif rule == 'renormalize_naive':
    shares = choose(jax.nn.softmax(logits, axis=-1))
    weights = shares / shares.sum(-1, keepdims=True)
  elif rule in OF_CHOSEN:
    weights = jax.nn.softmax(choose(own), axis=-1)
  elif rule in SIGMOIDS:
    weights = choose(1 / (1 + jnp.exp(-own)))
  elif rule in SIGMOID_SHARES:
    scores = choose(1 / (1 + jnp.exp(-logits)))
    weights = scores / scores.sum(-1, keepdims=True)
  else:
    assert rule == 'topk'
    weights = choose(logits)
  return SCALE * weights


def draw(rule: str, seed: int):
  """Returns a router, logits, a bias, the choice and gradients of weights."""
  rng = np.random.default_rng(seed)
  groups = ':groups=4:top_groups=2' if router_lib.RULES[rule].grouped else ''
  router = router_lib.parse_router(f'{rule}{groups}:scale={SCALE}', TOP_K)
  logits = rng.normal(0, 1.5, (NUM_TOKENS, NUM_EXPERTS)).astype(np.float32)
  bias = None
  if router.table.bias:
    bias = rng.normal(0, 0.3, NUM_EXPERTS).astype(np.float32)
  ids = routing.route(router, logits[None], bias).topk_ids[0]
  d_weights = rng.standard_normal((NUM_TOKENS, TOP_K)).astype(np.float32)
  return router, logits, bias, ids, d_weights


def differentiate(rule, logits, bias, ids, d_weights) -> np.ndarray:
  own_bias = np.zeros(NUM_EXPERTS, np.float32) if bias is None else bias
  loss = lambda z: (weigh(rule, z, own_bias, ids) * d_weights).sum()
  return np.array(jax.grad(loss)(logits))


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.few(6)
def test_gradients_of_jax_are_within_the_bound(rule):
  for seed in range(3):
    router, *inputs, d_weights = draw(rule, seed)
    golden = router_grad.bound_logits_grad(
      router, *inputs, bounded_values.exact(d_weights)
    )
    for actual in (
      differentiate(rule, *inputs, d_weights),
      np.asarray(routing.weigh_choice_grad(router, *inputs, d_weights)),
    ):
      error = np.abs(actual - golden.value)
      assert (error <= golden.error).all()
      # The bound is far below what a wrong formula is off by.
      assert (golden.error < 1e-2 * np.abs(golden.value).max()).all()


@pytest.mark.parametrize('rule', RULES)
def test_what_gradients_of_weights_are_off_by_is_carried(rule):
  # Given gradients of weights that are off,
  router, *inputs, d_weights = draw(rule, 0)
  grad_error = np.full(d_weights.shape, 0.25)
  golden = router_grad.bound_logits_grad(
    router, *inputs, bounded_values.exact(d_weights, grad_error)
  )
  # when a kernel has others, as far off as that and no further,
  signs = np.where(np.arange(TOP_K) % 2, 1, -1).astype(np.float32)
  for factor, is_within in ((0.25, True), (3.0, False)):
    actual = differentiate(rule, *inputs, d_weights + factor * signs)
    error = np.abs(actual - golden.value)
    # then only the first are within the bound.
    assert (error <= golden.error).all() == is_within


def spoil(wrong, rule, logits, bias, ids, d_weights) -> np.ndarray:
  """Returns gradients `[T, E]` with a bug."""
  right = differentiate(rule, logits, bias, ids, d_weights)
  if wrong == 'scale forgotten':
    return right / np.float32(SCALE)
  if wrong == 'slots exchanged':
    return differentiate(rule, logits, bias, ids, d_weights[:, ::-1])
  if wrong == 'gradient of an expert that is not chosen':
    left_out = np.setdiff1d(np.arange(NUM_EXPERTS), ids[0])[0]
    right[0, left_out] = 1e-3
    return right
  if wrong == 'softmax of chosen experts alone':
    return differentiate('renormalize', logits, bias, ids, d_weights)
  scores = np.take_along_axis(1 / (1 + np.exp(-logits)), ids, -1)
  if wrong == 'slope of the sigmoid missing':
    slopes = scores * (1 - scores)
    spread = np.ones_like(right)
    np.put_along_axis(spread, ids, slopes, -1)
    return right / spread
  assert wrong == 'second term of the sum forgotten'
  if rule == 'renormalize_naive':
    shares = np.asarray(jax.nn.softmax(logits, axis=-1))
    total = np.take_along_axis(shares, ids, -1).sum(-1, keepdims=True)
    return differentiate('softmax', logits, bias, ids, d_weights / total)
  total = scores.sum(-1, keepdims=True)
  return differentiate('sigmoid', logits, bias, ids, d_weights / total)


@pytest.mark.parametrize(
  ('wrong', 'rule'),
  [(wrong, rule) for wrong, rules in WRONG.items() for rule in rules],
)
def test_a_wrong_gradient_is_beyond_the_bound(wrong, rule):
  router, *inputs, d_weights = draw(rule, 7)
  golden = router_grad.bound_logits_grad(
    router, *inputs, bounded_values.exact(d_weights)
  )
  actual = spoil(wrong, rule, *inputs, d_weights)
  assert (np.abs(actual - golden.value) > golden.error).any()


def test_a_dtype_of_few_digits_leaves_no_limit():
  # Given a softmax of 512 scores, summed in bfloat16,
  router = router_lib.Router('softmax', TOP_K, dtype='bfloat16')
  logits = np.zeros((1, 512), np.float32)
  ids, d_weights = np.arange(TOP_K)[None], np.ones((1, TOP_K), np.float32)
  golden = router_grad.bound_logits_grad(
    router, logits, None, ids, bounded_values.exact(d_weights)
  )
  # then nothing is known, and nothing is refused.
  assert np.isinf(golden.error).all()
  assert np.isfinite(golden.value).all()


@pytest.mark.parametrize('rule', RULES)
def test_logits_of_minus_infinity_have_gradients_too(rule):
  router, logits, bias, _, d_weights = draw(rule, 3)
  logits[:, ::3] = -np.inf
  ids = routing.route(router, logits[None], bias).topk_ids[0]
  golden = router_grad.bound_logits_grad(
    router, logits, bias, ids, bounded_values.exact(d_weights)
  )
  assert np.isfinite(golden.value).all()
  assert (golden.value[:, ::3] == 0).all()
