"""Layers that the peers run: shapes, data, and what is right, in float64.

Nothing here is taken from the project but the two routings.
"""

from collections.abc import Iterator
import dataclasses
import functools
import pathlib

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.case import routings
from hpmoe.reference.contract import config as config_lib

SHAPES = {
  'S': config_lib.MoEConfig(
    num_ranks=1, num_tokens=1024, num_experts=8, top_k=2, d_model=256, d_ff=512
  ),
  'M': config_lib.MoEConfig(
    num_ranks=1,
    num_tokens=2048,
    num_experts=32,
    top_k=4,
    d_model=1024,
    d_ff=512,
  ),
  'L': config_lib.MoEConfig(
    num_ranks=1,
    num_tokens=2048,
    num_experts=64,
    top_k=8,
    d_model=2048,
    d_ff=768,
  ),
}
DTYPES = {'f32': np.dtype(np.float32), 'bf16': np.dtype(ml_dtypes.bfloat16)}
ROUTINGS = ('balanced', 'zipf')
PASSES = ('forward', 'both')
# Forward returns y; both passes return all of them.
RESULTS = ('y', 'dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down')
# DeepGEMM's rule for a result (its tests, calc_diff): how far a tensor is from
# parallel to the golden one, 1 - 2 <a, g> / (<a, a> + <g, g>).
MOST_DIFFERENT = 1e-3

Arrays = dict[str, np.ndarray]


# A pass that is one product of two squares, by a peer's library alone: what
# that can reach.
MULTIPLY = 'multiply'
SQUARE = 2048  # rows and columns


@dataclasses.dataclass(frozen=True)
class Case:
  """One layer on one routing, in one dtype."""

  shape: str
  dtype: str
  routing: str

  @property
  def config(self) -> config_lib.MoEConfig:
    return SHAPES[self.shape]

  @property
  def name(self) -> str:
    return f'{self.shape} {self.dtype} {self.routing}'

  def operations(self, which: str) -> int:
    """Returns multiplications and additions of the products of a pass."""
    if which == MULTIPLY:
      return 2 * SQUARE**3
    c = self.config
    forward = 6 * c.num_tokens * c.top_k * c.d_model * c.d_ff
    return forward if which == 'forward' else 3 * forward


def make(case: Case, seed: int = 0) -> Arrays:
  """Returns the inputs of a case, and dy.

  x and dy `[T, D]`, w_gate_up `[E, D, 2F]`, w_down `[E, F, D]` in the dtype;
  topk_ids `[T, K]` i32, topk_weights `[T, K]` f32, which add up to one.
  """
  c, dtype = case.config, DTYPES[case.dtype]
  rng = np.random.default_rng(seed)

  def normal(*shape: int, scale: float) -> np.ndarray:
    return (rng.standard_normal(shape, np.float32) * scale).astype(dtype)

  routed = routings.make(case.routing, c, seed)
  weights = routed.topk_weights[0].astype(np.float64)
  weights /= weights.sum(axis=-1, keepdims=True)
  return dict(
    x=normal(c.num_tokens, c.d_model, scale=1.0),
    dy=normal(c.num_tokens, c.d_model, scale=1.0),
    w_gate_up=normal(
      c.num_experts, c.d_model, 2 * c.d_ff, scale=c.d_model**-0.5
    ),
    w_down=normal(c.num_experts, c.d_ff, c.d_model, scale=c.d_ff**-0.5),
    topk_ids=routed.topk_ids[0],
    topk_weights=weights.astype(np.float32),
  )


@functools.cache
def squares() -> tuple[np.ndarray, ...]:
  """Returns what is multiplied and its product, `[SQUARE, SQUARE]` float32."""
  rng = np.random.default_rng(0)
  return tuple(
    rng.standard_normal((SQUARE, SQUARE), np.float32) for _ in range(3)
  )


def by_expert(ids: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields (expert, its tokens, their slots) for the experts with rows."""
  for expert in np.unique(ids):
    tokens, slots = np.nonzero(ids == expert)
    yield int(expert), tokens, slots


def golden(arrays: Arrays) -> Arrays:
  """Returns RESULTS in float64: an expert after the other, no rounding."""
  wide = {n: arrays[n].astype(np.float64) for n in ('x', 'dy', 'topk_weights')}
  x, dy, weights = wide.values()
  out = dict(
    y=np.zeros_like(x),
    dx=np.zeros_like(x),
    d_topk_weights=np.zeros_like(weights),
    d_w_gate_up=np.zeros(arrays['w_gate_up'].shape, np.float32),
    d_w_down=np.zeros(arrays['w_down'].shape, np.float32),
  )
  for e, tokens, slots in by_expert(arrays['topk_ids']):
    w_gate_up = arrays['w_gate_up'][e].astype(np.float64)
    w_down = arrays['w_down'][e].astype(np.float64)
    weight, d_out = weights[tokens, slots][:, None], dy[tokens]
    gate, up = np.split(x[tokens] @ w_gate_up, 2, axis=1)
    share = 1 / (1 + np.exp(-gate))
    hidden = gate * share * up
    row = hidden @ w_down
    out['y'][tokens] += weight * row
    out['d_topk_weights'][tokens, slots] = (row * d_out).sum(axis=1)
    out['d_w_down'][e] = hidden.T @ (weight * d_out)
    d_hidden = (weight * d_out) @ w_down.T
    d_gate = d_hidden * up * share * (1 + gate * (1 - share))
    d_both = np.concatenate([d_gate, d_hidden * gate * share], axis=1)
    out['d_w_gate_up'][e] = x[tokens].T @ d_both
    out['dx'][tokens] += d_both @ w_gate_up.T
  return out


def difference(got: np.ndarray, right: np.ndarray) -> float:
  """Returns how far a result is from the golden one; 0 is parallel."""
  a, g = (v.astype(np.float64).reshape(-1) for v in (got, right))
  if a.shape != g.shape or not np.isfinite(a).all():
    return float('inf')
  return float(1 - 2 * (a @ g) / (a @ a + g @ g))


def save(folder: pathlib.Path, arrays: Arrays) -> None:
  """Writes arrays; bfloat16 as its bits."""
  folder.mkdir(parents=True)
  for name, array in arrays.items():
    is_bf16 = array.dtype == ml_dtypes.bfloat16
    bits = array.view(np.uint16) if is_bf16 else array
    np.save(folder / f'{name}.{array.dtype.name}.npy', bits)


def load(folder: pathlib.Path) -> Arrays:
  """Returns arrays of `save`, mapped: those who only read them share them."""
  found = {}
  for path in sorted(folder.glob('*.npy')):
    name, dtype, _ = path.name.split('.')
    array = np.load(path, mmap_mode='c')
    kind = ml_dtypes.bfloat16 if dtype == 'bfloat16' else np.dtype(dtype)
    found[name] = np.asarray(array.view(kind))
  return found
