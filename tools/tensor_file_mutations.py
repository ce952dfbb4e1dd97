"""Mutations of .safetensors and .npz files that know how they are built.

A byte changed anywhere mostly ends at a checksum or at the JSON parser, so most
mutations change one value of a header, or one member of an archive, and build
the file again.
"""

from collections.abc import Callable
import io
import json
import random
import re
import struct
import warnings
import zipfile

import numpy as np
from safetensors import numpy as safetensors_numpy

from hpmoe.reference.contract import storage

_NUMBERS = (
  0,
  1,
  2,
  3,
  4,
  8,
  -1,
  33,
  2**16,
  2**31 - 1,
  2**31,
  2**32,
  10**12,
  2**62,
  2**63 - 1,
  2**63,
  2**64,
  10**30,
  1.5,
  True,
  None,
)
_DTYPES = ('BF16', 'F16', 'F32', 'F64', 'I32', 'I64', 'U8', 'BOOL', 'F4', '')
_NAMES = ('x', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down', 'a\nb', ' ')
_NPY_WORDS = (
  "'<f4'",
  "'<i4'",
  "'>i4'",
  "'|O'",
  "'|V2'",
  "'|V0'",
  "'<M8[s]'",
  'True',
  'False',
  '[]',
  '()',
  '(',
  ')',
  "'shape'",
  "'descr'",
  "[('a', '<f4')]",
  '3L',
  '1e3',
  '\0',
  ',',
  '{',
  '}',
  "''",
)
_COMPRESSIONS = (
  zipfile.ZIP_STORED,
  zipfile.ZIP_DEFLATED,
  zipfile.ZIP_BZIP2,
  zipfile.ZIP_LZMA,
)


def seeds() -> list[tuple[str, bytes]]:
  """Returns valid files, as suffix and bytes: small, all dtypes, both kinds."""
  made = []
  for dtype in (row.numpy for row in storage.STORED.values()):
    arrays = {
      'x': np.ones((2, 3, 3), dtype),
      'topk_ids': np.tile(np.arange(2, dtype=np.int32), (2, 3, 1)),
      'topk_weights': np.full((2, 3, 2), 0.5, np.float32),
      'w_gate_up': np.ones((2, 1, 3, 2), dtype),
      'w_down': np.ones((2, 1, 1, 3), dtype),
    }
    made.append(('.safetensors', safetensors_numpy.save(arrays)))
    if dtype == np.float32:
      for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, **arrays)
        made.append(('.npz', file.getvalue()))
  return made


def mutate(suffix: str, data: bytes, rng: random.Random) -> bytes:
  """Returns other bytes; of the same structure where it is still there."""
  for _ in range(rng.choice((1, 1, 1, 2, 4))):
    changes: list[Callable] = [_BUILDERS[suffix]] * 7 + [_change_bytes]
    data = rng.choice(changes)(data, rng)
  return data


def _number(rng, old: object = 0) -> object:
  if isinstance(old, int) and rng.random() < 0.5:
    return int(old) + rng.choice((-1, 1, 4, -4))
  return rng.choice(_NUMBERS)


# --- Bytes ------------------------------------------------------------------


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
  at = rng.randrange(len(data) + 1)
  # The end of a zip file, and the beginning of the other, say where all is.
  if rng.random() < 0.3:
    at = rng.choice((min(at, 8), max(len(data) - rng.randrange(1, 99), 0)))
  few = rng.randrange(9)
  kind = rng.randrange(5)
  if kind == 0:
    return data[:at]
  if kind == 1:
    return data[:at] + rng.randbytes(few) + data[at:]
  if kind == 2:
    return data[:at] + data[at + few :]
  if kind == 3:
    word = rng.choice((b'\0', b'\xff', b'\x7f', b'\x80', b'\1')) * max(few, 1)
    return data[:at] + word + data[at + len(word) :]
  return data[:at] + rng.randbytes(1) + data[at + 1 :]


# --- Safetensors ------------------------------------------------------------


def _change_safetensors(data: bytes, rng: random.Random) -> bytes:
  try:
    size = int.from_bytes(data[:8], 'little')
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    _change_header(header, rng)
    text = json.dumps(header).encode()
  except Exception:  # whatever an earlier mutation has made of it
    return _change_bytes(data, rng)
  if rng.random() < 0.1:
    body = _change_bytes(body, rng)
  if rng.random() < 0.1:
    text = text.replace(b'"shape"', b'"shape":[1],"shape"', 1)
  size = len(text) if rng.random() < 0.95 else rng.randrange(2 * len(text))
  return struct.pack('<Q', size) + text + body


def _change_header(header: dict, rng: random.Random) -> None:
  name = rng.choice(sorted(header))
  entry = header[name]
  kind = rng.randrange(8)
  if kind == 0:
    header[rng.choice(_NAMES)] = header.pop(name)
  elif kind == 1:
    del header[name]
  elif kind == 2:
    header[name] = _nested(rng)
  elif kind == 3:
    entry['dtype'] = rng.choice(_DTYPES)
  elif kind == 4:
    entry['data_offsets'] = header[rng.choice(sorted(header))]['data_offsets']
  else:
    field = rng.choice(('shape', 'data_offsets'))
    entry[field] = _change_list(entry[field], rng)


def _change_list(values: list, rng: random.Random) -> list:
  values = list(values)
  at = rng.randrange(len(values) + 1)
  if at == len(values) or rng.random() < 0.2:
    return values[:at] + [_number(rng)] * rng.choice((1, 1, 40)) + values[at:]
  if rng.random() < 0.2:
    return values[:at] + values[at + 1 :]
  values[at] = _number(rng, values[at])
  return values


def _nested(rng: random.Random) -> object:
  value: object = rng.choice((*_NUMBERS, '', {}, []))
  for _ in range(rng.choice((0, 1, 200))):
    value = [value] if rng.random() < 0.5 else {'dtype': value}
  return value


# --- Archives ---------------------------------------------------------------


def _change_npz(data: bytes, rng: random.Random) -> bytes:
  try:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
      members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
  except Exception:  # likewise
    return _change_bytes(data, rng)
  kind = rng.randrange(8)
  if kind == 0:
    other = rng.choice(_NAMES) + rng.choice(('', '.npy'))
    members[other] = members.pop(name)
  elif kind == 1:
    del members[name]
  elif kind == 2:
    members[name] = _change_bytes(members[name], rng)
  else:
    members[name] = _change_npy(members[name], rng)
  out = io.BytesIO()
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    with zipfile.ZipFile(out, 'w', rng.choice(_COMPRESSIONS)) as archive:
      for name, member in members.items():
        archive.writestr(name, member)
  return out.getvalue()


def _change_npy(data: bytes, rng: random.Random) -> bytes:
  end = data.find(b'\n')
  if end < 10:
    return _change_bytes(data, rng)
  text = data[10:end].decode('latin1')
  tokens = re.findall(r"'[^']*'|-?\d+|\w+|\S", text)
  if not tokens:
    return _change_bytes(data, rng)
  at = rng.randrange(len(tokens))
  if tokens[at].isdigit() and rng.random() < 0.8:
    tokens[at] = str(_number(rng, int(tokens[at])))
  else:
    new = [rng.choice(_NPY_WORDS)] * rng.choice((1, 1, 300))
    tokens[at : at + rng.randrange(2)] = new
  header = (' '.join(tokens) + '\n').encode('latin1')
  version = data[6:8] if rng.random() < 0.9 else bytes((rng.randrange(5), 0))
  size = struct.pack('<I' if version[0] > 1 else '<H', len(header) % 2**16)
  return data[:6] + version + size + header + data[end + 1 :]


_BUILDERS = {'.safetensors': _change_safetensors, '.npz': _change_npz}
