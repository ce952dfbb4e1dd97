"""Layers that are trained in 8 bits, in numpy, right or wrong in a known way.

Quantisers are written out here, with ml_dtypes' casts: none of ours is called.
"""

from collections.abc import Mapping
import dataclasses

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import tensors

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
TOPS = {E4M3: np.float32(448), E5M2: np.float32(57344)}

Arrays = Mapping[str, np.ndarray]


def cast(dtype, scaled: np.ndarray) -> np.ndarray:
  """Returns codes `[...]` as float32, saturated."""
  top = TOPS[dtype]
  return np.clip(scaled, -top, top).astype(dtype).astype(np.float32)


def quantise_to_power(a: np.ndarray, size: int, dtype=E4M3) -> np.ndarray:
  """Returns rows `[n, x]` in groups of a size; scales are powers of two."""
  values = np.empty(a.shape, np.float32)
  for lo in range(0, a.shape[1], size):
    group = a[:, lo : lo + size].astype(np.float32)
    amax = np.abs(group).max(1, keepdims=True)
    fraction, exponent = np.frexp(amax / TOPS[dtype])
    exponent = exponent - (fraction == 0.5)
    scale = np.ldexp(np.float32(1), np.where(amax == 0, 0, exponent))
    values[:, lo : lo + size] = cast(dtype, group / scale) * scale
  return values


def quantise_online(a: np.ndarray, size: int = 128) -> np.ndarray:
  """Returns rows `[n, x]` in groups of a size, of float32 scales."""
  values = np.empty(a.shape, np.float32)
  for lo in range(0, a.shape[1], size):
    group = a[:, lo : lo + size].astype(np.float32)
    amax = np.abs(group).max(1, keepdims=True)
    scale = np.where(amax == 0, np.float32(448), amax) / np.float32(448)
    values[:, lo : lo + size] = cast(E4M3, group / scale) * scale
  return values


def quantise_blocks(a: np.ndarray, to_power: bool) -> np.ndarray:
  """Returns a matrix in blocks of 128 x 128."""
  values = np.empty(a.shape, np.float32)
  for row in range(0, a.shape[0], 128):
    for column in range(0, a.shape[1], 128):
      block = slice(row, row + 128), slice(column, column + 128)
      flat = a[block].reshape(1, -1)
      coded = (
        quantise_to_power(flat, flat.size)
        if to_power
        else quantise_online(flat, flat.size)
      )
      values[block] = coded.reshape(a[block].shape)
  return values


def quantise_whole(a: np.ndarray, dtype=E4M3) -> np.ndarray:
  """Returns a matrix with one scale, multiplied by its inverse."""
  wide = a.astype(np.float32)
  amax = np.abs(wide).max(initial=0)
  encode = TOPS[dtype] / (amax if amax else np.float32(1))
  return cast(dtype, wide * encode) * (np.float32(1) / encode)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A recipe by hand: what becomes of `[n, depth]` rows and of weights.

  Attributes:
    moved_rows: of rows that were dispatched, expert_in.
    local: of activation, computed where it is multiplied.
    d_sent, d_local: of the gradients d_expert_out and d_gate_up.
    weight: of a weight `[x, y]` whose depth is its first axis.
    through: whether columns of sent rows are made of their codes.
  """

  moved_rows: object
  local: object
  d_sent: object
  d_local: object
  weight: object
  through: bool = False


def _power(size: int):
  return lambda a: quantise_to_power(a, size)


RECIPES = {
  'deepseek_v3': Recipe(
    *(_power(128), quantise_online, _power(128), quantise_online),
    weight=lambda w: quantise_blocks(w, False),
    through=True,
  ),
  'block_scaling': Recipe(
    *(_power(128),) * 4, weight=lambda w: quantise_blocks(w, True)
  ),
  'mxfp8': Recipe(*(_power(32),) * 4, weight=lambda w: _power(32)(w.T).T),
  'current_scaling': Recipe(
    quantise_whole,
    quantise_whole,
    lambda a: quantise_whole(a, E5M2),
    lambda a: quantise_whole(a, E5M2),
    weight=quantise_whole,
  ),
}
# A bug, the stage where it is, and what recipes can have it.
WRONG = {
  'columns quantised by rows': ('d_w_gate_up', RECIPES),
  'gradient not quantised for weights': ('d_w_down', RECIPES),
  'gradient not quantised for rows': ('d_activation', RECIPES),
  'saved rows not quantised again': ('d_w_down', RECIPES),
  'scales of the next column': ('d_w_gate_up', RECIPES),
  'other 8 bits': ('d_expert_in', RECIPES),
  'padding in the scale': ('d_w_down', RECIPES),
  'rows of two experts in a group': ('d_w_down', RECIPES),
  'weight not quantised': ('d_expert_in', RECIPES),
  'codes of the forward weight': ('d_expert_in', ('mxfp8',)),
  # Of the others, powers of two make codes of rows what columns would have.
  'codes of rows taken for columns': (
    'd_w_gate_up',
    ('block_scaling', 'mxfp8'),
  ),
  'columns of the tensor itself': ('d_w_gate_up', ('deepseek_v3',)),
}
# One scale for all has no axis.
for _name in ('columns quantised by rows', 'scales of the next column'):
  _stage, _ = WRONG[_name]
  WRONG[_name] = _stage, tuple(n for n in RECIPES if n != 'current_scaling')


@dataclasses.dataclass(frozen=True)
class Kernel(trial.Kernel):
  """A layer of one recipe; `wrong` is of `WRONG`, or ''."""

  recipe: str = 'deepseek_v3'

  def _expert(self, policy, a, arrays, name, expert, *beside):
    by_hand = RECIPES[self.recipe]
    rows = (by_hand.moved_rows if name == 'w_gate_up' else by_hand.local)(a)
    weight = by_hand.weight(arrays[name][expert].astype(np.float32))
    return self._multiply(policy, rows, weight, *beside)

  def backward(self, config, policy, arrays: Arrays) -> dict[str, np.ndarray]:
    """Returns the tensors of `tensors.grads` by name, at placement combine."""
    assert policy.placement == 'combine'
    by_hand = RECIPES[self.recipe]
    lay = trial._Layout.from_arrays(config, arrays)
    outputs = lay.empty(policy, tensors.grads(config))
    dy = arrays['dy'].reshape(-1, config.d_model)
    flat_weights = arrays['topk_weights'].reshape(lay.row.shape)
    rows_home = lay.home(arrays, policy).astype(np.float32)
    d_weights = outputs['d_topk_weights'].reshape(lay.row.shape)
    for k in range(config.top_k):
      d_weights[:, k] = self._dots(
        policy, dy.astype(np.float32), rows_home[:, k]
      )
    rows_back = outputs['d_returned'].reshape(*lay.row.shape, config.d_model)
    store = lambda a: a.astype(ulp.storage_dtype(policy.storage))
    for expert, rows, token, slot in lay.experts():
      if not len(token):
        continue
      w = flat_weights[token, slot, None]
      d_out = store(dy[token].astype(np.float32) * w)
      d_act = store(
        self._rows(by_hand.d_sent, d_out, 'd_activation')
        @ self._transposed(arrays['w_down'][expert])
      )
      activation = arrays['activation'][rows]
      outputs['d_w_down'][expert] = store(
        self._columns(by_hand.local, activation, 'activation', lay, rows).T
        @ self._columns(by_hand.d_sent, d_out, 'd_expert_out', lay, rows)
      )
      d_gate_up = store(self._d_gate_up(policy, arrays['gate_up'][rows], d_act))
      outputs['d_w_gate_up'][expert] = store(
        self._columns(
          by_hand.moved_rows, arrays['expert_in'][rows], 'expert_in', lay, rows
        ).T
        @ self._columns(by_hand.d_local, d_gate_up, 'd_gate_up', lay, rows)
      )
      d_in = store(
        self._rows(by_hand.d_local, d_gate_up, 'd_expert_in')
        @ self._transposed(arrays['w_gate_up'][expert])
      )
      for name, values in (
        ('d_expert_out', d_out),
        ('d_activation', d_act),
        ('d_gate_up', d_gate_up),
        ('d_expert_in', d_in),
      ):
        outputs[name][rows] = values
      rows_back[token, slot] = d_in
    total = np.zeros(rows_back[:, 0].shape, np.float32)
    for k in range(config.top_k):
      total = total + rows_back[:, k].astype(np.float32)
    outputs |= self._of_shared(self.backward, config, policy, arrays)
    if 'd_shared_in' in outputs:
      last = outputs['d_shared_in'].reshape(total.shape)
      total = total + last.astype(np.float32)
    outputs['dx'][:] = store(total).reshape(outputs['dx'].shape)
    return outputs

  def _d_gate_up(self, policy, gate_up, d_act) -> np.ndarray:
    gate, up = np.split(gate_up.astype(np.float32), 2, axis=-1)
    grad = d_act.astype(np.float32)
    act, slope = self._act(policy, gate), self._slope(policy, gate)
    return np.hstack([grad * up * slope, grad * act])

  def _rows(self, quantiser, a, stage: str) -> np.ndarray:
    if self.wrong == 'gradient not quantised for rows':
      return a.astype(np.float32)
    if self.wrong == 'other 8 bits' and stage == 'd_expert_in':
      dtype = E4M3 if self.recipe == 'current_scaling' else E5M2
      if self.recipe == 'current_scaling':
        return quantise_whole(a, dtype)
      return quantise_to_power(a, 32 if self.recipe == 'mxfp8' else 128, dtype)
    return quantiser(a)

  def _transposed(self, weight: np.ndarray) -> np.ndarray:
    wide = weight.astype(np.float32)
    if self.wrong == 'weight not quantised':
      return wide.T
    by_hand = RECIPES[self.recipe].weight
    if self.wrong == 'codes of the forward weight':
      return by_hand(wide).T
    return by_hand(wide.T)

  def _columns(self, quantiser, a, name: str, lay, rows) -> np.ndarray:
    """Returns rows `[n, x]` of an expert, quantised by columns."""
    wide, is_grad = a.astype(np.float32), name.startswith('d_')
    is_sent = name in ('expert_in', 'd_expert_out')
    if self.wrong == 'columns quantised by rows':
      return quantiser(wide)
    if self.wrong == 'gradient not quantised for weights' and is_grad:
      return wide
    if self.wrong == 'saved rows not quantised again' and not is_grad:
      return wide
    if self.wrong == 'codes of rows taken for columns' and not is_grad:
      return quantiser(wide)
    through = RECIPES[self.recipe].through and is_sent
    if through and self.wrong != 'columns of the tensor itself':
      wide = quantiser(wide)
    count = len(wide)
    if self.wrong == 'padding in the scale':
      # Rows past the last one hold what was there before.
      rubbish = np.full((1, wide.shape[1]), 64 * np.abs(wide).max())
      wide = np.vstack([wide, rubbish.astype(np.float32)])
    if self.wrong == 'rows of two experts in a group':
      # Groups begin at the row that the expert begins with, modulo 7.
      first = 7
      wide = np.vstack([np.full((first, wide.shape[1]), 8, np.float32), wide])
      return quantiser(wide.T).T[first:]
    columns = quantiser(wide.T).T[:count]
    if self.wrong == 'scales of the next column':
      own, other = (np.abs(m).max(0) for m in (wide, np.roll(wide, 1, 1)))
      return columns * (other / np.where(own == 0, 1, own))
    return columns


def make_layer(recipe: str, wrong: str = '', returns=None):
  """Returns a candidate, which returns all tensors, or some of them."""
  kernel = Kernel(recipe=recipe, wrong=wrong)

  def layer(inputs, config, policy):
    outputs = kernel.forward(config, policy, inputs)
    names = ('y', 'gate_up', 'activation', 'expert_out', 'returned')
    return {n: outputs[n] for n in names if returns is None or n in returns}

  def backward(inputs, config, policy):
    outputs = kernel.backward(config, policy, inputs)
    return {n: a for n, a in outputs.items() if returns is None or n in returns}

  layer.backward = backward
  return layer


def spread(inputs: inputs_lib.LayerInputs, seed: int) -> inputs_lib.LayerInputs:
  """Returns a drawn layer whose features have magnitudes of their own.

  Powers of two, so that products are as before.  Small ones are subnormal
  numbers among the codes of a row, and not among those of their column.
  """
  rng, arrays = np.random.default_rng(seed), dict(inputs.arrays)
  config = inputs.config
  # Weights are divided by two of them.
  span = 6 if inputs.policy.storage == 'float16' else 13

  def draw(count: int) -> np.ndarray:
    return np.exp2(-rng.integers(0, span, count)).astype(np.float32)

  def scale(name: str, factors: np.ndarray) -> None:
    wide = arrays[name].astype(np.float32) * factors
    arrays[name] = wide.astype(arrays[name].dtype)

  of_x, of_dy = draw(config.d_model), draw(config.d_model)
  scale('x', of_x)
  for part, width in (('', config.d_ff), ('shared_', config.d_shared)):
    if not width:
      continue
    of_up = draw(width)
    scale(f'w_{part}gate_up', 1 / of_x[:, None])
    scale(f'w_{part}gate_up', np.concatenate([np.ones_like(of_up), of_up]))
    scale(f'w_{part}down', 1 / of_up[:, None])
    scale(f'w_{part}down', 1 / of_dy)
  scale('dy', of_dy)
  return dataclasses.replace(inputs, arrays=arrays)
