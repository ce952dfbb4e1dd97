"""FlashInfer-Bench's files: definitions, workloads and solutions.

Source: flashinfer-ai/flashinfer-bench 40e6ca78, `flashinfer_bench/data`.  A
definition is JSON; a workload is one line of JSONL, perhaps inside of a trace;
a solution is JSON with its sources, or a Python file and a function.
"""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

# A definition's dtypes; numpy and ml_dtypes have the same names.
DTYPES = (
  'float32',
  'float16',
  'bfloat16',
  'float8_e4m3fn',
  'float8_e5m2',
  'int64',
  'int32',
  'int16',
  'int8',
  'uint8',
  'bool',
)
REFERENCE = 'reference'


@dataclasses.dataclass(frozen=True)
class TensorSpec:
  """One input or output.

  Attributes:
    name: its name.
    shape: axes by name; None: a scalar.
    dtype: of `DTYPES`.
  """

  name: str
  shape: tuple[str, ...] | None
  dtype: str


@dataclasses.dataclass(frozen=True)
class Definition:
  """What a benchmark asks to be computed.

  Attributes:
    name: its name.
    op_type: such as moe.
    axes: sizes of constant axes; None for one that a workload says.
    inputs: in the order of a solution's arguments.
    outputs: likewise.
    reference: Python text with a function `run`.
  """

  name: str
  op_type: str
  axes: Mapping[str, int | None]
  inputs: tuple[TensorSpec, ...]
  outputs: tuple[TensorSpec, ...]
  reference: str

  def shape(
    self, spec: TensorSpec, workload: 'Workload'
  ) -> tuple[int, ...] | None:
    """Returns the sizes of a tensor for a workload; None: a scalar.

    Raises:
      ValueError: the workload lacks an axis.
    """
    if spec.shape is None:
      return None
    sizes = {**self.axes, **workload.axes}
    lacking = [axis for axis in spec.shape if sizes.get(axis) is None]
    if lacking:
      raise ValueError(
        f'workload {workload.uuid}: expected a size of axis {lacking[0]!r}, '
        'got none'
      )
    return tuple(int(sizes[axis] or 0) for axis in spec.shape)


@dataclasses.dataclass(frozen=True)
class Workload:
  """Sizes and inputs for a definition.

  Attributes:
    axes: sizes of variable axes.
    inputs: by name, `type` random, scalar or safetensors and what it needs.
    uuid: its name.
    root: the folder that paths of files are relative to.
  """

  axes: Mapping[str, int]
  inputs: Mapping[str, Mapping[str, Any]]
  uuid: str
  root: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Solution:
  """A kernel.

  Attributes:
    name: what reports call it.
    entry_file: the file of its function, among `sources` or on disk.
    entry_function: the function's name.
    sources: texts by path; empty: `entry_file` is a file on disk.
    destination_passing: whether outputs are its last arguments.
  """

  name: str
  entry_file: str
  entry_function: str
  sources: Mapping[str, str]
  destination_passing: bool


def read_definition(path: str) -> Definition:
  """Returns the definition in a JSON file.

  Raises:
    ValueError: it is none; the text names the file and the key.
  """
  table = _read_object('definition', path)
  try:
    axes = {
      name: axis['value'] if axis['type'] == 'const' else None
      for name, axis in table['axes'].items()
    }
    definition = Definition(
      table['name'],
      table['op_type'],
      axes,
      _read_specs(path, table['inputs']),
      _read_specs(path, table['outputs']),
      table['reference'],
    )
  except (AttributeError, KeyError, TypeError) as error:
    raise ValueError(
      f'definition: expected a FlashInfer-Bench definition in {path}, got one '
      f'without {_name_key(error)}'
    ) from error
  return definition


def read_workload(place: str) -> Workload:
  """Returns a workload: of FILE.jsonl the first, of FILE.jsonl:UUID that one.

  Raises:
    ValueError: there is none.
  """
  path, _, uuid = place.rpartition(':')
  if not path or not pathlib.Path(path).is_file():
    path, uuid = place, ''
  uuids = []
  for number, line in enumerate(_read_text('workload', path).splitlines(), 1):
    if not line.strip():
      continue
    try:
      table = json.loads(line)
      # A trace holds its workload.
      table = table.get('workload', table)
      uuids.append(table['uuid'])
      if uuid in ('', table['uuid']):
        return Workload(
          table['axes'], table['inputs'], table['uuid'], _find_root(path)
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f'workload: expected a workload in line {number} of {path}, got '
        f'{_name_key(error)}'
      ) from error
  raise ValueError(
    f'workload: expected one of {len(uuids)} uuids of {path}, such as '
    f'{(uuids or ["none"])[0]}, got {uuid!r}'
  )


def make_workload(definition: Definition, tokens: int) -> Workload:
  """Returns a workload of random inputs with so many tokens.

  Raises:
    ValueError: the definition has no variable axis, or several.
  """
  axes = [name for name, size in definition.axes.items() if size is None]
  if len(axes) != 1:
    raise ValueError(
      f'tokens: expected --workload with {definition.name}, which has variable '
      f'axes {axes}, got {tokens}'
    )
  return Workload({axes[0]: tokens}, {}, f'random_{tokens}', pathlib.Path())


def read_solution(place: str, definition: Definition) -> Solution:
  """Returns a solution: SOLUTION.json, FILE.py::function or `reference`.

  Raises:
    ValueError: it is none of them, or of another definition.
  """
  if place == REFERENCE:
    sources = {'reference.py': definition.reference}
    return Solution(REFERENCE, 'reference.py', 'run', sources, False)
  if '::' in place:
    path, _, function = place.rpartition('::')
    if not pathlib.Path(path).is_file() or not function.isidentifier():
      raise ValueError(f'solution: expected FILE.py::function, got {place!r}')
    text = pathlib.Path(path).read_text('utf-8')
    folder, name = str(pathlib.Path(path).absolute()), place
    return Solution(name, folder, function, {}, _is_destination_passing(text))
  if '.py:' in place:
    raise ValueError(
      f'solution: expected FILE.py::function, with two colons, got {place!r}'
    )
  return _read_solution_file(place, definition)


def _read_solution_file(path: str, definition: Definition) -> Solution:
  table = _read_object('solution', path)
  try:
    spec = table['spec']
    entry_file, _, function = spec['entry_point'].partition('::')
    sources = {row['path']: row['content'] for row in table['sources']}
    solution = Solution(
      table['name'],
      entry_file,
      function,
      sources,
      spec.get('destination_passing_style', True),
    )
    name, language = table['definition'], spec['language']
  except (AttributeError, KeyError, TypeError) as error:
    raise ValueError(
      f'solution: expected a FlashInfer-Bench solution in {path}, got one '
      f'without {_name_key(error)}'
    ) from error
  if name != definition.name:
    raise ValueError(
      f'solution: expected one of {definition.name}, got {path} of {name}'
    )
  if language not in ('python', 'triton'):
    raise ValueError(
      f'solution: expected language python or triton, got {language!r} in '
      f'{path}: build it, and call it from a Python file, FILE.py::function'
    )
  for source in sources:
    if pathlib.PurePath(source).is_absolute() or '..' in source.split('/'):
      raise ValueError(
        f'solution: expected sources inside of a folder, got {source!r}'
      )
  if entry_file not in sources:
    raise ValueError(
      f'solution: expected {entry_file!r} among its sources, got '
      f'{sorted(sources)[:4]}'
    )
  return solution


def _is_destination_passing(text: str) -> bool:
  """Says whether a file declares that outputs are the last arguments."""
  return any(
    line.replace(' ', '') == 'destination_passing_style=True'
    for line in text.splitlines()
  )


def _read_specs(path: str, table: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
  specs = []
  for name, row in table.items():
    if row['dtype'] not in DTYPES:
      raise ValueError(
        f'definition: expected a dtype among {DTYPES} for {name} in {path}, '
        f'got {row["dtype"]!r}'
      )
    shape = None if row['shape'] is None else tuple(row['shape'])
    specs.append(TensorSpec(name, shape, row['dtype']))
  return tuple(specs)


def _find_root(path: str) -> pathlib.Path:
  """Returns the folder that a workload's paths start at.

  Workloads lie in `workloads/TYPE/` of a set of traces.
  """
  for folder in pathlib.Path(path).absolute().parents:
    if folder.name == 'workloads':
      return folder.parent
  return pathlib.Path(path).absolute().parent


def _read_object(flag: str, path: str) -> dict[str, Any]:
  try:
    table = json.loads(_read_text(flag, path))
  except json.JSONDecodeError as error:
    raise ValueError(f'{flag}: expected JSON in {path}, got {error}') from error
  if not isinstance(table, dict):
    raise ValueError(
      f'{flag}: expected an object in {path}, got {type(table).__name__}'
    )
  return table


def _read_text(flag: str, path: str) -> str:
  try:
    return pathlib.Path(path).read_text('utf-8')
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(f'{flag}: expected a file, got {path!r}') from error


def _name_key(error: Exception) -> str:
  return str(error)[:80] if not isinstance(error, KeyError) else f'{error}'
