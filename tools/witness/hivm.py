"""Writes programs for the vendor's compiler, and reads its synchronisation.

Places on the chip have addresses, as after the compiler's memory planning, so
that its synchronisation is for the same bytes as the twin's.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import re

from hpmoe.tools.witness import programs

_ATTRIBUTES = (
  '{hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, '
  'hivm.func_core_type = #hivm.func_core_type<AIV>}'
)
_ON_CPU = '{llvm.emit_c_interface}'
_BUFFER = f'memref<{programs.UB_BYTES}xi8>'
_FUNCTION = re.compile(r'\s*func\.func @p(\d+)\(')
_SYNC = re.compile(
  r'\s*hivm\.hir\.(set|wait)_flag\[<PIPE_(\w+)>, <PIPE_(\w+)>, '
  r'<EVENT_ID(\d)>\]$'
)
_BARRIER = re.compile(r'\s*hivm\.hir\.pipe_barrier\[<PIPE_(\w+)>\]$')
_LOOP = re.compile(r'\s*scf\.for ')
_END = re.compile(r'\s*}$')
# What computes addresses, and sizes: no instruction of a pipe.
_OTHER = re.compile(
  r'\s*(%[\w-]+ = )?(arith\.constant|arith\.muli|arith\.addi|memref\.subview|'
  r'hivm\.hir\.pointer_cast|affine\.apply|return$)'
)
_STEP = re.compile(r'\s*hivm\.hir\.(\w+) ')


class Unread(ValueError):
  """The vendor's compiler wrote what this module does not know."""


@dataclasses.dataclass(frozen=True)
class Sync:
  """A call that synchronises.

  Attributes:
    kind: 'set', 'wait' or 'barrier'.
    source: the pipe that sets, or that the barrier is of; 'ALL' too.
    target: the pipe that waits; '' of a barrier.
    event: id of the flag; -1 of a barrier.
  """

  kind: str
  source: str
  target: str = ''
  event: int = -1


@dataclasses.dataclass(frozen=True)
class Round:
  """A loop of the vendor's answer."""

  rounds: int
  body: tuple['Sync | programs.Step | Round', ...]


Body = tuple[Sync | programs.Step | Round, ...]


class _Text:
  """Writes one function.

  Args:
    program: what it does.
    on_cpu: for the compiler's lowering to a CPU: one memory, of which the
      unified buffer is the first argument.
  """

  def __init__(self, program: programs.Program, on_cpu: bool):
    self._program = program
    self._on_cpu = on_cpu
    self._lines: list[str] = []
    self._names: dict[object, str] = {}

  def _type(self, operand: programs.Place | programs.Slice) -> str:
    shape = f'{operand.count}x{operand.dtype}'
    if isinstance(operand, programs.Place):
      return self._in_memory(shape, 'ub')
    offset = '?' if operand.stride else str(operand.begin)
    return self._in_memory(f'{shape}, strided<[1], offset: {offset}>', 'gm')

  def _array_type(self, array: programs.Array) -> str:
    return self._in_memory(f'{array.count}x{array.dtype}', 'gm')

  def _in_memory(self, kind: str, memory: str) -> str:
    space = '' if self._on_cpu else f', #hivm.address_space<{memory}>'
    return f'memref<{kind}{space}>'

  def write(self) -> str:
    program = self._program
    arguments = [
      f'%g{i}: {self._array_type(array)}'
      for i, array in enumerate(program.arrays)
    ]
    if self._on_cpu:
      arguments.insert(0, f'%ub: {_BUFFER}')
    for step in program.steps():
      for operand in (*step.ins, step.out):
        self._declare(operand)
    self._body(program.body, '')
    lines = '\n'.join(f'    {line}' for line in self._lines)
    attributes = _ON_CPU if self._on_cpu else _ATTRIBUTES
    return (
      f'  func.func @p{program.seed}({", ".join(arguments)}) attributes '
      f'{attributes} {{\n{lines}\n    return\n  }}\n'
    )

  def _constant(self, value: int | float, kind: str) -> str:
    name = f'%c{value}_{kind}'.replace('-', 'm').replace('.', 'p')
    if name not in self._names:
      self._names[name] = name
      self._lines.insert(0, f'{name} = arith.constant {value} : {kind}')
    return name

  def _declare(self, operand: programs.Place | programs.Slice) -> None:
    if isinstance(operand, programs.Slice) or operand in self._names:
      return
    name = self._names[operand] = f'%b{len(self._names)}'
    address = self._constant(operand.begin, 'index' if self._on_cpu else 'i64')
    view = f'hivm.hir.pointer_cast({address}) []'
    if self._on_cpu:
      view = f'memref.view %ub[{address}][] : {_BUFFER} to'
    colon = '' if self._on_cpu else ': '
    self._lines.append(f'{name} = {view} {colon}{self._type(operand)}')

  def _operand(
    self, operand: programs.Place | programs.Slice, counter: str
  ) -> str:
    if isinstance(operand, programs.Place):
      return self._names[operand]
    begin = str(operand.begin)
    name = f'%s{len(self._lines)}'
    if operand.stride:
      stride = self._constant(operand.stride, 'index')
      first = self._constant(operand.begin, 'index')
      self._lines.append(f'{name}m = arith.muli {counter}, {stride} : index')
      self._lines.append(f'{name}o = arith.addi {name}m, {first} : index')
      begin = f'{name}o'
    array = self._array_type(self._program.arrays[operand.array])
    self._lines.append(
      f'{name} = memref.subview %g{operand.array}[{begin}] [{operand.count}] '
      f'[1] : {array} to {self._type(operand)}'
    )
    return name

  def _body(
    self, body: Sequence[programs.Step | programs.Loop], counter: str
  ) -> None:
    for node in body:
      if isinstance(node, programs.Loop):
        self._loop(node)
      else:
        self._step(node, counter)

  def _loop(self, loop: programs.Loop) -> None:
    zero, unit, end = (
      self._constant(value, 'index') for value in (0, 1, loop.rounds)
    )
    counter = f'%i{len(self._lines)}'
    self._lines.append(f'scf.for {counter} = {zero} to {end} step {unit} {{')
    self._body(loop.body, counter)
    self._lines.append('}')

  def _step(self, step: programs.Step, counter: str) -> None:
    operands = [self._operand(operand, counter) for operand in step.ins]
    types = [self._type(operand) for operand in step.ins]
    if step.scalar is not None:
      operands.append(self._constant(step.scalar, step.out.dtype))
      types.append(step.out.dtype)
    out = self._operand(step.out, counter)
    name = step.instruction.hivm
    if self._on_cpu and name == 'copy':
      name = 'store'  # which alone has a lowering there
    self._lines.append(
      f'hivm.hir.{name} ins({", ".join(operands)} : '
      f'{", ".join(types)}) outs({out} : {self._type(step.out)}) '
      f'{step.instruction.attributes}'
    )


def write(batch: Sequence[programs.Program], on_cpu: bool = False) -> str:
  """Returns a module with a function p<seed> for each program.

  Args:
    batch: the programs.
    on_cpu: for the compiler's lowering to a CPU: places are views of the first
      argument, bytes of the unified buffer.
  """
  texts = [_Text(program, on_cpu).write() for program in batch]
  return f'module {{\n{"".join(texts)}}}\n'


def functions(text: str) -> Iterator[tuple[int, list[str]]]:
  """Yields each function's seed and lines of a module that was printed."""
  seed = -1
  lines: list[str] = []
  for line in text.splitlines():
    match = _FUNCTION.match(line)
    if match:
      if lines:
        yield seed, lines
      seed, lines = int(match[1]), []
    elif seed >= 0:
      lines.append(line)
  if lines:
    yield seed, lines


def read(program: programs.Program, lines: Sequence[str]) -> Body:
  """Returns a program with the synchronisation that lines have beside it.

  Raises:
    Unread: a line is of no kind that is known, or the steps are not those of
      the program.
  """
  steps = iter(program.steps())
  loops = iter(_loops(program.body))
  stack: list[list] = [[]]
  rounds: list[int] = []
  for line in lines:
    flag, barrier = _SYNC.match(line), _BARRIER.match(line)
    if flag:
      stack[-1].append(Sync(flag[1], flag[2], flag[3], int(flag[4])))
    elif barrier:
      stack[-1].append(Sync('barrier', barrier[1]))
    elif _LOOP.match(line):
      stack.append([])
      rounds.append(next(loops).rounds)
    elif _END.match(line):
      if not rounds:
        break
      body = tuple(stack.pop())
      stack[-1].append(Round(rounds.pop(), body))
    elif not _OTHER.match(line):
      stack[-1].append(_next_step(steps, line))
  if next(steps, None) is not None:
    raise Unread(f'p{program.seed}: expected more steps, got the end')
  return tuple(stack[0])


def _loops(body: Sequence[programs.Step | programs.Loop]):
  for node in body:
    if isinstance(node, programs.Loop):
      yield node
      yield from _loops(node.body)


def _next_step(steps: Iterator[programs.Step], line: str) -> programs.Step:
  match = _STEP.match(line)
  step = next(steps, None)
  if match is None or step is None or match[1] != step.instruction.hivm:
    expected = step.instruction.hivm if step else 'the end'
    raise Unread(f'expected {expected}, got {line.strip()[:120]}')
  return step
