"""Rows of a tile so far apart that 32 bits do not count the elements between.

Only the pages of the rows themselves are touched.
"""

import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.host.tiles import tiles_testing

_ROWS, _APART = 3, 1 << 30  # the last row begins at element 2**31
every_isa = pytest.mark.parametrize('isa', _native.isas())


def draw(*shape) -> np.ndarray:
  """Returns bits of bfloat16 in [0.5, 2)."""
  rng = np.random.default_rng(7)
  return rng.integers(0x3F00, 0x4000, shape).astype(np.uint16)


def far(array: np.ndarray) -> np.ndarray:
  """Returns the same rows, far apart."""
  # Memory before them too: a wrong offset reads zeros and does not crash.
  memory = np.zeros((_ROWS + 2, _APART), np.uint16)
  view = memory[2:, : array.shape[1]]
  view[...] = array
  assert view.strides == (2 * _APART, 2)
  return view


@every_isa
@pytest.mark.parametrize('trans_a', [False, True])
@pytest.mark.parametrize('trans_b', [False, True])
def test_gemm(isa, trans_a, trans_b):
  # Given operands and a result whose rows are few, each as it is stored.
  options = dict(isa=isa, trans_a=trans_a, trans_b=trans_b)
  a, b = draw(_ROWS, _ROWS), draw(_ROWS, 5)
  b = draw(5, _ROWS) if trans_b else b
  want = tiles_testing.gemm_tile(a, b, **options)
  near_b = b if trans_b else far(b)
  out = far(np.zeros_like(want))
  tiles_testing.gemm_tile(far(a), near_b, out=out, **options)
  assert (out == want).all()


@every_isa
def test_gemm_of_a_transposed_weight(isa):
  a, b = draw(4, 19), draw(_ROWS, 19)
  want = tiles_testing.gemm_tile(a, b, isa=isa, trans_b=True)
  actual = tiles_testing.gemm_tile(a, far(b), isa=isa, trans_b=True)
  assert (actual == want).all()


@every_isa
def test_row_wise(isa):
  gate, up, other = draw(_ROWS, 19), draw(_ROWS, 19)[::-1], draw(_ROWS, 19)
  for kernel, operands in (
    (tiles_testing.swiglu_tile, (gate, up)),
    (tiles_testing.swiglu_grad_tile, (other, gate, up)),
    (tiles_testing.scale_rows_tile, (gate,)),
    (tiles_testing.row_dot_tile, (gate, up)),
  ):
    want = kernel(*map(np.ascontiguousarray, operands), isa=isa)
    actual = kernel(*map(far, operands), isa=isa)
    assert np.array_equal(actual, want), kernel


@every_isa
def test_combine(isa):
  returned_rows = draw(_ROWS, 19)
  want = tiles_testing.combine_tile(returned_rows[None], isa=isa)
  actual = tiles_testing.combine_tile(far(returned_rows)[None], isa=isa)
  assert (actual == want).all()
