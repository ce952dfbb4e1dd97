"""Golden logits of a router: the GEMM of tokens and its weights.

Where the bias of a rule is one of the logits, the GEMM adds it: it is a first
row of the weights, which a column of ones meets.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Self

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge.limits import golden
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

LOGITS = 'router_logits'
# Elements of x that are multiplied at once.
_CHUNK = 1 << 22


def bound_logits(
  policy: precision.PrecisionPolicy,
  x: at.Float[np.ndarray, 'R T D'],
  router_w: at.Float[np.ndarray, 'D e'],
  bias: at.Float[np.ndarray, 'e'] | None = None,
) -> bounded_values.Bounded:
  """Returns logits `[R T, e]` of experts, and how far others may be off.

  Args:
    policy: of the layer.
    x: `[R, T, D]` storage.
    router_w: `[D, e]`, of some experts or all.
    bias: `[e]` that is added; None: nothing is.
  """
  tokens = x.reshape(-1, x.shape[-1])
  own_policy = policy.of_router().storing(LOGITS)
  weights = _prepare_weights(own_policy, router_w, bias)
  step = max(1, _CHUNK // tokens.shape[1])
  parts = [
    _multiply(own_policy, tokens[lo : lo + step], weights)
    for lo in range(0, len(tokens), step)
  ]
  return bounded_values.join(parts)


def tile_tokens(
  num_ranks: int, num_tokens: int, router_w: at.Float[np.ndarray, 'D E']
) -> tiles.Tiling:
  """Returns the tiles of a router's tokens, no row of which an expert gets.

  Raises:
    ValueError: R does not divide E.
  """
  width, experts = router_w.shape
  config = config_lib.MoEConfig(
    num_ranks=num_ranks,
    num_tokens=num_tokens,
    num_experts=experts,
    top_k=1,
    d_model=width,
    d_ff=1,
  )
  no_slots = np.zeros((num_ranks, num_tokens, 1), np.int32)
  counts = np.zeros((num_ranks, experts), np.int32)
  return tiles.Tiling(config, counts, no_slots, no_slots)


@dataclasses.dataclass(frozen=True)
class RouterRows(golden.Rows):
  """Golden rows of `router_logits`, the GEMM of a router.

  Its inputs are `x` `[R, T, D]`, `router_w` `[D, E]` and, if it adds one,
  `router_bias` `[E]`.
  """

  @classmethod
  def build(
    cls, policy: precision.PrecisionPolicy, inputs: Mapping[str, np.ndarray]
  ) -> Self:
    """Returns golden rows under the policy of a layer.

    Raises:
      ValueError: R does not divide E.
    """
    ranks, tokens, _ = inputs['x'].shape
    tiling = tile_tokens(ranks, tokens, inputs['router_w'])
    return cls(tiling, policy.of_router().storing(LOGITS), inputs, {})

  def rows(
    self, stage: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns logits `[hi - lo, E]` of a rank's tokens."""
    assert stage == LOGITS  # the only one
    tokens = self.inputs['x'][rank, lo:hi]
    return _multiply(self.policy, tokens, self._router_weights)

  @functools.cached_property
  def _router_weights(self) -> gemm_bounds.Weights:
    bias = self.inputs.get('router_bias')
    return _prepare_weights(self.policy, self.inputs['router_w'], bias)


def _prepare_weights(policy, router_w, bias) -> gemm_bounds.Weights:
  if bias is not None:
    rows = bias[None], router_w
    router_w = np.concatenate([row.astype(np.float64) for row in rows])
  return gemm_bounds.Weights.prepare(policy, router_w)


def _multiply(
  policy, tokens, weights: gemm_bounds.Weights
) -> bounded_values.Bounded:
  rows = bounded_values.exact(tokens)
  if len(weights.value) > tokens.shape[1]:
    rows = bounded_values.beside(
      bounded_values.exact(np.ones((len(tokens), 1))), rows
    )
  return gemm_bounds.gemm(policy, rows, weights)
