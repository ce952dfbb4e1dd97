"""`hpmoe twin`."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


def _list_modes() -> tuple[str, ...]:
  from hpmoe.backend_ascend.twin.intrinsics import build_kernel

  return tuple(build_kernel.MODES)


@dataclasses.dataclass(frozen=True)
class _Options:
  """Options that set no field of another object."""

  source: str | None = option_fields.option(
    None,
    'The program: kernels, and a main that launches them.',
  )
  op: str | None = option_fields.option(
    None,
    'A CANN operator instead of a program: a folder with op_kernel, and '
    'op_host for its tiling. Without --launch: prints its arguments.',
  )
  launch: str | None = option_fields.option(
    None,
    'Of --op: a JSON file with arguments (.npy files, {"shape": ..., '
    '"dtype": ...} for memory that nobody wrote, null), tiling by field, '
    'key, blocks, workspace.',
  )
  out: str | None = option_fields.option(
    None,
    'With --launch: write the final content of each array here, as 0.npy '
    'and so on.',
  )
  include: str | None = option_fields.option(
    None,
    'Headers of Ascend C: asc-devkit, or asc of an installed CANN. '
    'Default: the headers beside the source.',
  )
  define: tuple[str, ...] | None = option_fields.option(
    None,
    'Macros: NAME or NAME=VALUE.',
  )
  folder: tuple[str, ...] | None = option_fields.option(
    None,
    'Further include folders.',
  )
  arguments: tuple[str, ...] | None = option_fields.option(
    None,
    'Arguments of the program.',
  )
  mode: str = option_fields.option(
    'late',
    'Order of instructions, among those that flags allow: in_order, seeded '
    'or late.',
    choices=_list_modes,
  )
  seed: int = option_fields.option(
    0,
    'Seed of --mode=seeded.',
  )
  auto_sync: bool = option_fields.option(
    True,
    "Treat pairs for which CANN's compiler inserts synchronisation by "
    'default (--cce-auto-sync) as ordered.',
  )
  cores: str | None = option_fields.option(
    None,
    'Type of core for kernels that do not declare one.',
    choices=('aiv', 'aic', 'mix11', 'mix12'),
  )
  flag_memory: tuple[int, ...] | None = option_fields.option(
    None,
    'Numbers, from 0, of the aclrtMalloc calls whose memory cores poll.',
  )
  flags_count: bool = option_fields.option(
    True,
    "A core flag that is set twice counts two, as CANN's queues need; "
    'otherwise it is an error.',
  )
  drained_end: bool = option_fields.option(
    True,
    "A kernel must wait for its pipes before it ends, as CANN's "
    'documentation says; otherwise the twin waits for them.',
  )
  strict: bool = option_fields.option(
    True,
    'Refuse operands that overlap where no page says what they give; '
    'otherwise go on.',
  )
  zero_memory: bool = option_fields.option(
    False,
    'Device memory starts as zeros; otherwise it starts uninitialised, and '
    'reads of it are checked.',
  )
  coverage: str | None = option_fields.option(
    None,
    'Write the executed lines and their counts here, in the format of lcov.',
    writes='file',
  )
  timeline: str | None = option_fields.option(
    None,
    'Write the activity of each pipe here, for Perfetto, in the modelled '
    'time of --machine; the scalar unit takes no time.',
    writes='file',
  )
  machine: str = option_fields.option(
    'ascend_a2',
    'With --timeline: an included machine, or a TOML file.',
  )
  work: str | None = option_fields.option(
    None,
    'Folder for compiled files. Default: ~/.cache/hpmoe/twin.',
  )


def _list_options() -> list[option_fields.Option]:
  return [*option_fields.list_options(_Options)]


def _rates(name: str) -> str:
  """Returns the rates of a machine's core in the form of `run_program`."""
  from hpmoe.backend_ascend.device.twin_launch import twin_runtime
  from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

  machine = machine_lib.load(name)
  return ','.join(f'{rate}:{machine[rate]!r}' for rate in twin_runtime.RATES)


def _operator(f: parser.Values) -> int:
  """Launches an operator of CANN, or describes its arguments."""
  import numpy as np

  from hpmoe.backend_ascend.twin.intrinsics import build_kernel
  from hpmoe.backend_ascend.twin.intrinsics import run_kernel
  from hpmoe.backend_ascend.twin.intrinsics.operators import operator_folder

  try:
    op = operator_folder.read(pathlib.Path(f.op))
  except build_kernel.BuildError as error:
    raise cli.UsageError(str(error)) from error
  if not f.launch:
    print(operator_folder.describe(op))
    return cli.PARITY
  launch = _read_launch(f.launch)

  def array(item):
    if item is None:
      return None
    if isinstance(item, list):
      return [array(tensor) for tensor in item]
    if isinstance(item, str):
      return np.load(pathlib.Path(f.launch).parent / item)
    return run_kernel.Empty(item['shape'], item['dtype'])

  arguments = [array(item) for item in launch.pop('arguments')]
  flags_ = [f'-D{d}' for d in f.define or ()]
  flags_ += [f'-I{d}' for d in f.folder or ()]
  operator = run_kernel.Operator(f.op, f.include or '', flags=tuple(flags_))
  options = dict(
    mode=f.mode, seed=f.seed, auto_sync=f.auto_sync, strict=f.strict
  )
  try:
    outputs = operator(*arguments, **launch, cores=f.cores or '', **options)
  except run_kernel.FindingsError as error:
    print('\n'.join(error.findings), file=sys.stderr)
    return cli.CANDIDATE_FAILED
  except build_kernel.BuildError as error:
    print(error, file=sys.stderr)
    return cli.CANDIDATE_FAILED
  except (ValueError, TypeError) as error:
    raise cli.UsageError(str(error)) from error
  if f.out:
    folder = pathlib.Path(f.out)
    folder.mkdir(parents=True, exist_ok=True)
    for i, item in enumerate(outputs):
      np.save(folder / f'{i}.npy', item)
  print('twin: launches: 1, errors: 0')
  return cli.PARITY


def _read_launch(path: str) -> dict[str, Any]:
  """Returns a launch of an operator: its `arguments`, and keywords of a call.

  Raises:
    cli.UsageError: the file is no JSON object with a list of arguments.
  """
  try:
    launch = json.loads(pathlib.Path(path).read_text())
  except json.JSONDecodeError as error:
    raise cli.UsageError(f'launch: expected JSON in {path}: {error}') from error
  is_launch = isinstance(launch, dict)
  if not is_launch or not isinstance(launch.get('arguments'), list):
    keys = list(launch) if is_launch else type(launch).__name__
    raise cli.UsageError(
      f"launch: expected an object with a list 'arguments' in {path}, got "
      f'{keys}'
    )
  return launch


def _twin(f: parser.Values) -> int:
  from hpmoe.backend_ascend.twin.intrinsics import build_kernel

  if f.op:
    return _operator(f)
  source = pathlib.Path(f.source or '')
  if not source.is_file():
    raise cli.UsageError(f'source: expected a file, got {f.source}')
  try:
    headers = build_kernel.headers(f.include) if f.include else None
  except build_kernel.BuildError as error:
    raise cli.UsageError(str(error)) from error
  work = (
    pathlib.Path(f.work).resolve()
    if f.work
    else build_kernel.make_cache_folder()
  )
  compiler = [f'-D{d}' for d in f.define or ()] + [
    f'-I{d}' for d in f.folder or ()
  ]
  try:
    kernel = build_kernel.build(
      source, headers, work, compiler, coverage=bool(f.coverage)
    )
  except build_kernel.BuildError as error:
    print(error, file=sys.stderr)
    return cli.CANDIDATE_FAILED
  line_counts = work / f'lines-{os.getpid()}'
  watched: dict[str, object] = {}
  if f.timeline:
    watched |= dict(rates=_rates(f.machine), timeline=f.timeline)
  if f.coverage:
    watched |= dict(coverage=line_counts)
  command = build_kernel.command(
    kernel,
    **watched,
    mode=f.mode,
    seed=f.seed,
    auto_sync=int(f.auto_sync),
    cores=f.cores or kernel.cores,
    flags_count=int(f.flags_count),
    drained_end=int(f.drained_end),
    strict=int(f.strict),
    zero_memory=int(f.zero_memory),
    flags=','.join(map(str, f.flag_memory or ())),
  )
  code = subprocess.run([*command, '--', *(f.arguments or ())]).returncode
  if f.coverage and line_counts.exists():
    pathlib.Path(f.coverage).write_text(
      build_kernel.lcov(kernel, line_counts.read_text())
    )
    line_counts.unlink()
  return code


COMMAND = cli.Command(
  'twin',
  _list_options,
  _twin,
  operands=('source',),
)
