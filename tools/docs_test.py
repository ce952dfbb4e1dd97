"""The examples of the docs run as they stand."""

import pathlib
import re

import numpy as np

DOCS = pathlib.Path(__file__).parents[1] / 'docs'


def test_a_production_launch_forward_and_back():
  (block,) = re.findall(
    r'^```python\n(.*?)^```$',
    (DOCS / 'fast_lane.md').read_text(),
    flags=re.MULTILINE | re.DOTALL,
  )
  names = {}
  exec(block, names)
  assert names['y'].shape == (1, 64, 32)
  assert set(names['grads']) == {
    'dx',
    'd_topk_weights',
    'd_w_gate_up',
    'd_w_down',
  }
  for array in (names['y'], *names['grads'].values()):
    assert np.isfinite(array).all() and array.any()
