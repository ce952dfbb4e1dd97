"""Runs the user's candidate in a process of its own; see `user_candidate`.

All that it needs to know of a pass comes with the request: the user's modules
may have any name but `hpmoe`, and few of ours are imported beside them.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import importlib
import inspect
import json
import pathlib
import sys
import traceback


class Refused(Exception):
  """What the user is told, in one line.

  Attributes:
    kind: one of `user_candidate.KINDS`.
  """

  def __init__(self, text: str, kind: str = 'request'):
    super().__init__(' '.join(text.split()))
    self.kind = kind


def _print_traceback(error: BaseException) -> None:
  """Prints the user's frames, without those that led to them."""
  frame = error.__traceback__
  while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
    frame = frame.tb_next
  traceback.print_exception(type(error), error, frame)


def _is_ours(filename: str) -> bool:
  return filename in (__file__, importlib.__file__) or filename.startswith(
    '<frozen importlib'
  )


def _import(name: str):
  try:
    return importlib.import_module(name)
  except Exception as error:  # pylint: disable=broad-except
    missing = getattr(error, 'name', None) or ''
    if not isinstance(error, ImportError):
      text = f'{name}: raised on import: {error!r}'
    elif f'{name}.'.startswith(f'{missing}.'):
      raise Refused(
        'candidate: expected a module in the current folder or on '
        f"Python's path, got {error}"
      ) from None
    else:
      text = f'{name}: its import failed: {error}'
    raise Refused(text, 'failed') from error


def _function(name: str) -> Callable:
  module_name, _, path = name.partition(':')
  target = _import(module_name)
  for part in path.split('.'):
    if not hasattr(target, part):
      raise Refused(
        f'candidate: expected a function in {module_name}, got {path!r}, '
        'which is not in it'
      )
    target = getattr(target, part)
  if not callable(target):
    raise Refused(f'candidate: expected a function, got {target!r}')
  return target


def _check_arguments(
  name: str, function: Callable, form='function(inputs'
) -> None:
  try:
    signature = inspect.signature(function)
  except ValueError:  # a built-in keeps it to itself
    return
  try:
    signature.bind('inputs', 'config', 'policy')
  except TypeError as error:
    path = name.partition(':')[2]
    raise Refused(
      f'{name}: expected {form}, config, policy), got '
      f'{path}{signature}: {error}'
    ) from None


def backward_of(name: str, function: Callable) -> Callable:
  """Returns the backward pass of a function.

  Raises:
    Refused: it has none.
  """
  backward = getattr(function, 'backward', None)
  if not callable(backward):
    raise Refused(
      f'{name}: expected its backward pass as an attribute, {name}.backward'
      '(inputs, config, policy), got none; without it direction=forward'
    )
  return backward


def _stages(
  name: str, function: Callable, known: Sequence[str]
) -> Mapping[str, Callable]:
  """Returns what isolated replay calls, by the tensor that it returns."""
  stages = getattr(function, 'stages', None)
  if not isinstance(stages, Mapping) or not stages:
    raise Refused(
      f'isolate: expected an attribute {name}.stages, a mapping from some of '
      f'{", ".join(known)} to stage(tensors, config, policy), got '
      f'{"none" if stages is None else repr(stages)}'
    )
  for key, stage in stages.items():
    if key not in known or not callable(stage):
      raise Refused(
        f'{name}.stages: expected functions for some of {", ".join(known)}, '
        f'got {key!r}: {stage!r}'
      )
    _check_arguments(f'{name}.stages[{key!r}]', stage, 'stage(tensors')
  return stages


def _run_stages(name: str, stages, known, given, *layer) -> dict[str, object]:
  """Returns each stage's tensor, of what was there before that stage."""
  outputs = {}
  for key, stage in stages.items():
    later = known[known.index(key) :]
    tensors = {n: a for n, a in given.items() if n not in later}
    outputs[key] = call(f'{name}.stages[{key!r}]', stage, tensors, *layer)
  return outputs


def call(
  name: str,
  function: Callable,
  given: Mapping,
  *layer,
  copies: dict | None = None,
):
  """Returns what a function of the user answers to copies of its inputs.

  Args:
    name: of the function.
    function: it.
    given: its inputs.
    *layer: its other arguments.
    copies: those of an earlier call, to be written over: a caller's tensors
      stay where they are, too.

  Raises:
    Refused: it raised an error, which is the cause, or wrote to its inputs.
  """
  from hpmoe.parity_tests.candidates import exchange

  own = exchange.copy(given, {} if copies is None else copies)
  try:
    answer = function(dict(own), *layer)
  except Exception as error:  # pylint: disable=broad-except
    raise Refused(f'{name}: raised {error!r}', 'failed') from error
  if wrong := exchange.spoilt(given, own):
    raise Refused(f'{name}: {wrong}', 'spoilt')
  return answer


def check_activation(name: str, function: Callable, activation: str) -> None:
  """Refuses an activation that a function says it cannot do."""
  known = getattr(function, 'activations', None)
  if known is not None and activation not in known:
    raise Refused(
      f'{name} declares activations {tuple(known)}, which lack '
      f'policy.activation={activation!r}',
      'cannot',
    )


def _find_mover(
  name: str, function: Callable
) -> Callable[[Callable], Callable]:
  """Returns what makes a function, or a stage of it, one of numpy's tensors.

  Raises:
    Refused: this Python's torch lacks the device that the function asks for.
  """
  if not getattr(function, 'torch', False):
    return lambda kernel: kernel
  # Kernels of numpy import nothing for it.
  from hpmoe.parity_tests.candidates import torch_device

  device = torch_device.find_device(function)
  try:
    torch_device.refuse_device(device)
  except ValueError as error:
    raise Refused(f'{name}.torch: {error}') from None
  return functools.partial(torch_device.move_inputs, device=device)


def arrays(name: str, outputs, result: str) -> dict:
  """Returns the outputs as arrays; `result` is what a message asks for.

  Raises:
    Refused: they are no mapping, or one is no array.
  """
  from hpmoe.parity_tests.candidates import exchange

  if not isinstance(outputs, Mapping):
    got = type(outputs).__name__
    if hasattr(outputs, 'shape') and hasattr(outputs, 'dtype'):
      got += f' {outputs.dtype} {list(outputs.shape)}'
    raise Refused(f'{name}: expected a mapping with {result!r}, got {got}')
  found = {}
  for key, value in outputs.items():
    try:
      found[key] = exchange.as_array(value)
    except Exception as error:  # pylint: disable=broad-except
      kind = type(value).__name__
      raise Refused(
        f'{name}: {key}: expected an array, got {kind}: {error}'
      ) from None
  return found


def _run(job: pathlib.Path, request: Mapping) -> None:
  """Writes what the candidate answers.

  Raises:
    Refused: it does not.
  """
  sys.path[:] = request['path']
  # Only now: the project and the user's module come from that path.
  from hpmoe.parity_tests.candidates import exchange
  from hpmoe.reference.contract import config as config_lib
  from hpmoe.reference.contract import precision

  name, known = request['candidate'], request['stages']
  function = _function(name)
  config = config_lib.MoEConfig(**request['config'])
  policy = precision.PrecisionPolicy(**request['policy'])
  check_activation(name, function, policy.activation)
  move = _find_mover(name, function)
  if request['has_backward'] or request['is_backward']:
    backward = backward_of(name, function)
  if request['is_backward']:
    name, function = f'{name}.backward', backward
  elif request['isolate'] and request['has_backward']:
    # Before anything runs.
    _stages(f'{name}.backward', backward, request['backward_stages'])
  data = [
    exchange.borrow(job / f'inputs.{number}', shared)
    for number, shared in enumerate(request['shared'])
  ]
  answers: list[dict] = []
  if request['isolate']:
    stages = {
      key: move(stage) for key, stage in _stages(name, function, known).items()
    }
    outputs = _run_stages(name, stages, known, data[0], config, policy)
    answers.append(arrays(name, outputs, request['result']))
  else:
    _check_arguments(name, function)
    kernel = move(function)
    copies: dict = {}
    for number in request['turns']:
      # The next call may answer in the memory of the one before.
      answers = [exchange.copy(answer) for answer in answers]
      outputs = call(name, kernel, data[number], config, policy, copies=copies)
      answers.append(arrays(name, outputs, request['result']))
  backward = getattr(function, 'backward', function)
  said = dict(recomputes=bool(getattr(backward, 'recomputes', False)))
  (job / 'said.json').write_text(json.dumps(said))
  try:
    for number, answer in enumerate(answers):
      exchange.save(job / f'outputs.{number}', answer)
  except ValueError as error:
    raise Refused(f'{name}: {error}') from None


def main(job: pathlib.Path) -> None:
  try:
    _run(job, json.loads((job / 'request.json').read_text()))
  except Refused as error:
    if error.__cause__ is not None:
      _print_traceback(error.__cause__)
    word = dict(text=str(error), kind=error.kind)
    (job / 'error.json').write_text(json.dumps(word))
    sys.exit(1)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
