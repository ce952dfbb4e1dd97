"""Every layout of every tensor is undone bit for bit."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.case import layouts
from hpmoe.reference.contract import tensors

# All sizes differ; one rank with one expert; D = 2F, so that shapes say little.
SIZES = {
  'all_differ': dict(R=2, T=3, E=8, L=4, K=5, D=6, F=7, N=9),
  'of_one': dict(R=1, T=1, E=1, L=1, K=1, D=2, F=1, N=1),
  'square': dict(R=2, T=4, E=4, L=2, K=2, D=8, F=4, N=8),
}
# Axes of others, by ours.
AXES = {
  'R T D': ('R T D', 'M D', 'T R D', 'D M'),
  'R T K': ('R T K', 'M K', 'R K T', 'R S'),
  'R T K D': ('R T K D', 'M K D', 'R S D', 'K M D'),
  'R L D 2F': ('R L D 2F', 'E D 2F', 'E 2F D', 'R L 2F D', '2F E D'),
  'R L F D': ('R L F D', 'E F D', 'E D F', 'D E F'),
  'R N D': ('R N D', 'N R D', 'R D N'),
  'R N F': ('R N F', 'N R F'),
  'R N 2F': ('R N 2F', '2F R N'),
  'R E': ('R E', 'E R'),
}


def _theirs():
  for spec in tensors.SPECS.values():
    halves = layouts.HALVES if '2F' in spec.shape.split() else ('gate_up',)
    for axes, half in itertools.product(AXES[spec.shape], halves):
      yield spec.name, f'{axes}, {half}'


def _drawn(name: str, sizes: dict[str, int]) -> np.ndarray:
  spec = tensors.SPECS[name]
  kind = dict(i32=np.int32, f32=np.float32, storage=ml_dtypes.bfloat16)
  dims = spec.dims(**sizes)
  return np.arange(np.prod(dims)).reshape(dims).astype(kind[spec.kind])


@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
def test_every_layout_of_every_tensor_is_undone(sizes):
  for name, text in _theirs():
    ours, layout = _drawn(name, sizes), layouts.parse(name, text)
    theirs = layout.apply(ours)
    every = {**sizes, '2F': 2 * sizes['F']}
    assert theirs.shape == layout.shape(every), (name, text)
    back = layout.undo(theirs, every)
    np.testing.assert_array_equal(back, ours, f'{name} {text}')
    assert back.dtype == ours.dtype


def test_where_elements_go():
  # given: gate 0 and 1, up 10 and 11, of one row.
  ours = np.float32([[[0, 1, 10, 11]]])
  for text, there in (
    ('R N 2F, interleaved', [[[0, 10, 1, 11]]]),
    ('R N 2F, up_gate', [[[10, 11, 0, 1]]]),
    ('2F N', [[0], [1], [10], [11]]),
  ):
    theirs = layouts.parse('gate_up', text).apply(ours)
    np.testing.assert_array_equal(theirs, there)
  weights = np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)
  stacked = layouts.parse('w_down', 'E D F').apply(weights)
  np.testing.assert_array_equal(stacked[2], weights[1, 0].T)


def test_another_dtype_of_the_same_values():
  ids = np.int32([[[3, 0]]])
  theirs = layouts.parse('topk_ids', 'M K, int64').apply(ids)
  assert theirs.dtype == np.int64
  back = layouts.as_stored('topk_ids', theirs, 'int32')
  np.testing.assert_array_equal(back, ids[0])


@pytest.mark.parametrize(
  ('array', 'dtype', 'said'),
  [
    (np.float32([1, 1.001]), 'bfloat16', r'float32 1.001\S* at \[1\]'),
    (np.int64([2**40]), 'int32', r'int64 1099511627776 at \[0\]'),
    (np.float64([1e300]), 'float32', r'float64 1e\+300'),
    (np.array(['a']), 'float32', 'float32, got <U1'),
  ],
)
def test_other_values_are_refused(array, dtype, said):
  with pytest.raises(ValueError, match=f'y: expected.*{said}'):
    layouts.as_stored('y', array, dtype)


@pytest.mark.parametrize('bits', (np.uint16, np.int16, np.dtype('V2')))
def test_bits_of_bfloat16_are_its_values(bits):
  values = np.array([1.5, -2], ml_dtypes.bfloat16)
  found = layouts.as_stored('y', values.view(bits), 'bfloat16')
  np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
  ('name', 'text', 'said'),
  [
    ('bias', 'E D', 'layouts: expected tensors among'),
    ('x', 'R T T', r'x: expected axes of \[R T D\]'),
    ('x', 'R T F', r'x: expected axes of \[R T D\]'),
    ('x', 'M T D', r'x: expected axes of \[R T D\]'),
    ('x', 'R T D, interleaved', 'has no 2F'),
    ('x', 'R T D, backwards', "got 'backwards'"),
  ],
)
def test_a_wrong_layout_is_refused(name, text, said):
  with pytest.raises(ValueError, match=said):
    layouts.parse(name, text)


def test_an_axis_left_out_has_one_element():
  layout = layouts.parse('x', 'T D')
  assert layout.apply(np.zeros((1, 3, 4))).shape == (3, 4)
  with pytest.raises(ValueError, match="expected R=1, which layout 'T D'"):
    layout.apply(np.zeros((2, 3, 4)))


def test_one_rank_may_lack_its_axis():
  layout = layouts.parse('gate_up', 'N R 2F, interleaved')
  array = np.arange(12.0).reshape(3, 4)
  assert layout.with_rank(array, 1).shape == (3, 1, 4)
  assert layout.with_rank(array, 2) is array


def test_another_shape_is_refused():
  layout = layouts.parse('w_down', 'E D F')
  sizes = {**SIZES['all_differ'], '2F': 14}
  with pytest.raises(ValueError, match=r'\[E D F\] = \[8, 6, 7\], got \[8, 7'):
    layout.undo(np.zeros((8, 7, 6)), sizes)
