"""Writes a case as a folder, with all its kinds of data."""

from collections.abc import Callable, Mapping
from typing import Any

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.judge import bench as bench_lib


def write(
  out: str,
  case: case_lib.Case,
  per_rank: bool = False,
  layouts: Mapping[str, Any] | None = None,
  command: str = '',
  progress: Callable[[str], None] = lambda step: None,
) -> tuple[folder_lib.Folder, inputs_lib.LayerInputs, list[str]]:
  """Writes a case for kernels elsewhere.

  Args:
    out: the folder, empty or absent.
    case: the case.
    per_rank: whether each rank has its own files.
    layouts: the kernel's layouts of tensors, by name.
    command: the command that the folder names as its origin.
    progress: called at each of four steps.

  Returns:
    The folder, its real data, and a line for each kind of data that it lacks.

  Raises:
    OSError: a file cannot be written.
    ValueError: the request was wrong.
  """
  progress('inputs')
  bench = bench_lib.Bench(case)
  inputs_of_data, missing = {}, []
  for data in ('real', 'exact', 'wide'):
    progress(f'{data} data')
    try:
      inputs_of_data[data] = bench.read_by(case.passes, data)
    except exact_limits.ExactnessError as error:
      missing.append(f'{data} data: none, {error}')
  folder = folder_writer.write(
    out,
    case.direction,
    inputs_of_data,
    per_rank,
    layouts or {},
    command=command,
  )
  return folder, inputs_of_data['real'], missing
