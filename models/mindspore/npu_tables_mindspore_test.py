"""What MindSpore's own tables say, and what is said where one is missing."""

import json

import pytest

from hpmoe.models.mindspore import npu_tables

_SYMBOLS = {
  'lib/libmindspore_ops.so': '_ZN9mindspore3ops24TurnedViewBasicTypeCalcE',
  'lib/plugin/libmindspore_ops_ascend.so': (
    '_ZN9mindspore6kernel7pyboost11AddedAscend4CallE'
  ),
  'lib/plugin/ascend/libmindspore_ascend_res_manager.so': (
    '6ascend9OpAdapterINS1_8czSortedEE'
  ),
}
_FILES = (*_SYMBOLS, 'config/op_info.config')


def _row(name: str, kind: str, *operands: str) -> str:
  kinds = [[dtype, 'DefaultFormat'] for dtype in (*operands, 'bool')]
  inputs = [dict(name='x')] * len(operands)
  row = dict(op_name=name, imply_type=kind, inputs=inputs, dtype_format=[kinds])
  return json.dumps(row)


@pytest.fixture(scope='module')
def tables() -> npu_tables.Tables:
  return npu_tables.read()


@pytest.fixture
def folder(tmp_path):
  """Returns a package with an operator in each table."""
  for file, symbol in _SYMBOLS.items():
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(b'\x7fELF\0' + symbol.encode() + b'\0')
  (tmp_path / 'config').mkdir()
  rows = (
    _row('Taken', 'AiCPU', 'float32', 'int32'),
    _row('Filled', 'AiCPU', 'int64', 'float32'),
    _row('OnHost', 'CPU', 'float32'),
  )
  (tmp_path / 'config/op_info.config').write_text('\n'.join(rows))
  return tmp_path


@pytest.mark.parametrize(
  'name, dtypes, way',
  [
    ('Turned', ('float64',), npu_tables.VIEW),
    ('Added', ('float64',), npu_tables.KERNEL),
    ('Sorted', (), npu_tables.GRAPH),
    ('Taken', ('float32', 'int32'), npu_tables.AI_CPU),
    ('Taken', ('float32', 'int64'), None),
    ('Taken', ('float32', 'int32', 'int32'), None),
    # A number is no tensor.
    ('Filled', ('float32',), npu_tables.AI_CPU),
    ('OnHost', ('float32',), None),
    ('Add', ('float32',), None),
  ],
)
def test_how_an_npu_takes_an_operator(folder, name, dtypes, way):
  assert npu_tables.read(folder).way(name, dtypes) == way


@pytest.mark.parametrize(
  'content, expected',
  [(None, 'a table .* got no such file'), (b'', 'names .* got none')],
)
@pytest.mark.parametrize('file', _FILES)
def test_a_table_without_names_is_one_line(folder, file, content, expected):
  (folder / file).unlink()
  if content is not None:
    (folder / file).write_bytes(content)
  with pytest.raises(
    ValueError, match=rf'^\S+/{file}: expected {expected} in 2\.'
  ):
    npu_tables.read(folder)


def test_rows_that_are_others_are_one_line(folder):
  (folder / 'config/op_info.config').write_text('{"op_name": "Taken"}')
  with pytest.raises(ValueError, match=r'expected rows as in MindSpore 2\.10'):
    npu_tables.read(folder)


@pytest.mark.parametrize(
  'name, dtypes, way',
  [
    ('MatMulExt', ('float32', 'float32'), npu_tables.KERNEL),
    ('Reshape', ('float32',), npu_tables.VIEW),
    ('StridedSliceGrad', ('float32',), npu_tables.GRAPH),
    ('Gather', ('float32', 'int32'), npu_tables.AI_CPU),
    ('Gather', ('bfloat16', 'int32'), None),
    ('Eigh', ('float32',), None),
  ],
)
def test_the_tables_of_the_installed_mindspore(tables, name, dtypes, way):
  assert tables.way(name, dtypes) == way
