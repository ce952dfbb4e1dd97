"""The worker process: imports and calls the user's function.

`function_candidate` starts it, and describes the function.

The request holds all that the worker needs of a pass, so it imports few of our
modules: the user's modules may have any name but `hpmoe`.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import importlib
import inspect
import json
import pathlib
import sys
import traceback


class WorkerError(Exception):
  """Ends the worker with one line for the user.

  Attributes:
    kind: one of `function_candidate.KINDS`.
  """

  def __init__(self, text: str, kind: str = 'request'):
    super().__init__(' '.join(text.split()))
    self.kind = kind


def _print_traceback(error: BaseException) -> None:
  """Prints the user's frames, without ours above them."""
  frame = error.__traceback__
  while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
    frame = frame.tb_next
  traceback.print_exception(type(error), error, frame)


def _is_ours(filename: str) -> bool:
  return filename in (__file__, importlib.__file__) or filename.startswith(
    '<frozen importlib'
  )


def _import(name: str):
  from hpmoe.reference.contract import messages

  try:
    return importlib.import_module(name)
  except Exception as error:  # pylint: disable=broad-except
    missing = getattr(error, 'name', None) or ''
    if not isinstance(error, ImportError):
      text = f'{name}: raised on import: {messages.describe_error(error)}'
    elif f'{name}.'.startswith(f'{missing}.'):
      raise WorkerError(
        'candidate: expected a module in the current folder or on '
        f"Python's path, got {error}"
      ) from None
    else:
      text = f'{name}: its import failed: {messages.cut_line(error)}'
    raise WorkerError(text, 'failed') from error


def _find_function(name: str) -> Callable:
  module_name, _, path = name.partition(':')
  target = _import(module_name)
  for part in path.split('.'):
    if not hasattr(target, part):
      raise WorkerError(
        f'candidate: expected a function in {module_name}, got {path!r}, '
        'which is not in it'
      )
    target = getattr(target, part)
  if not callable(target):
    raise WorkerError(f'candidate: expected a function, got {target!r}')
  return target


def _check_arguments(
  name: str, function: Callable, form='function(inputs'
) -> None:
  try:
    signature = inspect.signature(function)
  except ValueError:  # a built-in has no signature
    return
  try:
    signature.bind('inputs', 'config', 'policy')
  except TypeError as error:
    path = name.partition(':')[2]
    own_arguments = ', '.join(signature.parameters)
    raise WorkerError(
      f'{name}: expected {form}, config, policy), got '
      f'{path}({own_arguments}): {error}'
    ) from None


def find_backward(name: str, function: Callable) -> Callable:
  """Returns the backward pass of a function.

  Raises:
    WorkerError: the function has none.
  """
  backward = getattr(function, 'backward', None)
  if not callable(backward):
    raise WorkerError(
      f'{name}: expected its backward pass as an attribute, {name}.backward'
      '(inputs, config, policy), got none; without it direction=forward'
    )
  return backward


def _find_stages(
  name: str, function: Callable, names: Sequence[str]
) -> Mapping[str, Callable]:
  """Returns the functions of isolated replay, by the tensor each returns."""
  stages = getattr(function, 'stages', None)
  if not isinstance(stages, Mapping) or not stages:
    raise WorkerError(
      f'isolate: expected an attribute {name}.stages, a mapping from some of '
      f'{", ".join(names)} to stage(tensors, config, policy), got '
      f'{"none" if stages is None else repr(stages)}'
    )
  for key, stage in stages.items():
    if key not in names or not callable(stage):
      raise WorkerError(
        f'{name}.stages: expected functions for some of {", ".join(names)}, '
        f'got {key!r}: {stage!r}'
      )
    _check_arguments(f'{name}.stages[{key!r}]', stage, 'stage(tensors')
  return stages


def _run_stages(name: str, stages, names, inputs, *layer) -> dict[str, object]:
  """Returns each stage's tensor, computed from the tensors before it."""
  outputs = {}
  for key, stage in stages.items():
    later = names[names.index(key) :]
    tensors = {n: a for n, a in inputs.items() if n not in later}
    outputs[key] = call(f'{name}.stages[{key!r}]', stage, tensors, *layer)
  return outputs


def call(
  name: str,
  function: Callable,
  inputs: Mapping,
  *layer,
  copies: dict | None = None,
):
  """Calls a function of the user on copies of its inputs.

  Args:
    name: of the function.
    function: the function.
    inputs: its inputs.
    *layer: its other arguments.
    copies: the copies of an earlier call, which this one overwrites: so inputs
      keep their addresses, as in a program that reuses its buffers.

  Returns:
    What the function returned.

  Raises:
    WorkerError: it raised an error, which is the cause, or wrote to its inputs.
  """
  from hpmoe.parity_tests.candidates import tensor_transfer
  from hpmoe.reference.contract import messages

  own = tensor_transfer.copy(inputs, {} if copies is None else copies)
  try:
    answer = function(dict(own), *layer)
  except Exception as error:  # pylint: disable=broad-except
    text = f'{name}: raised {messages.describe_error(error)}'
    raise WorkerError(text, 'failed') from error
  if wrong := tensor_transfer.describe_overwritten(inputs, own):
    raise WorkerError(f'{name}: {wrong}', 'spoilt')
  return answer


def check_activation(name: str, function: Callable, activation: str) -> None:
  """Refuses an activation that a function does not declare."""
  activations = getattr(function, 'activations', None)
  if activations is not None and activation not in activations:
    raise WorkerError(
      f'{name} declares activations {tuple(activations)}, which lack '
      f'policy.activation={activation!r}',
      'cannot',
    )


def _find_mover(
  name: str, function: Callable
) -> Callable[[Callable], Callable]:
  """Returns a wrapper that lets a function, or its stages, take numpy arrays.

  Raises:
    WorkerError: torch lacks the device that the function asks for.
  """
  if not getattr(function, 'torch', False):
    return lambda kernel: kernel
  # Kernels in numpy import no torch.
  from hpmoe.parity_tests.candidates import torch_device

  device = torch_device.find_device(function)
  try:
    torch_device.refuse_device(device)
  except ValueError as error:
    raise WorkerError(f'{name}.torch: {error}') from None
  return functools.partial(torch_device.move_inputs, device=device)


def to_arrays(name: str, outputs, result: str) -> dict:
  """Returns the outputs as arrays.

  Args:
    name: of the function.
    outputs: what it returned.
    result: a tensor that messages name as an example.

  Raises:
    WorkerError: the outputs are no mapping, or one is no array.
  """
  from hpmoe.parity_tests.candidates import tensor_transfer
  from hpmoe.reference.contract import messages

  if not isinstance(outputs, Mapping):
    description = type(outputs).__name__
    if hasattr(outputs, 'shape') and hasattr(outputs, 'dtype'):
      description += f' {outputs.dtype} {list(outputs.shape)}'
    raise WorkerError(
      f'{name}: expected a mapping with {result!r}, got {description}'
    )
  tensors = {}
  for key, value in outputs.items():
    try:
      tensors[key] = tensor_transfer.as_array(value)
    except Exception as error:  # pylint: disable=broad-except
      kind = type(value).__name__
      raise WorkerError(
        f'{name}: {key}: expected an array, got {kind}: '
        f'{messages.cut_line(error)}'
      ) from None
  return tensors


def _run(job: pathlib.Path, request: Mapping) -> None:
  """Runs the candidate, and writes its outputs.

  Raises:
    WorkerError: the candidate failed, or the request is wrong.
  """
  sys.path[:] = request['path']
  # Only now: the project and the user's module come from that path.
  from hpmoe.parity_tests.candidates import tensor_transfer
  from hpmoe.reference.contract import config as config_lib
  from hpmoe.reference.contract import precision

  name, names = request['candidate'], request['stages']
  function = _find_function(name)
  config = config_lib.MoEConfig(**request['config'])
  policy = precision.PrecisionPolicy(**request['policy'])
  check_activation(name, function, policy.activation)
  move = _find_mover(name, function)
  if request['has_backward'] or request['is_backward']:
    backward = find_backward(name, function)
  if request['is_backward']:
    name, function = f'{name}.backward', backward
  elif request['isolate'] and request['has_backward']:
    # A missing stage is refused before anything runs.
    _find_stages(f'{name}.backward', backward, request['backward_stages'])
  data = [
    tensor_transfer.borrow(job / f'inputs.{number}', shared)
    for number, shared in enumerate(request['shared'])
  ]
  result = request['result']
  if request['isolate']:
    stages = {
      key: move(stage)
      for key, stage in _find_stages(name, function, names).items()
    }
    outputs = _run_stages(name, stages, names, data[0], config, policy)
    answers = [to_arrays(name, outputs, result)]
  else:
    _check_arguments(name, function)
    turns = [data[number] for number in request['turns']]
    answers = _run_in_turn(name, move(function), turns, result, config, policy)
  _write(job, name, function, answers)


def _run_in_turn(
  name: str, kernel: Callable, turns: Sequence[Mapping], result: str, *layer
) -> list[dict]:
  """Returns the outputs of one call after another, each on its inputs."""
  from hpmoe.parity_tests.candidates import tensor_transfer

  answers: list[dict] = []
  copies: dict = {}
  for inputs in turns:
    # The next call may return the same memory.
    answers = [tensor_transfer.copy(answer) for answer in answers]
    outputs = call(name, kernel, inputs, *layer, copies=copies)
    answers.append(to_arrays(name, outputs, result))
  return answers


def _write(
  job: pathlib.Path, name: str, function: Callable, answers: Sequence[Mapping]
) -> None:
  """Writes the outputs of each call, and whether a backward pass recomputes.

  Raises:
    WorkerError: the file format lacks the dtype of an output.
  """
  from hpmoe.parity_tests.candidates import tensor_transfer

  backward = getattr(function, 'backward', function)
  notes = dict(recomputes=bool(getattr(backward, 'recomputes', False)))
  (job / 'notes.json').write_text(json.dumps(notes))
  try:
    for number, answer in enumerate(answers):
      tensor_transfer.save(job / f'outputs.{number}', answer)
  except ValueError as error:
    raise WorkerError(f'{name}: {error}') from None


def main(job: pathlib.Path) -> None:
  try:
    _run(job, json.loads((job / 'request.json').read_text()))
  except WorkerError as error:
    if error.__cause__ is not None:
      _print_traceback(error.__cause__)
    word = dict(text=str(error), kind=error.kind)
    (job / 'error.json').write_text(json.dumps(word))
    sys.exit(1)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
