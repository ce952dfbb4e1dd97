"""Compares what programs compute: the vendor's lowering to a CPU, the twin.

Each instruction is compared alone, on numbers of all kinds; then the random
programs are, in which others stand for those that differ.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import pathlib
import tempfile

import numpy as np

from hpmoe.tools.witness import cpu
from hpmoe.tools.witness import instructions
from hpmoe.tools.witness import programs
from hpmoe.tools.witness import twin as twins
from hpmoe.tools.witness import vendor

DTYPES = {
  'f32': np.float32,
  'f16': np.float16,
  'i32': np.int32,
  'i16': np.int16,
}
_FIRST = 1_000_000  # seed of the first program of one instruction
_COUNT = 256
_ROUNDS = 256  # all halves
_BATCH = 100
NAN = 'NaN of other bits'
ZERO = 'sign of zero'
LAST = 'last bit'
OTHER = 'other'
KINDS = (NAN, ZERO, LAST, OTHER)
# Why an instruction differs by more than a NaN's bits.
REASONS = {
  'exp': 'libm',
  'ln': 'libm',
  'rsqrt': 'vendor rounds twice',
  'reciprocal': 'rough in the twin',
  'not': 'vendor wrong: the operand comes back',
}
# Of which the twin's result is the nearest number: such a reason is checked.
_NEAREST: dict[str, Callable] = {
  'exp': np.exp,
  'ln': np.log,
  'rsqrt': lambda x: 1 / np.sqrt(x),
}
# What stands for them in programs.
_STAND_INS = {
  'exp': 'abs',
  'ln': 'abs',
  'rsqrt': 'sqrt',
  'reciprocal': 'relu',
  'not': 'copy',
}


@dataclasses.dataclass(frozen=True)
class Difference:
  """An element on which both differ.

  Attributes:
    kind: how far they are apart.
    twin_value, vendor_value: of the twin, and of the vendor's compiler.
    element: of all arrays, in order.
  """

  kind: str
  twin_value: np.generic
  vendor_value: np.generic
  element: int


def is_lowered(program: programs.Program) -> bool:
  """Whether the vendor's lowering has all that a program does."""
  return all(s.instruction.hivm != 'vcast' for s in program.steps())


def comparable(program: programs.Program) -> programs.Program:
  """Returns a program without the instructions that differ."""
  return dataclasses.replace(program, body=_comparable(program.body))


def _comparable(body) -> tuple[programs.Step | programs.Loop, ...]:
  return tuple(
    dataclasses.replace(node, body=_comparable(node.body))
    if isinstance(node, programs.Loop)
    else dataclasses.replace(node, name=_STAND_INS.get(node.name, node.name))
    for node in body
  )


def singles() -> Iterator[tuple[str, str, programs.Program]]:
  """Yields a program of each instruction and dtype, on many elements."""
  seed = _FIRST
  for name, instruction in instructions.TABLE.items():
    if name in ('load', 'store'):
      continue
    for out_dtype, in_dtype in instruction.dtypes:
      yield name, out_dtype, _single(seed, name, out_dtype, in_dtype)
      seed += 1


def _single(
  seed: int, name: str, out_dtype: str, in_dtype: str
) -> programs.Program:
  instruction = instructions.TABLE[name]
  sources = instruction.sources
  arrays = [programs.Array(in_dtype, _COUNT * _ROUNDS)] * sources
  arrays.append(programs.Array(out_dtype, _COUNT * _ROUNDS))

  def part(i: int) -> programs.Slice:
    return programs.Slice(i, 0, arrays[i].dtype, _COUNT, _COUNT)

  ins = tuple(
    programs.Place(1024 * i, in_dtype, _COUNT) for i in range(sources)
  )
  out = programs.Place(2048, out_dtype, _COUNT)
  scalar = instructions.SCALARS[out_dtype[0]][2] if instruction.scalar else None
  body = (
    *(programs.Step('load', p, (part(i),)) for i, p in enumerate(ins)),
    programs.Step(name, out, ins, scalar),
    programs.Step('store', part(sources), (out,)),
  )
  return programs.Program(seed, tuple(arrays), (programs.Loop(_ROUNDS, body),))


def inputs(program: programs.Program) -> list[np.ndarray]:
  """Returns what a program's arrays hold first.

  Of programs of one instruction, halves are all there are, in two orders; all
  else is random bits, and numbers near 1.
  """
  generator = np.random.default_rng(program.seed)
  return [
    _numbers(generator, array, i, program.seed >= _FIRST)
    for i, array in enumerate(program.arrays)
  ]


def _numbers(generator, array, i: int, everything: bool) -> np.ndarray:
  dtype = np.dtype(DTYPES[array.dtype])
  bits = generator.integers(0, 256, array.count * dtype.itemsize, np.uint8)
  numbers = bits.view(dtype)
  if everything and array.dtype == 'f16':
    return generator.permutation(1 << 16).astype(np.uint16).view(np.float16)
  if dtype.kind == 'f':
    near = generator.normal(0, 2, array.count).astype(dtype)
    share = 0.5 if everything else 0.98
    numbers = np.where(generator.random(array.count) < share, near, numbers)
  return numbers


def run(
  program: programs.Program,
  lowering: cpu.Lowering,
  twin: twins.Twin,
  folder: pathlib.Path,
) -> tuple[int, list[Difference]]:
  """Returns how many elements there are of results, and those that differ.

  Raises:
    ValueError: the twin reports something.
  """
  arrays = inputs(program)
  before, after = folder / 'before.bin', folder / 'after.bin'
  before.write_bytes(b''.join(array.tobytes() for array in arrays))
  report = twin.launch(
    program.seed, mode='in_order', files=(before, after), counts=True
  )
  if report:
    raise ValueError(report.text)
  vendor_value = lowering.run(program, arrays)
  twin_value = _split(after.read_bytes(), arrays)
  differences: list[Difference] = []
  outs = [step.out for step in program.steps()]
  results = {out.array for out in outs if isinstance(out, programs.Slice)}
  begin = 0
  for a, b in zip(twin_value, vendor_value):
    differences += _differences(a, b, begin)
    begin += a.size
  return sum(arrays[i].size for i in results), differences


def _split(data: bytes, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
  begin = 0
  parts = []
  for array in arrays:
    parts.append(np.frombuffer(data, array.dtype, array.size, begin))
    begin += array.nbytes
  return parts


def _differences(
  twin_value: np.ndarray, vendor_value: np.ndarray, begin: int
) -> Iterator[Difference]:
  bits = np.dtype(f'i{twin_value.dtype.itemsize}')
  apart = twin_value.view(bits) != vendor_value.view(bits)
  for k in np.flatnonzero(apart):
    yield Difference(
      _kind(twin_value[k], vendor_value[k]),
      twin_value[k],
      vendor_value[k],
      begin + k,
    )


def _kind(twin_value: np.generic, vendor_value: np.generic) -> str:
  if not isinstance(twin_value, np.floating):
    return OTHER
  if np.isnan(twin_value) and np.isnan(vendor_value):
    return NAN
  if twin_value == vendor_value:
    return ZERO
  return (
    LAST if np.nextafter(twin_value, vendor_value) == vendor_value else OTHER
  )


@dataclasses.dataclass
class Count:
  """Of an instruction, or of all programs.

  Attributes:
    name: of the instruction and dtype.
    elements: compared.
    kinds: how many differ, by kind.
    example: the first that differs by more than a NaN's bits.
    reason: of `REASONS`; '' where nothing differs so.
  """

  name: str
  elements: int = 0
  kinds: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  example: str = ''
  reason: str = ''

  def add(
    self, seed: int, elements: int, differences: Sequence[Difference]
  ) -> None:
    self.elements += elements
    self.kinds.update(d.kind for d in differences)
    for d in differences:
      if d.kind != NAN and not self.example:
        self.example = (
          f'p{seed}, element {d.element}: the twin {d.twin_value!r}, '
          f'the vendor {d.vendor_value!r}'
        )

  @property
  def is_explained(self) -> bool:
    return not self.example or bool(self.reason)


def is_nearest(
  name: str, program: programs.Program, differences: Sequence[Difference]
) -> bool:
  """Whether the twin is right where an instruction differs, if that is said."""
  if name not in _NEAREST:
    return True
  operand = inputs(program)[0]
  apart = [d for d in differences if d.kind != NAN]
  x = operand[[d.element - operand.size for d in apart]]
  exact = _NEAREST[name](x.astype(np.longdouble)).astype(operand.dtype)
  return bool((exact == [d.twin_value for d in apart]).all())


def judge(tool: pathlib.Path, seeds: range) -> list[Count]:
  """Returns counts of each instruction and dtype, and of the programs."""
  alone = [single for single in singles() if is_lowered(single[2])]
  counts = {
    program.seed: Count(f'{name} {dtype}', reason=REASONS.get(name, ''))
    for name, dtype, program in alone
  }
  names = {program.seed: name for name, _, program in alone}
  together = Count('programs')
  batch = [program for _, _, program in alone]
  batch += [
    comparable(program)
    for program in map(programs.write, seeds)
    if is_lowered(program)
  ]
  for begin in range(0, len(batch), _BATCH):
    part = batch[begin : begin + _BATCH]
    for program, elements, differences in _run_batch(tool, part):
      count = counts.get(program.seed, together)
      count.add(program.seed, elements, differences)
      if not is_nearest(names.get(program.seed, ''), program, differences):
        count.reason = ''
  return [*counts.values(), together]


def _run_batch(
  tool: pathlib.Path, batch: Sequence[programs.Program]
) -> Iterator[tuple[programs.Program, int, list[Difference]]]:
  pairs = vendor.synchronise(tool, batch, vendor.SOLVERS[0])
  with tempfile.TemporaryDirectory(prefix='hpmoe-witness-') as name:
    folder = pathlib.Path(name)
    lowering = cpu.Lowering(tool, batch, folder)
    with twins.Twin(pairs, folder) as twin:
      for program in batch:
        yield program, *run(program, lowering, twin, folder)


def rows(counts: Sequence[Count]) -> list[list[object]]:
  """Returns the table's rows: instructions that differ, all others, programs.

  An instruction that differs in a NaN's bits alone is one of the others.
  """
  remainder = Count('others')
  by_name = {c.name.split()[0]: Count('', reason=c.reason) for c in counts}
  apart = {c.name.split()[0] for c in counts[:-1] if c.example}
  for count in counts[:-1]:
    name = count.name.split()[0]
    row = by_name[name] if name in apart else remainder
    row.name = row.name or name
    row.elements += count.elements
    row.kinds.update(count.kinds)
  differing = [row for name, row in by_name.items() if name in apart]
  return [
    [c.name, f'{c.elements:,}', *(f'{c.kinds[k]:,}' for k in KINDS), c.reason]
    for c in (*differing, remainder, counts[-1])
  ]
