"""A layer in numpy, right or wrong in a known way: verdicts are tried on it.

Not the oracle's arithmetic: GEMMs sum in an order of their own, as a kernel
would.  Forward and backward, whole passes: a kernel that returns only results.
"""

from collections.abc import Callable, Mapping
import dataclasses

import numpy as np

from hpmoe.parity_tests.data import inputs as inputs_lib
from hpmoe.parity_tests.lanes import golden
from hpmoe.parity_tests.lanes import lanes
from hpmoe.parity_tests.lanes import tiles
from hpmoe.parity_tests.lanes import ulp
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

Gemm = Callable[[np.ndarray, np.ndarray], np.ndarray]
Arrays = Mapping[str, np.ndarray]


def blas(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  return a @ b


def ascending(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Product by product: `[n, y]` of `[n, x]` and `[x, y]`, all float32."""
  total = np.zeros((len(a), b.shape[1]), np.float32)
  for k in range(b.shape[0]):
    total += a[:, k : k + 1] * b[k]
  return total


def descending(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  return ascending(a[:, ::-1], b[::-1])


def even_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  return ascending(a[:, ::2], b[::2]) + ascending(a[:, 1::2], b[1::2])


def blocked(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """In blocks of 32 terms, added up one after another."""
  total = np.zeros((len(a), b.shape[1]), np.float32)
  for k in range(0, b.shape[0], 32):
    total += ascending(a[:, k : k + 32], b[k : k + 32])
  return total


def pairwise(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """As a tree."""
  if b.shape[0] <= 1:
    return ascending(a, b)
  half = b.shape[0] // 2
  return pairwise(a[:, :half], b[:half]) + pairwise(a[:, half:], b[half:])


ORDERS = dict(
  blas=blas,
  ascending=ascending,
  descending=descending,
  even_odd=even_odd,
  blocked=blocked,
  pairwise=pairwise,
)


def cut_bits(a: np.ndarray, digits: int) -> np.ndarray:
  """Returns float32 `[...]` rounded to that many bits of the mantissa."""
  low = 23 - digits
  word = a.view(np.uint32)
  word = word + np.uint32((1 << (low - 1)) - 1) + (word >> low & 1)
  return (word & ~np.uint32((1 << low) - 1)).view(np.float32)


@dataclasses.dataclass(frozen=True)
class Kernel:
  """How a kernel computes.

  Attributes:
    gemm: sums of products, float32.
    operand_bits: of the mantissa that GEMMs read: TF32 has 10, bfloat16 7.
    silu: factor that silu is off by.
    round_weights: routing weights are rounded to bfloat16.
    truncate: stores cut a mantissa off instead of rounding.
  """

  gemm: Gemm = blas
  operand_bits: int = 23
  silu: float = 1.0
  round_weights: bool = False
  truncate: bool = False

  def _store(self, policy, a: np.ndarray) -> np.ndarray:
    if self.truncate and policy.storage == 'bfloat16':
      a = (a.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return a.astype(ulp.storage_dtype(policy.storage))

  def _multiply(self, policy, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = (
      np.ascontiguousarray(m.astype(np.float32)).astype(np.float32)
      for m in (a, b)
    )
    if self.operand_bits < 23:
      a, b = (cut_bits(m, self.operand_bits) for m in (a, b))
    return self._store(policy, self.gemm(a, b))

  def _weights(self, weights: np.ndarray) -> np.ndarray:
    return cut_bits(weights, 7) if self.round_weights else weights

  def _act(self, policy, gate: np.ndarray) -> np.ndarray:
    if policy.activation == 'absolute':
      return np.abs(gate)
    return gate / (1 + np.exp(-gate)) * np.float32(self.silu)

  def forward(
    self,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    arrays: Arrays,
  ) -> np.ndarray:
    """Returns y `[R, T, D]`."""
    rows = arrays['x'].reshape(-1, config.d_model)
    ids = arrays['topk_ids'].reshape(len(rows), -1)
    weights = self._weights(arrays['topk_weights']).reshape(ids.shape)
    early = policy.placement == 'before_down'
    out = np.empty((*ids.shape, config.d_model), rows.dtype)
    for expert in range(config.num_experts):
      at = divmod(expert, config.experts_per_rank)
      token, slot = np.nonzero(ids == expert)
      w = arrays['w_gate_up'][at]
      gate_up = self._multiply(policy, rows[token], w).astype(np.float32)
      gate, up = np.split(gate_up, 2, axis=1)
      hidden = self._act(policy, gate) * up
      if early:
        hidden = hidden * weights[token, slot, None]
      hidden = self._store(policy, hidden)
      out[token, slot] = self._multiply(policy, hidden, arrays['w_down'][at])
    total = np.zeros((len(rows), config.d_model), np.float32)
    for k in range(config.top_k):
      term = out[:, k].astype(np.float32)
      total += term if early else term * weights[:, k, None]
    return self._store(policy, total).reshape(arrays['x'].shape)


def tiling(config: config_lib.MoEConfig, arrays: Arrays) -> tiles.Tiling:
  """Returns the tiles of a routing, planned in numpy."""
  ids = arrays['topk_ids'].reshape(config.num_ranks, -1)
  counts = [np.bincount(i, minlength=config.num_experts) for i in ids]
  everyone = ids.reshape(-1)
  order = np.argsort(everyone, kind='stable')
  place = np.empty_like(order)
  place[order] = np.arange(len(order))
  owner = everyone // config.experts_per_rank
  first = np.searchsorted(owner[order], np.arange(config.num_ranks))
  row = (place - first[owner]).reshape(arrays['topk_ids'].shape)
  return tiles.Tiling(config, np.stack(counts), row, arrays['topk_ids'])


def judge(
  made: inputs_lib.LayerInputs, y: np.ndarray, same: np.ndarray | None
) -> dict[str, lanes.Result]:
  """Returns the verdicts of lane bounded on a layer's y, by rule.

  Args:
    made: what the kernel was given.
    y: `[R, T, D]`, what it returned.
    same: `[R, T, D]`, what a right one does; only narrow storage asks.
  """
  of = tiling(made.config, made.arrays)
  layer = golden.Golden(of, made.policy, made.arrays, {})
  found = lanes.tolerances('layer', y, layer, None, (), same=same)
  return {result.rule: result for result in found}


def draw(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  seed: int,
) -> inputs_lib.LayerInputs:
  """Returns inputs of a layer: normal, weights over the root of their fan-in.

  Routing is uniform, and the capacity whatever `config` has.
  """
  rng = np.random.default_rng(seed)
  ranks, tokens, local = (
    config.num_ranks,
    config.num_tokens,
    config.experts_per_rank,
  )
  width, hidden = config.d_model, config.d_ff

  def normal(*shape: int, fan_in: int = 1) -> np.ndarray:
    drawn = rng.standard_normal(shape, np.float32) / np.float32(fan_in**0.5)
    return drawn.astype(ulp.storage_dtype(policy.storage))

  scores = rng.random((ranks, tokens, config.num_experts))
  weights = rng.random((ranks, tokens, config.top_k)).astype(np.float32) + 0.1
  arrays = dict(
    x=normal(ranks, tokens, width),
    topk_ids=np.argsort(scores, axis=-1)[..., : config.top_k].astype(np.int32),
    topk_weights=weights / weights.sum(-1, keepdims=True),
    w_gate_up=normal(ranks, local, width, 2 * hidden, fan_in=width),
    w_down=normal(ranks, local, hidden, width, fan_in=hidden),
    dy=normal(ranks, tokens, width),
  )
  return inputs_lib.LayerInputs(config, policy, arrays, 'uniform', {})


def share_of_seed(
  config: config_lib.MoEConfig, policy: precision.PrecisionPolicy, seed: int
) -> float:
  """Returns the most that a right kernel's y uses of a limit of lane bounded.

  Seeds take the orders of summation in turn; it is held to another's y.
  """
  made = draw(config, policy, seed)
  orders = list(ORDERS.values())
  mine, other = (orders[(seed + i) % len(orders)] for i in range(2))
  y, same = (
    Kernel(order).forward(config, policy, made.arrays)
    for order in (mine, other)
  )
  found = judge(made, y, same).values()
  return max(result.values['error_of_bound'] for result in found)
