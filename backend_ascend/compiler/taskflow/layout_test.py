"""The numpy tables and the C++ header describe the same bytes."""

import pathlib
import re

import ml_dtypes
import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import storage

KERNELS = pathlib.Path(__file__).resolve().parents[2] / 'image'
HEADER = (KERNELS / 'image.h').read_text()
KINDS = (KERNELS / 'kinds.h').read_text()
DTYPES = (KERNELS / 'dtypes.h').read_text()

STRUCTS = {
  'TaskDesc': layout.TASK,
  'WaitDesc': layout.WAIT,
  'SignalDesc': layout.SIGNAL,
  'RegionDesc': layout.REGION,
  'EventDesc': layout.EVENT,
  'SpaceDesc': layout.SPACE,
  'QueueDesc': layout.QUEUE,
  'ImageHeader': layout.HEADER,
}

_C_TYPES = {
  'uint8_t': np.dtype('u1'),
  'uint16_t': np.dtype('<u2'),
  'int32_t': np.dtype('<i4'),
  'uint32_t': np.dtype('<u4'),
  'uint64_t': np.dtype('<u8'),
  'TableRef': np.dtype([('offset', '<u8'), ('count', '<u8')]),
}


def c_fields(struct: str) -> list[tuple[str, np.dtype]]:
  """Returns (name, dtype) of every field of a struct of image.h."""
  body = re.search(rf'struct {struct} {{(.*?)\n}};', HEADER, re.S).group(1)
  body = re.sub(r'//[^\n]*', '', body)
  fields = []
  for c_type, name, count in re.findall(r'(\w+) (\w+)(?:\[(\d+)\])?;', body):
    dtype = _C_TYPES[c_type]
    fields.append((name, np.dtype((dtype, int(count))) if count else dtype))
  return fields


@pytest.mark.parametrize('struct', STRUCTS)
def test_numpy_struct_equals_cpp_struct(struct):
  # Given the C++ struct, when its fields are laid out with natural alignment,
  # then numpy's packed struct has the same names, types and total size.
  dtype = STRUCTS[struct]
  fields = c_fields(struct)
  assert [(n, dtype.fields[n][0]) for n in dtype.names] == fields
  size = int(re.search(rf'sizeof\({struct}\) == (\d+)', HEADER).group(1))
  assert dtype.itemsize == size
  for name in dtype.names:
    field, offset = dtype.fields[name][:2]
    assert offset % min(field.base.alignment, 8) == 0, name


@pytest.mark.parametrize(
  'enum_class, prefix',
  [
    (layout.Unit, 'Unit'),
    (layout.View, 'View'),
    (layout.Direction, 'Direction'),
    (layout.Form, 'Form'),
    (layout.Grain, 'EventGrain'),
    (layout.Mode, 'EventMode'),
  ],
)
def test_enums_have_the_values_of_the_header(enum_class, prefix):
  # Given an enum of the headers, when it is read, then the members of ours are
  # the same, in its order and from 0 on.
  text = re.sub(r'//[^\n]*', '', HEADER + KINDS)
  body = re.search(rf'enum (class )?{prefix} : \w+ {{(.*?)}};', text, re.S)
  names = re.findall(r'k(\w+)', body.group(2))
  names = [n.removesuffix('Grain') for n in names if not n.startswith('Num')]
  names = [member.name.replace('_', '') for member in enum_class]
  assert names == [name.upper() for name in names]
  assert list(enum_class) == list(range(len(names)))


def test_dtypes_are_the_formats_that_are_stored():
  # The tables of dtypes.h and of the contract, row by row.
  rows = re.findall(r'X\(k(\w+), \w+, "(\w+)", (\d+),', DTYPES)
  assert [name for _, name, _ in rows] == list(layout.DTYPES)
  assert [name.lower() for name, _, _ in rows] == list(layout.DTYPES)
  assert {name: int(bits) + 1 for _, name, bits in rows} == {
    name: row.digits for name, row in storage.KERNEL_FORMATS.items()
  }


@pytest.mark.parametrize('name', storage.FORMATS)
def test_formats_are_those_of_numpy(name):
  row, info = (
    storage.FORMATS[name],
    ml_dtypes.finfo(storage.FORMATS[name].numpy),
  )
  assert row.digits == info.nmant + 1
  assert row.largest == float(info.max)
  assert row.smallest_normal == float(info.smallest_normal)
  assert row.smallest == float(info.smallest_subnormal)


def test_magic_and_version_are_those_of_the_header():
  magic = re.search(r'kImageMagic = (0x[0-9A-F]+)', HEADER).group(1)
  assert int(magic, 16) == layout.MAGIC
  version = re.search(r'kImageVersion = (\d+)', HEADER).group(1)
  assert int(version) == layout.VERSION
