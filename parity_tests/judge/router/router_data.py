"""Logits and biases of kernels that route by themselves.

No token is undecided for a kernel that computes scores in the declared dtype,
so the right experts are known.  In the first token of each rank the last expert
that is chosen and the first that is not score almost the same: scores in a
narrower dtype choose wrongly there.  Of kernels that compute logits too, the
weights of the router do that.
"""

import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.router import router_gemm
from hpmoe.reference import routing
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import stable_random

# Standard deviations of a token's logit, and of an expert's mean.
_SPREAD, _SKEW = 1.2, 0.8
_BIAS_SPREAD = 0.1
# The gap of a near tie, in logits, which doubles until the token is decided.
_LEAST_GAP = 2.0**-18
_MOST_DOUBLINGS = 16
_MOST_DRAWS = 32
# Logits of experts that are to be chosen, or not, move by up to 2^4.
_MOST_FAVOURS = 6
# Weights whose tokens are all decided are sought so often.
_MOST_WEIGHTS = 8
# Steps to a weight's neighbour that bring a logit to its place.
_MOST_STEPS = 128


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
  config: config_lib.MoEConfig,
  router: router_lib.Router,
  seed: int,
  ids: at.Int[np.ndarray, 'R T K'] | None = None,
) -> RouterInputs:
  """Returns logits of which no token is undecided.

  Args:
    config: sizes.
    router: the rule.
    seed: of the values.
    ids: `[R, T, K]` the experts that the rule is to choose; None: any.

  Raises:
    ValueError: the rule cannot be applied to so many experts, its scores are
      too coarse to decide any token, or it cannot choose some `ids`.
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
  if ids is not None:
    logits = _favour(router, logits, bias, ids.reshape(len(logits), -1))
  for token in range(0, len(logits), config.num_tokens):
    logits[token] = _plant_near_tie(router, logits[token], bias)
  return RouterInputs(
    logits.reshape(config.num_ranks, config.num_tokens, -1), bias
  )


def _favour(
  router: router_lib.Router,
  logits: at.Float[np.ndarray, 'n E'],
  bias: at.Float[np.ndarray, 'E'] | None,
  ids: at.Int[np.ndarray, 'n K'],
) -> np.ndarray:
  """Returns logits `[n, E]` by which a rule chooses given experts.

  Theirs become larger and all others smaller until it does.

  Raises:
    ValueError: it never does, as its groups may forbid.
  """
  side = np.full(logits.shape, -1.0)
  np.put_along_axis(side, ids, 1.0, axis=-1)
  favoured = logits.copy()
  for doubling in range(_MOST_FAVOURS):
    right = routing.route(router, favoured[None], bias).topk_ids[0]
    is_open = (np.sort(right) != np.sort(ids)).any(axis=-1)
    is_open[[*_find_undecided(router, favoured, bias)]] = True
    if not is_open.any():
      return favoured
    favoured[is_open] = (logits + side * 2.0**doubling)[is_open]
  token = int(np.flatnonzero(is_open)[0])
  raise ValueError(
    f'routing: expected experts that router {router.rule} can choose, got '
    f'{ids[token].tolist()} for token {token}'
  )


def draw_weights(
  policy: precision.PrecisionPolicy,
  router: router_lib.Router,
  x: at.Float[np.ndarray, 'R T D'],
  num_experts: int,
  seed: int,
) -> tuple[at.Float[np.ndarray, 'D E'], at.Float[np.ndarray, 'E'] | None]:
  """Returns weights `[D, E]` of a router, and its bias `[E]` or None.

  Logits are of order one, whatever the columns of x are.  As few tokens as may
  be are undecided: none, where logits are float32.

  Args:
    policy: of the layer.
    router: the rule.
    x: the tokens.
    num_experts: E.
    seed: of the values.

  Raises:
    ValueError: the rule cannot be applied to so many experts.
  """
  router.check(num_experts)
  width = x.shape[-1]
  size = np.sqrt(np.square(x.astype(np.float64)).mean((0, 1)))
  unit = 2.0 ** np.rint(np.log2(np.where(size == 0, 1.0, size)))
  bias = None
  if router.table.bias:
    own_bias = _BIAS_SPREAD * _draw_normal('router/bias', seed, (num_experts,))
    bias = own_bias.astype(np.float32)
  dtype = ulp.storage_dtype(policy.storage)
  fewest, best = np.inf, None
  for attempt in range(_MOST_WEIGHTS):
    normal = _draw_normal(f'router_w/{attempt}', seed, (width, num_experts))
    weights = (_SPREAD / np.sqrt(width) * normal / unit[:, None]).astype(dtype)
    trial = _DrawnWeights(policy, router, x, unit, weights, bias)
    count = len(trial.find_undecided(*trial.bound_logits()))
    if count < fewest:
      fewest, best = count, trial
    if not count:
      break
  assert best is not None  # one of the attempts
  tied: set[int] = set()
  for rank in range(len(x)):
    best, experts = best.plant_near_tie(rank, tied)
    tied |= experts
  return best.weights, bias


@dataclasses.dataclass(frozen=True)
class _DrawnWeights:
  """Weights of a router, and what they are for.

  Attributes:
    policy, router, x: as of `draw_weights`.
    unit: `[D]` sizes of the columns of x, powers of two.
    weights: `[D, E]`.
    bias: `[E]`, or None.
  """

  policy: precision.PrecisionPolicy
  router: router_lib.Router
  x: np.ndarray
  unit: np.ndarray
  weights: np.ndarray
  bias: np.ndarray | None

  def bound_logits(
    self, experts: slice = slice(None)
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns logits `[R T, e]` of some experts, and how far others may be."""
    bias = None
    if self.bias is not None and self._later_bias is None:
      bias = self.bias[experts]
    logits = router_gemm.bound_logits(
      self.policy, self.x, self.weights[:, experts], bias
    )
    return logits.value, logits.bound()

  def find_undecided(self, logits: np.ndarray, spread: np.ndarray) -> dict:
    """Returns the choices of tokens that have several."""
    router, bias = self.router, self._later_bias
    scores = router_limits.bound_scores(router, logits, bias, spread)
    return router_limits.find_undecided(router, scores)

  def plant_near_tie(
    self, rank: int, tied: set[int]
  ) -> tuple['_DrawnWeights', set[int]]:
    """Returns weights with one in the first token of a rank, if it can be.

    And the two experts that score alike there; those `tied` already stay as
    they are.
    """
    token, tokens = rank * self.x.shape[1], self.x[rank, 0].astype(np.float64)
    logits, spread = self.bound_logits()
    undecided = {*self.find_undecided(logits, spread)}
    ids = _route(self.router, logits[token], self._later_bias)
    rest = np.setdiff1d(np.arange(logits.shape[1]), [*ids, *tied])
    if self.router.groups > 1:  # of groups that are chosen, which they stay
      size = logits.shape[1] // self.router.groups
      rest = rest[np.isin(rest // size, ids // size)]
    nearest = np.argsort(-logits[token, rest], kind='stable')
    for expert in rest[nearest].tolist():
      target = _match_score(
        self.router, logits[token], self._later_bias, int(ids[-1]), expert
      )
      column = slice(expert, expert + 1)
      for doubling in range(_MOST_DOUBLINGS if np.isfinite(target) else 0):
        gap = _LEAST_GAP * 2.0**doubling * max(1.0, abs(target))
        new_weights = self._move_logit(tokens, expert, target - gap)
        new_logits, new_spread = logits.copy(), spread.copy()
        new_logits[:, column], new_spread[:, column] = new_weights.bound_logits(
          column
        )
        new_ids = _route(self.router, new_logits[token], self._later_bias)
        open_tokens = {*self.find_undecided(new_logits, new_spread)}
        if {*new_ids} == {*ids} and open_tokens <= undecided - {token}:
          return new_weights, {expert, int(ids[-1])}
    return self, set()

  @property
  def _later_bias(self) -> np.ndarray | None:
    """The bias, where it is none of the logits."""
    return None if self.router.table.bias == 'logits' else self.bias

  def _move_logit(
    self, token: np.ndarray, expert: int, target: float
  ) -> '_DrawnWeights':
    """Returns weights with which a token `[D]` has some logit.

    The smallest change that all columns share, then steps from a weight to its
    neighbour, each the largest that is not too large.
    """
    weights, dtype = self.weights.copy(), str(self.weights.dtype)
    bias = 0.0
    if self.bias is not None and self._later_bias is None:
      bias = float(self.bias[expert])
    column = weights[:, expert].astype(np.float64)
    part = token / self.unit**2
    lacking = target - bias - token @ column
    column = column + part * lacking / max(float(token @ part), 1e-30)
    column = column.astype(weights.dtype).astype(np.float64)
    for _ in range(_MOST_STEPS):
      lacking = target - bias - token @ column
      steps = 2 * ulp.half_spacing(np.abs(column), dtype) * np.sign(token)
      sizes = np.abs(steps * token)
      sizes = np.where((sizes > 0) & (sizes <= abs(lacking)), sizes, 0.0)
      place = int(np.argmax(sizes))
      if not sizes[place]:
        break
      column[place] += np.sign(lacking) * steps[place]
    weights[:, expert] = column.astype(weights.dtype)
    return dataclasses.replace(self, weights=weights)


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
  if bias is None:
    return logit
  difference = float(bias[last]) - float(bias[expert])
  if table.bias == 'logits':
    return logit + difference
  score = 1 / (1 + np.exp(-logit)) + difference
  return float(np.log(score / (1 - score))) if 0 < score < 1 else np.nan
