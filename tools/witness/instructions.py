"""The instructions that both sides have, as data."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Instruction:
  """How an instruction is spelt, and what it takes.

  Attributes:
    hivm: operation of the vendor's dialect.
    ascend_c: call of Ascend C.
    pipe: queue that runs it.
    dtypes: of result and operands.
    sources: how many operands it reads.
    scalar: whether it takes a number, too.
    attributes: of the operation, where it needs some.
    last: argument of the call before the count.
    weight: how often it is drawn.
  """

  hivm: str
  ascend_c: str
  pipe: str = 'V'
  dtypes: tuple[tuple[str, str], ...] = ()
  sources: int = 1
  scalar: bool = False
  attributes: str = ''
  last: str = ''
  weight: float = 1


def _alike(*dtypes: str) -> tuple[tuple[str, str], ...]:
  return tuple((dtype, dtype) for dtype in dtypes)


_FLOATS = _alike('f32', 'f16')
_NUMBERS = _alike('f32', 'f16', 'i32', 'i16')
_ALL = _NUMBERS

TABLE = {
  'load': Instruction('load', 'DataCopy', 'MTE2', _ALL, weight=6),
  'store': Instruction('store', 'DataCopy', 'MTE3', _ALL, weight=4),
  'copy': Instruction('copy', 'DataCopy', 'V', _ALL),
  'add': Instruction('vadd', 'Add', dtypes=_NUMBERS, sources=2, weight=2),
  'sub': Instruction('vsub', 'Sub', dtypes=_NUMBERS, sources=2, weight=2),
  'mul': Instruction('vmul', 'Mul', dtypes=_NUMBERS, sources=2, weight=2),
  'div': Instruction('vdiv', 'Div', dtypes=_FLOATS, sources=2),
  'max': Instruction('vmax', 'Max', dtypes=_NUMBERS, sources=2),
  'min': Instruction('vmin', 'Min', dtypes=_NUMBERS, sources=2),
  'and': Instruction('vand', 'And', dtypes=_alike('i16'), sources=2),
  'or': Instruction('vor', 'Or', dtypes=_alike('i16'), sources=2),
  'not': Instruction('vnot', 'Not', dtypes=_alike('i16')),
  'exp': Instruction('vexp', 'Exp', dtypes=_FLOATS),
  'ln': Instruction('vln', 'Ln', dtypes=_FLOATS),
  'sqrt': Instruction('vsqrt', 'Sqrt', dtypes=_FLOATS),
  'rsqrt': Instruction('vrsqrt', 'Rsqrt', dtypes=_FLOATS),
  'reciprocal': Instruction('vrec', 'Reciprocal', dtypes=_FLOATS),
  'abs': Instruction('vabs', 'Abs', dtypes=_FLOATS),
  'relu': Instruction('vrelu', 'Relu', dtypes=_FLOATS),
  'adds': Instruction('vadd', 'Adds', dtypes=_NUMBERS, scalar=True),
  'muls': Instruction('vmul', 'Muls', dtypes=_NUMBERS, scalar=True),
  'maxs': Instruction('vmax', 'Maxs', dtypes=_NUMBERS, scalar=True),
  'mins': Instruction('vmin', 'Mins', dtypes=_NUMBERS, scalar=True),
  'fill': Instruction(
    'vbrc', 'Duplicate', dtypes=_NUMBERS, sources=0, scalar=True
  ),
}


def _cast(mode: str, *dtypes: tuple[str, str]) -> Instruction:
  return Instruction(
    'vcast',
    'Cast',
    dtypes=dtypes,
    attributes=f'round_mode = <{mode}>',
    last=f'AscendC::RoundMode::CAST_{mode.upper()}',
    weight=0.5,
  )


_NARROWING = (('f16', 'f32'), ('i32', 'f32'), ('i16', 'f32'), ('i16', 'f16'))
TABLE |= {
  f'cast_{mode}': _cast(mode, *_NARROWING)
  for mode in ('rint', 'floor', 'ceil', 'round', 'trunc')
}
TABLE['widen'] = Instruction(
  'vcast',
  'Cast',
  dtypes=(('f32', 'f16'),),
  last='AscendC::RoundMode::CAST_NONE',
)

# What instructions with a number take, of floats and of integers: a half has
# them all.
SCALARS = {'f': (0.0, 1.0, -2.5, 0.125), 'i': (0, 1, -3, 7)}
