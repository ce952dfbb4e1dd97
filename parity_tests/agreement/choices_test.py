"""Limits of a router's logits, and the rules that dumps show."""

import zlib

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.agreement import choices
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference import routing
from hpmoe.reference.contract import router as router_lib

_TOKENS, _DEPTH, _EXPERTS, _TOP_K = 200, 512, 32, 4
_DTYPES = dict(
  float32=np.dtype(np.float32), bfloat16=np.dtype(ml_dtypes.bfloat16)
)


def _draw(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns what a router reads `[N, D]`, and its weights `[E, D]`."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  x = rng.normal(size=(_TOKENS, _DEPTH))
  router = rng.normal(size=(_EXPERTS, _DEPTH)) / _DEPTH**0.5
  return x.astype(_DTYPES[dtype]), router.astype(_DTYPES[dtype])


def _route(
  x: np.ndarray, router: np.ndarray, rule: str, is_reversed: bool = False
) -> choices.Side:
  """Returns a run that adds products in float32, in either order."""
  order = slice(None, None, -1 if is_reversed else 1)
  terms = x.astype(np.float32)[:, None] * router.astype(np.float32)
  logits = np.cumsum(terms[..., order], -1, dtype=np.float32)[..., -1]
  logits = logits.astype(x.dtype)
  own = router_lib.Router(rule, _TOP_K, scale=2.5)
  ids, weights = routing.route(own, logits[None].astype(np.float32))
  return choices.Side(ids[0], weights[0].astype(x.dtype), x, logits, router)


@pytest.mark.parametrize('dtype', _DTYPES)
def test_right_logits_are_within_their_limit(dtype):
  # Given products that are added one after the other, from either end,
  x, router = _draw('limit', dtype)
  for is_reversed in (False, True):
    side = _route(x, router, 'softmax', is_reversed)
    # then the limit holds them,
    assert not choices.find_wrong_logits(side)
    # and is not far beyond what rounding does.
    bounds = side.bound_logits(side.unit)
    assert bounds is not None and side.logits is not None
    logits, spread = bounds
    apart = np.abs(side.logits.astype(float) - logits)
    assert np.max(apart / spread) > (0.9 if dtype == 'bfloat16' else 0.01)


def test_sums_in_bfloat16_are_beyond_it():
  x, router = _draw('sums', 'bfloat16')
  side = _route(x, router, 'softmax')
  logits = np.zeros((_TOKENS, _EXPERTS), x.dtype)
  for part in range(0, _DEPTH, 8):
    terms = x[:, part : part + 8].astype(np.float32)
    terms = terms @ router[:, part : part + 8].T.astype(np.float32)
    logits = (logits.astype(np.float32) + terms).astype(x.dtype)
  wrong = choices.Side(side.ids, side.weights, x, logits, router)
  assert 'its logits do not follow' in choices.find_wrong_logits(wrong)


@pytest.mark.parametrize(
  'rule', ['renormalize_naive', 'softmax', 'sigmoid_renorm', 'sigmoid']
)
@pytest.mark.parametrize('dtype', _DTYPES)
def test_a_rule_is_known_by_its_weights(rule, dtype):
  side = _route(*_draw(rule, dtype), rule)
  router, reason = choices.find_router(side)
  assert not reason and router is not None
  assert router.rule == rule
  assert router.scale == pytest.approx(2.5, rel=0.01)


def test_what_no_rule_explains_is_said():
  side = _route(*_draw('none', 'float32'), 'softmax')
  assert side.weights is not None
  squares = choices.Side(
    side.ids, side.weights**2, side.x, side.logits, side.router
  )
  assert choices.find_router(squares)[1].startswith(
    'the routing weights follow'
  )
  # Chosen by a bias that weights do not show.
  ids = side.ids[:, ::-1] ^ 1
  weights = routing.weigh_choice(
    router_lib.Router('sigmoid_renorm', _TOP_K), side.logits, None, ids
  )
  biased = choices.Side(ids, weights, side.x, side.logits, side.router)
  assert 'a bias or groups' in choices.find_router(biased)[1]


@pytest.mark.parametrize('dtype', _DTYPES)
def test_orders_of_sums_explain_near_ties(dtype):
  # Given a router in which experts 0 and 1 are almost alike,
  x, router = _draw('ties', dtype)
  router[1] = router[0]
  router[1, 0] = router[0, 0] * (1 + 4 * ulp.unit_roundoff(dtype))
  left, right = (_route(x, router, 'softmax', r) for r in (False, True))
  # when another run takes the second wherever the first has the first,
  ids = right.ids.copy()
  alone = (ids == 0).any(-1) & ~(ids == 1).any(-1)
  ids[(ids == 0) & alone[:, None]] = 1
  other = choices.Side(ids, right.weights, x, right.logits, router)
  rule = router_lib.Router('softmax', _TOP_K)
  result = choices.compare(rule, left, other)
  # then those are near ties, and none is wrong.
  assert alone.any()
  assert {*result.reasons} == {choices.TIE}
  assert not result.wrong['right']
  assert result.near_ties is not None and result.near_ties >= alone.sum()


def test_what_parted_before_is_told_from_what_is_wrong():
  # Given a run that read other values in tokens 0 to 9, and chose otherwise,
  # by scores of its own, in tokens 20 to 24,
  x, router = _draw('before', 'float32')
  other_x = x.copy()
  other_x[:10] = x[10:20]
  left = _route(x, router, 'softmax')
  right = _route(other_x, router, 'softmax')
  ids = right.ids.copy()
  ids[20:25] = (ids[20:25] + 7) % _EXPERTS
  wrong = choices.Side(ids, right.weights, other_x, right.logits, router)
  # when they are compared,
  result = choices.compare(router_lib.Router('softmax', _TOP_K), left, wrong)
  # then each has its reason.
  tokens = np.flatnonzero(result.is_other)
  reasons = dict(zip(tokens.tolist(), result.reasons, strict=True))
  assert {reasons[t] for t in range(10)} == {choices.UPSTREAM}
  assert {reasons[t] for t in range(20, 25)} == {choices.UNEXPLAINED}
  assert len(reasons) == 15
