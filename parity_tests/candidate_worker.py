"""Runs the user's candidate in a process of its own; see `candidates`."""

import importlib
import json
import pathlib
import sys
import traceback


def _refuse(job: pathlib.Path, text: str, request: bool) -> None:
  """Leaves word and ends; `request` says that the request was wrong."""
  (job / 'error.json').write_text(json.dumps(dict(text=text, request=request)))
  sys.exit(1)


def _function(job: pathlib.Path, name: str):
  module_name, _, path = name.partition(':')
  try:
    found = importlib.import_module(module_name)
  except ModuleNotFoundError as error:
    _refuse(job, f'candidate: expected a module, got {error}', True)
  except Exception as error:  # pylint: disable=broad-except
    traceback.print_exc()
    _refuse(job, f'{module_name}: raised on import: {error!r}', False)
  for part in path.split('.'):
    if not hasattr(found, part):
      _refuse(
          job,
          f'candidate: expected a function in {module_name}, got {path!r}, '
          'which it has not',
          True,
      )
    found = getattr(found, part)
  if not callable(found):
    _refuse(job, f'candidate: expected a function, got {found!r}', True)
  return found


def main(job: pathlib.Path) -> None:
  request = json.loads((job / 'request.json').read_text())
  sys.path[:] = request['path']
  # Only now: the project and the user's module come from that path.
  import numpy as np

  from parity_tests import candidates
  from reference import config as config_lib
  from reference import precision

  function = _function(job, request['candidate'])
  config = config_lib.MoEConfig(**request['config'])
  policy = precision.PrecisionPolicy(**request['policy'])
  inputs = candidates.load(job / 'inputs')
  try:
    outputs = dict(function(inputs, config, policy))
    outputs = {name: np.asarray(value) for name, value in outputs.items()}
  except Exception as error:  # pylint: disable=broad-except
    traceback.print_exc()
    _refuse(job, f'{request["candidate"]}: raised {error!r}', False)
  try:
    candidates.check_outputs(
        request['candidate'], config, policy, outputs
    )
  except ValueError as error:
    _refuse(job, str(error), True)
  candidates.save(job / 'outputs', outputs)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
