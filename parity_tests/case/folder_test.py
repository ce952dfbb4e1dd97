"""A case as a folder: what is read is what was written, anywhere."""

import dataclasses
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import tensors

LAYOUTS = layout_text.parse_all(
  dict(
    x='M D',
    topk_ids='R K T, int64',
    w_gate_up='E 2F D, interleaved',
    w_down='E D F',
  )
)
# Experts moved, rows in others' orders, weights padded.
MOVED_LAYOUTS = layout_text.parse_all(
  dict(
    x='M D, pad D 48',
    topk_ids='M K, experts 7 6 5 4 3 2 1 0, int64',
    w_gate_up='E 2F D, experts 7 6 5 4 3 2 1 0, pad F 24, zeros',
    w_down='R L D F, experts 7 6 5 4 3 2 1 0 1 -1',
    gate_up='R N 2F, order ids',
    activation='E C F',
  )
)


def _make_inputs(
  dtype='bfloat16', ranks=2
) -> dict[str, inputs_lib.LayerInputs]:
  real = inputs_lib.make_inputs(presets.get('tiny'), ranks, dtype=dtype)
  exact = inputs_lib.with_data(real, 'exact', True, 0)
  return dict(real=real, exact=exact)


def _have_same_bits(first: np.ndarray, second: np.ndarray) -> bool:
  same_type = first.dtype == second.dtype and first.shape == second.shape
  return same_type and bool((ulp.bits(first) == ulp.bits(second)).all())


@pytest.mark.parametrize('dtype', ('float32', 'bfloat16', 'float16'))
@pytest.mark.parametrize('per_rank', (False, True), ids=('whole', 'per_rank'))
@pytest.mark.parametrize(
  'layouts', ({}, LAYOUTS, MOVED_LAYOUTS), ids=('ours', 'theirs', 'moved')
)
@pytest.mark.parametrize('ranks', (1, 2))
def test_what_is_read_is_what_was_written(
  tmp_path, dtype, per_rank, layouts, ranks
):
  inputs_by_data = _make_inputs(dtype, ranks)

  case = folder_writer.write(
    tmp_path / 'case', 'both', inputs_by_data, per_rank, layouts
  )
  read = folder.read(tmp_path / 'case')

  assert read == case
  assert read.data == ('real', 'exact')
  for data, layer_inputs in inputs_by_data.items():
    actual = read.inputs(data)
    assert actual.config == layer_inputs.config
    assert actual.policy == layer_inputs.policy
    assert {*actual.arrays} == {*layer_inputs.arrays}
    for name, array in layer_inputs.arrays.items():
      assert _have_same_bits(actual.arrays[name], array), name
    assert read.data_of(layer_inputs.arrays['x']) == data
  with pytest.raises(ValueError, match='case: expected data of'):
    read.data_of(inputs_by_data['real'].arrays['x'] + 1)


def test_cases_that_differ_have_other_ids(tmp_path):
  inputs_by_data = _make_inputs()
  other = dataclasses.replace(
    inputs_by_data['real'],
    policy=dataclasses.replace(
      inputs_by_data['real'].policy, placement='before_down'
    ),
  )
  cases = [
    folder_writer.write(tmp_path / '0', 'both', inputs_by_data),
    folder_writer.write(tmp_path / '1', 'both', inputs_by_data, per_rank=True),
    folder_writer.write(
      tmp_path / '2', 'both', dict(real=inputs_by_data['real'])
    ),
    folder_writer.write(tmp_path / '3', 'both', dict(real=other)),
    folder_writer.write(
      tmp_path / '4', 'forward', dict(real=inputs_by_data['real'])
    ),
  ]
  assert len({case.id for case in cases}) == len(cases)
  assert (
    folder_writer.write(tmp_path / '5', 'both', inputs_by_data).id
    == cases[0].id
  )


def _flip(path):
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)


@pytest.mark.parametrize('per_rank', (False, True), ids=('whole', 'per_rank'))
def test_a_changed_tensor_is_refused(tmp_path, per_rank):
  case = folder_writer.write(
    tmp_path / 'case', 'both', _make_inputs(), per_rank
  )
  path = sorted((tmp_path / 'case').glob('real.forward*'))[-1]
  _flip(path)

  with pytest.raises(ValueError, match=f'{path.name}: expected the tensors'):
    case.inputs()
  assert case.inputs('exact')


@pytest.mark.parametrize(
  ('old', 'new', 'message'),
  [
    ('', None, "no attribute 'case'"),
    ('format = 1', 'format = 2', 'expected 1, got 2'),
    ('top_k = 2', 'top_k = ', 'expected name = value'),
    ('top_k = 2', 'top = 2', 'was changed'),
    ('"combine"', '"before_down"', 'was changed'),
    ('activation_ulp = 3', 'activation_ulp = 9', 'was changed'),
  ],
)
def test_a_damaged_description_is_refused(tmp_path, old, new, message):
  folder_writer.write(tmp_path / 'case', 'both', _make_inputs())
  path = tmp_path / 'case' / 'case.toml'
  path.write_text('' if new is None else path.read_text().replace(old, new))
  with pytest.raises(ValueError, match=message):
    folder.read(tmp_path / 'case')


def test_a_folder_that_is_none_or_in_use_or_lacks_data_is_refused(tmp_path):
  with pytest.raises(ValueError, match='expected a folder with case.toml'):
    folder.read(tmp_path)
  case = folder_writer.write(tmp_path / 'case', 'both', _make_inputs())
  with pytest.raises(ValueError, match='the case has no wide data'):
    case.inputs('wide')
  with pytest.raises(ValueError, match='out: expected a folder that is empty'):
    folder_writer.write(tmp_path / 'case', 'both', _make_inputs())


def test_a_case_is_made_of_a_folder(tmp_path):
  inputs_by_data = _make_inputs()
  path = str(tmp_path / 'case')
  folder_writer.write(path, 'forward', dict(real=inputs_by_data['real']))

  case = case_lib.Case.from_folder(path)

  assert (case.direction, case.ranks, case.dtype) == ('forward', 2, 'bfloat16')
  for name in tensors.INPUTS:
    assert _have_same_bits(
      case.make().arrays[name], inputs_by_data['real'].arrays[name]
    )
  assert case.bytes_needed('check') > 0
  with pytest.raises(
    ValueError, match='direction: expected forward, for which'
  ):
    case_lib.Case.from_folder(path, 'both')


_ELSEWHERE = """
import sys

def function(inputs, layer, policy):
  assert not any(name.partition('.')[0] == 'hpmoe' for name in sys.modules)
  assert layer.top_k == 2 and policy.placement == 'combine'
  return inputs

function.activations = (%s)
"""


def _run_elsewhere(tmp_path, source, function='function'):
  """Runs `read_case` where the project cannot be imported."""
  (tmp_path / 'kernel.py').write_text(source)
  return subprocess.run(
    [
      sys.executable,
      '-I',
      tmp_path / 'case' / 'read_case.py',
      tmp_path / 'case',
      f'{tmp_path}/kernel.py:{function}',
      tmp_path / 'out',
    ],
    stderr=subprocess.PIPE,
    text=True,
  )


def test_a_kernel_elsewhere_reads_all_of_it(tmp_path):
  inputs_by_data = _make_inputs('float32')
  case = folder_writer.write(tmp_path / 'case', 'forward', inputs_by_data)

  process = _run_elsewhere(tmp_path, _ELSEWHERE % '"swiglu", "absolute"')

  assert process.returncode == 0, process.stderr
  files = [f'{data}.safetensors' for data in inputs_by_data]
  assert {path.name for path in (tmp_path / 'out').iterdir()} == {*files}
  for file, layer_inputs in zip(files, inputs_by_data.values()):
    tensors_by_name, notes = read_case.read(tmp_path / 'out' / file)
    assert notes['case'] == case.id
    for name in tensors.INPUTS:
      assert _have_same_bits(
        tensors_by_name[name], layer_inputs.arrays[name]
      ), name
  # Outputs of an earlier run are not mixed in.
  assert 'out: expected' in _run_elsewhere(tmp_path, _ELSEWHERE % '').stderr


def test_the_layer_of_a_kernel_elsewhere_has_the_sizes_of_ours(tmp_path):
  inputs_by_data = _make_inputs('float32')
  folder_writer.write(tmp_path / 'case', 'forward', inputs_by_data)
  layers = []

  def kernel(inputs, layer, policy):
    del policy
    layers.append(layer)
    return {'y': inputs['x']}

  read_case.run(read_case.load(tmp_path / 'case'), kernel, tmp_path / 'out')
  config = inputs_by_data['real'].config
  for name in ('num_ranks', 'experts_per_rank', 'num_rows'):
    assert {getattr(layer, name) for layer in layers} == {getattr(config, name)}


def test_a_file_that_changed_within_a_second_is_compiled_anew(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(sys, 'dont_write_bytecode', False)
  path = tmp_path / 'kernel.py'
  for value in (1, 2):
    path.write_text(f'def answer():\n  return {value}\n')
    os.utime(path, (1, 1))  # bytecode goes by time and size
    assert read_case.function(f'{path}:answer')() == value


def test_a_kernel_elsewhere_may_lack_an_activation(tmp_path):
  folder_writer.write(tmp_path / 'case', 'forward', _make_inputs('float32'))
  assert not _run_elsewhere(tmp_path, _ELSEWHERE % '"swiglu",').returncode
  (path,) = (tmp_path / 'out').iterdir()
  assert path.name == 'real.safetensors'


@pytest.mark.parametrize(
  ('kernel', 'function', 'message'),
  [
    ('def f(i, l, p):\n  return {"y": i["x"]}', 'g', "expected 'g' in"),
    ('def f(i, l, p):\n  i["x"] *= 2\n  return {}', 'f', 'x: expected it unch'),
    ('def f(i, l, p):\n  raise ValueError("mine")', 'f', 'line 2, in f'),
  ],
)
def test_what_goes_wrong_elsewhere_is_told(tmp_path, kernel, function, message):
  folder_writer.write(
    tmp_path / 'case', 'forward', dict(real=_make_inputs('float32')['real'])
  )
  process = _run_elsewhere(tmp_path, kernel, function)
  assert process.returncode == 1 and message in process.stderr
  assert ('Traceback' in process.stderr) == ('mine' in kernel)


class _Torch:
  """As torch's: without its bits of bfloat16 as an integer."""

  def __init__(self, values, dtype, requires_grad, device):
    self._values, self.dtype = values, f'torch.{dtype}'
    self._grad, self._device = requires_grad, device

  def _copy_with(self, grad, device):
    return _Torch(self._values, self.dtype[6:], grad, device)

  def detach(self):
    return self._copy_with(False, self._device)

  def cpu(self):
    return self._copy_with(self._grad, 'cpu')

  def float(self):
    wide = self._values.astype(np.float32)
    return _Torch(wide, 'float32', self._grad, self._device)

  def __array__(self, dtype=None, copy=None):
    # As torch raises RuntimeError, and TypeError twice.
    if self._grad or self._device != 'cpu' or self.dtype == 'torch.bfloat16':
      raise TypeError("can't convert it to numpy")
    return self._values


class _Foreign:
  """A tensor that speaks DLPack alone."""

  def __init__(self, array: np.ndarray):
    self._array, self.shape = array, array.shape

  def __dlpack__(self, **options):
    return self._array.__dlpack__(**options)

  def __dlpack_device__(self):
    return self._array.__dlpack_device__()


class TestReadCase:
  @pytest.mark.parametrize('dtype', ['float32', 'float16', 'bfloat16'])
  def test_what_is_stored_is_rounded_without_ml_dtypes(
    self, monkeypatch, dtype
  ):
    # given: every kind of float32, and values halfway between two
    words = np.arange(0, 2**32, 65_521, np.uint64).astype(np.uint32)
    halfway = np.arange(0x3F80_8000, 0x3F90_8000, 0x8000, dtype=np.uint32)
    values = np.concatenate([words, halfway]).view(np.float32)
    with np.errstate(over='ignore', invalid='ignore'):
      expected = values.astype(exact_limits.STORAGE[dtype]).astype(np.float32)
    monkeypatch.setitem(sys.modules, 'ml_dtypes', None)

    # when
    actual = read_case.round_stored(values, dtype)

    # then
    np.testing.assert_array_equal(actual, expected)
    is_rounded = (actual != values) & ~np.isnan(values)
    assert is_rounded.any() == (dtype != 'float32')

  def test_bfloat16_without_ml_dtypes_is_widened(self, monkeypatch, tmp_path):
    inputs_by_data = _make_inputs('bfloat16')
    folder_writer.write(tmp_path / 'case', 'forward', inputs_by_data)
    monkeypatch.setitem(sys.modules, 'ml_dtypes', None)

    case = read_case.load(tmp_path / 'case')
    x = read_case.inputs(case, 'real')['x']

    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, inputs_by_data['real'].arrays['x'])

  @pytest.mark.parametrize('per_rank', (False, True))
  def test_one_rank_has_no_rank_axis(self, tmp_path, per_rank):
    inputs_by_data = _make_inputs('bfloat16')
    folder_writer.write(tmp_path / 'case', 'both', inputs_by_data, per_rank)
    case = read_case.load(tmp_path / 'case')
    for direction, name in (('forward', 'w_down'), ('backward', 'dy')):
      actual = read_case.inputs(case, 'real', rank=1, direction=direction)[name]
      assert _have_same_bits(actual, inputs_by_data['real'].arrays[name][1])

  @pytest.mark.parametrize('dtype', ('float32', 'bfloat16', 'int32'))
  def test_any_tensor_is_read_as_it_is(self, dtype):
    # Given tensors of JAX, in Fortran's order, by strides, or of DLPack alone,
    values = np.arange(24).reshape(2, 3, 4).astype(jnp.dtype(dtype))
    kinds = [values, jnp.asarray(values), np.asfortranarray(values)]
    kinds += [values[:, ::-1].copy()[:, ::-1], values[:1].repeat(2, 0)[:, 2, 1]]
    if dtype != 'bfloat16':
      kinds.append(_Foreign(values))
    for tensor in kinds:
      right = values if tensor.shape == values.shape else tensor
      # when they are read, then their bits are as of a plain one.
      bits = read_case.bits_of(tensor)
      assert bits.flags.c_contiguous
      assert _have_same_bits(read_case.as_numpy(bits), right)

  @pytest.mark.parametrize('device, grad', [('cpu', True), ('cuda:0', False)])
  @pytest.mark.parametrize('dtype', ['float32', 'float16', 'bfloat16'])
  def test_a_tensor_of_torch_is_read_as_it_is(self, dtype, device, grad):
    values = np.array([[3, -0.0], [np.inf, 1]]).astype(jnp.dtype(dtype))
    bits = read_case.bits_of(_Torch(values, dtype, grad, device))
    assert _have_same_bits(read_case.as_numpy(bits), values)

  @pytest.mark.parametrize('value', (None, [{}], object()))
  def test_what_is_no_tensor_is_refused(self, value):
    with pytest.raises(TypeError, match='objects, not numbers'):
      read_case.bits_of(value)

  def test_a_file_is_whole_or_not_there(self, tmp_path):
    path = str(tmp_path / 'y.safetensors')
    with pytest.raises(ValueError, match='y: expected a dtype among'):
      read_case.save(path, {'a': np.zeros(3), 'y': np.zeros(3, complex)}, {})
    assert not [*tmp_path.iterdir()]

  @pytest.mark.parametrize('shape', [(), (0,), (2, 0, 3), (3, 4)])
  def test_any_shape_comes_back(self, tmp_path, shape):
    path = str(tmp_path / 'a.safetensors')
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    read_case.save(path, {'a': array, 't': array.T}, {'note': 'n'})
    actual, notes = read_case.read(path)
    np.testing.assert_array_equal(actual['a'], array)
    np.testing.assert_array_equal(actual['t'], array.T)
    assert notes == {'note': 'n'}
