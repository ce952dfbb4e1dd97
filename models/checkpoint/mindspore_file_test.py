"""MindSpore's format by its bytes."""

import zlib

import jax
import ml_dtypes
import numpy as np
import pytest

from hpmoe.models.checkpoint import mindspore_file

# As MindSpore 2.10.0 writes {'b.w': int16 [[1], [-2]], 'c': bfloat16 [1.0]}.
GOLDEN = bytes.fromhex(
  '0a180a03622e771211080208011205496e7431361a040100feff'
  '0a150a016312100801120842466c6f617431361a02803f'
)
TENSORS = {
  'b.w': np.array([[1], [-2]], np.int16),
  'c': np.array([1.0], ml_dtypes.bfloat16),
}


def _write(path, tensors):
  specs = {
    name: jax.ShapeDtypeStruct(t.shape, t.dtype) for name, t in tensors.items()
  }
  mindspore_file.write(path, specs, tensors.__getitem__)


def _value(name: bytes, kind: bytes, dims: bytes, content: bytes) -> bytes:
  tensor = dims + b'\x12' + bytes([len(kind)]) + kind
  tensor += b'\x1a' + bytes([len(content)]) + content
  value = b'\x0a' + bytes([len(name)]) + name
  value += b'\x12' + bytes([len(tensor)]) + tensor
  return b'\x0a' + bytes([len(value)]) + value


class TestWrite:
  def test_writes_what_mindspore_writes(self, tmp_path):
    _write(tmp_path / 'a.ckpt', TENSORS)
    assert (tmp_path / 'a.ckpt').read_bytes() == GOLDEN

  def test_refuses_what_mindspore_cannot_read(self, tmp_path):
    specs = {'a': jax.ShapeDtypeStruct((2**29,), np.float32)}
    with pytest.raises(ValueError, match='at most 2147483647 bytes'):
      mindspore_file.write(tmp_path / 'a.ckpt', specs, None)
    assert not list(tmp_path.iterdir())


class TestRead:
  @pytest.mark.parametrize('dtype', mindspore_file.DTYPES.values(), ids=str)
  def test_every_dtype(self, tmp_path, seed, dtype):
    rng = np.random.default_rng(seed)
    tensor = rng.integers(0, 2, (300, 2)).astype(dtype)
    _write(tmp_path / 'a.ckpt', {'a': tensor})
    got = mindspore_file.read_index(tmp_path / 'a.ckpt')['a'].read()
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, tensor)

  def test_a_tensor_in_slices(self, tmp_path):
    # given a tensor as MindSpore cuts what is large: all dims in each slice
    parts = [
      _value(b'a', b'Int8', b'\x08\x03\x08\x02', content)
      for content in (b'\1\2', b'\3', b'\4\5\6')
    ]
    (tmp_path / 'a.ckpt').write_bytes(b''.join(parts))
    # then
    got = mindspore_file.read_index(tmp_path / 'a.ckpt')['a'].read()
    np.testing.assert_array_equal(got, np.arange(1, 7).reshape(3, 2))

  def test_packed_dims(self, tmp_path):
    value = _value(b'a', b'Int8', b'\x0a\x02\x02\x01', b'\7\x08')
    (tmp_path / 'a.ckpt').write_bytes(value)
    got = mindspore_file.read_index(tmp_path / 'a.ckpt')['a'].read()
    assert got.tolist() == [[7], [8]]

  def test_a_checksum(self, tmp_path):
    end = b'crc_num' + zlib.crc32(GOLDEN).to_bytes(10, 'big')
    path = tmp_path / 'a.ckpt'
    path.write_bytes(GOLDEN + end)
    assert set(mindspore_file.read_index(path)) == set(TENSORS)
    path.write_bytes(GOLDEN.replace(b'\xfe', b'\xfd') + end)
    with pytest.raises(ValueError, match='a.ckpt: expected CRC-32 [0-9a-f]{8}'):
      mindspore_file.read_index(path)

  @pytest.mark.parametrize('cut', range(1, len(GOLDEN)))
  def test_a_truncated_file(self, tmp_path, cut):
    whole = 26  # bytes of the first value
    (tmp_path / 'a.ckpt').write_bytes(GOLDEN[:cut])
    if cut == whole:  # a message that ends there is one
      assert set(mindspore_file.read_index(tmp_path / 'a.ckpt')) == {'b.w'}
      return
    with pytest.raises(ValueError, match='a.ckpt: expected a checkpoint of'):
      mindspore_file.read_index(tmp_path / 'a.ckpt')

  @pytest.mark.parametrize(
    'content, text',
    [
      (b'\x12\x00', 'field 2'),
      (b'\x0d\x00\x00\x00\x00', 'wire type 5'),
      (b'\x0a' + b'\xff' * 10, 'more than 64 bits'),
      (b'\x0a\x03\x0a\x01a', 'without name or tensor'),
      (b'\x0a\x05\x0a\x01a\x1a\x00', 'a, which is no tensor'),
      (_value(b'a', b'Int3', b'\x08\x01', b'\1'), "KeyError 'Int3'"),
      (_value(b'a', b'Int8', b'\x08\x02', b'\1'), r'1 bytes for a, \[2\]'),
    ],
  )
  def test_a_damaged_file(self, tmp_path, content, text):
    (tmp_path / 'a.ckpt').write_bytes(content)
    with pytest.raises(ValueError, match=f'expected a checkpoint.*{text}'):
      mindspore_file.read_index(tmp_path / 'a.ckpt')
