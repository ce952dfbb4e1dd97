"""The same layer with signs exchanged: other data, whose answer is known.

Rounding to nearest knows no signs.  With x, the gate half of w_gate_up, w_down,
the routing weights and dy negated, and the experts of each rank in another
order, y and every gradient are those of the layer with signs exchanged, bit for
bit.  Or a rank's tokens come from last to first, as none depends on another.
What a kernel kept of an earlier call, by shape or by the address of an input,
is wrong for these data.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy

# Of larger layers only the routing weights are negated: no weight is copied.
_MOST_BYTES = 64 << 20

Signs = Mapping[str, float | np.ndarray]


@dataclasses.dataclass(frozen=True)
class Mirror:
  """How a layer's data and results change.

  Attributes:
    signs: factors by tensor, of its last axis; what is not in it stays.
    step: how far the experts of a rank move.
    flips: whether a rank's tokens change their order, first to last.
  """

  signs: Signs
  step: int = 0
  flips: bool = False

  def reflect(self, tensors_by_name: passes.Tensors) -> dict[str, np.ndarray]:
    """Returns data, or results, of the other layer; their own inverse."""
    return {n: self._reflect(n, a) for n, a in tensors_by_name.items()}

  def reflect_inputs(self, arrays: passes.Tensors) -> dict[str, np.ndarray]:
    """Returns what the other layer reads."""
    reflected = self.reflect(arrays)
    for name, array in reflected.items() if self.step else ():
      if name == 'topk_ids':
        reflected[name] = self._move_ids(array, arrays['w_down'].shape[1])
      elif tensors.SPECS[name].shape.startswith('R L '):
        reflected[name] = np.roll(array, self.step, axis=1)
    return reflected

  def _reflect(self, name: str, array: np.ndarray) -> np.ndarray:
    sign = self.signs.get(name, 1.0)
    if self.flips and tensors.IN_FILES[name].shape.startswith('R T '):
      array = np.ascontiguousarray(array[:, ::-1])
    if isinstance(sign, np.ndarray):
      return np.where(sign < 0, -array, array)
    return -array if sign < 0 else array

  def _move_ids(self, ids: np.ndarray, local: int) -> np.ndarray:
    rank, expert = np.divmod(ids, local)
    next_ids = rank * local + (expert + self.step) % local
    return np.where(ids >= 0, next_ids, ids).astype(ids.dtype)


def build_mirror(
  config: MoEConfig,
  policy: PrecisionPolicy,
  arrays: passes.Tensors,
  layer_pass: passes.Pass,
) -> Mirror | None:
  """Returns how to change a pass's data; None: its answer would not be known.

  Args:
    config: sizes.
    policy: precision.
    arrays: what the pass reads.
    layer_pass: the pass.
  """
  if config.sublayer or policy.activation == 'absolute':
    return None
  coded = bool(policy.coded or policy.rows or policy.operand_forms)
  size = sum(array.nbytes for array in arrays.values())
  forward = layer_pass.name == passes.FORWARD.name
  if coded or policy.offset or size > _MOST_BYTES:
    early = policy.placement in tensors.EARLY
    early &= bool(policy.rows or policy.operand_forms)
    # Signs of routing weights do not pass an activation, nor shared experts.
    if policy.placement == 'input' or config.d_shared or early:
      return Mirror({}, flips=True) if forward else Mirror(_sign_grads(config))
    return Mirror(_sign_weights(policy))
  step = int(forward and config.experts_per_rank > 1)
  return Mirror(_sign_all(config, policy), step)


def _sign_grads(config: MoEConfig) -> Signs:
  """Returns the signs where dy is negated: gradients are linear in it."""
  return dict.fromkeys(('dy', *tensors.grads(config)), -1.0)


def _sign_weights(policy: PrecisionPolicy) -> Signs:
  """Returns the signs where routing weights are negated."""
  changed_names = ('topk_weights', 'y', 'dx', 'd_w_down', 'd_w_gate_up')
  biases = 'd_b_gate_up', 'd_b_down'
  signs = dict.fromkeys((*changed_names, *biases), -1.0)
  return {**signs, **_sign_rows(policy, 1.0, 1.0)}


def _sign_rows(policy: PrecisionPolicy, product: float, down: float) -> Signs:
  """Returns the signs of rows behind the product, times a weight somewhere.

  Args:
    policy: its placement.
    product: sign of act(gate) * up.
    down: of w_down.
  """
  place = tensors.WEIGHTED[policy.placement]
  signs = {}
  sign = product
  for name in ('activation', 'expert_out', 'returned'):
    sign *= down if name == 'expert_out' else 1.0
    sign *= -1.0 if name == place else 1.0
    signs[name] = sign
  return signs


def _sign_all(config: MoEConfig, policy: PrecisionPolicy) -> Signs:
  """Returns the signs where up and the product change theirs, not gate.

  Where weights multiply x, neither does: x and its weights change both.
  """
  product = 1.0 if policy.placement == 'input' else -1.0
  signs: dict[str, float | np.ndarray] = dict.fromkeys(
    ('x', 'topk_weights', 'w_down', 'dy'), -1.0
  )
  signs |= dict.fromkeys(('y', 'dx', 'd_w_down', 'd_topk_weights'), -1.0)
  signs |= dict.fromkeys(('shared_activation', 'shared_out'), -1.0)
  signs |= {'expert_in': product, **_sign_rows(policy, product, -1.0)}
  signs |= dict.fromkeys(('b_down', 'd_b_down'), -product)
  for part, width, sign in (
    ('', config.d_ff, product),
    ('shared_', config.d_shared, -1.0),
  ):
    of_up = np.repeat([1.0, sign], width)
    signs |= {f'{part}gate_up': of_up}
    weights = f'w_{part}gate_up'
    signs |= dict.fromkeys((weights, f'd_{weights}'), sign * of_up)
  biases = dict.fromkeys(('b_gate_up', 'd_b_gate_up'), signs['gate_up'])
  return {**signs, **biases}
