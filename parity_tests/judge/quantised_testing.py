"""A layer of codes and scales in numpy, right or wrong in a known way."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised

CONFIG = config_testing.make_config(r=2, t=16, e=4, k=2, d=144, f=72)
# (weights, rows, what kernels do to rows).
DYNAMIC = [
  ('int8_channel', 'int8_token', 'int8 divide'),
  ('e4m3_128x128', 'e4m3_1x128', 'e4m3 128 reciprocal'),
  ('int8_channel', 'int8_token', 'int8'),
  ('e4m3_128x128', 'e4m3_1x128', 'e4m3 128'),
  ('e4m3_128x128_ceil', 'e4m3_1x128_ceil', 'e4m3 128 power'),
  ('e4m3_channel', 'e4m3_1x128', 'e4m3 128'),
  ('mxfp8', 'mxfp8', 'mx'),
]
E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def _codes(form: str, codes: np.ndarray) -> np.ndarray:
  """Returns codes `[X, Y]` float32; 4 bits are of int4, uint4 or e2m1."""
  if not quantised.ELEMENTS[quantised.FORMS[form].element].is_packed:
    return codes.astype(np.float32)
  if codes.dtype == np.int32:
    return _read_words(codes, form == 'int4_awq').astype(np.float32)
  pairs = np.stack([codes & 15, codes >> 4], axis=1)
  nibbles = pairs.reshape(-1, codes.shape[1]).astype(np.int32)
  if form.startswith(('mxfp4', 'nvfp4')):
    return np.where(nibbles & 8, -1, 1) * E2M1[nibbles & 7]
  if form.startswith(('int4', 'mxint4')):
    nibbles = nibbles - 16 * (nibbles > 7)
  return nibbles.astype(np.float32)


def _read_words(words: np.ndarray, is_awq: bool) -> np.ndarray:
  """Returns codes `[X, Y]` of words of eight, along X, or along Y in AWQ."""
  rows, columns = words.shape
  places = (0, 4, 1, 5, 2, 6, 3, 7) if is_awq else range(8)
  nibbles = [words.view(np.uint32) >> 4 * place & 15 for place in places]
  if is_awq:
    return np.stack(nibbles, axis=2).reshape(rows, 8 * columns)
  return np.stack(nibbles, axis=1).reshape(8 * rows, columns)


def _wide(scales: np.ndarray) -> np.ndarray:
  if scales.dtype == np.uint8:
    return np.float32(2) ** (scales.astype(np.int32) - 127)
  return scales.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Kernel(trial.Kernel):
  """A layer of codes.

  Attributes:
    scaled: a scale multiplies 'terms', or 'sums' of one group's terms; or terms
      that are then rounded to 'operands' of the storage dtype.
    rows: what it makes of its rows, see `_of_rows`.
    wrong: what it does to the scales of w_gate_up, see `_spoilt`.
  """

  scaled: str = 'sums'
  rows: str = ''

  def __call__(self, inputs, config, policy):
    computed = self.forward(config, policy, inputs)
    names = ('y', 'gate_up', 'activation', 'expert_out')
    return {name: computed[name] for name in names}

  def _expert(self, policy, a, inputs, name, expert, *_):
    a = a.astype(np.float32)
    codes = _codes(policy.quantised, inputs[f'{name}_codes'][expert])
    scales = _wide(inputs[f'{name}_scales'][expert])
    if f'{name}_tensor_scales' in inputs:
      scales = scales * inputs[f'{name}_tensor_scales'][expert]
    size = [g or n for g, n in zip(_groups(policy.quantised), codes.shape)]
    if name == 'w_gate_up':
      scales = _spoilt(self.wrong, scales)
    scale_of_column = np.repeat(scales, size[1], axis=1)[:, : codes.shape[1]]
    if f'{name}_zeros' in inputs:
      zeros = np.repeat(inputs[f'{name}_zeros'][expert], size[1], axis=1)
      zeros = np.repeat(zeros, size[0], axis=0)
      codes = codes - zeros[: codes.shape[0], : codes.shape[1]]
    if self.rows:
      return self._store(
        policy, self._quantised(a, codes, scale_of_column, size[0])
      )
    total = np.zeros((len(a), codes.shape[1]), np.float32)
    for block, scale in enumerate(scale_of_column):
      group = slice(block * size[0], (block + 1) * size[0])
      if self.scaled == 'sums':
        total += a[:, group] @ codes[group] * scale
      else:
        terms = codes[group] * scale
        if self.scaled == 'operands':
          terms = self._store(policy, terms).astype(np.float32)
        total += a[:, group] @ terms
    return self._store(policy, total)

  def _quantised(self, a, codes, scale_of_column, size):
    """Returns sums of products of codes, scaled block by block of 128."""
    total = np.zeros((len(a), codes.shape[1]), np.float32)
    of_name = {'128': 128, 'mx': 32}
    word = next((w for w in of_name if w in self.rows), '')
    step = of_name.get(word, len(codes))
    for lo in range(0, len(codes), step):
      group = slice(lo, lo + step)
      codes_of_rows, scale = _quantise_rows(self.rows, a[:, group])
      total += (codes_of_rows @ codes[group] * scale) * scale_of_column[
        lo // size
      ]
    return total


def _quantise_rows(
  quantiser: str, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns codes of rows `[n, x]`, each one group, and scales `[n, 1]`."""
  amax = np.abs(a).max(1, keepdims=True)
  if quantiser == 'mx':
    power = np.frexp(np.where(amax, amax, 1))[1] - 1 - 8
    scale = np.ldexp(np.float32(1), power)
    codes = np.clip(a / scale, -448, 448)
    return codes.astype(ml_dtypes.float8_e4m3fn).astype(np.float32), scale
  if quantiser.startswith('e4m3'):
    amax = np.maximum(amax, np.float32(1e-4))
    scale = amax / np.float32(448)
    codes = a / scale
    if 'power' in quantiser:
      scale = np.exp2(np.ceil(np.log2(scale)))
      codes = a / scale
    if 'reciprocal' in quantiser:
      codes = a * (np.float32(1) / scale)
    if 'tail' in quantiser and a.shape[1] < 128:
      scale = np.ones_like(scale)
    return codes.astype(ml_dtypes.float8_e4m3fn).astype(np.float32), scale
  amax = np.where(amax, amax, np.float32(1))
  scale = amax / np.float32(127)
  codes = a * (np.float32(127) / amax)
  if 'divide' in quantiser:
    codes = a / scale
  if 'next row' in quantiser:
    scale = np.roll(scale, 1)
  if 'cut' in quantiser:
    return np.trunc(codes), scale
  if 'one scale' in quantiser:
    scale = np.broadcast_to(scale.max(), scale.shape)
    codes = a * (np.float32(127) / amax.max())
  return np.rint(codes), scale


def _spoilt(wrong: str, scales: np.ndarray) -> np.ndarray:
  scales = scales.copy()
  if wrong == 'of the next block':
    scales = np.roll(scales, 1, axis=int(scales.shape[0] == 1))
  elif wrong == 'of the first block':
    first = scales[:1] if len(scales) > 1 else scales[:, :1]
    scales = np.broadcast_to(first, scales.shape).copy()
  elif wrong == 'transposed':
    scales = np.ascontiguousarray(scales.T).reshape(scales.shape)
  elif wrong == 'an exponent off':
    scales[-1, -1] *= 2
  elif wrong == 'not of the tail':
    scales[-1] = 1
  elif wrong == 'in bfloat16':
    scales = scales.astype(ml_dtypes.bfloat16).astype(np.float32)
  elif wrong:
    raise ValueError(wrong)
  return scales


def _groups(form: str) -> tuple[int, ...]:
  """Returns how long a group is along the depth and across; 0: all of it."""
  return quantised.FORMS[form].group[::-1]


def draw_inputs(form: str, storage: str, seed: int, rows: str = ''):
  policy = precision.PrecisionPolicy(storage, rows=rows)
  return trial_verdicts.draw(CONFIG, policy, seed).with_codes(form)


def list_failed_rules(inputs, kernel: Kernel) -> list[str]:
  """Returns what of y lane bounded refuses."""
  other = 'terms' if kernel.scaled == 'sums' else 'sums'
  right = dataclasses.replace(kernel, scaled=other)
  outputs, right_outputs = (
    {'y': k(inputs.arrays, inputs.config, inputs.policy)['y']}
    for k in (kernel, right)
  )
  results = trial_verdicts.judge_results(inputs, outputs, right_outputs)
  return [r.rule for r in results.values() if r.verdict == verdicts.FAIL]


def mark_slow(quick: int, *parameters) -> list:
  """Returns parameters; those after the first few are slow together."""
  rest = [
    pytest.param(
      *(parameter if isinstance(parameter, tuple) else (parameter,)),
      marks=pytest.mark.slow,
    )
    for parameter in parameters[quick:]
  ]
  return [*parameters[:quick], *rest]
