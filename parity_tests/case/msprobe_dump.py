"""Reads the index of a msprobe dump: tensor names, and where each file lies.

`tensor_files` reads the tensors themselves.
"""

from collections.abc import Iterator
import json
import pathlib
import re
from typing import NamedTuple

# The names of msprobe's description and of its folder of tensors.
MSPROBE, _TENSORS = 'dump.json', 'dump_tensor_data'
_RUN_NAME = re.compile(
  r'(?:(?:Module|Cell)\.)?(?P<path>.+)\.(?P<module>[A-Za-z_]\w*)'
  r'\.(?P<part>forward|backward|parameters_grad)\.(?P<call>\d+)\.(?P<rest>.+)'
)


def list_files(path: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the files of the tensors that a dump.json names, by tensor name.

  Raises:
    ValueError: the file is no dump of msprobe, or has statistics alone.
  """
  try:
    content = json.loads(path.read_text())
  except ValueError as error:
    raise ValueError(
      f'{path}: expected a dump of msprobe, got {error!r}'
    ) from error
  if not isinstance(content, dict) or 'data' not in content:
    keys = sorted(content) if isinstance(content, dict) else type(content)
    raise ValueError(
      f'{path}: expected a dump of msprobe, which has a key data, got '
      f'{str(keys)[:100]}'
    )
  calls = content['data']
  folder = path.parent / _TENSORS
  files = {pathlib.PurePath(n).stem: folder / n for n in _names(calls)}
  if not files:
    raise ValueError(
      f'{path}: expected tensors, got statistics alone: dump with task "tensor"'
    )
  return files


class RunName(NamedTuple):
  """The parsed name of a tensor of a dumped run.

  msprobe's names are `Module.PATH.CLASS.forward.CALL.input.0`, with `backward`
  and `parameters_grad` in place of `forward`; MindSpore's are `Cell`s.

  Attributes:
    path: the module's name in the model.
    module: its class.
    part: forward, backward or parameters_grad.
    call: the number of its call.
    rest: the tensor's name within the call.
  """

  path: str
  module: str
  part: str
  call: int
  rest: str


def parse_run_name(name: str) -> RunName | None:
  """Parses the name of a tensor; None: it is not of a module."""
  match = _RUN_NAME.fullmatch(name)
  if match is None:
    return None
  fields = match.groupdict()
  return RunName(**{**fields, 'call': int(fields['call'])})


def _names(node: object) -> Iterator[str]:
  """Yields the names of files below a node of dump.json."""
  if isinstance(node, dict):
    if isinstance(node.get('data_name'), str):
      yield node['data_name']
    for value in node.values():
      yield from _names(value)
  elif isinstance(node, list):
    for value in node:
      yield from _names(value)
