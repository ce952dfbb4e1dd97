"""Inputs: valid for every preset, of order one, and files checked."""

import pathlib

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import text_router
from hpmoe.parity_tests.case.layouts import layouts
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

_TINY = presets.get('tiny')
_ODD = presets.get('odd')


def _tiny(**options):
  return inputs.make_inputs(_TINY, **{'ranks': 2, **options})


class TestMakeInputs:
  @pytest.mark.parametrize('routing', inputs.ROUTINGS)
  def test_every_routing_gives_valid_inputs(self, routing):
    for dtype in storage.STORED:
      real = _tiny(routing=routing, dtype=dtype)
      assert set(real.arrays) == {*tensors.INPUTS, 'dy'}
      assert real.routing == routing
      for made in (real, inputs.with_data(real, 'exact', False, 0)):
        checks.check_inputs(made.config, made.policy, made.arrays)
        assert made.policy.storage == dtype
        activation = dict(real='swiglu', exact='absolute')[made.data]
        assert made.policy.activation == activation

  def test_values_are_of_order_one_at_every_stage(self):
    # given: the layer of some tokens in float64, expert 0 for all of them.
    made = inputs.make_inputs(presets.get('small'), 1, routing='hot')
    x = made.arrays['x'][0].astype(np.float64)
    gate, up = np.split(x @ made.arrays['w_gate_up'][0, 0], 2, axis=-1)
    activation = gate / (1 + np.exp(-gate)) * up
    out = activation @ made.arrays['w_down'][0, 0]
    plain = np.arange(gate.shape[1]) % 4 == 0
    for stage in (x, gate[:, plain], up[:, plain], activation, out):
      assert 0.25 < np.sqrt((stage**2).mean()) < 2

  @pytest.mark.parametrize('name', presets.RUNS_HERE)
  def test_gates_are_tiny_and_saturating(self, name):
    # exp(-gate) overflows, vanishes and is 1 within rounding, all in one layer.
    made = inputs.make_inputs(presets.get(name), 2, routing='balanced')
    tokens = made.arrays['x'].reshape(-1, made.config.d_model)
    width = made.config.d_ff
    gate = tokens @ made.arrays['w_gate_up'][0, 0][:, :width]
    assert gate.min() < -100 and gate.max() > 100
    assert np.abs(gate[:, np.abs(gate).max(axis=0) < 1e-4]).size

  @pytest.mark.parametrize('ranks', [1, 4])
  @pytest.mark.parametrize('routing', ('text', *routings.GENERATORS))
  def test_odd_starves_two_experts_and_nothing_divides_it(self, ranks, routing):
    made = inputs.make_inputs(_ODD, ranks, routing=routing)
    rows = np.bincount(made.arrays['topk_ids'].ravel(), minlength=24)
    assert (rows[1], rows[-1]) == (0, 1)
    config = made.config
    sizes = (config.num_tokens, config.d_model, config.d_ff, config.num_rows)
    assert all(size % 2 for size in sizes)
    assert min(sizes[1:]) > 256 or ranks > 1

  def test_layer_does_not_depend_on_the_number_of_ranks(self):
    one = inputs.make_inputs(_TINY, 1, tokens=32)
    four = inputs.make_inputs(_TINY, 4, tokens=8)
    for name in (*tensors.INPUTS, 'dy'):
      flat = [
        made.arrays[name].reshape(-1, *made.arrays[name].shape[2:])
        for made in (one, four)
      ]
      assert flat[0].tobytes() == flat[1].tobytes(), name

  def test_seed_moves_all_values_and_no_shape(self):
    one, two = _tiny(seed=1), _tiny(seed=2)
    for name, array in one.arrays.items():
      assert (array != two.arrays[name]).any()

  def test_bfloat16_is_the_float32_data_rounded(self):
    one, two = _tiny(), _tiny(dtype='bfloat16')
    for name in ('x', 'w_gate_up', 'w_down'):
      rounded = one.arrays[name].astype(ml_dtypes.bfloat16)
      share = (rounded == two.arrays[name]).mean()
      # Weights round once, from float64; a subnormal of float32 rounds to 0.
      assert share > (0.99 if name == 'x' else 0.999)

  def test_capacity_is_tight_or_as_given_and_overflow_is_refused(self):
    made = _tiny(routing='one_rank')
    most = np.bincount(made.arrays['topk_ids'].ravel() // 4).max()
    assert most == 64
    assert made.config.capacity == 80
    assert _tiny(capacity=100).config.capacity == 100
    with pytest.raises(ValueError, match='capacity: expected at least 64'):
      _tiny(routing='one_rank', capacity=63)

  def test_text_of_the_user_is_read_and_named(self, tmp_path):
    (tmp_path / 'mine.txt').write_bytes(b'Quite another text. ' * 9)
    made = _tiny(text=tmp_path / 'mine.txt')
    assert 'mine.txt' in made.facts['text']
    assert (made.arrays['x'] != _tiny().arrays['x']).any()
    assert _tiny().facts['text'] == text_router.DEFAULT_TEXT.name

  def test_routing_of_a_file_stays(self, tmp_path):
    # Neither starved nor odd: ids of few experts, and weights of its own.
    made = inputs.make_inputs(_ODD, 1, routing='hot')
    ids = np.tile(np.arange(3, dtype=np.int32), (1, _ODD.num_tokens, 1))
    weights = routings.spread_weights(made.config, 3)
    given = dict(topk_ids=ids, topk_weights=weights)
    path = tmp_path / 'mine.npz'
    np.savez(path, **given)
    read = inputs.make_inputs(_ODD, 1, routing=str(path))
    for name, array in given.items():
      np.testing.assert_array_equal(read.arrays[name], array)

  @pytest.mark.parametrize(
    ('options', 'message'),
    [
      ({'dtype': 'float8'}, "dtype: .*got 'float8'"),
      ({'routing': 'zip'}, "routing: .*'zipf'.*got 'zip'"),
      ({'routing': 'absent.npz'}, 'absent.npz: expected a readable'),
      ({'text': 'absent.txt'}, 'text: .*absent.txt'),
      ({'placement': 'nowhere'}, "placement: .*got 'nowhere'"),
      ({'tokens': 0}, 'num_tokens: .*got 0'),
      ({'capacity': 0}, 'capacity: .*got 0'),
      ({'ranks': 3}, 'num_ranks: .*divisor.*got 3'),
    ],
  )
  def test_bad_request(self, options, message):
    with pytest.raises(ValueError, match=message) as caught:
      _tiny(**options)
    assert '\n' not in str(caught.value)


class TestLoadSafetensors:
  def _save(self, tmp_path, change=None, dtype='float32'):
    arrays = dict(_tiny(dtype=dtype).arrays)
    for name, edit in (change or {}).items():
      arrays[name] = edit(arrays[name])
    path = tmp_path / 'layer.safetensors'
    inputs.save_safetensors(path, arrays)
    return path

  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
  def test_round_trip(self, tmp_path, dtype):
    made = _tiny(dtype=dtype)
    read = inputs.load_safetensors(self._save(tmp_path, dtype=dtype))
    assert read.config == made.config
    assert read.policy == made.policy
    for name, array in made.arrays.items():
      assert read.arrays[name].dtype == array.dtype
      assert read.arrays[name].tobytes() == array.tobytes()

  def test_npz(self, tmp_path):
    # Not square: an .npz cannot say which axes are which.
    made = inputs.make_inputs(_ODD, 1)
    path, capacity = tmp_path / 'layer.npz', made.config.capacity
    np.savez(path, **made.arrays)
    read = inputs.load_safetensors(path, capacity=capacity)
    assert read.config == made.config

  @pytest.mark.parametrize(
    ('change', 'message'),
    [
      ({'x': lambda a: a[0]}, r'x: expected shape \[R, T, D\].*got \[16'),
      ({'x': lambda a: a[:, :0]}, r'x: expected .*got \[2, 0, 32\]'),
      (
        {'x': lambda a: a.astype(np.float64)},
        'x: expected one of .*got float64',
      ),
      ({'x': lambda a: a.astype(np.int32)}, 'x: .*got int32'),
      ({'x': lambda a: a * np.nan}, 'x: expected finite values, got nan'),
      ({'topk_ids': lambda a: a + 1}, r'topk_ids: .*\[0, 8\), .*got 8'),
      ({'topk_ids': lambda a: a * 0}, 'topk_ids: .*expert 0 twice'),
      ({'topk_ids': lambda a: a[:, 1:]}, r'topk_ids: .*got .*\[2, 15, 2\]'),
      (
        {'topk_ids': lambda a: a.astype(int)},
        'topk_ids: expected int32 .*got int64',
      ),
      (
        {'topk_weights': lambda a: a.astype(ml_dtypes.bfloat16)},
        'topk_weights: expected float32 .*got bfloat16',
      ),
      (
        {'w_down': lambda a: a[:, 1:]},
        'w_down: expected L=4 .*as in w_gate_up, got L=3',
      ),
      (
        {'w_down': lambda a: a[:, :, 1:]},
        'w_down: expected F to be half of 2F=32 in w_gate_up, got F=15',
      ),
      ({'topk_weights': lambda a: a[..., :1]}, 'topk_weights: expected'),
      (
        {'w_gate_up': lambda a: a[..., 1:]},
        'half of 2F=31 in w_gate_up, got F=16',
      ),
      ({'w_gate_up': lambda a: a[:1]}, r'w_gate_up: .*got .*\[1, 4'),
      (
        {'w_down': lambda a: a.astype(ml_dtypes.bfloat16)},
        'w_down: expected float32.*got bfloat16',
      ),
      ({'w_down': lambda a: a / 0}, 'w_down: expected finite values'),
    ],
  )
  @pytest.mark.filterwarnings('ignore:.*encountered in divide')
  def test_bad_tensor_is_named(self, tmp_path, change, message):
    path = self._save(tmp_path, change)
    with pytest.raises(ValueError, match=message) as caught:
      inputs.load_safetensors(path)
    assert str(path) in str(caught.value)
    assert '\n' not in str(caught.value)

  def test_missing_and_unknown_tensors_are_named(self, tmp_path):
    path = tmp_path / 'layer.safetensors'
    arrays = dict(_tiny().arrays)
    more = arrays | dict(bias=np.ones((2, 4, 32), np.float32))
    del arrays['w_down']
    torch = pathlib.Path(__file__).with_name('testdata') / 'tensors.pt'
    with pytest.raises(ValueError, match='tensors.pt: x: expected x, topk_ids'):
      inputs.load_safetensors(torch)
    for name, held in (('bias', more), ('w_down', arrays)):
      inputs.save_safetensors(path, held)
      with pytest.raises(ValueError, match=f'{name}: expected x, topk_ids, .*'):
        inputs.load_safetensors(path)

  @pytest.mark.parametrize('notes', [None, {'topk_ids': 'R T K, int32'}])
  def test_a_weight_that_may_be_transposed_is_refused(self, tmp_path, notes):
    # Given D = 2F = 32, and axes that are not said.
    arrays = dict(_tiny().arrays)
    arrays['w_gate_up'] = np.ascontiguousarray(
      np.swapaxes(arrays['w_gate_up'], -1, -2)
    )
    path = tmp_path / 'layer.safetensors'
    safetensors_numpy.save_file(arrays, path, notes)
    said = r"w_gate_up: expected its axes .* {'w_gate_up': 'R L D 2F'}.*got '"
    with pytest.raises(ValueError, match=said) as caught:
      inputs.load_safetensors(path)
    assert '\n' not in str(caught.value)

  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
  @pytest.mark.parametrize('ranks', [1, 2])
  def test_tensors_are_laid_out_as_the_file_says(self, tmp_path, ranks, dtype):
    # Given a file of a framework's, D = 2F among its sizes,
    made = inputs.make_inputs(_TINY, ranks, dtype=dtype)
    laid = layouts.of(
      dict(
        x='M D' if ranks == 1 else 'R T D',
        topk_ids='M K, int64',
        w_gate_up='E 2F D, interleaved',
        w_down='E D F',
        dy='M D',
      )
    )
    dims = made.config.dims()
    held = {
      name: laid[name].apply(array, dims) if name in laid else array
      for name, array in made.arrays.items()
    }
    path = str(tmp_path / 'layer.safetensors')
    notes = {name: str(one) for name, one in laid.items()}
    read_case.save(path, held, notes)

    found = inputs.load_safetensors(path)

    # then it is read as ours,
    assert found.config == made.config
    for name, array in made.arrays.items():
      assert found.arrays[name].dtype == array.dtype
      assert found.arrays[name].tobytes() == array.tobytes(), name
    # and what is missing, too much or of another shape is named.
    for change, said in (
      (dict(w_down=None), 'w_down: expected x, topk_ids'),
      (dict(bias=held['dy']), 'bias: expected x, topk_ids'),
      (dict(w_down=held['w_down'][0]), r'w_down: expected \[E D F\], none'),
      (dict(dy=held['dy'][1:]), r'dy: expected \[M D\] = '),
    ):
      some = {n: a for n, a in {**held, **change}.items() if a is not None}
      read_case.save(path, some, notes)
      with pytest.raises(ValueError, match=f'layer.safetensors: {said}'):
        inputs.load_safetensors(path)

  def test_more_counts_than_a_small_file_may_ask_for(self, tmp_path):
    # Given 1 MB of 2**13 ranks with an expert each, then the plan would have
    # 2**26 counts.
    path = tmp_path / 'layer.safetensors'
    one = np.ones((2**13, 1, 1), np.float32)
    pairs = np.ones((2**13, 1, 1, 2), np.float32)
    read_case.save(
      str(path),
      dict(x=one, topk_ids=0 * one.astype(np.int32), topk_weights=one)
      | dict(w_gate_up=pairs, w_down=pairs[..., :1]),
      {},
    )
    with pytest.raises(ValueError, match=r'R \* E of at most 16777216, got'):
      inputs.load_safetensors(path)
