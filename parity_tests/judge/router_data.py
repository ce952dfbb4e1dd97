"""Logits and biases of kernels that route by themselves.

No token is undecided for a kernel that computes scores in the declared dtype,
so the right experts are known.  In the first token of each rank the last expert
that is chosen and the first that is not score almost the same: scores in a
narrower dtype choose wrongly there.
"""

import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.reference import routing
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import stable_random

# Standard deviations of a token's logit, and of an expert's mean.
_SPREAD, _SKEW = 1.2, 0.8
_BIAS_SPREAD = 0.1
# The gap of a near tie, in logits, which doubles until the token is decided.
_LEAST_GAP = 2.0**-18
_MOST_DOUBLINGS = 16
_MOST_DRAWS = 32


@dataclasses.dataclass(frozen=True)
class RouterInputs:
  """What a kernel reads that routes by itself.

  Attributes:
    logits: `[R, T, E]` float32.
    bias: `[E]` float32; None: the rule has none.
  """

  logits: at.Float[np.ndarray, 'R T E']
  bias: at.Float[np.ndarray, 'E'] | None = None


def draw(
  config: config_lib.MoEConfig, router: router_lib.Router, seed: int
) -> RouterInputs:
  """Returns logits of which no token is undecided.

  Args:
    config: sizes.
    router: the rule.
    seed: of the values.

  Raises:
    ValueError: the rule cannot be applied to so many experts, or its scores
      are too coarse to decide any token.
  """
  router.check(config.num_experts)
  shape = (config.num_ranks * config.num_tokens, config.num_experts)
  means = _SKEW * _draw_normal('router/means', seed, shape[1:])
  bias = None
  if router.table.bias:
    own_bias = _BIAS_SPREAD * _draw_normal('router/bias', seed, shape[1:])
    bias = own_bias.astype(np.float32)
  logits = np.zeros(shape, np.float32)
  open_tokens = np.arange(len(logits))
  for attempt in range(_MOST_DRAWS):
    new_logits = means + _SPREAD * _draw_normal(
      f'router/{attempt}', seed, shape
    )
    logits[open_tokens] = new_logits[open_tokens].astype(np.float32)
    open_tokens = np.array([*_find_undecided(router, logits, bias)], np.int64)
    if not open_tokens.size:
      break
  else:
    raise ValueError(
      f'router: expected scores that decide between {config.num_experts} '
      f'experts, got {router.rule} in {router.dtype}'
    )
  for token in range(0, len(logits), config.num_tokens):
    logits[token] = _plant_near_tie(router, logits[token], bias)
  return RouterInputs(
    logits.reshape(config.num_ranks, config.num_tokens, -1), bias
  )


def _draw_normal(name: str, seed: int, shape: tuple[int, ...]) -> np.ndarray:
  return stable_random.normal(stable_random.seed_of(name, seed), shape)


def _find_undecided(router, logits, bias) -> dict[int, list[tuple[int, ...]]]:
  scores = router_limits.bound_scores(router, logits, bias)
  return router_limits.find_undecided(router, scores)


def _plant_near_tie(router, logits: np.ndarray, bias) -> np.ndarray:
  """Returns logits `[E]` whose K-th and next expert score almost the same.

  They are returned unchanged where no logit of another expert does that.
  """
  ids = _route(router, logits, bias)
  last, rest = int(ids[-1]), np.setdiff1d(np.arange(len(logits)), ids)
  if router.groups > 1:  # of groups that are chosen, which they stay
    size = len(logits) // router.groups
    rest = rest[np.isin(rest // size, ids // size)]
  for expert in rest.tolist():
    logit = _match_score(router, logits, bias, last, expert)
    for doubling in range(_MOST_DOUBLINGS if np.isfinite(logit) else 0):
      gap = _LEAST_GAP * 2.0**doubling * max(1.0, abs(logit))
      near_tie = logits.copy()
      near_tie[expert] = logit - gap
      is_same = {*_route(router, near_tie, bias)} == {*ids}
      if is_same and not _find_undecided(router, near_tie[None], bias):
        return near_tie
  return logits


def _route(router, logits: np.ndarray, bias) -> np.ndarray:
  return routing.route(router, logits[None, None], bias).topk_ids[0, 0]


def _match_score(router, logits, bias, last: int, expert: int) -> float:
  """Returns the logit of an expert that scores as the last chosen one does."""
  table, logit = router.table, float(logits[last])
  if not table.bias:
    return logit
  difference = float(bias[last]) - float(bias[expert])
  if table.bias == 'logits':
    return logit + difference
  score = 1 / (1 + np.exp(-logit)) + difference
  return float(np.log(score / (1 - score))) if 0 < score < 1 else np.nan
