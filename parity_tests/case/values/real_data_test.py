"""Weights are the same however many threads and panels draw them."""

import numpy as np
import pytest

from hpmoe.parity_tests.case import shared_memory
from hpmoe.parity_tests.case.values import magnitudes
from hpmoe.parity_tests.case.values import real_data
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import config as config_lib

_CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=4, num_experts=8, top_k=2, d_model=40, d_ff=24
)


def draw(dtype: str = 'float32', **changes) -> dict[str, np.ndarray]:
  storage = np.dtype(dtype)
  scales = magnitudes.plan_magnitudes(_CONFIG, storage)
  for name, factor in changes.items():
    getattr(scales, name)[...] *= factor
  return real_data.draw_weights(_CONFIG, storage, 3, scales)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_panels_and_threads_change_no_bit(monkeypatch, dtype):
  whole = draw(dtype)
  monkeypatch.setattr(shared_memory, 'LEAST_BYTES', 1)
  monkeypatch.setattr(real_data, '_PANEL', 100)

  parts = draw(dtype)

  for name, weight in whole.items():
    assert weight.tobytes() == parts[name].tobytes()
    checks.check_finite(name, weight)


def test_weights_that_might_overflow_are_refused():
  with pytest.raises(ValueError, match='^w_gate_up: .* float16 holds, got up'):
    draw('float16', gate=2.0**20)
  with pytest.raises(ValueError, match='^w_down: expected weights that'):
    draw('float16', experts=2.0**-40)
