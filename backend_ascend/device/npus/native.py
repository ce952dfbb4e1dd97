"""The C interface of npus.h, by ctypes: structures, and the library."""

import ctypes
import pathlib

# How a call ended, as npus.h numbers it.
SUCCESS, INPUT, LIBRARY, UNREACHABLE, RANK_LOST, DEADLINE, INTERNAL = range(7)
_MAX_RANKS, _SUSPECTS = 64, 8


class End(ctypes.Structure):
  """How a call ended."""

  _fields_ = [
    ('code', ctypes.c_int32),
    ('num_ranks', ctypes.c_int32),
    ('ranks', ctypes.c_int32 * _MAX_RANKS),
    ('task', ctypes.c_int32),
    ('event', ctypes.c_int32),
    ('expected', ctypes.c_int32),
    ('actual', ctypes.c_int32),
    ('num_suspects', ctypes.c_int32),
    ('suspects', ctypes.c_int32 * _SUSPECTS),
    ('text', ctypes.c_char * 1024),
  ]


class Hello(ctypes.Structure):
  """What each rank tells the others before they join."""

  _fields_ = [
    ('rank', ctypes.c_int32),
    ('num_ranks', ctypes.c_int32),
    ('device', ctypes.c_int32),
    ('in_groups', ctypes.c_int32),
    ('server', ctypes.c_uint64),
    ('pod', ctypes.c_int64),
    ('heap_bytes', ctypes.c_uint64),
    ('unique_id', ctypes.c_uint8 * 256),
  ]


class Options(ctypes.Structure):
  """What a rank opens with."""

  _fields_ = [
    ('rank', ctypes.c_int32),
    ('num_ranks', ctypes.c_int32),
    ('device', ctypes.c_int32),
    ('heap_bytes', ctypes.c_uint64),
    ('start_s', ctypes.c_double),
    ('kernel', ctypes.c_char_p),
  ]


class Tensor(ctypes.Structure):
  """The rank's slab of a tensor."""

  _fields_ = [
    ('name', ctypes.c_char_p),
    ('data', ctypes.c_void_p),
    ('bytes', ctypes.c_uint64),
    ('on_device', ctypes.c_int32),
  ]


class Call(ctypes.Structure):
  """A launch."""

  _fields_ = [
    ('image', ctypes.c_void_p),
    ('image_bytes', ctypes.c_uint64),
    ('topk_ids', ctypes.c_void_p),
    ('counts', ctypes.c_void_p),
    ('tensors', ctypes.POINTER(Tensor)),
    ('num_tensors', ctypes.c_int32),
    ('poison', ctypes.c_int32),
    ('deadline_s', ctypes.c_double),
  ]


def load(path: str | pathlib.Path) -> ctypes.CDLL:
  """Returns the library, with the types of its functions.

  Args:
    path: the library that `make ascend-npus` built, or the twin's.

  Raises:
    RuntimeError: it cannot be loaded.
  """
  try:
    library = ctypes.CDLL(str(path))
  except OSError as error:
    raise RuntimeError(
      'library: expected the host program that `make ascend-npus` builds, '
      f'got {error}'
    ) from error
  pointer = ctypes.POINTER
  session, end = ctypes.c_void_p, pointer(End)
  library.hpmoe_npus_heap_bytes.restype = ctypes.c_uint64
  library.hpmoe_npus_heap_bytes.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
  library.hpmoe_npus_open.argtypes = [
    pointer(Options),
    pointer(Hello),
    pointer(session),
    end,
  ]
  library.hpmoe_npus_join.argtypes = [session, pointer(Hello), end]
  library.hpmoe_npus_launch.argtypes = [session, pointer(Call), end]
  library.hpmoe_npus_close.argtypes = [session, end]
  return library
