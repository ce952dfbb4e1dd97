"""Files of torch.save, read without torch; `testdata` is of torch 2.14.

t = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 8
part = t.t()[1:, ::2]
torch.save(dict(y=part.bfloat16()[None], plain=part, ids=torch.arange(3),
                w=torch.nn.Parameter(t[:1])), 'tensors.pt')
torch.save(t.half(), 'one.pt')
t = torch.arange(-6, 6, dtype=torch.float32).reshape(3, 4) / 4
torch.save(dict(y=t.to(torch.float8_e4m3fn).t(),
                z=t.to(torch.float8_e5m2)[1:]), 'float8.pt')  # torch 2.13
"""

import pathlib
import pickle
import zipfile

import numpy as np
import pytest

from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import torch_file

DATA = pathlib.Path(__file__).with_name('testdata')
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6) / 8


def test_tensors_by_name():
  tensors = torch_file.read(DATA / 'tensors.pt')
  part = VALUES.T[1:, ::2]
  np.testing.assert_array_equal(tensors['plain'], part)
  np.testing.assert_array_equal(tensors['ids'], [0, 1, 2])
  np.testing.assert_array_equal(tensors['w'], VALUES[:1])
  assert tensors['y'].dtype == read_case.BFLOAT16
  np.testing.assert_array_equal(read_case.as_numpy(tensors['y'])[0], part)


def test_one_tensor():
  tensor = torch_file.read(DATA / 'one.pt')
  np.testing.assert_array_equal(tensor, VALUES.astype(np.float16))


def test_tensors_of_float8():
  tensors = torch_file.read(DATA / 'float8.pt')
  values = np.arange(-6, 6).reshape(3, 4) / 4
  for name, expected in (('y', values.T), ('z', values[1:])):
    actual = read_case.as_numpy(tensors[name])
    np.testing.assert_array_equal(actual.astype(np.float32), expected)


class _Evil:
  def __reduce__(self):
    return print, ('run',)


@pytest.mark.parametrize('content', (_Evil(), {'y': _Evil()}))
def test_nothing_of_a_file_is_run(tmp_path, capsys, content):
  path = tmp_path / 'evil.pt'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('evil/data.pkl', pickle.dumps(content))
  with pytest.raises(ValueError, match=r'builtins\.print, which is no tensor'):
    torch_file.read(path)
  assert capsys.readouterr().out == ''


def test_no_dtype_is_changed(tmp_path):
  # given a file that gives a dtype, which all modules share, 64 bytes
  path = tmp_path / 'evil.pt'
  state = b"(I3\nS'|'\nNNNI64\nI1\nI0\nt"
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr(
      'evil/data.pkl', b'ctorch\nBFloat16Storage\n' + state + b'b.'
    )
  # then it is refused
  with pytest.raises(
    ValueError, match='expected tensors that torch.save wrote'
  ):
    torch_file.read(path)
  assert read_case.BFLOAT16.itemsize == 2


def test_a_message_is_short(tmp_path):
  path = tmp_path / 'evil.pt'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('evil/data.pkl', b'ctorch\n' + 4000 * b'a' + b'\n.')
  with pytest.raises(
    ValueError, match=r'got UnpicklingError: torch\.a+$'
  ) as info:
    torch_file.read(path)
  assert len(str(info.value)) <= len(str(path)) + 250


@pytest.mark.parametrize('cut', (0, 10, 500, 1500))
def test_a_damaged_file_is_refused(tmp_path, cut):
  path = tmp_path / 'cut.pt'
  path.write_bytes((DATA / 'tensors.pt').read_bytes()[:cut])
  with pytest.raises(ValueError, match=r'cut\.pt: expected tensors that'):
    torch_file.read(path)


@pytest.mark.parametrize(
  ('offset', 'size', 'stride'),
  [(20, (5,), (1,)), (0, (5, 6), (6, 1)), (0, (2,), (-1,)), (-1, (2,), (1,))],
)
def test_a_tensor_stays_within_its_storage(offset, size, stride):
  storage = VALUES.reshape(-1)
  with pytest.raises(ValueError, match='beyond its storage'):
    torch_file._tensor(storage, offset, size, stride)
