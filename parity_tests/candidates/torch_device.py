"""Calls a torch function with its tensors on a device."""

from collections.abc import Callable, Mapping
import importlib.util
from typing import Any

import numpy as np

from hpmoe.parity_tests.candidates import tensor_transfer
from hpmoe.parity_tests.case import read_case


def refuse_device(device: str) -> None:
  """Refuses a device that this installation of torch lacks.

  Raises:
    ValueError: torch lacks the device.
  """
  if not device:
    return
  if importlib.util.find_spec('torch') is None:
    raise ValueError(
      f'device: expected torch in this Python with {device!r}, got none'
    )
  import torch

  try:
    torch.zeros(1, device=device)
  except Exception as error:  # whatever a build of torch raises
    reason = str(error).partition('\n')[0]
    raise ValueError(
      f'device: expected one that torch has here, got {device!r}: {reason}'
    ) from error


def find_device(function: Callable) -> str:
  """Returns the device that a function's attribute `torch` names.

  `function.torch = 'cuda'` means torch tensors on that device, `True` on the
  CPU; without the attribute the function takes numpy arrays: ''.
  """
  torch = getattr(function, 'torch', False)
  return read_case.device_of(torch) if torch else ''


def move_inputs(
  function: Callable, device: str
) -> Callable[[dict[str, np.ndarray], Any, Any], Any]:
  """Returns a function of numpy arrays that calls a torch function.

  If the function writes to its inputs, the numpy arrays change too, so that the
  caller can detect it.  Without a device, returns the function itself.
  """
  if not device:
    return function

  def call_with_torch(inputs, *layer):
    moved_inputs = {
      name: read_case.as_torch(read_case.bits_of(array)).to(device)
      for name, array in inputs.items()
    }
    answer = function(dict(moved_inputs), *layer)
    _write_back(inputs, moved_inputs)
    return answer

  return call_with_torch


def _write_back(inputs: Mapping[str, np.ndarray], tensors: Mapping) -> None:
  for name, array in inputs.items():
    after = tensor_transfer.as_array(tensors[name])
    if after.tobytes() != array.tobytes():
      np.copyto(array, after)
