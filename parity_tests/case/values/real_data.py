"""Real data: normal values, scaled so that every sum is of order one."""

from collections.abc import Callable, Sequence
from concurrent import futures
import dataclasses
import importlib
import os
from types import ModuleType

import numpy as np

from hpmoe.parity_tests.cache import array_recipes
from hpmoe.parity_tests.case import shared_memory
from hpmoe.parity_tests.case.values import magnitudes
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import storage as storage_lib
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.array_typing import Float
from hpmoe.reference.contract.config import MoEConfig

_normals: ModuleType | None
try:
  _normals = importlib.import_module(f'{__package__}._normals')
except ImportError:  # The extension module is not installed.
  _normals = None

WEIGHTS_OF_PARTS = {
  part: tuple(
    spec.name
    for spec in tensors.FORWARD
    if spec.part == part and spec.role == 'weight'
  )
  for part in ('bias', 'shared')
}


BIASES, SHARED = WEIGHTS_OF_PARTS.values()
# Of routed experts.
WEIGHTS = ('w_gate_up', 'w_down')


def draw_sublayer(config, storage, routed, seed) -> dict[str, np.ndarray]:
  """Returns what a sub-layer reads, and d_gate_up, normal.

  Of the tokens some are zeros, some large, and some so small that their mean
  square is about the norm's epsilon.
  """

  def draw(name: str) -> np.ndarray:
    shape = tensors.SPECS[name].dims(**config.dims())
    return stable_random.normal(stable_random.seed_of(name, seed), shape)

  activation, d_gate_up = draw('activation'), draw('d_gate_up')
  activation[:, 3::13] = 0
  activation[:, 2::11] *= 64
  activation[:, 1::17] *= 2.0**-10
  # The norm divides their gradients by as little: a mean over all rows would be
  # theirs alone.
  d_gate_up[:, 3::13] *= 2.0**-10
  d_gate_up[:, 1::17] *= 2.0**-10
  return dict(
    activation=activation.astype(storage),
    topk_ids=routed.topk_ids,
    topk_weights=routed.topk_weights,
    w_gate_up=(draw('w_gate_up') / np.sqrt(config.d_model)).astype(storage),
    w_down=(draw('w_down') / np.sqrt(config.d_ff)).astype(storage),
    w_norm=(1 + draw('w_norm') / 4).astype(storage),
    d_gate_up=d_gate_up.astype(storage),
  )


def draw_dy(
  config: MoEConfig,
  storage: np.dtype,
  seed: int,
  scales: magnitudes.Magnitudes | None = None,
) -> np.ndarray:
  """Returns `[R, T, D]` storage, normal; the same for any number of ranks."""
  shape = tensors.SPECS['dy'].dims(**config.dims())
  values = stable_random.normal(stable_random.seed_of('dy', seed), shape)
  if scales is not None:
    values *= scales.dy
  return values.astype(storage)


def draw_biases(config, storage, seed, scales) -> dict[str, np.ndarray]:
  """Returns biases of every expert, normal and half of what they add to."""
  ranks, local = config.num_ranks, config.experts_per_rank
  factors = dict(
    b_gate_up=scales.gate_up,
    b_down=1 / scales.dy / scales.experts.reshape(ranks, local, 1),
  )
  biases = {}
  for name in BIASES if config.bias else ():
    shape = tensors.SPECS[name].dims(**config.dims())
    values = stable_random.normal(stable_random.seed_of(name, seed), shape)
    biases[name] = (values / 2 * factors[name]).astype(storage)
  return biases


def draw_shared(config, storage, seed, plan) -> dict[str, np.ndarray]:
  """Returns weights of shared experts, drawn as those of an expert are.

  Args:
    config: sizes.
    storage: dtype.
    seed: of the values.
    plan: takes sizes and returns their `Magnitudes`.
  """
  if not config.d_shared:
    return {}
  layer = dataclasses.replace(config.shared(), num_ranks=1, num_experts=1)
  seed = stable_random.seed_of('shared', seed)
  weights = tensors.of_shared(draw_weights(layer, storage, seed, plan(layer)))
  return {n: np.repeat(a, config.num_ranks, axis=0) for n, a in weights.items()}


# Elements that numpy draws together: what is computed of them stays in a cache.
_PANEL = 1 << 16


@dataclasses.dataclass(frozen=True)
class _Factors:
  """What a weight `[X, Y]` is multiplied by, rows by columns.

  Powers of two on one of them: no product of both rounds.
  """

  rows: Float[np.ndarray, 'X']
  columns: Float[np.ndarray, 'Y']


def draw_weights(
  config, storage, seed, scales, experts: np.ndarray | None = None
) -> dict[str, np.ndarray]:
  """Returns normal weights over the root of their fan-in, expert by expert.

  Each is scaled as `Magnitudes` says, so that every sum is of order one.

  Args:
    config: sizes.
    storage: dtype.
    seed: of the values.
    scales: of the values.
    experts: those that have rows.  If weights are large, the others are zeros
      that take no memory.  None: all.
  """
  ranks, local = config.num_ranks, config.experts_per_rank
  everyone = np.arange(config.num_experts)
  weights = {}
  for name, factors in _list_factors(scales).items():
    shape = (ranks, local, len(factors.rows), len(factors.columns))
    array, drawn_experts = shared_memory.empty_rows(shape, storage, experts)
    if drawn_experts is None:
      drawn_experts = everyone

    def draw(expert: int, name=name, factors=factors, array=array) -> None:
      weight_seed = stable_random.seed_of(name, expert, seed)
      divisor = scales.experts[expert] if name == 'w_down' else 1.0
      place = array[divmod(expert, local)]
      _draw_scaled(weight_seed, factors, divisor, place)

    _draw_experts(draw, drawn_experts.tolist(), array.nbytes)
    recipe = seed, scales.digest, ranks, drawn_experts.tobytes()
    weights[name] = array_recipes.note(array, 'real', name, *recipe)
  return weights


def _list_factors(scales) -> dict[str, _Factors]:
  """Returns the factors of weights, over the root of their fan-in."""
  of_features = scales.down / np.sqrt(len(scales.down))
  return dict(
    w_gate_up=_Factors(1 / scales.x, scales.gate_up / np.sqrt(len(scales.x))),
    w_down=_Factors(of_features, 1 / scales.dy),
  )


def refuse_overflow(storage: np.dtype, scales) -> None:
  """Refuses factors with which a weight might not be finite.

  Raises:
    ValueError: the largest weight is beyond `storage`.
  """
  divisors = dict(w_gate_up=1.0, w_down=float(scales.experts.min()))
  for name, factors in _list_factors(scales).items():
    largest = factors.rows.max() * factors.columns.max()
    largest *= stable_random.MOST_DEVIATIONS / divisors[name]
    if not largest < storage_lib.FORMATS[np.dtype(storage).name].largest:
      raise ValueError(
        f'{name}: expected weights that {np.dtype(storage)} holds, got up to '
        f'{largest:g}'
      )


def _draw_scaled(
  seed: int, factors: _Factors, divisor: float, weight: np.ndarray
) -> None:
  """Writes normal values times factors over `divisor` into `weight` [X, Y]."""
  # As the extension module takes what it draws.
  words = {'float32': np.float32, 'bfloat16': np.uint16}.get(weight.dtype.name)
  if _normals is not None and words is not None:
    _normals.draw(
      stable_random.read_state(seed),
      factors.rows,
      factors.columns,
      stable_random.DEVIATION,
      divisor,
      weight.view(words),
    )
    return
  step = max(1, _PANEL // weight.shape[1])
  for first in range(0, len(weight), step):
    rows = slice(first, first + step)
    values = stable_random.normal(
      seed, weight[rows].shape, skip=first * weight.shape[1]
    )
    values *= factors.rows[rows, None] * factors.columns
    if divisor != 1:
      values /= divisor
    weight[rows] = values


def _draw_experts(
  draw: Callable[[int], None], experts: Sequence[int], size: int
) -> None:
  """Calls `draw` with each expert, in threads where they take long."""
  if size < shared_memory.LEAST_BYTES:
    for expert in experts:
      draw(expert)
    return
  with futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
    for _ in pool.map(draw, experts):
      pass
