"""Layers decode by turns, and the turn that compiles is not counted."""

import numpy as np

from benchmarks import decode
from hpmoe.models import config as config_lib

_SECONDS = {'framework': 0.25, 'host': 0.125}
_ROUNDS, _BATCH = 1, 2


class _Slow:
  """A model whose first turn takes long, as one that compiles does."""

  turns: list[str] = []
  now = 0.0

  def __init__(self, params, config, moe):
    del params, config
    self._moe = moe

  def empty(self, batch, capacity, starts):
    assert (batch, starts) == (_BATCH, None)
    self.turns.append(self._moe)
    self._left = capacity

  def step(self, tokens, cache):
    self._left -= tokens.shape[1]
    assert self._left >= 0
    first = self.turns.count(self._moe) == 1
    _Slow.now += (10 if first else 1) * _SECONDS[self._moe]
    return np.zeros((_BATCH, 1)), cache


def test_each_layer_has_its_own_median_by_turns(monkeypatch):
  monkeypatch.setattr(decode.time, 'perf_counter', lambda: _Slow.now)
  config = config_lib.load('deepseek_tiny')
  ms = decode.milliseconds(_Slow, config, {}, _BATCH, _ROUNDS)
  assert _Slow.turns == ['framework', 'host', 'host', 'framework']
  assert ms == {layer: 1e3 * seconds for layer, seconds in _SECONDS.items()}
