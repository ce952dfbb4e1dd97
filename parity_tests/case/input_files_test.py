"""Files of inputs: read back as written, and errors that name the tensor."""

import pathlib

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.reference.contract import presets

_TINY = presets.get('tiny')
_ODD = presets.get('odd')


def _tiny(**options):
  return inputs.make_inputs(_TINY, **{'ranks': 2, **options})


class TestLoadSafetensors:
  def _save(self, tmp_path, change=None, dtype='float32'):
    arrays = dict(_tiny(dtype=dtype).arrays)
    for name, edit in (change or {}).items():
      arrays[name] = edit(arrays[name])
    path = tmp_path / 'layer.safetensors'
    input_files.save_safetensors(path, arrays)
    return path

  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
  def test_round_trip(self, tmp_path, dtype):
    layer_inputs = _tiny(dtype=dtype)
    read = input_files.load_safetensors(self._save(tmp_path, dtype=dtype))
    assert read.config == layer_inputs.config
    assert read.policy == layer_inputs.policy
    for name, array in layer_inputs.arrays.items():
      assert read.arrays[name].dtype == array.dtype
      assert read.arrays[name].tobytes() == array.tobytes()

  def test_npz(self, tmp_path):
    # Not square: an .npz cannot say which axes are which.
    layer_inputs = inputs.make_inputs(_ODD, 1)
    path, capacity = tmp_path / 'layer.npz', layer_inputs.config.capacity
    np.savez(path, **layer_inputs.arrays)
    read = input_files.load_safetensors(path, capacity=capacity)
    assert read.config == layer_inputs.config

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
    with pytest.raises(ValueError, match=message) as error_info:
      input_files.load_safetensors(path)
    assert str(path) in str(error_info.value)
    assert '\n' not in str(error_info.value)

  def test_missing_and_unknown_tensors_are_named(self, tmp_path):
    path = tmp_path / 'layer.safetensors'
    arrays = dict(_tiny().arrays)
    with_bias = arrays | dict(bias=np.ones((2, 4, 32), np.float32))
    del arrays['w_down']
    torch = pathlib.Path(__file__).with_name('testdata') / 'tensors.pt'
    with pytest.raises(ValueError, match='tensors.pt: x: expected x, topk_ids'):
      input_files.load_safetensors(torch)
    for name, tensors in (('bias', with_bias), ('w_down', arrays)):
      input_files.save_safetensors(path, tensors)
      with pytest.raises(ValueError, match=f'{name}: expected x, topk_ids, .*'):
        input_files.load_safetensors(path)

  @pytest.mark.parametrize('notes', [None, {'topk_ids': 'R T K, int32'}])
  def test_a_weight_that_may_be_transposed_is_refused(self, tmp_path, notes):
    # Given D = 2F = 32, and axes that are not said.
    arrays = dict(_tiny().arrays)
    arrays['w_gate_up'] = np.ascontiguousarray(
      np.swapaxes(arrays['w_gate_up'], -1, -2)
    )
    path = tmp_path / 'layer.safetensors'
    safetensors_numpy.save_file(arrays, path, notes)
    message = (
      r"w_gate_up: expected its axes .* {'w_gate_up': 'R L D 2F'}.*got '"
    )
    with pytest.raises(ValueError, match=message) as error_info:
      input_files.load_safetensors(path)
    assert '\n' not in str(error_info.value)

  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
  @pytest.mark.parametrize('ranks', [1, 2])
  def test_tensors_are_laid_out_as_the_file_says(self, tmp_path, ranks, dtype):
    # Given a file of a framework's, D = 2F among its sizes,
    layer_inputs = inputs.make_inputs(_TINY, ranks, dtype=dtype)
    layouts_by_name = layout_text.parse_all(
      dict(
        x='M D' if ranks == 1 else 'R T D',
        topk_ids='M K, int64',
        w_gate_up='E 2F D, interleaved',
        w_down='E D F',
        dy='M D',
      )
    )
    dims = layer_inputs.config.dims()
    tensors = {
      name: layouts_by_name[name].apply(array, dims)
      if name in layouts_by_name
      else array
      for name, array in layer_inputs.arrays.items()
    }
    path = str(tmp_path / 'layer.safetensors')
    notes = {name: str(layout) for name, layout in layouts_by_name.items()}
    read_case.save(path, tensors, notes)

    read_inputs = input_files.load_safetensors(path)

    # then it is read as ours,
    assert read_inputs.config == layer_inputs.config
    for name, array in layer_inputs.arrays.items():
      assert read_inputs.arrays[name].dtype == array.dtype
      assert read_inputs.arrays[name].tobytes() == array.tobytes(), name
    # and what is missing, too much or of another shape is named.
    for change, message in (
      (dict(w_down=None), 'w_down: expected x, topk_ids'),
      (dict(bias=tensors['dy']), 'bias: expected x, topk_ids'),
      (dict(w_down=tensors['w_down'][0]), r'w_down: expected \[E D F\], none'),
      (dict(dy=tensors['dy'][1:]), r'dy: expected \[M D\] = '),
    ):
      changed_tensors = {
        n: a for n, a in {**tensors, **change}.items() if a is not None
      }
      read_case.save(path, changed_tensors, notes)
      with pytest.raises(ValueError, match=f'layer.safetensors: {message}'):
        input_files.load_safetensors(path)

  def test_more_counts_than_a_small_file_may_ask_for(self, tmp_path):
    # Given 1 MB of 2**13 ranks with an expert each, then the plan would have
    # 2**26 counts.
    path = tmp_path / 'layer.safetensors'
    column = np.ones((2**13, 1, 1), np.float32)
    pairs = np.ones((2**13, 1, 1, 2), np.float32)
    read_case.save(
      str(path),
      dict(x=column, topk_ids=0 * column.astype(np.int32), topk_weights=column)
      | dict(w_gate_up=pairs, w_down=pairs[..., :1]),
      {},
    )
    with pytest.raises(ValueError, match=r'R \* E of at most 16777216, got'):
      input_files.load_safetensors(path)
