"""Real data: normal values, scaled so that every stage is of order one."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.cache import recipes
from hpmoe.parity_tests.case import shared_memory
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig

# Of the gate columns, in turn.  Gates are of order one without: exp(-gate) then
# neither overflows nor vanishes, and a kernel that clamps it looks right.
_GATE_SCALES = np.ones(16)


_GATE_SCALES[[2, 6, 10, 14]] = 2.0 ** np.array([-20, -10, 4, 7])


# Of the up columns, in turn: these are times the limit, where there is one, so
# that some are beyond it and some are not.
_TO_LIMIT = [4, 12]


WEIGHTS_OF_PARTS = {
  part: tuple(
    spec.name
    for spec in tensors.FORWARD
    if spec.part == part and spec.role == 'weight'
  )
  for part in ('bias', 'shared')
}


BIASES, SHARED = WEIGHTS_OF_PARTS.values()


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


def draw_dy(config: MoEConfig, storage: np.dtype, seed: int) -> np.ndarray:
  """Returns `[R, T, D]` storage, normal; the same for any number of ranks."""
  shape = tensors.SPECS['dy'].dims(**config.dims())
  values = stable_random.normal(stable_random.seed_of('dy', seed), shape)
  return values.astype(storage)


def draw_biases(config, storage, seed) -> dict[str, np.ndarray]:
  """Returns biases of every expert, normal and half of what they add to."""
  biases = {}
  for name in BIASES if config.bias else ():
    shape = tensors.SPECS[name].dims(**config.dims())
    values = stable_random.normal(stable_random.seed_of(name, seed), shape)
    biases[name] = (values / 2).astype(storage)
  return biases


def draw_shared(config, storage, seed, limit) -> dict[str, np.ndarray]:
  """Returns weights of shared experts, drawn as those of an expert are."""
  if not config.d_shared:
    return {}
  layer = dataclasses.replace(config.shared(), num_ranks=1, num_experts=1)
  seed = stable_random.seed_of('shared', seed)
  weights = tensors.of_shared(draw_weights(layer, storage, seed, limit))
  return {n: np.repeat(a, config.num_ranks, axis=0) for n, a in weights.items()}


def draw_weights(config, storage, seed, limit) -> dict[str, np.ndarray]:
  """Returns normal weights over the root of their fan-in, expert by expert.

  Gates of a few features are spread by `_GATE_SCALES`, tiny to saturating;
  where that enlarges them, up is smaller by as much, so that no feature
  outweighs the others.  Up of a few others is of the order of a limit.
  """
  ranks, local = config.num_ranks, config.experts_per_rank
  width, hidden = config.d_model, config.d_ff
  shapes = dict(w_gate_up=(width, 2 * hidden), w_down=(hidden, width))
  weights = {}
  gate = np.resize(_GATE_SCALES, hidden)
  up = 1 / np.maximum(_GATE_SCALES, 1)
  if limit:
    up[_TO_LIMIT] = limit
  spread = np.concatenate([gate, np.resize(up, hidden)])
  scales = dict(w_gate_up=spread, w_down=1.0)
  for name, shape in shapes.items():
    weights[name] = shared_memory.empty((ranks, local, *shape), storage)
    for expert in range(config.num_experts):
      values = stable_random.normal(
        stable_random.seed_of(name, expert, seed), shape
      )
      values /= np.sqrt(shape[0])
      values *= scales[name]
      weights[name][divmod(expert, local)] = values
    recipes.note(weights[name], 'real', name, seed, limit, ranks)
  return weights
