"""Random programs of one core, as data: what both compilers are given.

A program is a list of steps and loops over arrays in global memory and places
on the chip.  `hivm` writes it for the vendor's compiler and `ascend_c` for the
twin; neither knows of the other.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import random

from hpmoe.tools.witness import instructions

# Bytes of an element.
SIZES = {'f32': 4, 'f16': 2, 'i32': 4, 'i16': 2}
BLOCK = 32  # bytes that places begin and end at
_UB_BLOCKS = 192  # few, so that places often overlap
UB_BYTES = _UB_BLOCKS * BLOCK  # that programs use of the unified buffer
_ELEMENTS = (8, 16, 24, 64, 72, 128, 200, 256)
_ARRAY_SLICES = 8  # of a place's length, that an array in global memory has


@dataclasses.dataclass(frozen=True)
class Place:
  """Bytes of the unified buffer: from `begin`, `count` elements of `dtype`."""

  begin: int
  dtype: str
  count: int

  @property
  def bytes(self) -> range:
    return range(self.begin, self.begin + self.count * SIZES[self.dtype])


@dataclasses.dataclass(frozen=True)
class Slice:
  """Elements of an array: from `begin`, and `stride` further each round.

  Attributes:
    array: which argument of the kernel.
    begin, count: in elements.
    stride: in elements, by which a round of the innermost loop moves it.
  """

  array: int
  begin: int
  dtype: str
  count: int
  stride: int = 0

  def in_round(self, i: int) -> 'Slice':
    """Returns the slice in round `i`."""
    return dataclasses.replace(
      self, begin=self.begin + i * self.stride, stride=0
    )


@dataclasses.dataclass(frozen=True)
class Step:
  """One instruction.

  Attributes:
    name: of `instructions.TABLE`.
    out: what it writes.
    ins: what it reads.
    scalar: of instructions that take one.
  """

  name: str
  out: Place | Slice
  ins: tuple[Place | Slice, ...] = ()
  scalar: int | float | None = None

  @property
  def instruction(self) -> instructions.Instruction:
    return instructions.TABLE[self.name]


@dataclasses.dataclass(frozen=True)
class Loop:
  rounds: int
  body: tuple['Step | Loop', ...]


@dataclasses.dataclass(frozen=True)
class Array:
  """An argument: an array in global memory."""

  dtype: str
  count: int


@dataclasses.dataclass(frozen=True)
class Program:
  seed: int
  arrays: tuple[Array, ...]
  body: tuple[Step | Loop, ...]

  def steps(self) -> list[Step]:
    """Returns the steps in the order of the text, those of loops once."""
    return list(_steps(self.body))

  def trace(self) -> Iterator[tuple[int, Step]]:
    """Yields what runs: the number of each step in the text, and the step."""
    number = {id(step): i for i, step in enumerate(_steps(self.body))}
    for step, i in _unrolled(self.body, 0):
      yield number[id(step)], in_round(step, i)


def _steps(body: Sequence[Step | Loop]) -> Iterator[Step]:
  for node in body:
    if isinstance(node, Loop):
      yield from _steps(node.body)
    else:
      yield node


def _unrolled(
  body: Sequence[Step | Loop], i: int
) -> Iterator[tuple[Step, int]]:
  for node in body:
    if isinstance(node, Loop):
      for j in range(node.rounds):
        yield from _unrolled(node.body, j)
    else:
      yield node, i


def in_round(step: Step, i: int) -> Step:
  """Returns a step with its slices as they are in round `i`."""

  def moved_operand(operand):
    return operand.in_round(i) if isinstance(operand, Slice) else operand

  return dataclasses.replace(
    step,
    out=moved_operand(step.out),
    ins=tuple(moved_operand(operand) for operand in step.ins),
  )


class _Writer:
  """Writes one random program; what it has written so far is its state."""

  def __init__(self, seed: int, steps: int, loops: bool):
    self._random = random.Random(f'witness {seed}')
    self._seed = seed
    self._loops = loops
    self._left = steps
    self._arrays: list[Array] = []
    self._places: list[Place] = []

  def program(self) -> Program:
    while True:
      self._arrays, self._places = [], []
      program = Program(
        self._seed, (), self._body(self._left, 0) + self._results()
      )
      program = dataclasses.replace(program, arrays=tuple(self._arrays))
      if _is_defined(program):
        return program

  def _body(self, steps: int, depth: int) -> tuple[Step | Loop, ...]:
    body: list[Step | Loop] = []
    while steps > 0:
      may_loop = self._loops and depth < 2 and steps > 2
      if may_loop and self._random.random() < 0.3:
        inside = self._random.randint(2, min(steps, 6))
        rounds = self._random.randint(1, 3)
        body.append(Loop(rounds, self._body(inside, depth + 1)))
        steps -= inside
      else:
        body.append(self._step(depth))
        steps -= 1
    return tuple(body)

  def _results(self) -> tuple[Step, ...]:
    """Returns stores of two places, so that what was computed is seen."""
    last = self._places[-2:]
    return tuple(Step('store', self._slice(p, 0, True), (p,)) for p in last)

  def _step(self, depth: int) -> Step:
    # Three of four programs have no casts: nor has the lowering to a CPU.
    names = [
      name
      for name, instruction in instructions.TABLE.items()
      if instruction.hivm != 'vcast' or self._seed % 4 == 3
    ]
    weights = [instructions.TABLE[name].weight for name in names]
    for _ in range(20):
      (name,) = self._random.choices(names, weights)
      step = self._try(name, instructions.TABLE[name], depth)
      if step is not None:
        return step
    return self._load(depth)

  def _load(self, depth: int) -> Step:
    place = self._place(self._random.choice(list(SIZES)))
    step = Step('load', place, (self._slice(place, depth, False),))
    self._places.append(place)
    return step

  def _try(
    self, name: str, instruction: instructions.Instruction, depth: int
  ) -> Step | None:
    if name == 'load':
      return self._load(depth)
    out_dtype, in_dtype = self._random.choice(instruction.dtypes)
    sources = [p for p in self._places if p.dtype == in_dtype]
    if instruction.sources and not sources:
      return None
    ins: tuple[Place, ...] = ()
    if instruction.sources:
      first = self._random.choice(sources)
      alike = [p for p in sources if p.count == first.count]
      ins = (first, *self._random.choices(alike, k=instruction.sources - 1))
    if name == 'store':
      return Step(name, self._slice(ins[0], depth, True), ins)
    count = ins[0].count if ins else self._random.choice(_ELEMENTS)
    out = self._place(out_dtype, count)
    if ins and out_dtype == in_dtype and self._random.random() < 0.3:
      out = ins[0]
    if any(out != p and _meet(out.bytes, p.bytes) for p in ins):
      return None
    if out.count * SIZES[out.dtype] % BLOCK:
      return None
    self._places.append(out)
    scalar = None
    if instruction.scalar:
      scalar = self._random.choice(instructions.SCALARS[out_dtype[0]])
    return Step(name, out, ins, scalar)

  def _place(self, dtype: str, count: int = 0) -> Place:
    counts = [c for c in _ELEMENTS if c * SIZES[dtype] % BLOCK == 0]
    count = count or self._random.choice(counts)
    blocks = -(-count * SIZES[dtype] // BLOCK)
    begin = self._random.randrange(_UB_BLOCKS - blocks) * BLOCK
    alike = [p for p in self._places if p.dtype == dtype and p.count == count]
    if alike and self._random.random() < 0.4:
      return self._random.choice(alike)
    return Place(begin, dtype, count)

  def _slice(self, place: Place, depth: int, writes: bool) -> Slice:
    """Returns elements of an array that is there, or of a new one."""
    count = place.count * _ARRAY_SLICES
    array = Array(place.dtype, count)
    matches = [i for i, a in enumerate(self._arrays) if a == array]
    if not matches or self._random.random() < 0.5:
      self._arrays.append(array)
      matches = [len(self._arrays) - 1]
    begin = self._random.randrange(_ARRAY_SLICES // 2) * place.count
    stride = self._random.choice((0, place.count)) if depth else 0
    return Slice(
      self._random.choice(matches), begin, place.dtype, place.count, stride
    )


def _meet(a: range, b: range) -> bool:
  return a.start < b.stop and b.start < a.stop


def _is_defined(program: Program) -> bool:
  """Whether all that is read was written, and with elements of that dtype."""
  dtypes: dict[int, str] = {}
  for _, step in program.trace():
    for place in step.ins:
      if isinstance(place, Place):
        blocks = range(place.bytes.start, place.bytes.stop, BLOCK)
        if any(dtypes.get(block) != place.dtype for block in blocks):
          return False
    if isinstance(step.out, Place):
      for block in range(step.out.bytes.start, step.out.bytes.stop, BLOCK):
        dtypes[block] = step.out.dtype
  return True


def write(seed: int) -> Program:
  """Returns the program of a seed: every other one has loops."""
  steps = random.Random(seed).randint(4, 14)
  return _Writer(seed, steps, loops=seed % 2 == 1).program()
