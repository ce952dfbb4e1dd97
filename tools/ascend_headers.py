r"""Compiles the device source against the real headers of Ascend C.

  python -m hpmoe.tools.ascend_headers --include=DIR

DIR is a checkout of asc-devkit or the `asc` folder of an installed CANN: it
holds include/basic_api and impl/basic_api.  No NPU and no Ascend compiler is
needed, but clang++: what those headers take from that compiler (its intrinsics
and a few enums) is declared here, under any arguments, and nothing is executed.
So the types, names and arguments of our calls are checked, and what the headers
themselves assert of them; no instruction is.

Each source is compiled for both types of core, with real address spaces and
with device and host functions told apart, so that a lost `__gm__` or
`__aicore__` is an error, as it is on the device.

Exit codes: 0 all compile without a warning in our files, 1 not, 2 DIR is
missing or is not such a folder, or there is no clang++.
"""

from collections.abc import Iterable
import pathlib
import re
import subprocess
import sys
import tempfile

from absl import app
from absl import flags

from hpmoe.backend_ascend.twin.intrinsics import build_kernel

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEVICE = 'backend_ascend/device'
SOURCES = [
  f'{DEVICE}/megakernel/megakernel.cc',
  f'{DEVICE}/operator/hpmoe_launch.cc',
  f'{DEVICE}/operator/hpmoe_launch_grad.cc',
]

_INCLUDE = flags.DEFINE_string(
  'include', None, 'asc-devkit, or the asc folder of an installed CANN.'
)
_SOURCES = flags.DEFINE_list(
  'sources', SOURCES, 'Device sources, from the root.'
)

_FLAGS = (
  *('-xcuda', '--cuda-device-only', '--cuda-gpu-arch=sm_60', '-nocudainc'),
  *('-nocudalib', '-Wno-unknown-cuda-version', '-ferror-limit=0'),
  *('-std=c++17', '-D__NPU_ARCH__=2201', '-D__CCE_AICORE__=220'),
  *('-Wall', '-Wextra', '-fsyntax-only', f'-I{ROOT}'),
)
_SPACES = ('gm', 'ubuf', 'cbuf', 'ca', 'cb', 'cc', 'fbuf', 'biasbuf', 'ssbuf')
# Words of the device's compiler that say nothing to another.
_WORDS = (
  *('cube', 'vector', 'simd_callee', 'simd_vf', 'simt_callee', 'simt_vf'),
  *('sync_alias', 'sync_noalias', 'check_sync_alias'),
)
_CALLED_WORDS = ('inout_pipe', 'in_pipe', 'out_pipe', 'mix')
# Enums that the device's compiler knows by itself: their order is ours.
_ENUMS = {
  'pipe_t': 'PIPE_S PIPE_V PIPE_M PIPE_MTE1 PIPE_MTE2 PIPE_MTE3 PIPE_ALL '
  'PIPE_MTE4 PIPE_MTE5 PIPE_V2 PIPE_FIX',
  'event_t': ' '.join(f'EVENT_ID{i}' for i in range(8)),
  'QuantMode_t': 'NoQuant F322F16 F322BF16 DEQF16 VDEQF16 DEQS16 VDEQS16 REQ8 '
  'VREQ8 REQ4 VREQ4 QF322B8_PRE VQF322B8_PRE QF162B8_PRE VQF162B8_PRE '
  'QF162S4_PRE VQF162S4_PRE QF322F16_PRE VQF322F16_PRE QF322BF16_PRE '
  'VQF322BF16_PRE QF322F32_PRE VQF322F32_PRE QS322BF16_PRE VQS322BF16_PRE',
  'cache_line_t': 'SINGLE_CACHE_LINE ENTIRE_DATA_CACHE',
  'dcci_dst_t': 'CACHELINE_ALL CACHELINE_UB CACHELINE_OUT CACHELINE_ATOMIC',
  'mem_dsb_t': 'DSB_ALL DSB_DDR DSB_UB DSB_SEQ',
  'Order_t': 'ONLY_VALUE ONLY_INDEX VALUE_INDEX INDEX_VALUE',
  'addr_cal_mode_t': 'inc dec',
  'pad_t': 'PAD_NONE ' + ' '.join(f'PAD_MODE{i}' for i in range(1, 9)),
  'mem_t': 'L1 L0A L0B L0C UB BT',
  'ub_addr8_t': ' '.join(f'VA{i}' for i in range(8)),
  'va_half_t': 'L128 H128',
  'atomic_type_t': 'HPMOE_ATOMIC_TYPE',
  'atomic_op_t': 'HPMOE_ATOMIC_OP',
}
# Numbers of 16 bits, which are the compiler's own.
_NUMBER = (
  'struct {name} {{ uint16_t bits; {name}() = default;'
  ' __aicore__ {name}(float); __aicore__ operator float() const; }};'
)
_PROFILER = """\
namespace bisheng { namespace cce {
__aicore__ void metrics_prof_start();
__aicore__ void metrics_prof_stop();
template <pipe_t p, class... A> __aicore__ void mark_stamp(A...);
} }
"""
# What a build of CANN makes of an operator's tiling.
_TILING = '#define GET_TILING_DATA(name, at) HpmoeLaunchTiling name{}; (void)at'
# Intrinsics whose result a function that returns nothing returns.
_VOID = frozenset({'copy_matrix_cc_to_gm'})
_UNKNOWN = re.compile(r"use of undeclared identifier '([a-z_][a-z_0-9]*)'")


def prelude(functions: Iterable[str]) -> str:
  """Returns declarations of what the device's compiler knows by itself."""
  library = ('cmath', 'cstddef', 'cstdint', 'type_traits')
  lines = [f'#include <{name}>' for name in library]
  lines += ['#define __aicore__ __attribute__((device))', '#define __global__']
  lines.append('#define __host_aicore__')
  for i, space in enumerate(_SPACES, start=1):
    lines.append(f'#define __{space}__ __attribute__((address_space({i})))')
  lines += [f'#define __{word}__' for word in _WORDS]
  lines += [f'#define __{word}__(...)' for word in _CALLED_WORDS]
  lines += [_NUMBER.format(name=name) for name in ('half', 'bfloat16_t')]
  for name, values in _ENUMS.items():
    lines.append(f'enum {name} {{ {", ".join(values.split())} }};')
  for name in sorted(functions):
    kind, body = ('void', '') if name in _VOID else ('int64_t', 'return 0;')
    head = f'template <class... A> __aicore__ inline {kind} {name}'
    lines.append(f'{head}(A...) {{ {body} }}')
  return '\n'.join((*lines, _PROFILER, _TILING))


def compile_source(
  headers: pathlib.Path,
  prelude_folder: pathlib.Path,
  core: str,
  source: pathlib.Path,
) -> str:
  """Returns the messages of clang for a source and a type of core.

  Args:
    headers: of Ascend C.
    prelude_folder: a folder in front of them, with prelude.h.
    core: of `build_kernel.CORES`.
    source: to compile.
  """
  messages = subprocess.run(
    [
      *(build_kernel.clang(), *_FLAGS),
      *(f'-D{macro}' for macro in build_kernel.CORES[core]),
      *('-include', f'{prelude_folder}/prelude.h', f'-I{prelude_folder}'),
      *(
        word
        for f in build_kernel.FOLDERS
        for word in ('-isystem', str(headers / f))
      ),
      str(source),
    ],
    capture_output=True,
    text=True,
  ).stderr
  # Variables of the headers that live on the device.
  host = re.compile(r".*__host__ variable 'g_.*")
  lines = [line for line in messages.splitlines() if not host.match(line)]
  return '\n'.join(lines)


def learn(
  headers: pathlib.Path, prelude_folder: pathlib.Path, source: pathlib.Path
) -> dict[str, str]:
  """Declares all intrinsics that a source reaches; returns the other messages.

  Returns:
    Messages of clang, by type of core.
  """
  functions: set[str] = set()
  while True:
    (prelude_folder / 'prelude.h').write_text(prelude(functions))
    cores = build_kernel.CORES
    messages = {
      c: compile_source(headers, prelude_folder, c, source) for c in cores
    }
    unknown = set(_UNKNOWN.findall(''.join(messages.values())))
    if not unknown - functions:
      return messages
    functions |= unknown


def _operator(headers: pathlib.Path) -> str:
  """Returns a substitute for kernel_operator.h of these headers."""
  new, old = (headers / header for header in build_kernel.HEADERS)
  if new.is_file():
    return f'#include "{new.name}"\n'
  # The old one has the advanced API in it too.
  basic = re.findall(r'#include "kernel_\w+\.h"', old.read_text())
  early = ('kernel_tpipe_impl.h', 'kernel_tensor_impl.h', 'kernel_type.h')
  return '\n'.join((*(f'#include "{name}"' for name in early), *basic, ''))


def check(headers: pathlib.Path, sources: list[pathlib.Path]) -> int:
  """Prints the messages of clang for each source; returns the exit code."""
  has_failed = 0
  with tempfile.TemporaryDirectory() as folder:
    prelude_folder, loose = (
      pathlib.Path(folder, 'ours'),
      pathlib.Path(folder, 'loose'),
    )
    prelude_folder.mkdir()
    # The basic API: the others need headers that a build of CANN generates.
    (prelude_folder / 'kernel_operator.h').write_text(_operator(headers))
    build_kernel.loosen(headers, loose)
    for source in sources:
      for core, messages in learn(loose, prelude_folder, source).items():
        problems = re.findall(r'.*(?:error|warning): .*', messages)
        has_failed |= bool(problems)
        print(f'{source.name}, {core}: ', end='')
        print('\n'.join(problems) if problems else 'compiles, no warning')
  return int(has_failed)


def main(argv: list[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  try:
    headers = build_kernel.headers(_INCLUDE.value or '').resolve()
    build_kernel.clang()
  except build_kernel.BuildError as error:
    print(str(error).replace('include:', '--include:', 1), file=sys.stderr)
    return 2
  return check(headers, [ROOT / s for s in _SOURCES.value])


if __name__ == '__main__':
  app.run(main)
