"""Scales in tiles lie as other projects' code puts them."""

import numpy as np
import pytest

from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.parity_tests.case.layouts import part_layouts
from hpmoe.parity_tests.case.layouts import project_layouts
from hpmoe.parity_tests.case.layouts import swizzles
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

SHAPES = [(1, 1), (128, 4), (129, 5), (300, 9), (31, 13), (256, 8), (7, 4)]
CONFIG = config_testing.make_config(r=2, t=13, e=4, k=2, d=144, f=136)


def pad(matrix, rows, columns):
  lack = [(0, -n % size) for n, size in zip(matrix.shape, (rows, columns))]
  return np.pad(matrix, lack)


def swizzle_128x4(matrix):
  """The axes that torchao's to_blocked and vLLM's swizzle_blockscale move."""
  padded = pad(matrix, 128, 4)
  rows, columns = padded.shape
  parts = padded.reshape(rows // 128, 4, 32, columns // 4, 4)
  return parts.transpose(0, 3, 2, 1, 4).reshape(rows, columns)


def swizzle_8x4(matrix):
  padded = pad(matrix, 8, 4)
  rows, columns = padded.shape
  parts = padded.reshape(rows // 8, 8, columns // 4, 4)
  return parts.transpose(0, 2, 1, 3).reshape(rows, columns)


def pack_4x1(matrix):
  """Returns bytes of words `[ceil(A/4), B]`, each of four rows of a column."""
  rows, columns = matrix.shape
  padded = pad(matrix, 4, 1)
  words = np.zeros((len(padded) // 4, columns, 4), matrix.dtype)
  for row, column in np.ndindex(rows, columns):
    words[row // 4, column, row % 4] = matrix[row, column]
  return words.reshape(padded.shape)


FORMULAS = {
  'swizzled_128x4': swizzle_128x4,
  'swizzled_8x4': swizzle_8x4,
  'packed_4x1': pack_4x1,
}


@pytest.mark.parametrize('word', swizzles.SWIZZLES)
@pytest.mark.parametrize('shape', SHAPES)
def test_tiles_are_as_moved_axes_make_them(word, shape):
  matrix = np.arange(1, 1 + np.prod(shape)).reshape(shape)

  swizzled = swizzles.SWIZZLES[word].apply(matrix)

  np.testing.assert_array_equal(swizzled, FORMULAS[word](matrix))


def test_offsets_of_128x4_are_those_of_the_documentation():
  row, column = np.indices((300, 9))
  matrix = row * 9 + column + 1

  flat = swizzles.SWIZZLES['swizzled_128x4'].apply(matrix).reshape(-1)

  tile = row // 128 * 3 + column // 4
  offset = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
  np.testing.assert_array_equal(flat[offset], matrix)
  assert np.count_nonzero(flat) == matrix.size


def _policy(form):
  return precision.PrecisionPolicy(
    quantised=form, rows='mxfp8', x_form='e4m3_1x128'
  )


def _draw_part(name, policy):
  spec = tensors.IN_FILES[name]
  sizes = {**CONFIG.dims(), 'M': 26}
  sizes = part_layouts.find_sizes(name, policy, sizes)
  shape = [sizes[axis] for axis in spec.shape.split()]
  array = np.arange(1, 1 + np.prod(shape)).reshape(shape)
  return array.astype(np.uint32), sizes


# Of each part, layouts and the same in steps of numpy.
PARTS = {
  'x_scales': {
    'D M': lambda a: a.reshape(26, 2).T,
    'D M, pad M 4': lambda a: pad(a.reshape(26, 2).T, 1, 4),
    'D M, pad M 4, packed_4x1': lambda a: pack_4x1(
      pad(a.reshape(26, 2).T, 1, 4)
    ),
    'M D, swizzled_128x4': lambda a: swizzle_128x4(a.reshape(26, 2)),
    'R T D, swizzled_8x4': lambda a: np.stack([*map(swizzle_8x4, a)]),
  },
  'w_gate_up_scales': {
    'E 2F D, swizzled_128x4': lambda a: np.stack(
      [swizzle_128x4(m.T) for m in a.reshape(4, *a.shape[2:])]
    ),
    'E 2F D, up_gate, swizzled_128x4': lambda a: np.stack(
      [
        swizzle_128x4(np.roll(m.T, a.shape[3] // 2, 0))
        for m in a.reshape(4, *a.shape[2:])
      ]
    ),
    'R L 2F D, interleaved': lambda a: (
      np.stack([a[..., : a.shape[3] // 2], a[..., a.shape[3] // 2 :]], -1)
      .reshape(a.shape)
      .swapaxes(2, 3)
    ),
  },
  'expert_in_scales': {
    'R D N': lambda a: a.swapaxes(1, 2),
    'R D N, packed_4x1': lambda a: np.stack([pack_4x1(rows.T) for rows in a]),
    'R N D, swizzled_128x4, zeros': lambda a: np.stack(
      [*map(swizzle_128x4, a)]
    ),
  },
}


@pytest.mark.parametrize('form', ['nvfp4', 'mxfp8', 'mxfp4'])
@pytest.mark.parametrize(
  ('name', 'text'), [(n, text) for n, texts in PARTS.items() for text in texts]
)
def test_scales_lie_as_the_layout_says_and_are_restored(form, name, text):
  policy = _policy(form)
  array, sizes = _draw_part(name, policy)
  layout = layout_text.parse(name, text)
  assert str(layout) == text

  laid_out = layout.apply(array, sizes)

  np.testing.assert_array_equal(laid_out, PARTS[name][text](array))
  np.testing.assert_array_equal(layout.undo(laid_out, sizes), array)


def test_rows_that_fill_tiles_may_hold_anything():
  policy = _policy('mxfp8')
  array, sizes = _draw_part('expert_in_scales', policy)
  layout = layout_text.parse('expert_in_scales', 'R N D, swizzled_128x4')
  laid_out = layout.apply(array, sizes)
  laid_out[laid_out == 0] = 7

  np.testing.assert_array_equal(layout.undo(laid_out, sizes), array)


def test_rows_of_each_expert_begin_a_tile():
  ids = np.int32([[[1, 0], [3, 0]], [[0, 3], [2, 1]]])
  sizes = dict(R=2, T=2, E=4, L=2, K=2, D=2, F=1, N=5)
  rows = np.arange(1, 21).reshape(2, 5, 2)
  rows[1, 3:] = 0  # rank 1 has three rows
  text = 'R N D, aligned 128, swizzled_128x4'
  layout = layout_text.parse('expert_in_scales', text)

  laid_out = layout.apply(rows, sizes, ids)

  assert laid_out.shape == (2, 256, 4)
  tiles = laid_out.reshape(2, 2, 128, 4)
  expected = swizzle_128x4(rows[0, :3])  # three rows of expert 0
  np.testing.assert_array_equal(tiles[0, 0], expected)
  np.testing.assert_array_equal(tiles[0, 1], swizzle_128x4(rows[0, 3:]))
  np.testing.assert_array_equal(layout.undo(laid_out, sizes, ids), rows)


WHOLE = {
  'x': 'M D',
  'w_gate_up': 'E 2F D, up_gate, pad F 64',
  'w_down': 'E D F, bfloat16',
}


@pytest.mark.parametrize(
  ('form', 'name', 'text'),
  [
    ('nvfp4', 'x_scales', 'M D'),
    ('nvfp4', 'x_codes', 'M D'),
    ('nvfp4', 'w_gate_up_codes', 'E 2F D, up_gate, pad F 64'),
    ('nvfp4', 'w_gate_up_scales', 'E 2F D, up_gate, pad F 64'),
    ('nvfp4', 'w_gate_up_tensor_scales', 'E 2F D'),
    ('nvfp4', 'w_down_scales', 'E D F'),
    ('e4m3_tensor', 'w_gate_up_scales', 'E 2F D'),
  ],
)
def test_parts_lie_as_what_they_stand_for(form, name, text):
  layouts = layout_text.parse_all(WHOLE)
  layout = part_layouts.find_layout(layouts, name, _policy(form))
  assert str(layout) == text
  own = layouts_lib.own_layout(name)
  own_layout = part_layouts.find_layout(
    {**layouts, name: own}, name, _policy(form)
  )
  assert own_layout == own


@pytest.mark.parametrize(
  ('form', 'texts', 'message'),
  [
    ('e4m3_128x128', 'E 2F D, interleaved', 'since 128 columns have one'),
    ('e4m3_128x128', 'E 2F D, up_gate', 'whole groups of scales in gate'),
    ('e4m3_128x128', 'E 2F D, pad F 64', 'is no multiple of 128'),
  ],
)
def test_halves_that_share_a_scale_are_refused(form, texts, message):
  name, policy = 'w_gate_up_scales', _policy(form)
  layouts = layout_text.parse_all({'w_gate_up': texts})
  array, sizes = _draw_part(name, policy)
  with pytest.raises(ValueError, match=f'^{name}: expected .*{message}'):
    layout = part_layouts.find_layout(layouts, name, policy)
    assert layout is not None
    layout.apply(array, sizes)


@pytest.mark.parametrize(
  ('name', 'text'),
  [('x', 'M D, swizzled_128x4'), ('x_codes', 'M D, swizzled_128x4')],
)
def test_only_scales_are_swizzled(name, text):
  with pytest.raises(ValueError, match=f'^{name}: expected words that suit'):
    layout_text.parse(name, text)


@pytest.mark.parametrize(
  ('form', 'is_byte'), [('mxfp8', True), ('e4m3_1x128', False)]
)
def test_only_scales_of_a_byte_are_packed_in_words(form, is_byte):
  policy = precision.PrecisionPolicy(x_form=form)
  layouts = project_layouts.read_layouts('deepgemm_ue8m0')
  if is_byte:
    layout = part_layouts.find_layout(layouts, 'x_scales', policy)
    assert layout is not None and layout.swizzle == 'packed_4x1'
    return
  with pytest.raises(ValueError, match='^x_scales: .* scales in float32; Deep'):
    part_layouts.find_layout(layouts, 'x_scales', policy)
