"""Activations and their slopes in float32, by the formulas of textbooks."""

from collections.abc import Callable
import math

import numpy as np

_ERF = np.frompyfunc(math.erf, 1, 1)
_HALF, _UNIT = np.float32(0.5), np.float32(1)
_ROOT, _CUBE = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)


def _share_of_erf(z: np.ndarray) -> np.ndarray:
  erf = _ERF(z * np.float32(math.sqrt(0.5))).astype(np.float32)
  return _HALF * (_UNIT + erf)


def _tanh(z: np.ndarray) -> np.ndarray:
  return np.tanh(_ROOT * (z + _CUBE * z * z * z))


def _sigmoid(z: np.ndarray) -> np.ndarray:
  with np.errstate(over='ignore'):
    return _UNIT / (_UNIT + np.exp(-z))


def _erf_slope(z: np.ndarray) -> np.ndarray:
  with np.errstate(under='ignore'):
    density = np.exp(-_HALF * z * z) * np.float32(1 / math.sqrt(2 * math.pi))
  return _share_of_erf(z) + z * density


def _tanh_slope(z: np.ndarray) -> np.ndarray:
  tanh = _tanh(z)
  inner = _ROOT * (_UNIT + 3 * _CUBE * z * z)
  return _HALF * (_UNIT + tanh) + _HALF * z * (_UNIT - tanh * tanh) * inner


# By name: act(gate) and its slope.
FORMULAS: dict[str, tuple[Callable, Callable]] = {
  'geglu': (lambda z: z * _share_of_erf(z), _erf_slope),
  'geglu_tanh': (lambda z: _HALF * z * (_UNIT + _tanh(z)), _tanh_slope),
  'reglu': (
    lambda z: np.maximum(z, 0),
    lambda z: (z > 0).astype(np.float32),
  ),
  'relu2': (
    lambda z: np.square(np.maximum(z, 0)),
    lambda z: 2 * np.maximum(z, 0),
  ),
  'glu': (_sigmoid, lambda z: _sigmoid(z) * (_UNIT - _sigmoid(z))),
  'bilinear': (lambda z: z, np.ones_like),
}
