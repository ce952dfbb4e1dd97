"""A case, a kernel's outputs of it in files, and their check."""

import dataclasses
import functools
import pathlib

import numpy as np

from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.explain import bugs_testing
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts

CASE = case_lib.Case('both', 'tiny', ranks=2, dtype='bfloat16')


@functools.cache
def make_inputs(data: str, case: case_lib.Case = CASE):
  return bench_lib.Bench(case, keep=True).read_by(case.passes, data)


def make_all_inputs(case: case_lib.Case = CASE) -> dict:
  return {data: make_inputs(data, case) for data in inputs_lib.DATA}


def export(path, per_rank=False, layouts=None) -> folder.Folder:
  return folder_writer.write(path, 'both', make_all_inputs(), per_rank, layouts)


def compute(kernel, layer_inputs) -> dict[str, np.ndarray]:
  """Returns the tensors of both passes."""
  forward = kernel.forward(
    layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
  )
  read = {**layer_inputs.arrays, **forward}
  return forward | kernel.backward(
    layer_inputs.config, layer_inputs.policy, read
  )


def run_in_place(kernel) -> in_process.Function:
  function = bugs_testing.function(kernel.forward, kernel.backward)
  return in_process.Function(function)


def check_outputs(
  case: folder.Folder, out, direction='forward', names=None
) -> check.Report:
  """Checks a folder of outputs, under the names of a text."""
  path = pathlib.Path(out).with_name('names.toml')
  if names is not None:
    path.write_text(names)
  candidate = outputs.Outputs(str(out), None if names is None else str(path))
  case_spec = case_lib.Case.from_folder(case.path, direction)
  return check.run(check.Request(case_spec, candidate))


def list_passed(report: check.Report) -> set[str]:
  return {r.stage for r in report.results if r.verdict == verdicts.PASS}


def list_figures(report: check.Report) -> list[dict]:
  """Returns a report's figures of tensors, without the candidate's name."""
  rows = [dataclasses.asdict(r) for r in report.results]
  for row in rows:
    for name in ('grids', 'shares'):
      row[name] = [array.tolist() for array in row[name]]
    row['experts'] = [experts.tolist() for experts in row['experts']]
    if row['failure']:
      row['failure'] |= dict(replay='', hint='', location='')
  return rows


def save_whole(out, case, data, tensors):
  read_case.write(str(out), read_case.load(case.path), data, tensors)


def save_per_rank(out, case, data, tensors):
  case_data = read_case.load(case.path)
  for rank in range(CASE.ranks):
    rank_tensors = {name: array[rank] for name, array in tensors.items()}
    read_case.write(str(out), case_data, data, rank_tensors, rank)
