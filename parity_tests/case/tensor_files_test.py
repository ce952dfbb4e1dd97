"""Dumps: every kind of file, what is missing and what is damaged."""

import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files

Y = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
TESTDATA = pathlib.Path(__file__).with_name('testdata')
TORCH = TESTDATA / 'tensors.pt'
# Found by a fuzzer: headers that numpy's reader ends on in other ways.
_DAMAGED = sorted((TESTDATA / 'damaged').iterdir())


def _touch(top, *names):
  for name in names:
    path = top / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'')


@pytest.mark.parametrize(
  ('names', 'data', 'names_by_rank'),
  [
    (['real.safetensors'], 'real', {None: 'real.safetensors'}),
    (['real.npz', 'exact.pt'], 'exact', {None: 'exact.pt'}),
    (['real/y.npy'], 'real', {None: 'real'}),
    (
      ['real.rank0.npz', 'real.rank10.npz'],
      'real',
      {0: 'real.rank0.npz', 10: 'real.rank10.npz'},
    ),
    (['y.npy', 'gate_up.npy'], 'real', {None: '.'}),
    (['rank0/y.npy', 'rank1/y.npy'], 'real', {0: 'rank0', 1: 'rank1'}),
    (['out.rank3.safetensors'], 'real', {3: 'out.rank3.safetensors'}),
    (
      ['real.npz', 'real.rank0.npz'],
      'real',
      {None: 'real.npz', 0: 'real.rank0.npz'},
    ),
  ],
)
def test_where_tensors_are(tmp_path, names, data, names_by_rank):
  _touch(tmp_path, *names)
  expected = {rank: tmp_path / name for rank, name in names_by_rank.items()}
  assert tensor_files.find(str(tmp_path), data) == expected


@pytest.mark.parametrize(
  ('names', 'data', 'error', 'message'),
  [
    (['real.npz'], 'wide', tensor_files.Missing, 'was computed from wide data'),
    (['y.npy'], 'wide', tensor_files.Missing, 'was computed from wide data'),
    (
      ['real.npz', 'real.pt'],
      'real',
      ValueError,
      'expected one file or folder',
    ),
    (
      ['real.rank1.npz', 'real.rank1/y.npy'],
      'real',
      ValueError,
      'expected one file or folder of real',
    ),
    ([], 'real', ValueError, "outputs: expected a folder, got '/"),
  ],
)
def test_tensors_that_are_nowhere_or_twice(
  tmp_path, names, data, error, message
):
  _touch(tmp_path / 'top', *names)
  with pytest.raises(error, match=message):
    tensor_files.find(str(tmp_path / 'top'), data)


def test_two_tensors_of_a_name_are_refused(tmp_path):
  np.save(tmp_path / 'y.npy', Y)
  np.savez(tmp_path / 'z.npz', y=Y)
  with pytest.raises(ValueError, match="expected one tensor 'y', got two"):
    tensor_files.read(tmp_path)


def _write(kind: str, top: pathlib.Path) -> pathlib.Path:
  path = top / f'real{kind}'
  if kind == '.safetensors':
    read_case.save(str(path), {'y': Y}, {})
  elif kind == '.npz':
    np.savez(path, y=Y)
  elif kind == '.npy':
    path = top / 'y.npy'
    np.save(path, np.asfortranarray(Y))
  elif kind == '':
    path.mkdir()
    np.save(path / 'y.npy', Y)
  else:
    path = _msprobe(path.with_suffix(''))
  return path


def _msprobe(top: pathlib.Path) -> pathlib.Path:
  """Writes a dump of one call, with what msprobe says of other values."""
  name = 'Module.mlp.MoE.forward.0.output.0'
  leaf = dict(type='torch.Tensor', dtype='torch.float32', shape=[1, 2, 3])
  calls = {
    'Module.mlp.MoE.forward.0': dict(
      input_args=[dict(leaf), None, dict(type='int', value=2)],
      input_kwargs={},
      output=[[dict(leaf, data_name=f'{name}.npy')]],
    )
  }
  tensors = top / 'step0' / 'rank0' / 'dump_tensor_data'
  tensors.mkdir(parents=True)
  np.save(tensors / f'{name}.npy', Y)
  (tensors.parent / 'dump.json').write_text(
    json.dumps(dict(task='tensor', level='L0', data=calls))
  )
  return top


@pytest.mark.parametrize(
  'kind', ('.safetensors', '.npz', '.npy', '', '.msprobe')
)
def test_every_kind_of_file(tmp_path, kind):
  tensors, _ = tensor_files.read(_write(kind, tmp_path))
  (array,) = tensors.values()
  np.testing.assert_array_equal(array, Y)


def test_a_file_of_torch():
  tensors, _ = tensor_files.read(TORCH)
  assert {*tensors} == {'y', 'plain', 'ids', 'w'}
  values = read_case.as_numpy(tensors['y'])
  assert values.dtype == ml_dtypes.bfloat16 and values.shape == (1, 5, 2)


def test_names_of_msprobe_are_those_of_its_files(tmp_path):
  tensors, _ = tensor_files.read(_msprobe(tmp_path))
  assert [*tensors] == ['Module.mlp.MoE.forward.0.output.0']


def test_statistics_alone_or_two_steps_are_refused(tmp_path):
  path = _msprobe(tmp_path) / 'step0' / 'rank0' / 'dump.json'
  path.write_text(path.read_text().replace('data_name', 'md5'))
  with pytest.raises(ValueError, match='got statistics alone'):
    tensor_files.read(tmp_path)
  shutil.copytree(tmp_path / 'step0', tmp_path / 'step1')
  with pytest.raises(ValueError, match='one step and rank, got 2'):
    tensor_files.read(tmp_path)


@pytest.mark.parametrize('keep', (None, 0, 5, 7, 40, -1))
@pytest.mark.parametrize('kind', ('.safetensors', '.npz', '.npy', '.pt'))
def test_a_damaged_file_is_named(tmp_path, kind, keep):
  path = tmp_path / f'real{kind}'
  whole = (TORCH if kind == '.pt' else _write(kind, tmp_path)).read_bytes()
  path.write_bytes(b'no tensors' if keep is None else whole[:keep])
  with pytest.raises(ValueError, match=f'real{kind}: expected') as error_info:
    tensor_files.read(path)
  assert '\n' not in str(error_info.value)


@pytest.mark.parametrize('suffix', ['.safetensors', '.npz'])
def test_flipped_bits_are_an_error_or_other_values(tmp_path, suffix):
  # given: a small file, so that most flips meet names, sizes and offsets.
  path = tmp_path / f'ids{suffix}'
  arrays = {'topk_ids': np.zeros((1, 1, 1), np.int32)}
  save = safetensors_numpy.save_file
  np.savez(path, **arrays) if suffix == '.npz' else save(arrays, path)
  data = path.read_bytes()
  for bit in range(0, 8 * len(data), 3):
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    try:
      tensor_files.read(path)
    except ValueError as error:
      assert str(error).startswith(f'{path}: '), bit


def test_files_that_broke_a_reader_are_an_error():
  assert len(_DAMAGED) == 11
  for path in _DAMAGED:
    with pytest.raises(ValueError) as error_info:
      input_files.load_safetensors(path)
    assert str(error_info.value).startswith(f'{path}: ')
    assert '\n' not in str(error_info.value)


@pytest.mark.parametrize('name', ('real.txt', 'empty', 'y.npy', 'gone.npz'))
def test_what_holds_no_tensors_is_refused(tmp_path, name):
  path = tmp_path / name
  if name != 'gone.npz':
    path.mkdir() if name == 'empty' else path.write_text('')
  if name == 'y.npy':
    np.save(path, np.array([{}]), allow_pickle=True)
  with pytest.raises(ValueError, match=f'{name}: expected .*(safeten|np)'):
    tensor_files.read(path)


def test_fp8_in_an_npz_is_refused_in_words(tmp_path):
  path = tmp_path / 'case.npz'
  np.savez(path, x=np.zeros(3, ml_dtypes.float8_e4m3fn))
  with pytest.raises(ValueError, match='x: expected a dtype .* FP8 .* save a'):
    tensor_files.read(path)
