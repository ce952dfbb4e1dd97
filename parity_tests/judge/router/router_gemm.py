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
from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import golden
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
) -> bounds.Bounded:
  """Returns logits `[R T, e]` of experts, and how far others may be off.

  Args:
    policy: of the layer.
    x: `[R, T, D]` storage.
    router_w: `[D, e]`, of some experts or all.
    bias: `[e]` that is added; None: nothing is.
  """
  tokens = x.reshape(-1, x.shape[-1])
  own_policy = _select_gemm(policy)
  weights = _prepare_weights(own_policy, router_w, bias)
  step = max(1, _CHUNK // tokens.shape[1])
  parts = [
    _multiply(own_policy, tokens[lo : lo + step], weights)
    for lo in range(0, len(tokens), step)
  ]
  return bounds.join(parts)


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
    ranks, tokens, width = inputs['x'].shape
    experts = inputs['router_w'].shape[1]
    config = config_lib.MoEConfig(
      num_ranks=ranks,
      num_tokens=tokens,
      num_experts=experts,
      top_k=1,
      d_model=width,
      d_ff=1,
    )
    no_slots = np.zeros((ranks, tokens, 1), np.int32)
    counts = np.zeros((ranks, experts), np.int32)
    tiling = tiles.Tiling(config, counts, no_slots, no_slots)
    return cls(tiling, _select_gemm(policy), inputs, {})

  def rows(self, stage: str, rank: int, lo: int, hi: int) -> bounds.Bounded:
    """Returns logits `[hi - lo, E]` of a rank's tokens."""
    assert stage == LOGITS  # the only one
    tokens = self.inputs['x'][rank, lo:hi]
    return _multiply(self.policy, tokens, self._router_weights)

  @functools.cached_property
  def _router_weights(self) -> bounds.Weights:
    bias = self.inputs.get('router_bias')
    return _prepare_weights(self.policy, self.inputs['router_w'], bias)


def _select_gemm(
  policy: precision.PrecisionPolicy,
) -> precision.PrecisionPolicy:
  """Returns a policy in which nothing of the experts is quantised."""
  plain = dataclasses.replace(
    policy, quantised='', rows='', x_form='', operand_forms=''
  )
  return plain.storing(LOGITS)


def _prepare_weights(policy, router_w, bias) -> bounds.Weights:
  if bias is not None:
    rows = bias[None], router_w
    router_w = np.concatenate([row.astype(np.float64) for row in rows])
  return bounds.Weights.prepare(policy, router_w)


def _multiply(policy, tokens, weights: bounds.Weights) -> bounds.Bounded:
  rows = bounds.exact(tokens)
  if len(weights.value) > tokens.shape[1]:
    rows = bounds.beside(bounds.exact(np.ones((len(tokens), 1))), rows)
  return bounds.gemm(policy, rows, weights)
