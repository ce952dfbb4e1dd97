"""Files of the cache: each holds its key, its data, and a digest of both.

A file that is cut, changed, or written for another key reads as absent.
"""

from collections.abc import Sequence
from concurrent import futures
import contextlib
import functools
import hashlib
import os
import pathlib
import tempfile

SUFFIX = '.program'
PARTIAL_PREFIX = 'new-'  # of a file that is being written
_MAGIC = b'hpmoe program 2\n'
_DIGEST_BYTES = 32
_PIECE_BYTES = 1 << 19  # A digest is made of pieces of this size.


def digest(parts: Sequence[memoryview]) -> bytes:
  """Returns a digest of byte strings.

  It is the digest of the digests of their pieces, computed by two threads: in
  a small check, all arguments and results are digested, in a tenth of its time.
  """
  pieces = [piece for part in parts for piece in _cut(part)]
  return _digest([part.nbytes for part in parts], pieces)


def _digest(sizes: list[int], pieces: Sequence[memoryview]) -> bytes:
  half = len(pieces) // 2
  if half:
    second_half = _second_thread().submit(_digest_pieces, pieces[half:])
    piece_digests = _digest_pieces(pieces[:half]) + second_half.result()
  else:
    piece_digests = _digest_pieces(pieces)
  return hashlib.sha256(repr(sizes).encode() + piece_digests).digest()


def _cut(part: memoryview) -> list[memoryview]:
  starts = range(0, part.nbytes, _PIECE_BYTES)
  return [part[start : start + _PIECE_BYTES] for start in starts]


def _cut_joined(parts: Sequence[memoryview]) -> list[memoryview]:
  """Returns the pieces of the byte string that parts are when joined.

  Only pieces that lie in two parts are copied.
  """
  pieces: list[memoryview] = []
  rest = b''
  for part in parts:
    missing = _PIECE_BYTES - len(rest) if rest else 0
    rest += bytes(part[:missing])
    if len(rest) == _PIECE_BYTES:
      pieces.append(memoryview(rest))
      rest = b''
    if missing >= part.nbytes:
      continue
    pieces += _cut(part[missing:])
    if pieces[-1].nbytes < _PIECE_BYTES:
      rest = bytes(pieces.pop())
  return pieces + [memoryview(rest)] * bool(rest)


def _digest_pieces(pieces: Sequence[memoryview]) -> bytes:
  return b''.join(hashlib.sha256(piece).digest() for piece in pieces)


@functools.cache
def _second_thread() -> futures.ThreadPoolExecutor:
  return futures.ThreadPoolExecutor(1)


# After a fork the child has no threads of the parent.
os.register_at_fork(after_in_child=_second_thread.cache_clear)


def _path_of(folder: pathlib.Path, key: bytes) -> pathlib.Path:
  return folder / f'{hashlib.sha256(key).hexdigest()[:32]}{SUFFIX}'


def read(folder: pathlib.Path, key: bytes) -> memoryview | None:
  """Returns the data of a key; None if the file is absent or damaged."""
  try:
    data = _path_of(folder, key).read_bytes()
  except OSError:
    return None
  # Views instead of copies: a result may be large.
  view = memoryview(data)
  body, stored_digest = view[:-_DIGEST_BYTES], view[-_DIGEST_BYTES:]
  head = _MAGIC + key + b'\n\n'
  if body[: len(head)] != head or digest([body]) != stored_digest:
    return None
  return body[len(head) :]


def write(folder: pathlib.Path, key: bytes, *data: bytes | memoryview) -> None:
  """Writes a file atomically; its data are all of `data`, joined.

  Raises:
    OSError: it cannot be written.
  """
  head = _MAGIC + key + b'\n\n'
  # Never joined here: a result may be large.
  parts = [memoryview(head), *map(memoryview, data)]
  size = sum(part.nbytes for part in parts)
  handle, name = tempfile.mkstemp(prefix=PARTIAL_PREFIX, dir=folder)
  try:
    with os.fdopen(handle, 'wb') as file:
      file.writelines([*parts, _digest([size], _cut_joined(parts))])
    os.replace(name, _path_of(folder, key))
  except BaseException:
    with contextlib.suppress(OSError):
      os.unlink(name)
    raise
