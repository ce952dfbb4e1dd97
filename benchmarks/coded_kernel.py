"""A fused MoE layer in numpy, of codes or values, right or with one bug.

It has the form of the contract, `compute_case`, and that of FlashInfer-Bench's
DeepSeek-V3 definition, `make_solution`.  Between two steps a value passes
`Kernel.pass_`, where a bug of planted_bugs.toml changes it: a function of
`CHANGES`, which gets the value and what it was made of.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

BLOCK = 128
_E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_DEPTH, _ACROSS = -2, -1  # axes of weights [E, X, Y] and of their scales

Change = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Quantiser:
  """How rows become codes.

  Attributes:
    element: ml_dtypes' or numpy's name of codes; '': rows stay as they are.
    group: elements of a row that share a scale; 0: all.
    top: what the largest magnitude of a group becomes.
    lowest: magnitude that a group has at least.
    power: 'ceil' or 'floor': scales are powers of two; ''.
    scope: whose largest magnitude it is: of a 'row', of the same 'column' of
      all rows, or of 'all'.
    rounding: 'even', or 'cut' to zero.
    overflow: 'saturate' or 'wrap'.
    scale: dtype that scales are rounded to.
    before: dtype that rows are rounded to first; ''.
    shift: values are divided by the scale of so many groups further on.
    static: a row's one scale is an input.
  """

  element: str = ''
  group: int = 0
  top: float = 448.0
  lowest: float = 1e-4
  power: str = ''
  scope: str = 'row'
  rounding: str = 'even'
  overflow: str = 'saturate'
  scale: str = 'float32'
  before: str = ''
  shift: int = 0
  static: bool = False

  def quantise(
    self, rows: np.ndarray, scale: float = 1.0
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns codes `[n, X]` float32 and scales `[n, G]` of rows `[n, X]`.

    `scale` is the input, of a static quantiser.
    """
    if self.static:
      scales = np.full((len(rows), 1), scale, np.float32)
      return self._round_codes(rows / scales), scales
    if self.before:
      rows = _round_to(rows, self.before)
    group = self.group or rows.shape[1]
    groups = rows.reshape(len(rows), -1, group)
    axis = {'row': 2, 'column': 0, 'all': (0, 1, 2)}[self.scope]
    largest = np.abs(groups).max(axis, keepdims=True, initial=0)
    if self.power:
      scales = self._round_scales(largest)
    else:
      scales = np.maximum(largest, np.float32(self.lowest))
      scales = _round_to(scales / np.float32(self.top), self.scale)
    divisors = np.roll(scales, -self.shift, 1)
    codes = self._round_codes(groups / divisors).reshape(rows.shape)
    scales = np.broadcast_to(scales, groups.shape)
    if self.scope == 'column':  # one scale for each element
      return codes, scales.reshape(rows.shape)
    return codes, scales[:, :, 0]

  def _round_scales(self, largest: np.ndarray) -> np.ndarray:
    largest = np.where(largest == 0, np.float32(1), largest)
    if self.power == 'floor':
      exponents = np.floor(np.log2(largest)) - np.floor(np.log2(self.top))
    else:
      exponents = np.ceil(np.log2(largest / np.float32(self.top)))
    return np.exp2(exponents).astype(np.float32)

  def _round_codes(self, values: np.ndarray) -> np.ndarray:
    if self.element == 'int8':
      whole = np.rint(values) if self.rounding == 'even' else np.trunc(values)
      if self.overflow == 'wrap':
        return whole.astype(np.int32).astype(np.int8).astype(np.float32)
      return np.clip(whole, -128, 127)
    dtype = np.dtype(getattr(ml_dtypes, self.element))
    highest = np.float32(ml_dtypes.finfo(dtype).max)
    if self.overflow == 'saturate':
      values = np.clip(values, -highest, highest)
    codes = values.astype(dtype)
    if self.rounding == 'cut':
      # One code nearer to zero where rounding went away from it.
      away = np.abs(codes.astype(np.float32)) > np.abs(values)
      codes = (codes.view(np.uint8) - away.astype(np.uint8)).view(dtype)
    return codes.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Form:
  """What a layer's tensors come in, and what becomes of its rows.

  Attributes:
    element: of codes of both weights: int8, float8_..., int4, uint4 or e2m1;
      '': weights are values.
    group: elements along the depth and across that share a scale; 0: all.
    expert_in, activation: what the two GEMMs make of their rows.
    storage: dtype of stages.
    y: dtype of y.
  """

  element: str
  group: tuple[int, int]
  expert_in: Quantiser = Quantiser()
  activation: Quantiser = Quantiser()
  storage: str = 'float32'
  y: str = 'float32'


_E4M3 = Quantiser('float8_e4m3fn', BLOCK)
_STATIC = Quantiser('float8_e4m3fn', static=True)
_INT8 = Quantiser('int8', 0, 127.0, 1e-30)
FORMS = {
  'fp8_blocks': Form(
    'float8_e4m3fn', (BLOCK, BLOCK), activation=_E4M3, y='bfloat16'
  ),
  'fp8_rows': Form('float8_e4m3fn', (BLOCK, BLOCK), _E4M3, _E4M3),
  'fp8_static': Form('float8_e4m3fn', (BLOCK, BLOCK), _STATIC, _STATIC),
  'int8': Form('int8', (0, 1), _INT8, _INT8),
  'mxfp8': Form(
    'float8_e4m3fn',
    (32, 1),
    *[Quantiser('float8_e4m3fn', 32, power='floor')] * 2,
  ),
  'int4': Form('int4', (32, 1), storage='bfloat16', y='bfloat16'),
  'uint4': Form('uint4', (64, 1), storage='bfloat16', y='bfloat16'),
  'mxfp4': Form('e2m1', (32, 1), storage='bfloat16', y='bfloat16'),
  'values': Form('', (0, 0), storage='bfloat16', y='bfloat16'),
  'contest': Form('float8_e4m3fn', (BLOCK, BLOCK), y='bfloat16'),
}


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A layer of one rank.

  Attributes:
    form: of its tensors.
    point: where the bug is; '': there is none.
    change: the bug.
  """

  form: Form
  point: str = ''
  change: Change = lambda value, source: value

  def compute(
    self,
    x: np.ndarray,
    ids: np.ndarray,
    weights: np.ndarray,
    arrays: Mapping[str, np.ndarray],
  ) -> dict[str, np.ndarray]:
    """Returns the stages and y of a layer.

    Args:
      x: `[T, D]` float32, or codes with `x_scales` among the arrays.
      ids: `[T, K]`, experts of this rank; -1: none.
      weights: `[T, K]` float32.
      arrays: codes `[E, X, Y]`, scales and zeros of both weights, by name.
    """
    ids = self.pass_('topk_ids', ids)
    weights = self.pass_('topk_weights', weights)
    if 'x_scales' in arrays:
      codes = self.pass_('x_codes', x).astype(np.float32)
      scales = self.pass_('x_scales', arrays['x_scales'])
      x = codes * np.repeat(scales, BLOCK, -1)[:, : codes.shape[1]]
    x = x.astype(np.float32)
    matrices = [self._read(arrays, n) for n in ('w_gate_up', 'w_down')]
    num_experts = len(matrices[0])
    counts = np.bincount(ids[ids >= 0], minlength=num_experts)
    places = self.pass_('expert_of_rows', np.arange(num_experts), counts)
    static = {
      n: self._read_scale(arrays, n) for n in ('expert_in', 'activation')
    }
    stages: dict[str, list[np.ndarray]] = {}
    y = np.zeros(x.shape, np.float32)
    first_scale = np.float32(1)
    for expert in range(num_experts):
      token, slot = np.nonzero(ids == expert)
      if not len(token):
        continue
      scale = static['expert_in'][expert]
      rows, coded = self._quantise('expert_in', x[token], None, scale)
      if 'expert_in_scales' in coded:
        first_scale = coded['expert_in_scales'][:, :1]
      gate_up = self._multiply(rows, matrices[0][places[expert]])
      gate, up = self.pass_('split', np.split(gate_up, 2, -1), gate_up)
      with np.errstate(over='ignore', invalid='ignore'):
        activation = self._store(gate / (1 + np.exp(-gate)) * up)
      activation = self.pass_('activation', activation, (gate, up))
      values, coded_activation = self._quantise(
        'activation', activation, first_scale, static['activation'][expert]
      )
      out = self._multiply(values, matrices[1][places[expert]])
      out = self.pass_('expert_out', out)
      of_expert = dict(gate_up=gate_up, activation=activation, expert_out=out)
      for name, tensor in (of_expert | coded | coded_activation).items():
        stages.setdefault(name, []).append(tensor)
      weighted = out * weights[token, slot, None]
      np.add.at(y, token, self.pass_('weighted', weighted))
    y = self.pass_('y', y, ids)
    outputs = {n: np.concatenate(t) for n, t in stages.items()}
    outputs = {n: self._store_output(n, rows) for n, rows in outputs.items()}
    return outputs | {'y': y.astype(_find_dtype(self.form.y))}

  def pass_(self, point: str, value: Any, source: Any = None) -> Any:
    """Returns a value, changed where the bug is."""
    return self.change(value, source) if point == self.point else value

  def _store_output(self, name: str, rows: np.ndarray) -> np.ndarray:
    """Returns rows of a stage, codes or scales in the dtype of files."""
    quantiser = getattr(self.form, name.rpartition('_')[0], None)
    if name.endswith('_codes'):
      return rows.astype(_find_dtype(quantiser.element))
    if not name.endswith('_scales'):
      return rows.astype(_find_dtype(self.form.storage))
    if quantiser.power:
      return (np.log2(rows) + 127).astype(np.uint8)
    return rows.astype(np.float32)

  def _multiply(self, rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return self._store(self.pass_('product', rows @ matrix, (rows, matrix)))

  def _store(self, values: np.ndarray) -> np.ndarray:
    return _round_to(values, self.form.storage)

  def _read(self, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Returns a weight `[E, X, Y]` float32."""
    if not self.form.element:
      return arrays[name].astype(np.float32)
    words = self.pass_(f'{name}_codes', arrays[f'{name}_codes'])
    scales = arrays[f'{name}_scales']
    if scales.dtype == np.uint8:
      bias = self.pass_(f'{name}_bias', 127)
      scales = np.float32(2) ** (scales.astype(np.int32) - bias)
    scales = self.pass_(f'{name}_scales', scales.astype(np.float32))
    codes = self._decode(name, words)
    if f'{name}_zeros' in arrays:
      zeros = arrays[f'{name}_zeros'].astype(np.float32)
      zeros = self.pass_(f'{name}_zeros', zeros, scales)
      codes = codes - self._spread(zeros, codes.shape)
    return codes * self._spread(scales, codes.shape)

  def _decode(self, name: str, words: np.ndarray) -> np.ndarray:
    if self.form.element not in ('int4', 'uint4', 'e2m1'):
      return words.astype(np.float32)
    nibbles = np.stack([words & 15, words >> 4], 2)
    shape = words.shape[0], -1, words.shape[2]
    nibbles = nibbles.reshape(shape).astype(np.int32)
    nibbles = self.pass_(f'{name}_nibbles', nibbles, words)
    values = {
      'uint4': lambda n: n,
      'int4': lambda n: n - 16 * (n > 7),
      'e2m1': lambda n: np.where(n & 8, -1, 1) * _E2M1[n & 7],
    }[self.form.element](nibbles)
    return self.pass_(f'{name}_values', values, nibbles).astype(np.float32)

  def _spread(self, scales: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns scales `[E, X', Y']` of groups, of each element."""
    for axis, group in zip((_DEPTH, _ACROSS), self.form.group):
      scales = np.repeat(scales, group or shape[axis], axis)
    return scales[:, : shape[_DEPTH], : shape[_ACROSS]]

  def _read_scale(self, arrays: Mapping[str, np.ndarray], name: str):
    """Returns `[E]`, scales of rows that are inputs, or ones."""
    if f'{name}_scale' not in arrays:
      return np.ones(
        len(arrays['w_down_codes' if self.form.element else 'w_down'])
      )
    first = arrays['expert_in_scale']
    return self.pass_(f'{name}_scale', arrays[f'{name}_scale'], first)

  def _quantise(self, name: str, rows: np.ndarray, source: Any, scale: float):
    """Returns values of codes; and codes and scales, by name, as returned."""
    right = getattr(self.form, name)
    quantiser = self.pass_(f'{name}_quantiser', right)
    if not quantiser.element:
      return rows, {}
    codes, scales = quantiser.quantise(rows, scale)
    codes = self.pass_(f'{name}_codes', codes)
    scales = self.pass_(f'{name}_scales', scales, source)
    width = rows.shape[1]
    spread = np.repeat(scales, -(-width // scales.shape[1]), 1)[:, :width]
    coded = {f'{name}_codes': codes}
    coded[f'{name}_scales'] = spread[:, :: right.group or width]
    if not right.element:  # a case without codes has no place for them
      coded = {}
    if right.static:
      del coded[f'{name}_scales']
    codes = self.pass_(f'{name}_codes_read', codes)
    spread = self.pass_(f'{name}_scales_read', spread, right.group or width)
    return codes * spread, coded


def _find_dtype(name: str) -> np.dtype:
  return np.dtype(getattr(ml_dtypes, name, name))


def _round_to(values: np.ndarray, dtype: str) -> np.ndarray:
  return values.astype(_find_dtype(dtype)).astype(np.float32)


def compute_y(kernel: Kernel, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
  """Returns y `[1, T, D]` of a case of one rank."""
  return _compute(kernel, inputs)['y'][None]


def _compute(kernel: Kernel, inputs: Mapping[str, np.ndarray]):
  arrays = {name: array[0] for name, array in inputs.items()}
  x = arrays['x_codes' if 'x_codes' in arrays else 'x']
  routing = arrays['topk_ids'], arrays['topk_weights']
  return kernel.compute(x, *routing, arrays)


def compute_case(
  kernel: Kernel, inputs: Mapping[str, np.ndarray], capacity: int
) -> dict[str, np.ndarray]:
  """Returns the stages and y `[1, ...]` of a case of one rank.

  Args:
    kernel: the layer.
    inputs: of the contract.
    capacity: rows that stages have.
  """
  outputs = _compute(kernel, inputs)
  for name, rows in outputs.items():
    if name != 'y':
      padding = np.zeros((capacity - len(rows), rows.shape[1]), rows.dtype)
      outputs[name] = np.concatenate([rows, padding])
  return {name: array[None] for name, array in outputs.items()}


# The contest's definition in the sizes of definition_testing.py.
_TOP_K, _GROUPS, _TOP_GROUPS = 4, 4, 2


def make_solution(kernel: Kernel) -> Callable[..., np.ndarray]:
  """Returns a kernel in the form of FlashInfer-Bench's DeepSeek-V3 definition.

  Its scales of x lie as `[D / 128, T]`, matrices as `[E, 2F, D]` and
  `[E, D, F]`, up in the first half of the rows of the first.
  """

  def run(logits, bias, x, x_scales, w1, s1, w2, s2, first, scale):
    ids, weights = _route(kernel, logits, bias.astype(np.float32), scale)
    local = ids - kernel.pass_('first_expert', first)
    local = np.where((local >= 0) & (local < len(w1)), local, -1)
    local = kernel.pass_('local_experts', local)
    by_token = np.ascontiguousarray(x_scales.T)
    as_it_lies = x_scales.reshape(by_token.shape)
    scales = _put_gate_first(s1)
    arrays = dict(
      x_scales=kernel.pass_('x_scales_layout', by_token, as_it_lies),
      w_gate_up_codes=_turn(_put_gate_first(w1)),
      w_gate_up_scales=_turn(kernel.pass_('gate_up_scales_layout', scales, s1)),
      w_down_codes=_turn(w2),
      w_down_scales=_turn(s2),
    )
    return kernel.compute(x, local, weights.astype(np.float32), arrays)['y']

  return run


def _turn(matrices: np.ndarray) -> np.ndarray:
  return np.ascontiguousarray(np.swapaxes(matrices, -1, -2))


def _put_gate_first(matrices: np.ndarray) -> np.ndarray:
  return np.concatenate(np.split(matrices, 2, 1)[::-1], 1)


def _route(kernel: Kernel, logits, bias, scale):
  """Returns experts `[T, K]` of all ranks, and weights."""
  scores = 1 / (1 + np.exp(-logits.astype(np.float32)))
  biased = kernel.pass_('biased_scores', scores + bias, scores)
  groups = biased.reshape(len(biased), _GROUPS, -1)
  best = np.sort(groups, -1)[..., ::-1]
  group_scores = kernel.pass_(
    'group_scores', best[..., :2].sum(-1), best[..., 0]
  )
  mask = np.zeros(group_scores.shape, np.float32)
  top = np.argsort(-group_scores, -1, kind='stable')[:, :_TOP_GROUPS]
  np.put_along_axis(mask, top, 1, -1)
  mask = kernel.pass_('groups_mask', mask)
  choice = np.where(mask[..., None] > 0, groups, -np.inf).reshape(biased.shape)
  ids = np.argsort(-choice, -1, kind='stable')[:, :_TOP_K]
  weights = kernel.pass_(
    'scores_of_experts',
    np.take_along_axis(scores, ids, -1),
    np.take_along_axis(biased, ids, -1),
  )
  half = scores.shape[1] // 4  # experts of the rank: the middle half
  is_local = (ids >= half) & (ids < 3 * half)
  total = kernel.pass_(
    'sum_of_scores',
    weights.sum(-1, keepdims=True),
    (weights * is_local).sum(-1, keepdims=True),
  )
  factor = kernel.pass_('scaling_factor', np.float32(scale))
  return ids, weights / (total + np.float32(1e-20)) * factor
