"""Runs a solution: a script of the user's interpreter, with numpy or torch.

    python solution_worker.py FOLDER

FOLDER holds request.json, inputs.safetensors and other_inputs.safetensors, and
beside this file read_case.py.  Outputs are written to outputs.safetensors.

The solution is called on other tokens first, then twice on those that count,
all in the same memory: whoever answers by a shape, by an address or by the
first values of its inputs answers for the wrong ones.  Memory of outputs that
it is given is filled with NaN before each call.
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np  # noqa: E402
import read_case  # type: ignore[import-not-found]  # noqa: E402

EXIT_REFUSED = 4


class Refusal(Exception):
  """What came of a solution cannot be judged; the text says why."""


def load(folder, request):
  """Returns the solution's function."""
  path = request['entry_file']
  if request['is_packaged']:
    path = os.path.join(folder, 'sources', path)
  module = read_case.load_module(path)
  function = getattr(module, request['entry_function'], None)
  if not callable(function):
    raise Refusal(
      f'expected a function {request["entry_function"]!r} in '
      f'{request["entry_file"]}, got none'
    )
  return function


class Memory:
  """Inputs of a solution: tensors of torch where that is, else of numpy.

  Each call gets the same memory, with other values.
  """

  def __init__(self, request, device):
    self._request = request
    self._device = device
    self._tensors = {}
    try:
      import torch

      self._torch = torch
    except ImportError:
      self._torch = None
      if device != 'cpu':
        raise Refusal(
          f'expected torch for device {device!r}, got an interpreter without'
        ) from None

  def fill(self, arrays):
    """Writes values into the memory of some inputs, and of all at first."""
    for name, bits in arrays.items():
      value = self._convert(bits)
      memory = self._tensors.get(name)
      if memory is None:
        self._tensors[name] = value
      elif self._torch is not None:
        memory.copy_(value)
      else:
        memory[...] = value

  def list_arguments(self):
    """Returns the arguments of a call, without outputs."""
    return [
      self._tensors[row['name']] if row['is_tensor'] else row['value']
      for row in self._request['inputs']
    ]

  def make_outputs(self):
    """Returns memory of outputs, all NaN."""
    outputs = []
    for row in self._request['outputs']:
      if self._torch is None:
        outputs.append(np.full(row['shape'], np.nan, _numpy_dtype(row)))
      else:
        dtype = getattr(self._torch, row['dtype'])
        outputs.append(
          self._torch.full(
            row['shape'], float('nan'), dtype=dtype, device=self._device
          )
        )
    return outputs

  def find_changed(self, arrays):
    """Returns the name of an input that has other bytes, or None."""
    for name, bits in arrays.items():
      actual = read_case.bits_of(self._tensors[name])
      if not np.array_equal(_view_bytes(actual), _view_bytes(bits)):
        return name
    return None

  def read(self, value, row):
    """Returns bits of an output, computed by now."""
    if self._torch is not None:
      if type(value) is not self._torch.Tensor:
        raise Refusal(
          f'{row["name"]}: expected a plain torch.Tensor, got '
          f'{type(value).__name__}: a value that is computed when it is read'
        )
      if self._device != 'cpu':
        self._torch.cuda.synchronize()
    bits = np.array(read_case.bits_of(value))
    dtype = str(getattr(value, 'dtype', bits.dtype)).rpartition('.')[2]
    if [*bits.shape] != row['shape'] or dtype != row['dtype']:
      raise Refusal(
        f'{row["name"]}: expected {row["dtype"]} {row["shape"]}, got {dtype} '
        f'{[*bits.shape]}'
      )
    return bits

  def _convert(self, bits):
    if self._torch is None:
      return np.array(read_case.as_numpy(bits))
    return read_case.as_torch(bits).to(self._device)


def _view_bytes(bits):
  return np.ascontiguousarray(bits).reshape(-1).view(np.uint8)


def _numpy_dtype(row):
  import ml_dtypes

  return np.dtype(getattr(ml_dtypes, row['dtype'], row['dtype']))


def call(function, memory, arrays, request):
  """Returns the bits of all outputs of one call on the arrays in memory."""
  arguments = memory.list_arguments()
  if request['destination_passing']:
    values = memory.make_outputs()
    function(*arguments, *values)
  else:
    values = function(*arguments)
    if isinstance(values, dict):
      values = [values.get(row['name']) for row in request['outputs']]
    elif not isinstance(values, (list, tuple)):
      values = [values]
  if len(values) != len(request['outputs']):
    raise Refusal(
      f'expected {len(request["outputs"])} outputs, got {len(values)}'
    )
  outputs = {
    row['name']: memory.read(value, row)
    for value, row in zip(values, request['outputs'])
  }
  changed_name = memory.find_changed(arrays)
  if changed_name is not None:
    raise Refusal(
      f'{changed_name}: expected an input as it was before the call, got other '
      'values: it was written to'
    )
  return outputs


def main():
  folder = sys.argv[1]
  with open(os.path.join(folder, 'request.json'), encoding='utf-8') as file:
    request = json.load(file)
  inputs = read_case.read(os.path.join(folder, 'inputs.safetensors'))[0]
  path = os.path.join(folder, 'other_inputs.safetensors')
  other_tokens = read_case.read(path)[0]
  try:
    function = load(folder, request)
    memory = Memory(request, request['device'])
    memory.fill(inputs)
    memory.fill(other_tokens)
    call(function, memory, {**inputs, **other_tokens}, request)
    memory.fill({name: inputs[name] for name in other_tokens})
    call(function, memory, inputs, request)
    outputs = call(function, memory, inputs, request)
  except Refusal as refusal:
    with open(os.path.join(folder, 'refusal'), 'w', encoding='utf-8') as file:
      file.write(str(refusal))
    return EXIT_REFUSED
  read_case.save(os.path.join(folder, 'outputs.safetensors'), outputs, {})
  return 0


if __name__ == '__main__':
  sys.exit(main())
