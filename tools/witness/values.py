"""Compares what programs compute: the vendor's lowering to a CPU, the twin."""

from collections.abc import Iterator, Sequence
import collections
import dataclasses
import pathlib

import numpy as np

from hpmoe.tools.witness import cpu
from hpmoe.tools.witness import instructions
from hpmoe.tools.witness import programs
from hpmoe.tools.witness import twin as twins

DTYPES = {
  'f32': np.float32,
  'f16': np.float16,
  'i32': np.int32,
  'i16': np.int16,
}
_FIRST = 1_000_000  # seed of the first program of one instruction
_COUNT = 256
_ROUNDS = 256  # all halves
EQUAL = 'equal bits'
NAN = 'NaN of other bits'
ZERO = 'sign of zero'
LAST = 'last bit'
OTHER = 'other'


@dataclasses.dataclass(frozen=True)
class Difference:
  """An element on which both differ.

  Attributes:
    kind: how far they are apart.
    ours, theirs: of the twin, and of the vendor's compiler.
    element: of all arrays, in order.
  """

  kind: str
  ours: np.generic
  theirs: np.generic
  element: int


def is_lowered(program: programs.Program) -> bool:
  """Whether the vendor's lowering has all that a program does."""
  return all(s.instruction.hivm != 'vcast' for s in program.steps())


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
  """Returns how many elements a program wrote, and those that differ.

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
  theirs = lowering.run(program, arrays)
  ours = _split(after.read_bytes(), arrays)
  differences: list[Difference] = []
  begin = 0
  for a, b in zip(ours, theirs):
    differences += _differences(a, b, begin)
    begin += a.size
  return begin, differences


def _split(data: bytes, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
  begin = 0
  parts = []
  for array in arrays:
    parts.append(np.frombuffer(data, array.dtype, array.size, begin))
    begin += array.nbytes
  return parts


def _differences(
  ours: np.ndarray, theirs: np.ndarray, begin: int
) -> Iterator[Difference]:
  bits = np.dtype(f'i{ours.dtype.itemsize}')
  apart = ours.view(bits) != theirs.view(bits)
  for k in np.flatnonzero(apart):
    yield Difference(_kind(ours[k], theirs[k]), ours[k], theirs[k], begin + k)


def _kind(ours: np.generic, theirs: np.generic) -> str:
  if not isinstance(ours, np.floating):
    return OTHER
  if np.isnan(ours) and np.isnan(theirs):
    return NAN
  if ours == theirs:
    return ZERO
  return LAST if np.nextafter(ours, theirs) == theirs else OTHER


def tally(differences: Sequence[Difference]) -> dict[str, int]:
  """Returns how many differences are of each kind."""
  return dict(collections.Counter(d.kind for d in differences))
