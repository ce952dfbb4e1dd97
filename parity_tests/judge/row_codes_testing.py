"""Layers of one rank in numpy that quantise their rows, and return the codes.

Each quantiser is written down in plain steps of numpy and ml_dtypes, in one of
the orders of arithmetic that kernels have; of the table of forms it reads only
numbers.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses

import ml_dtypes
import numpy as np

from hpmoe.reference.contract import quantised

ORDERS = ('divide', 'reciprocal', 'encode')
f32 = np.float32


@dataclasses.dataclass(frozen=True)
class Quantiser:
  """Makes codes of rows.

  Attributes:
    form: a name of the table.
    order: of `ORDERS`: x / s; x times 1 / s; x times top / a, and s from that.
  """

  form: str
  order: str = 'divide'

  def __call__(
    self, rows: np.ndarray, static: np.ndarray | None = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns codes `[n, X]` and scales `[n, g]`, as files have them.

    `static` `[n]` are scales that are an input; None: they are computed.
    """
    form = quantised.FORMS[self.form]
    if static is not None and form.is_packed:
      rows = rows / static[:, None]
    elif static is not None:
      scale = static[:, None]
      scaled = rows / scale
      if self.order != 'divide':
        scaled = rows * (f32(1) / scale)
      top = f32(form.top[0])
      if self.order == 'overflow':  # a bug: NaN, not the largest code
        return scaled.astype(_find_dtype(form.element)), scale
      if form.element != 'int8':
        scaled = np.clip(scaled, -top, top)
      return self._round(form, scaled), scale
    width = form.group[1] or rows.shape[1]
    padded = np.zeros((len(rows), -(-rows.shape[1] // width) * width), f32)
    padded[:, : rows.shape[1]] = rows
    groups = padded.reshape(len(rows), -1, width)
    largest = np.maximum(
      np.abs(groups).max(2, keepdims=True), f32(form.min_magnitude)
    )
    live = largest > 0
    scaled, scales = self._scale(form, groups, np.where(live, largest, f32(1)))
    codes = self._round(form, scaled).reshape(padded.shape)
    scales = np.where(live, scales, f32(form.of_zeros))[..., 0]
    if form.is_packed:
      nibbles = codes.view(np.uint8)[:, : rows.shape[1]]
      pairs = nibbles[:, ::2] | nibbles[:, 1::2] << 4
      return pairs, _store_scales(form, scales)
    return codes[:, : rows.shape[1]], _store_scales(form, scales)

  def _scale(self, form, groups, largest):
    top = f32(form.top[0])
    if form.rule in ('ceil', 'floor'):
      if form.rule == 'floor':
        power = np.frexp(largest)[1] - np.frexp(top)[1]
      else:
        fraction, power = np.frexp(largest / top)
        power = power - (fraction == 0.5)
      return np.ldexp(groups, -power), np.ldexp(f32(1), power)
    if self.order == 'encode' and form.scale == 'float32':
      factor = top / largest
      return groups * factor, f32(1) / factor
    scale = np.minimum(largest / top, f32(448) if form.is_packed else np.inf)
    scale = scale.astype(_find_dtype(form.scale)).astype(f32)
    if form.is_packed:
      live = scale > 0
      return np.where(live, groups / np.where(live, scale, 1), 0), scale
    if self.order == 'divide':
      return groups / scale, scale
    return groups * (f32(1) / scale), scale

  def _round(self, form, scaled):
    dtype = _find_dtype(form.element)
    if form.element != 'int8':
      highest = f32(ml_dtypes.finfo(dtype).max)
      if form.rounding[0][1] == 'zero':  # a tie goes to zero
        scaled = scaled * f32(1 - 2.0**-23)
      return np.clip(scaled, -highest, highest).astype(dtype)
    for name, mode in form.rounding:
      if name == 'float16':
        half = scaled.astype(np.float16)
        is_beyond = np.abs(half.astype(f32)) > np.abs(scaled)
        if mode == 'cut':
          half = np.where(is_beyond, np.nextafter(half, np.float16(0)), half)
        scaled = half.astype(f32)
      elif mode == 'away':
        scaled = np.copysign(np.floor(np.abs(scaled) + f32(0.5)), scaled)
    return np.clip(np.rint(scaled), -128, 127).astype(np.int8)


def _store_scales(form: quantised.Form, scales: np.ndarray) -> np.ndarray:
  if form.rule in ('ceil', 'floor'):
    return (np.frexp(scales)[1] - 1 + 127).astype(np.uint8)
  return scales.astype(_find_dtype(form.scale))


def _find_dtype(name: str) -> np.dtype:
  return np.dtype(getattr(ml_dtypes, name, name))


def dequantise(form: str, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
  """Returns values `[n, X]` float32 of codes and scales."""
  if quantised.FORMS[form].is_packed:
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
    codes = nibbles.astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
  if scales.dtype == np.uint8:
    scales = np.ldexp(f32(1), scales.astype(np.int32) - 127)
  width = quantised.FORMS[form].group[1] or codes.shape[1]
  spread = np.repeat(scales.astype(f32), width, 1)[:, : codes.shape[1]]
  return codes.astype(f32) * spread


@dataclasses.dataclass(frozen=True)
class Layer:
  """A kernel of one rank that returns all its stages, or some.

  Attributes:
    quantisers: of rows, by name.
    outputs: names; None: all.
    quantises_tokens: whether it quantises tokens, and sends their codes.
    change: of the codes and scales of tokens, before they are sent; None: none.
  """

  quantisers: Mapping[str, Quantiser]
  outputs: Collection[str] | None = None
  quantises_tokens: bool = False
  change: Callable[[np.ndarray, np.ndarray], tuple] | None = None

  def __call__(self, inputs, config, policy) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    ids, x = inputs['topk_ids'][0], inputs['x'][0].astype(f32)
    slots = np.argsort(ids.reshape(-1), kind='stable')
    slots = slots[ids.reshape(-1)[slots] >= 0]
    expert, token = ids.reshape(-1)[slots], slots // config.top_k
    scales = {
      name: inputs[f'{name}_scale'][0][expert]
      for name in self.quantisers
      if f'{name}_scale' in inputs
    }
    if self.quantises_tokens:
      rows = self._send(x, token, tensors)
    else:
      rows = self._quantise('expert_in', x[token], tensors, scales)
    gate_up = _multiply(rows, inputs['w_gate_up'][0], expert)
    tensors['gate_up'] = _store(policy, 'gate_up', gate_up)
    gate, up = np.split(tensors['gate_up'].astype(f32), 2, 1)
    with np.errstate(over='ignore'):
      activation = gate / (1 + np.exp(-gate)) * up
    tensors['activation'] = _store(policy, 'activation', activation)
    rows = self._quantise(
      'activation', tensors['activation'].astype(f32), tensors, scales
    )
    out = _multiply(rows, inputs['w_down'][0], expert)
    tensors['expert_out'] = _store(policy, 'expert_out', out)
    weights = inputs['topk_weights'].reshape(-1)[slots]
    y = np.zeros(x.shape, f32)
    order = np.argsort(slots, kind='stable')
    weighted = tensors['expert_out'].astype(f32) * weights[:, None]
    np.add.at(y, token[order], weighted[order])
    tensors['y'] = _store(policy, 'y', y)
    return {
      name: tensor[None]
      for name, tensor in tensors.items()
      if self.outputs is None or name in self.outputs
    }

  def _send(self, x, token, tensors) -> np.ndarray:
    quantiser = self.quantisers['expert_in']
    parts = quantiser(x)
    if self.change is not None:
      parts = self.change(*parts)
    for part, of_tokens in zip(('codes', 'scales'), parts):
      tensors[f'x_{part}'] = of_tokens
      tensors[f'expert_in_{part}'] = of_tokens[token]
    return dequantise(quantiser.form, *(part[token] for part in parts))

  def _quantise(self, name: str, rows, tensors, static) -> np.ndarray:
    if name not in self.quantisers:
      return rows
    quantiser = self.quantisers[name]
    codes, scales = quantiser(rows, static.get(name))
    tensors[f'{name}_codes'] = codes
    form = quantised.FORMS[quantiser.form]
    if not form.is_static:
      tensors[f'{name}_scales'] = scales
    values = dequantise(quantiser.form, codes, scales)
    return (
      values * static[name][:, None] if form.is_packed and static else values
    )


def _store(policy, name: str, values: np.ndarray) -> np.ndarray:
  return values.astype(_find_dtype(policy.dtype(name)))


def _multiply(rows, weights, expert) -> np.ndarray:
  sums = np.zeros((len(rows), weights.shape[2]), f32)
  for number in np.unique(expert):
    of_expert = expert == number
    sums[of_expert] = rows[of_expert] @ weights[number].astype(f32)
  return sums
