"""Writes programs, with synchronisation of the vendor, as kernels in Ascend C.

One file has many kernels, and is its own program: it answers requests of
`twin`.  Each call that synchronises has a number, and a launch leaves out those
that its request names.
"""

from collections.abc import Sequence

from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import programs

_TYPES = {'f32': 'float', 'f16': 'half', 'i32': 'int32_t', 'i16': 'int16_t'}
_HALVES = {0.0: 0x0000, 1.0: 0x3C00, -2.5: 0xC100, 0.125: 0x3000}
_HEAD = """#include "tools/witness/run_programs.h"

using namespace AscendC;

"""


class _Text:
  """Writes one kernel; the lines of its calls are their numbers in the text."""

  def __init__(self, program: programs.Program):
    self._program = program
    self._lines: list[str] = []
    self._number = 0

  def write(self, body: hivm.Body) -> str:
    self._body(body, '0')
    lines = '\n'.join(self._lines)
    return f'void p{self._program.seed}() {{\n  InitSocState();\n{lines}\n}}\n'

  def _body(self, body: hivm.Body, counter: str) -> None:
    for node in body:
      if isinstance(node, hivm.Round):
        name = f'i{len(self._lines)}'
        self._lines.append(
          f'for (int {name} = 0; {name} < {node.rounds}; ++{name}) {{'
        )
        self._body(node.body, name)
        self._lines.append('}')
        continue
      call = (
        self._sync(node)
        if isinstance(node, hivm.Sync)
        else self._step(node, counter)
      )
      self._lines.append(f'#line {self._number + 1} "batch.cc"\n  {call}')
      self._number += 1

  def _sync(self, sync: hivm.Sync) -> str:
    if sync.kind == 'barrier':
      call = f'PipeBarrier<PIPE_{sync.source}>()'
    else:
      name = {'set': 'SetFlag', 'wait': 'WaitFlag'}[sync.kind]
      event = f'HardEvent::{sync.source}_{sync.target}'
      call = f'{name}<{event}>({sync.event})'
    return f'if (IsIn({self._number})) {call};'

  def _step(self, step: programs.Step, counter: str) -> str:
    arguments = [
      _operand(operand, counter) for operand in (step.out, *step.ins)
    ]
    if step.scalar is not None:
      arguments.append(_scalar(step.out.dtype, step.scalar))
    if step.instruction.last:
      arguments.append(step.instruction.last)
    count = step.ins[0].count if step.ins else step.out.count
    return f'{step.instruction.ascend_c}({", ".join(arguments)}, {count});'


def _operand(operand: programs.Place | programs.Slice, counter: str) -> str:
  kind = _TYPES[operand.dtype]
  if isinstance(operand, programs.Place):
    return f'Ub<{kind}>({operand.begin}, {operand.count})'
  begin = f'{operand.begin} + {counter} * {operand.stride}'
  return f'Gm<{kind}>({operand.array}, {begin}, {operand.count})'


def _scalar(dtype: str, value: int | float) -> str:
  if dtype == 'f16':
    return f'half{{{_HALVES[float(value)]}}}'
  return f'({_TYPES[dtype]}){value}'


def write(batch: Sequence[tuple[programs.Program, hivm.Body]]) -> str:
  """Returns a file with a kernel p<seed> for each program and its table."""
  kernels = [
    f'namespace {{\n{_Text(program).write(body)}}}  // namespace\n'
    for program, body in batch
  ]
  rows = [
    f'  {{{program.seed}, p{program.seed}, {{{_bytes(program)}}}}},'
    for program, _ in batch
  ]
  table = '\n'.join(rows)
  return (
    f'{_HEAD}{"".join(kernels)}\nconst Kernel kKernels[] = {{\n{table}\n}};\n'
    'const int kNumKernels = sizeof(kKernels) / sizeof(kKernels[0]);\n'
  )


def _bytes(program: programs.Program) -> str:
  return ', '.join(
    str(a.count * programs.SIZES[a.dtype]) for a in program.arrays
  )
