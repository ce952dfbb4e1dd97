"""Writes a workload's inputs as a set of traces that FlashInfer-Bench reads.

FOLDER/definitions/moe/NAME.json
FOLDER/workloads/moe/NAME.jsonl          one line, with its uuid
FOLDER/blob/workloads/moe/NAME/UUID.safetensors
"""

import json
import pathlib
import shutil

import numpy as np

from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.definitions import definition as definition_lib
from hpmoe.parity_tests.definitions import definition_check


def write_trace_set(
  folder: str, definition: str, tokens: int, seed: int = 0
) -> pathlib.Path:
  """Writes the inputs of T tokens; returns the path of the workload's file.

  They are the inputs that `hpmoe check --definition --tokens` draws.

  Args:
    folder: where to; made if it is not there.
    definition: its JSON file.
    tokens: T.
    seed: of the inputs.

  Raises:
    ValueError: the definition cannot be judged, or the folder is in use.
  """
  root = pathlib.Path(folder)
  if root.is_dir() and any(root.iterdir()):
    raise ValueError(f'out: expected a folder that is empty, got {folder!r}')
  task = definition_lib.read_definition(definition)
  work = definition_lib.make_workload(task, tokens)
  layer = definition_check.make_layer(task, work, seed, is_random=True)
  group = pathlib.Path(task.op_type) / task.name
  blob = pathlib.Path('blob/workloads') / group / f'{work.uuid}.safetensors'
  for path in (blob, 'definitions' / group, 'workloads' / group):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
  arrays = {
    name: value
    for name, value in layer.inputs.items()
    if isinstance(value, np.ndarray)
  }
  read_case.save(str(root / blob), arrays, {})
  inputs = {
    name: dict(type='safetensors', path=str(blob), tensor_key=name)
    if name in arrays
    else dict(type='scalar', value=value)
    for name, value in layer.inputs.items()
  }
  workload = dict(axes=dict(work.axes), inputs=inputs, uuid=work.uuid)
  shutil.copyfile(definition, root / 'definitions' / f'{group}.json')
  path = root / 'workloads' / f'{group}.jsonl'
  line = dict(definition=task.name, workload=workload)
  path.write_text(json.dumps(line) + '\n', encoding='utf-8')
  return path
