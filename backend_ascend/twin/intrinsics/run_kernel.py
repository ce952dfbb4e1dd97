"""Runs a kernel in Ascend C from Python: numpy in, numpy out.

kernel = run_kernel.Kernel('add.asc', 'add_custom', include='asc-devkit')
(z,) = kernel(x, y, run_kernel.Empty(x.shape, x.dtype), 1024, blocks=8)[2:]

An operator of CANN, with op_host and op_kernel:

op = run_kernel.Operator('add_rms_norm_bias', include='asc-devkit')
(y,) = op(x, gamma, run_kernel.Empty(x.shape, x.dtype), key=10, blocks=2,
          tiling={'num_row': 8, 'num_col': 64})[2:]
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
import pathlib
import subprocess
import tempfile
from typing import Any
import warnings

import numpy as np

from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.intrinsics.operators import host_tiling
from hpmoe.backend_ascend.twin.intrinsics.operators import operator_declaration
from hpmoe.backend_ascend.twin.intrinsics.operators import operator_folder
from hpmoe.backend_ascend.twin.intrinsics.operators import operator_source
from hpmoe.backend_ascend.twin.tiling import layout as tiling_layout

_EXIT_FINDINGS = 3


class FindingsError(Exception):
  """The twin reports errors of a launch.

  Attributes:
    findings: the errors, one line each, with the line of the source.
  """

  def __init__(self, findings: Sequence[str]):
    super().__init__('\n'.join(findings))
    self.findings = tuple(findings)


def __getattr__(name: str) -> Any:
  """Returns `FindingsError` under its name of 0.3, which works until 1.0."""
  if name != 'Found':
    raise AttributeError(f'run_kernel: expected an attribute, got {name!r}')
  warnings.warn(
    'run_kernel.Found is now called run_kernel.FindingsError',
    DeprecationWarning,
    stacklevel=2,
  )
  return FindingsError


@dataclasses.dataclass(frozen=True)
class Empty:
  """Device memory that is not written yet: reading it is an error.

  Attributes:
    shape, dtype: of the array that a launch returns for it.
  """

  shape: Sequence[int] | int
  dtype: np.dtype | type | str

  def array(self) -> np.ndarray:
    return np.zeros(self.shape, self.dtype)


# A list of tensors, which an operator takes as one argument.
Tensors = Sequence[np.ndarray | Empty]
# Arrays lie in device memory; a number, or bytes of a struct, goes by value.
# A Python number becomes int32 or float32; pass a numpy scalar for other types.
Argument = np.ndarray | Empty | np.generic | bytes | int | float


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A kernel of a source file, compiled at its first launch.

  Attributes:
    source: the file; it may have a `main`, which is not called.
    name: the kernel's name in C++, such as `add<float>`.
    include: headers of Ascend C: asc-devkit, or asc of an installed CANN; '': a
      source that needs none.
    flags: flags of the compiler: -D, -I.
    cores: aiv, aic, mix11 or mix12, if the source does not say it.
  """

  source: str | os.PathLike[str]
  name: str
  include: str | os.PathLike[str] = ''
  flags: tuple[str, ...] = ()
  cores: str = ''

  def __call__(
    self,
    *arguments: Argument,
    blocks: int = 1,
    mode: str = 'late',
    seed: int = 0,
    auto_sync: bool = True,
    polled: Sequence[int] = (),
    hazards: bool = True,
    strict: bool = True,
    events: str = '',
  ) -> list[np.ndarray]:
    """Launches the kernel on the twin.

    Args:
      *arguments: arguments of the kernel; arrays of any shape and dtype.
      blocks: number of cores, or groups of cores, that run it.
      mode: one of `build_kernel.MODES`.
      seed: seed of mode 'seeded'.
      auto_sync: whether to order what CANN's compiler orders by default.
      polled: numbers, from 0, of the arrays that hold words which cores poll.
      hazards: whether to check the order of accesses.
      strict: whether to refuse operands that overlap where no page says what
        they give.
      events: a file for what cores gave their queues (watch/event_lines.h).

    Returns:
      Each array as the kernel leaves it; the arguments stay as they are.

    Raises:
      ValueError: it does not compile, or an argument does not fit.
      FindingsError: the twin reports errors.
    """
    return _launch(
      self._binary,
      arguments,
      blocks,
      mode=mode,
      seed=seed,
      auto_sync=int(auto_sync),
      cores=self.cores or self._binary.cores,
      flags=','.join(map(str, polled)),
      hazards=int(hazards),
      strict=int(strict),
      **_name_events(events),
    )

  @functools.cached_property
  def _binary(self) -> build_kernel.Kernel:
    source = pathlib.Path(self.source).resolve()
    work = build_kernel.make_cache_folder()
    program = (
      work / f'{source.stem}-{build_kernel.hash_parts(source, self.name)}.cc'
    )
    program.write_text(
      f'#define main hpmoe_main_of_the_source\n#line 1 "{source}"\n'
      f'{source.read_text()}\n#undef main\n#include "hpmoe_run_kernel.h"\n'
      'int main(int count, char** words) {\n'
      f'  return hpmoe_twin::RunKernel({self.name}, count, words);\n}}\n'
    )
    return build_kernel.build(
      program,
      build_kernel.headers(str(self.include)) if self.include else None,
      work,
      (f'-I{source.parent}', *self.flags),
      cores=self.cores,
    )


@dataclasses.dataclass(frozen=True)
class Operator:
  """An operator of CANN: its folder has op_kernel, and op_host for its tiling.

  The first launch of a tiling key and dtypes generates the files that CANN's
  build generates, and compiles the operator's source unchanged.

  Attributes:
    folder: the operator's folder.
    include: headers of Ascend C: asc-devkit, or asc of an installed CANN; '': a
      source that needs none.
    kernel: name of the function in op_kernel, if there are several.
    flags: flags of the compiler: -D, -I.
    host: checkouts of metadef and opbase, to run the operator's tiling with.
  """

  folder: str | os.PathLike[str]
  include: str | os.PathLike[str] = ''
  kernel: str = ''
  flags: tuple[str, ...] = ()
  host: tuple[str | os.PathLike[str], ...] = ()

  def __call__(
    self,
    *arguments: 'np.ndarray | Empty | Tensors | None',
    tiling: Mapping[str, object] | bytes | None = None,
    attributes: Mapping[str, object] | None = None,
    key: int = 0,
    blocks: int = 1,
    workspace: int = 0,
    dtypes: Mapping[str, str] | None = None,
    formats: Mapping[str, str] | None = None,
    template: Sequence[str] = (),
    struct: str = '',
    cores: str = '',
    mode: str = 'late',
    seed: int = 0,
    auto_sync: bool = True,
    zero_workspace: bool = False,
    slack: bool = True,
    hazards: bool = True,
    strict: bool = True,
    events: str = '',
  ) -> list[np.ndarray]:
    """Launches the operator on the twin.

    Args:
      *arguments: inputs and outputs in the kernel's order, without workspace
        and tiling; an optional one that is absent is None.
      tiling: values of the struct's fields by name, or its bytes; None: the
        operator's own host function computes it, the key, the blocks and the
        workspace, of the arguments' shapes and the attributes.
      attributes: of the operator, by name; one that is absent has its default.
      key: the tiling key.
      blocks: number of cores, or groups of cores, that run it.
      workspace: bytes of the workspace, without those that CANN keeps.
      dtypes: dtypes by argument, if op_host defines none; else the arrays' own.
      formats: formats by argument, if not ND.
      template: arguments of the kernel's template.
      struct: the struct of `tiling`, if the kernel reads several.
      cores: aiv, aic, mix11 or mix12, if the source does not say it.
      mode: one of `build_kernel.MODES`.
      seed: seed of mode 'seeded'.
      auto_sync: whether to order what CANN's compiler orders by default.
      zero_workspace: whether the workspace begins as zeros.
      slack: whether device memory is as long as aclrtMalloc's page says, up to
        63 bytes more than the array: kernels copy whole blocks of 32 bytes.
      hazards: whether to check the order of accesses.
      strict: whether to refuse operands that overlap where no page says what
        they give.
      events: a file for what cores gave their queues (watch/event_lines.h).

    Returns:
      Each array as the operator leaves it, those of lists too.

    Raises:
      ValueError: it is no operator, does not compile, or an argument does not
        fit.
      FindingsError: the twin reports errors.
    """
    op = self._read
    kinds = self._dtypes(arguments) | {
      name.upper(): str(dtype) for name, dtype in (dtypes or {}).items()
    }
    upper = {name.upper(): form for name, form in (formats or {}).items()}
    if tiling is None:
      computed = self.tile(arguments, attributes or {})
      tiling, key = computed.data, computed.key
      blocks, workspace = computed.blocks, computed.workspace
    cores = cores or op.cores(key)
    code = self._build(key, kinds, upper, template, cores)
    if not isinstance(tiling, bytes):
      libraries = {code.vector, code.cube}
      texts = [
        path.with_suffix('.ll').read_text(errors='surrogateescape')
        for path in sorted(libraries, reverse=True)
      ]
      tiling = tiling_layout.read(texts, struct).pack(tiling)
    space = np.zeros(_SYSTEM_WORKSPACE + workspace, np.uint8)
    own = {
      'workspace': space if zero_workspace else Empty(space.shape, np.uint8),
      'tiling': np.frombuffer(tiling, np.uint8),
    }
    whole = op.kernel.complete(arguments, own)
    results = _launch(
      code,
      whole,
      blocks,
      mode=mode,
      seed=seed,
      auto_sync=int(auto_sync),
      cores=cores,
      begins=int(operator_folder.begins(code.vector.with_suffix('.ll'))),
      slack=int(slack),
      hazards=int(hazards),
      strict=int(strict),
      **_name_events(events),
    )
    begin = 0
    out = []
    for i, argument in enumerate(whole):
      count = _arrays_in(argument)
      if i not in op.kernel.own:
        out += results[begin : begin + count]
      begin += count
    return out

  def tile(
    self, arguments: Sequence, attributes: Mapping[str, object]
  ) -> host_tiling.Tiling:
    """Returns what the operator's own tiling function computes.

    Args:
      arguments: of the launch.
      attributes: of the operator, by name.

    Raises:
      ValueError: it does not compile, or fails.
    """
    if not self.host:
      raise ValueError(
        'tiling: expected values, or checkouts of metadef and opbase as host, '
        'got neither'
      )
    headers = build_kernel.headers(str(self.include))
    ascendc = build_kernel.install(headers, build_kernel.make_cache_folder())
    roots = tuple(pathlib.Path(r).resolve() for r in (*self.host, headers))
    key = build_kernel.hash_parts(*map(str, roots))
    work = build_kernel.make_cache_folder() / f'host-{key}'
    public = host_tiling.Public(roots, ascendc, work)
    return host_tiling.run(self._read, arguments, attributes, public)

  @functools.cached_property
  def _read(self) -> operator_folder.Folder:
    return operator_folder.read(pathlib.Path(self.folder), self.kernel)

  def _dtypes(self, arguments: Sequence) -> dict[str, str]:
    """Returns the dtype of each argument that op_host defines."""
    kinds = {}
    for defined, argument in zip(self._read.definition.arguments, arguments):
      first = argument
      if isinstance(argument, list | tuple) and argument:
        first = argument[0]
      if isinstance(first, np.ndarray | Empty):
        kinds[defined.macro] = np.dtype(first.dtype).name
    return kinds

  def _build(
    self, key, dtypes, formats, template, cores
  ) -> build_kernel.Kernel:
    op = self._read
    headers = build_kernel.headers(str(self.include)) if self.include else None
    text = operator_source.write(
      op,
      key=key,
      dtypes=dtypes,
      formats=formats,
      template=template,
      bare=headers is None,
    )
    work = build_kernel.make_cache_folder()
    name = op.kernel.name
    source = work / f'{name}-{build_kernel.hash_parts(text, *self.flags)}.cc'
    source.write_text(
      f'{text}#include "hpmoe_run_kernel.h"\n'
      'int main(int count, char** words) {\n'
      f'  return hpmoe_twin::RunKernel(as_built::{name}, count, words);\n}}\n'
    )
    # The key has the sources' times: launches in another order compile nothing.
    now = (source, headers, self.flags, cores, operator_folder.stamp(op))
    if now in _CODE:
      return _CODE[now]
    public: list[pathlib.Path] = []
    if headers:
      ascendc = build_kernel.install(headers, work)
      public = [ascendc / folder for folder in build_kernel.FOLDERS]
    near = operator_folder.find_includes(
      op, [op.source], self.flags, public, work
    )
    flags = (*self.flags, *(f'-I{folder}' for folder in near.folders))
    try:
      _CODE[now] = build_kernel.build(
        source,
        headers,
        work,
        flags,
        cores=cores,
        first=operator_source.APIS if headers else (),
      )
    except build_kernel.BuildError as error:
      raise operator_declaration.OperatorError(
        operator_folder.reason(str(error), op)
      ) from None
    return _CODE[now]


# Operators that were compiled in this process.
_CODE: dict[tuple, build_kernel.Kernel] = {}
# Bytes that CANN keeps at the beginning of a workspace.
_SYSTEM_WORKSPACE = 16 << 20


def _arrays_in(argument: object) -> int:
  if isinstance(argument, list | tuple):
    return len(argument)
  return int(isinstance(argument, np.ndarray | Empty))


def _name_events(path: str) -> dict[str, str]:
  return {'events': path} if path else {}


def _launch(
  kernel: build_kernel.Kernel,
  arguments: Sequence,
  blocks: int,
  *,
  mode: str,
  **options: object,
) -> list[np.ndarray]:
  if mode not in build_kernel.MODES:
    raise ValueError(
      f'mode: expected one of {list(build_kernel.MODES)}, got {mode!r}'
    )
  with tempfile.TemporaryDirectory(prefix='hpmoe-twin-') as folder:
    words, arrays = _write(pathlib.Path(folder), arguments)
    command = build_kernel.command(kernel, mode=mode, **options)
    process = subprocess.run(
      [*command, '--', str(blocks), *words], capture_output=True, text=True
    )
    _raise(process)
    return [
      np.fromfile(path, array.dtype).reshape(array.shape)
      for path, array in arrays
    ]


def _write(folder: pathlib.Path, arguments: Sequence):
  """Returns the words that name arguments in files, and files of arrays."""
  words: list[str] = []
  arrays: list[tuple[pathlib.Path, np.ndarray]] = []
  for i, argument in enumerate(arguments):
    path = folder / f'{i}.bin'
    if argument is None:
      words.append('none:')
    elif isinstance(argument, bytes):
      path.write_bytes(argument)
      words.append(f'value:{path}')
    elif isinstance(argument, Empty | np.ndarray):
      words.append(_array(path, argument, arrays))
    elif isinstance(argument, list | tuple):
      lines = []
      for j, tensor in enumerate(argument):
        word = _array(folder / f'{i}-{j}.bin', tensor, arrays)
        lines.append(f'{word} {",".join(map(str, arrays[-1][1].shape))}\n')
      path.write_text(''.join(lines))
      words.append(f'list:{path}')
    else:
      path.write_bytes(_number(i, argument).tobytes())
      words.append(f'value:{path}')
  return words, arrays


def _array(path: pathlib.Path, argument: np.ndarray | Empty, arrays) -> str:
  """Writes one array; returns the word that names it."""
  empty = isinstance(argument, Empty)
  array = argument.array() if isinstance(argument, Empty) else argument
  path.write_bytes(array.tobytes())
  arrays.append((path, array))
  return f'{"empty" if empty else "filled"}:{path}'


def _number(i: int, argument) -> np.generic:
  if isinstance(argument, np.generic):
    return argument
  if isinstance(argument, bool) or not isinstance(argument, int | float):
    raise ValueError(
      f'argument {i}: expected an array, Empty, a number or bytes, got '
      f'{type(argument).__name__}'
    )
  return (np.int32 if isinstance(argument, int) else np.float32)(argument)


def _raise(process: subprocess.CompletedProcess) -> None:
  if process.returncode == 0:
    return
  lines = process.stderr.splitlines()
  if process.returncode == _EXIT_FINDINGS:
    findings = [line.removeprefix('twin: ') for line in lines[:-1]]
    raise FindingsError([line for line in findings if line])
  raise ValueError('\n'.join(lines) or f'exit code {process.returncode}')
