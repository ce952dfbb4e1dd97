"""Digests of byte strings, in pieces and by two threads."""

import subprocess
import sys

import pytest

from hpmoe.parity_tests.cache import cache_file


class TestDigest:
  """Of bytes in pieces."""

  @pytest.fixture(autouse=True)
  def small_pieces(self, monkeypatch):
    monkeypatch.setattr(cache_file, '_PIECE_BYTES', 8)

  @pytest.mark.parametrize('size', [1, 8, 17, 40])
  def test_each_byte_counts(self, size):
    digests = {cache_file.digest([memoryview(bytes(size))])}
    for offset in range(size):
      data = bytearray(size)
      data[offset] = 1
      digests.add(cache_file.digest([memoryview(data)]))
    assert len(digests) == size + 1

  def test_arrays_end_somewhere(self):
    cuts = [(3, 13), (8, 8), (16, 0), (16,), (0, 16)]
    digests = {
      cache_file.digest([memoryview(bytes(size)) for size in cut])
      for cut in cuts
    }
    assert len(digests) == len(cuts)

  @pytest.mark.parametrize(
    'cut', [(), (0,), (3, 13), (8, 8), (3, 2, 1, 1, 1), (1, 40, 0, 7), (16, 9)]
  )
  def test_parts_are_written_as_one(self, tmp_path, cut):
    parts = [bytes(range(i, i + size)) for i, size in enumerate(cut)]

    cache_file.write(tmp_path, b'key', *parts)

    contents = cache_file.read(tmp_path, b'key')
    assert contents is not None and bytes(contents) == b''.join(parts)

  def test_a_child_of_a_fork_makes_its_own(self):
    subprocess.run([sys.executable, '-c', _FORKED], check=True, timeout=60)


_FORKED = """
import os
from hpmoe.parity_tests.cache import cache_file
data = memoryview(bytes(3 << 20))
expected = cache_file.digest([data])
child = os.fork()
if not child:
  os._exit(cache_file.digest([data]) != expected)
assert os.waitpid(child, 0)[1] == 0
"""
