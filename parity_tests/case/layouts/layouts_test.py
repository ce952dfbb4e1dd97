"""Every layout of every tensor is undone bit for bit."""

import itertools
import pathlib
import tomllib

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.case.layouts import declaration
from hpmoe.parity_tests.case.layouts import exact_cast
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.case.layouts import row_orders
from hpmoe.reference.contract import tensors

# All sizes differ; one rank with one expert; D = 2F, so that shapes say little;
# `every` third slot is not used.
SIZES = {
  'all_differ': dict(R=2, T=3, E=8, L=4, K=5, D=6, F=7, N=19, S=9),
  'of_one': dict(R=1, T=1, E=1, L=1, K=1, D=2, F=1, N=1, S=1),
  'square': dict(R=2, T=4, E=4, L=2, K=2, D=8, F=4, N=18, S=4),
  'unused': dict(R=2, T=3, E=8, L=4, K=3, D=4, F=5, N=11, S=2, every=3),
}
# Axes of others, by ours.
_FILE = pathlib.Path(__file__).parent / 'testdata/layouts.toml'
_LAYOUTS = tomllib.loads(_FILE.read_text())
AXES = _LAYOUTS['axes']
# Of rows, the axes before the last one, and words.
ROWS = [
  (axes, words)
  for axes, _, words in (row.partition('; ') for row in _LAYOUTS['rows'])
]
# With relay fewer rows are there.
PLAIN = (('R N', ''), ('N R', ''))


def _experts(sizes, word: str) -> str:
  """Returns a word of places that fits: experts moved, or some in two."""
  descending = [*range(sizes['E'])][::-1]
  reversed_places = [str(e) for e in [*descending, *[-1] * sizes['R']]]
  copies = [str(e) for e in [*descending, *([0] * sizes['R'])]]
  return word.replace('MOVED', ' '.join(reversed_places)).replace(
    'COPIES', ' '.join(copies)
  )


def _list_layouts(sizes):
  relayed = [spec.name for spec in tensors.RELAYED]
  specs = [s for s in tensors.SPECS.values() if s.role != 'codes']
  # All ranks have one router, so its gradients have no axis of ranks.
  of_router = ('d_router_w', tensors.ROUTER_BIAS_GRAD.name)
  for spec in (s for s in specs if s.name not in of_router):
    *_, last = spec.shape.split()
    rows = PLAIN if spec.name in relayed else ROWS
    axes_texts = AXES.get(spec.shape) or [f'{a} {last}, {w}' for a, w in rows]
    halves = declaration.HALVES if '2' in spec.shape else ('',)
    for axes, half in itertools.product(axes_texts, halves):
      words = [word for word in (axes.rstrip(', '), half) if word]
      yield spec.name, _experts(sizes, ', '.join(words))


def _ids(sizes) -> np.ndarray:
  """Returns `[R, T, K]` experts, of which the last gets none if it may."""
  rng = np.random.default_rng(0)
  num_served = max(sizes['K'], sizes['E'] - 1)
  shape = sizes['R'], sizes['T'], num_served
  ids = np.argsort(rng.random(shape))[..., : sizes['K']].astype(np.int32)
  if 'every' in sizes:
    ids.reshape(-1)[:: sizes['every']] = -1
  return ids


def _order(layout, sizes, ids) -> np.ndarray | None:
  """Returns slots in no order, between rows that are none."""
  if not layout.order:
    return None
  rng = np.random.default_rng(1)
  shape = [{'N': 40, 'C': 40}.get(a, sizes.get(a, 0)) for a in layout.row_axes]
  if layout.experts and 'E' in layout.row_axes:
    shape[layout.row_axes.index('E')] = len(layout.experts)
  order = np.where(np.arange(np.prod(shape)) % 2, ids.size, -1)
  slots = np.flatnonzero(ids >= 0)
  order[rng.permutation(len(order))[: len(slots)]] = slots
  return order.reshape(shape)


def _make_tensor(name: str, sizes: dict[str, int], ids) -> np.ndarray:
  """Returns elements that all differ, but for rows that hold nothing."""
  spec = tensors.SPECS[name]
  kind = dict(i32=np.int32, f32=np.float32, storage=ml_dtypes.bfloat16)
  dims = spec.dims(**sizes)
  if name == 'topk_ids':
    return ids
  bits = np.arange(1, 1 + np.prod(dims)).reshape(dims)
  if spec.shape.split()[1] == 'N':
    row_order = row_orders.RowOrder(ids, sizes['E'])
    for rank in range(sizes['R']):
      bits[rank, (row_order.owner == rank).sum() :] = 0
  if kind[spec.kind] is ml_dtypes.bfloat16:
    return bits.astype(np.uint16).view(ml_dtypes.bfloat16)
  return bits.astype(kind[spec.kind])


def _have_same_bits(first, second) -> bool:
  same_type = first.dtype == second.dtype and first.shape == second.shape
  return same_type and first.tobytes() == second.tobytes()


def _iterate_cases(sizes):
  """Yields a tensor of ours, a layout of it, its order, and the routing."""
  ids = _ids(sizes)
  for name, text in _list_layouts(sizes):
    layout = layout_text.parse(name, text)
    yield (
      _make_tensor(name, sizes, ids),
      layout,
      _order(layout, sizes, ids),
      ids,
    )


@pytest.mark.parametrize('per_rank', (False, True), ids=('whole', 'per_rank'))
@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
@pytest.mark.few(3)
def test_every_layout_of_every_tensor_is_undone(sizes, per_rank):
  for tensor, layout, order, ids in _iterate_cases(sizes):
    text = str(layout)
    assert layout_text.parse(layout.name, text) == layout
    if not per_rank:
      laid_out = layout.apply(tensor, sizes, ids, order)
    elif order is not None or 'pad E' in text:
      continue
    else:
      parts = layout.split(tensor, sizes, ids)
      laid_out = layout.join_ranks(dict(enumerate(parts)), sizes['R'])
      layout = layout.with_ranks
    back = layout.undo(laid_out, sizes, ids, order)
    if back.shape != tensor.shape:  # rows that they have more of
      assert not back[:, sizes['N'] :].any(), (layout.name, text)
      back = np.ascontiguousarray(back[:, : sizes['N']])
    assert _have_same_bits(back, tensor), (layout.name, text)


@pytest.mark.parametrize('sizes', SIZES.values(), ids=SIZES)
def test_the_place_of_every_element_is_told(sizes):
  for tensor, layout, order, ids in _iterate_cases(sizes):
    if layout.name == 'topk_ids':
      continue  # their values are others
    laid_out = layout.apply(tensor, sizes, ids, order)
    elements = layout.map_elements(sizes, ids, order, laid_out.shape)
    index = np.argwhere(tensor.view(f'u{tensor.itemsize}'))
    actual = laid_out[elements.find_places(tuple(index.T))]
    assert _have_same_bits(actual, tensor[tuple(index.T)]), (
      layout.name,
      str(layout),
    )


def test_where_elements_go():
  # given: gate 0 and 1, up 10 and 11, of one row.
  tensor = np.float32([[[0, 1, 10, 11]]])
  for text, expected in (
    ('R N 2F, interleaved', [[[0, 10, 1, 11]]]),
    ('R N 2F, up_gate', [[[10, 11, 0, 1]]]),
    ('2F N', [[0], [1], [10], [11]]),
  ):
    laid_out = layout_text.parse('gate_up', text).apply(
      tensor, dict(SIZES['of_one'], F=2, N=1)
    )
    np.testing.assert_array_equal(laid_out, expected)
  weights = np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)
  sizes = dict(R=2, T=1, E=4, L=2, K=1, D=2, F=2, N=1)
  stacked = layout_text.parse('w_down', 'E D F').apply(weights, sizes)
  np.testing.assert_array_equal(stacked[2], weights[1, 0].T)


# Experts 1, 0 of rank 0's token; 0, 3 of rank 1's; two live on a rank.
_SOME_IDS = np.int32([[[1, 0]], [[0, 3]]])
_SIZES = dict(R=2, T=1, E=4, L=2, K=2, D=1, F=1, N=3)


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('R N D', [[2, 3, 1], [4, 0, 0]]),
    ('R N D, aligned 2', [[2, 3, 1, 0], [4, 0, 0, 0]]),
    ('R N D, aligned 3', [[2, 3, 0, 1, 0, 0], [4, 0, 0, 0, 0, 0]]),
    ('R N D, by_source', [[2, 1, 3], [4, 0, 0]]),
    ('R N D, experts 3 2 1 0', [[4, 0, 0], [1, 2, 3]]),
    ('R N D, experts 3 2 1 0, by_source', [[4, 0, 0], [1, 2, 3]]),
    ('R N D, experts 3 2 0 1, by_source', [[4, 0, 0], [2, 1, 3]]),
    ('E C D', [[2, 3], [1, 0], [0, 0], [4, 0]]),
    ('E C D, C=3', [[2, 3, 0], [1, 0, 0], [0, 0, 0], [4, 0, 0]]),
    ('A D', [1, 2, 3, 4]),
    ('M K D', [[1, 2], [3, 4]]),
    ('R A D', [[1, 2, 3, 0], [0, 0, 0, 4]]),
    ('R N D, order ids', [[0, 3, 1, 2], [0, 0, 4, 0]]),
  ],
)
def test_where_rows_go(text, expected):
  # given: of each slot one number, in our order of rows.
  tensor = np.float32([[2, 3, 1], [4, 0, 0]])[..., None]
  order = np.array([[-1, 2, 0, 1], [9, -5, 3, 4]])  # 4 slots: 4 and 9 are none
  layout = layout_text.parse('expert_in', text)
  order = order if layout.order else None
  laid_out = layout.apply(tensor, _SIZES, _SOME_IDS, order)
  np.testing.assert_array_equal(laid_out[..., 0], expected)


@pytest.mark.parametrize(
  ('text', 'order', 'message'),
  [
    ('E C D, C=1', None, 'expected C of at least 2, which expert 0 needs'),
    ('R N D, order ids', None, r'ids: expected integers \[R N\]'),
    ('R N D, order ids', [[0.5]], 'ids: expected integers'),
    ('R N D, order ids', [[0, 0, 1], [2, 3, 4]], 'got 0 twice'),
    ('R N D, order ids', [[0, 1, 4], [2, 9, 4]], 'row of slot 3 in ids'),
    ('R N D, order ids', [0, 1], r'ids: expected integers \[R N\].*got \[2\]'),
    ('R N D, experts 0 1', None, 'expected places for experts 0 to 3'),
    ('R N D, experts 0 1 2 3 4 4', None, 'expected places for experts'),
    ('R N D, experts 0 1 2 3 3', None, 'a multiple of R=2'),
    ('R N D, experts 0 1 2 3 3 3', None, 'expected `order` in layout'),
  ],
)
def test_rows_without_a_place_are_refused(text, order, message):
  layout = layout_text.parse('expert_in', text)
  order = None if order is None else np.array(order)
  with pytest.raises(ValueError, match=f'expert_in: {message}|{message}'):
    layout.undo(
      layout.apply(np.ones((2, 3, 1)), _SIZES, _SOME_IDS, order),
      _SIZES,
      _SOME_IDS,
      order,
    )


def test_padding_is_looked_at_where_it_must_be_zero():
  sizes = dict(SIZES['all_differ'], F=3)
  tensor = np.ones((2, 4, 3, 6), np.float32)
  for zeros in ('', ', zeros'):
    layout = layout_text.parse('w_down', 'E D F, pad F 4' + zeros)
    laid_out = layout.apply(tensor, sizes)
    np.testing.assert_array_equal(laid_out[..., 3], 0)
    laid_out[5, 2, 3] = np.nan
    if not zeros:
      assert _have_same_bits(layout.undo(laid_out, sizes), tensor)
      continue
    with pytest.raises(ValueError, match=r'zeros in the padding.*\[5, 2, 3\]'):
      layout.undo(laid_out, sizes)


def test_copies_of_an_expert_are_the_same():
  layout = layout_text.parse('w_down', 'E F D, experts 0 1 2 3 4 5 6 7 2 -1')
  sizes = SIZES['all_differ']
  laid_out = layout.apply(np.zeros((2, 4, 7, 6), np.float32), sizes)
  laid_out[9] = 1  # nobody's
  layout.undo(laid_out, sizes)
  laid_out[8, 1, 1] = -0.0
  with pytest.raises(ValueError, match=r'in each place of an.*\[0, 2, 1\]'):
    layout.undo(laid_out, sizes)


def test_ids_may_be_of_places():
  # given: expert 1 in places 3 and 4 of 5.
  layout = layout_text.parse('topk_ids', 'M K, experts 0 2 3 1 1, int64')
  sizes = dict(SIZES['of_one'], T=2, K=2, E=4, L=4)
  ids = np.int32([[[1, 0], [3, 1]]])
  laid_out = layout.apply(ids, sizes)
  np.testing.assert_array_equal(laid_out, [[3, 0], [2, 3]])
  laid_out[0, 0] = 4
  np.testing.assert_array_equal(layout.undo(laid_out, sizes), ids)
  unused = np.where(ids == 3, np.int32(-1), ids)
  laid_out[1, 0] = -1
  np.testing.assert_array_equal(layout.undo(laid_out, sizes), unused)
  assert layout.apply(unused, sizes)[1, 0] == -1
  for strange in (-2, 5):
    laid_out[0, 0] = strange
    with pytest.raises(ValueError, match=f'topk_ids: .* 0 to 4, got {strange}'):
      layout.undo(laid_out, sizes)


@pytest.mark.parametrize(
  ('array', 'dtype', 'message'),
  [
    (np.float32([1, 1.001]), 'bfloat16', r'float32 1.001\S* at \[1\]'),
    (np.int64([2**40]), 'int32', r'int64 1099511627776 at \[0\]'),
    (np.float64([1e300]), 'float32', r'float64 1e\+300'),
    (np.array(['a']), 'float32', 'float32, got <U1'),
  ],
)
def test_other_values_are_refused(array, dtype, message):
  with pytest.raises(ValueError, match=f'y: expected.*{message}'):
    exact_cast.cast_exactly('y', array, dtype)


@pytest.mark.parametrize('dtype', ('float8_e4m3fn', 'float8_e5m2'))
def test_every_value_of_float8_is_one_of_bfloat16(dtype):
  values = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, dtype))
  actual = exact_cast.cast_exactly('y', values, 'bfloat16')
  np.testing.assert_array_equal(
    actual.astype(np.float32), values.astype(np.float32)
  )


@pytest.mark.parametrize('bits', (np.uint16, np.int16, np.dtype('V2')))
def test_bits_of_bfloat16_are_its_values(bits):
  values = np.array([1.5, -2], ml_dtypes.bfloat16)
  actual = exact_cast.cast_exactly('y', values.view(bits), 'bfloat16')
  np.testing.assert_array_equal(actual, values)


@pytest.mark.parametrize(
  ('name', 'text', 'message'),
  [
    ('bias', 'E D', 'layouts: expected tensors among'),
    ('x', 'R T T', r'x: expected axes of \[R T D\]'),
    ('x', 'R T F', r'x: expected axes of \[R T D\]'),
    ('x', 'M T D', r'x: expected axes of \[R T D\]'),
    ('x', 'R T D, interleaved', 'has no 2F'),
    ('x', 'R T D, backwards', "got 'backwards'"),
    ('x', 'R T D, aligned 4', 'got order of rows'),
    ('x', 'R T D, pad F 4', 'got pad'),
    ('x', 'R T D, experts 0 1', 'got experts'),
    ('gate_up', 'R N 2F, C=4', 'got C'),
    ('gate_up', 'M K 2F, by_source', 'got order of rows'),
    ('x_relayed', 'E C D', 'got order of rows'),
    ('topk_weights', 'R T K, int32', 'got int32'),
    ('topk_ids', 'R T K, bfloat16', 'got bfloat16'),
    ('w_down', 'E F D, order ids', 'got order'),
  ],
)
def test_a_wrong_layout_is_refused(name, text, message):
  with pytest.raises(ValueError, match=message):
    layout_text.parse(name, text)


def test_an_axis_left_out_has_one_element():
  layout, sizes = layout_text.parse('x', 'T D'), dict(SIZES['of_one'], T=3, D=4)
  assert layout.apply(np.zeros((1, 3, 4)), sizes).shape == (3, 4)
  with pytest.raises(ValueError, match="expected R=1, which layout 'T D'"):
    layout.apply(np.zeros((2, 3, 4)), dict(sizes, R=2))


def test_one_rank_may_lack_its_axis():
  layout = layout_text.parse('gate_up', 'N R 2F, interleaved')
  array = np.arange(12.0).reshape(3, 4)
  assert layout.join_ranks({None: array}, 1).shape == (3, 1, 4)
  assert layout.join_ranks({None: array}, 2) is array
  assert layout.join_ranks({1: array}, 2).shape == (3, 2, 4)


@pytest.mark.parametrize(
  ('text', 'shape'),
  [
    ('M D, swizzled_128x4', (128, 4)),
    ('D M, pad M 4', (2, 16)),
    ('M D, swizzled_8x4', (16, 4)),
  ],
)
def test_tokens_in_tiles_are_so_in_the_file_of_each_rank(text, shape):
  # given: two ranks of 13 tokens, each with two scales
  layout = layout_text.parse('x_scales', text)
  sizes = dict(R=2, T=13, D=2, E=4, L=2, K=2, N=26, M=26)
  scales = np.arange(52, dtype=np.float32).reshape(2, 13, 2) + 1
  # when
  parts = layout.split(scales, sizes)
  # then: a part is what one rank alone has
  alone = [
    layout.apply(scales[r : r + 1], {**sizes, 'R': 1, 'M': 13}) for r in (0, 1)
  ]
  for part, of_rank in zip(parts, alone, strict=True):
    assert part.shape == shape
    np.testing.assert_array_equal(part, of_rank)
  # then: and it is read back
  whole = layout.join_ranks(dict(enumerate(parts)), 2)
  restored = layout.with_ranks.undo(whole, sizes)
  np.testing.assert_array_equal(restored, scales)
