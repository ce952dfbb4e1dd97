"""What MindSpore's own tables say that an NPU computes.

They are in its wheel, that for a CPU too, and are read without importing it:

    lib/plugin/libmindspore_ops_ascend.so   a kernel of an operator, which calls
                                            CANN's, is a class of its name
    lib/plugin/ascend/...res_manager.so     so is the rule that makes an
                                            operator of CANN's graphs of it
    lib/libmindspore_ops.so                 a view is what has a function that
                                            finds its strides; it runs nothing
    config/op_info.config                   operands of each AI CPU kernel

Which dtypes a kernel of CANN takes is in CANN, so only the last is told them.
"""

from collections.abc import Collection, Mapping
import dataclasses
import importlib.metadata
import importlib.util
import json
import pathlib
import re

KERNEL = 'kernel'
GRAPH = "CANN's operator"
AI_CPU = 'AI CPU kernel'
VIEW = 'view'

# Way -> file, and what stands around a name in it.
_SYMBOLS = {
  VIEW: (
    'lib/libmindspore_ops.so',
    rb'_ZN9mindspore3ops\d+(\w+?)(?:View)?BasicTypeCalcE',
  ),
  KERNEL: (
    'lib/plugin/libmindspore_ops_ascend.so',
    rb'_ZN9mindspore6kernel7pyboost\d+(\w+?)Ascend4CallE',
  ),
  GRAPH: (
    'lib/plugin/ascend/libmindspore_ascend_res_manager.so',
    rb'6ascend9OpAdapterINS1_\d+cz(\w+?)EE',
  ),
}
_AI_CPU_FILE = 'config/op_info.config'

Operands = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Tables:
  """Operators that an NPU takes.

  Attributes:
    names: by way, those whose operands no table tells.
    ai_cpu: by name, dtypes of the operands that a kernel takes, any of them.
  """

  names: Mapping[str, Collection[str]]
  ai_cpu: Mapping[str, Collection[Operands]]

  def way(self, name: str, dtypes: Operands) -> str | None:
    """Returns how an NPU takes an operator; None: it does not.

    Args:
      name: of the operator.
      dtypes: of its tensors, such as float32.
    """
    for way, names in self.names.items():
      if name in names:
        return way
    rows = self.ai_cpu.get(name, ())
    return AI_CPU if any(_among(dtypes, row) for row in rows) else None


def _among(dtypes: Operands, row: Operands) -> bool:
  """Returns whether `dtypes` are some of `row`, in order: numbers are left."""
  left = iter(row)
  return all(dtype in left for dtype in dtypes)


def version() -> str:
  """Returns that of MindSpore.

  Raises:
    ModuleNotFoundError: it is missing.
  """
  try:
    return importlib.metadata.version('mindspore')
  except importlib.metadata.PackageNotFoundError as error:
    raise ModuleNotFoundError(
      'mindspore: expected it, got none', name='mindspore'
    ) from error


def read(folder: pathlib.Path | None = None) -> Tables:
  """Returns the tables of MindSpore.

  Args:
    folder: of the package; None for the one that Python finds.

  Raises:
    ModuleNotFoundError: there is no MindSpore.
    ValueError: a table is not where version 2.10 has it.
  """
  if folder is None:
    version()
    spec = importlib.util.find_spec('mindspore')
    assert spec is not None and spec.submodule_search_locations
    folder = pathlib.Path(spec.submodule_search_locations[0])
  names = {}
  for way, (file, pattern) in _SYMBOLS.items():
    matches = re.findall(pattern, _bytes(folder / file))
    names[way] = frozenset(name.decode() for name in matches)
    _check(folder / file, names[way])
  return Tables(names, _ai_cpu(folder / _AI_CPU_FILE))


def _bytes(path: pathlib.Path) -> bytes:
  if not path.is_file():
    raise ValueError(
      f'{path}: expected a table as in MindSpore 2.10, got no such file in '
      f'{version()}'
    )
  return path.read_bytes()


def _check(path: pathlib.Path, names: Collection[str]) -> None:
  if not names:
    raise ValueError(
      f'{path}: expected names of operators as in MindSpore 2.10, got none in '
      f'{version()}'
    )


def _ai_cpu(path: pathlib.Path) -> dict[str, list[Operands]]:
  rows: dict[str, list[Operands]] = {}
  for line in _bytes(path).splitlines():
    try:
      row = json.loads(line)
      if row['imply_type'] != 'AiCPU':
        continue
      count = len(row['inputs'])
      rows.setdefault(row['op_name'], []).extend(
        tuple(kind[0] for kind in kinds[:count])
        for kinds in row['dtype_format']
      )
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(
        f'{path}: expected rows as in MindSpore 2.10, got {line[:40]!r}'
      ) from error
  _check(path, rows)
  return rows
