"""Runs the user's candidate in a process of its own; see `user_candidate`.

All that it needs to know of a pass comes with the request: the user's modules
may have any name but `hpmoe`, and few of ours are imported beside them.
"""

from collections.abc import Callable, Mapping, Sequence
import importlib
import inspect
import json
import pathlib
import sys
import traceback
from typing import NoReturn


def _refuse(job: pathlib.Path, text: str, kind: str = 'request') -> NoReturn:
  """Leaves word and ends; `kind` is one of `user_candidate._KINDS`."""
  word = dict(text=' '.join(text.split()), kind=kind)
  (job / 'error.json').write_text(json.dumps(word))
  sys.exit(1)


def _print_traceback(error: Exception) -> None:
  """Prints the user's frames, without those that led to them."""
  frame = error.__traceback__
  while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
    frame = frame.tb_next
  traceback.print_exception(type(error), error, frame)


def _is_ours(filename: str) -> bool:
  return filename in (__file__, importlib.__file__) or filename.startswith(
    '<frozen importlib'
  )


def _import(job: pathlib.Path, name: str):
  try:
    return importlib.import_module(name)
  except Exception as error:  # pylint: disable=broad-except
    missing = getattr(error, 'name', None) or ''
    if not isinstance(error, ImportError):
      text = f'{name}: raised on import: {error!r}'
    elif f'{name}.'.startswith(f'{missing}.'):
      _refuse(
        job,
        'candidate: expected a module in the current folder or on '
        f"Python's path, got {error}",
      )
    else:
      text = f'{name}: its import failed: {error}'
    _print_traceback(error)
    _refuse(job, text, 'failed')


def _function(job: pathlib.Path, name: str) -> Callable:
  module_name, _, path = name.partition(':')
  found = _import(job, module_name)
  for part in path.split('.'):
    if not hasattr(found, part):
      _refuse(
        job,
        f'candidate: expected a function in {module_name}, got {path!r}, '
        'which is not in it',
      )
    found = getattr(found, part)
  if not callable(found):
    _refuse(job, f'candidate: expected a function, got {found!r}')
  return found


def _check_arguments(
  job: pathlib.Path, name: str, function: Callable, form='function(inputs'
) -> None:
  try:
    signature = inspect.signature(function)
  except ValueError:  # a built-in keeps it to itself
    return
  try:
    signature.bind('inputs', 'config', 'policy')
  except TypeError as error:
    path = name.partition(':')[2]
    _refuse(
      job,
      f'{name}: expected {form}, config, policy), got '
      f'{path}{signature}: {error}',
    )


def _backward(job: pathlib.Path, name: str, function: Callable) -> Callable:
  backward = getattr(function, 'backward', None)
  if not callable(backward):
    _refuse(
      job,
      f'{name}: expected its backward pass as an attribute, {name}.backward'
      '(inputs, config, policy), got none; without it --direction=forward',
    )
  return backward


def _stages(
  job: pathlib.Path, name: str, function: Callable, known: Sequence[str]
) -> Mapping[str, Callable]:
  """Returns what isolated replay calls, by the tensor that it returns."""
  stages = getattr(function, 'stages', None)
  if not isinstance(stages, Mapping) or not stages:
    _refuse(
      job,
      f'isolate: expected an attribute {name}.stages, a mapping from some of '
      f'{", ".join(known)} to stage(tensors, config, policy), got '
      f'{"none" if stages is None else repr(stages)}',
    )
  for key, stage in stages.items():
    if key not in known or not callable(stage):
      _refuse(
        job,
        f'{name}.stages: expected functions for some of {", ".join(known)}, '
        f'got {key!r}: {stage!r}',
      )
    _check_arguments(job, f'{name}.stages[{key!r}]', stage, 'stage(tensors')
  return stages


def _run_stages(
  job: pathlib.Path, name: str, stages, known, given, config, policy
) -> dict[str, object]:
  """Returns each stage's tensor, of what was there before that stage."""
  outputs = {}
  for key, stage in stages.items():
    later = known[known.index(key) :]
    tensors = {n: a for n, a in given.items() if n not in later}
    outputs[key] = _call(
      job, f'{name}.stages[{key!r}]', stage, tensors, config, policy
    )
  return outputs


def _call(
  job: pathlib.Path, name: str, function: Callable, given: Mapping, *layer
):
  from hpmoe.parity_tests.candidates import exchange

  own = {key: array.copy() for key, array in given.items()}
  try:
    answer = function(dict(own), *layer)
  except Exception as error:  # pylint: disable=broad-except
    _print_traceback(error)
    _refuse(job, f'{name}: raised {error!r}', 'failed')
  if wrong := exchange.spoilt(given, own):
    _refuse(job, f'{name}: {wrong}', 'spoilt')
  return answer


def _check_activation(
  job: pathlib.Path, name: str, function: Callable, activation: str
) -> None:
  known = getattr(function, 'activations', None)
  if known is not None and activation not in known:
    _refuse(
      job,
      f'{name} declares activations {tuple(known)}, which lack '
      f'policy.activation={activation!r}',
      'cannot',
    )


def _arrays(job: pathlib.Path, name: str, outputs, result: str):
  """Returns the outputs as arrays; `result` is what a message asks for."""
  from hpmoe.parity_tests.candidates import exchange

  if not isinstance(outputs, Mapping):
    got = type(outputs).__name__
    if hasattr(outputs, 'shape') and hasattr(outputs, 'dtype'):
      got += f' {outputs.dtype} {list(outputs.shape)}'
    _refuse(job, f'{name}: expected a mapping with {result!r}, got {got}')
  arrays = {}
  for key, value in outputs.items():
    try:
      arrays[key] = exchange.as_array(value)
    except Exception as error:  # pylint: disable=broad-except
      kind = type(value).__name__
      _refuse(job, f'{name}: {key}: expected an array, got {kind}: {error}')
  return arrays


def main(job: pathlib.Path) -> None:
  request = json.loads((job / 'request.json').read_text())
  sys.path[:] = request['path']
  # Only now: the project and the user's module come from that path.
  from hpmoe.parity_tests.candidates import exchange
  from hpmoe.reference.contract import config as config_lib
  from hpmoe.reference.contract import precision

  name, known = request['candidate'], request['stages']
  function = _function(job, name)
  config = config_lib.MoEConfig(**request['config'])
  policy = precision.PrecisionPolicy(**request['policy'])
  _check_activation(job, name, function, policy.activation)
  if request['has_backward'] or request['is_backward']:
    backward = _backward(job, name, function)
  if request['is_backward']:
    name, function = f'{name}.backward', backward
  elif request['isolate'] and request['has_backward']:
    # Before anything runs.
    _stages(job, f'{name}.backward', backward, request['backward_stages'])
  inputs = exchange.load(job / 'inputs')
  if request['isolate']:
    stages = _stages(job, name, function, known)
    outputs = _run_stages(job, name, stages, known, inputs, config, policy)
  else:
    _check_arguments(job, name, function)
    outputs = _call(job, name, function, inputs, config, policy)
  backward = getattr(function, 'backward', function)
  said = dict(recomputes=bool(getattr(backward, 'recomputes', False)))
  (job / 'said.json').write_text(json.dumps(said))
  exchange.save(job / 'outputs', _arrays(job, name, outputs, request['result']))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
