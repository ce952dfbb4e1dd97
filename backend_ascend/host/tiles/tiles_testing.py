"""The tile kernels on numpy arrays: structs of gemm.h and tile_kernels.h, and
of code_gemm.h and code_tiles.h.

Arrays are float32 or float16, or uint16 that hold bfloat16 bits; rows may be
strided, columns are contiguous.
"""

import ctypes
from typing import Any

import numpy as np

from hpmoe.backend_ascend import _native

# Tests alone call them.
_KERNELS: Any = _native
_DTYPES = {'float32': 0, 'uint16': 1, 'float16': 2}
_ORDERS = ('ascending', 'even_odd_32')
_ACTIVATIONS = ('swiglu', 'absolute')
_TYPES = dict(
  p=ctypes.c_void_p,
  q=ctypes.c_int64,
  i=ctypes.c_int32,
  u=ctypes.c_uint32,
  h=ctypes.c_uint16,
  b=ctypes.c_bool,
)


def _struct(words: str) -> type[ctypes.Structure]:
  """Returns the struct of fields `type:names` in order."""
  fields = [
    (name, _TYPES[kind])
    for kind, _, names in (word.partition(':') for word in words.split())
    for name in names.split(',')
  ]
  return type('Tile', (ctypes.Structure,), {'_fields_': fields})


_GEMM = _struct(
  'p:a,b,c q:lda,ldb,ldc i:m,n,k u:dtype b:trans_a,trans_b p:carry '
  'q:ld_carry b:carry_in,carry_out p:a_rows h:order p:row_weight'
)
_SWIGLU = _struct(
  'p:gate,up,out q:ld_in,ld_out i:rows,cols p:row_weight u:dtype,activation '
  'b:early_rounding'
)
_SWIGLU_GRAD = _struct(
  'p:d_out,gate,up,d_gate,d_up q:ld_d_out,ld_in,ld_grad i:rows,cols '
  'p:row_weight,d_row_weight u:dtype,activation'
)
_SCALE_ROWS = _struct('p:x,out,weight q:ld_x,ld_out i:rows,cols u:dtype')
_ROW_DOT = _struct('p:a,b,out q:ld_a,ld_b i:rows,cols u:dtype')
_COMBINE = _struct(
  'p:returned,weights,y q:ld,ld_y i:tokens,top_k,cols u:dtype p:rows'
)
_CODE_GEMM = _struct('p:a,b,c q:lda,ldb,ldc i:m,n,k')
_QUANTISE_ROWS = _struct('p:x,codes,scales q:ld_x,ld_codes i:rows,cols u:dtype')
_CODE_SWIGLU = _struct(
  'p:gate,up,row_scales,gate_scales,up_scales,row_weight,codes,scales '
  'q:ld_in,ld_codes i:rows,cols u:dtype,activation'
)
_DEQUANTISE_ROWS = _struct(
  'p:sums,row_scales,col_scales,out q:ld_sums,ld_out i:rows,cols u:dtype'
)


def _tile(struct, like: np.ndarray, **fields) -> bytes:
  """Returns a tile of the dtype of `like`; an array stands for its address."""
  for name, value in fields.items():
    if isinstance(value, np.ndarray):
      assert (
        value.size == 0
        or value.strides[-1] == value.itemsize
        or (value.shape[-1] == 1)
      )
      fields[name] = value.ctypes.data
  if any(name == 'dtype' for name, _ in struct._fields_):
    fields['dtype'] = _DTYPES[like.dtype.name]
  return bytes(struct(**fields))


def _pitch(array: np.ndarray) -> int:
  return array.strides[-2] // array.itemsize


def gemm_tile(
  a,
  b,
  isa=None,
  trans_a=False,
  trans_b=False,
  carry=None,
  order='ascending',
  row_weight=None,
  out=None,
  sums=None,
  bf16_sums=False,
):
  """Returns `[m, n]`, `[m, k] @ [k, n]`; None where it goes into an array.

  Args:
    a: `[m, k]`, or `[k, m]` with `trans_a`.
    b: `[k, n]`, or `[n, k]` with `trans_b`.
    isa: None for the best.
    trans_a: how a is stored.
    trans_b: how b is stored.
    carry: `[m, n]` f32 that the sums start from.
    order: of the sum.
    row_weight: `[m]` f32 that multiply sums.
    out: where it goes.
    sums: `[m, n]` f32 that it ends in instead, unrounded.
    bf16_sums: every partial sum is rounded to bfloat16, which is a fault.
  """
  m, k = a.shape[::-1] if trans_a else a.shape
  n = b.shape[0 if trans_b else 1]
  result = np.zeros((m, n), a.dtype) if out is None and sums is None else None
  c = out if result is None else result
  carried_sums = carry if sums is None else sums
  tile = _tile(
    _GEMM,
    a,
    **dict(a=a, b=b, c=c, lda=_pitch(a), ldb=_pitch(b), m=m, n=n, k=k),
    ldc=0 if c is None else _pitch(c),
    **dict(trans_a=trans_a, trans_b=trans_b, row_weight=row_weight),
    **dict(
      carry=carried_sums,
      ld_carry=0 if carried_sums is None else _pitch(carried_sums),
    ),
    **dict(carry_in=carry is not None, carry_out=sums is not None),
    order=_ORDERS.index(order),
  )
  run = _native.gemm_tile_of_bf16_sums if bf16_sums else _native.gemm_tile
  run(tile, isa)
  return result


def swiglu_tile(
  gate,
  up,
  row_weight=None,
  activation='swiglu',
  early_rounding=False,
  isa=None,
):
  """Returns `[rows, cols]`: act(gate) * up * row_weight `[rows]`."""
  out = np.zeros(gate.shape, gate.dtype)
  tile = _tile(
    _SWIGLU,
    gate,
    **dict(gate=gate, up=up, out=out, row_weight=row_weight),
    **dict(ld_in=_pitch(gate), ld_out=_pitch(out)),
    **dict(zip(('rows', 'cols'), gate.shape, strict=True)),
    activation=_ACTIVATIONS.index(activation),
    early_rounding=early_rounding,
  )
  _native.swiglu_tile(tile, isa)
  return out


def swiglu_grad_tile(
  d_out,
  gate,
  up,
  row_weight=None,
  activation='swiglu',
  d_row_weight=False,
  isa=None,
):
  """Returns d_gate, d_up `[rows, cols]` and, if asked, `[rows, 1]` f32."""
  grads = [np.zeros(gate.shape, gate.dtype) for _ in range(2)]
  if d_row_weight:
    grads.append(np.zeros((len(gate), 1), np.float32))
  tile = _tile(
    _SWIGLU_GRAD,
    gate,
    **dict(d_out=d_out, gate=gate, up=up, d_gate=grads[0], d_up=grads[1]),
    **dict(
      ld_d_out=_pitch(d_out), ld_in=_pitch(gate), ld_grad=_pitch(grads[0])
    ),
    **dict(zip(('rows', 'cols'), gate.shape, strict=True)),
    row_weight=row_weight,
    d_row_weight=grads[2] if d_row_weight else None,
    activation=_ACTIVATIONS.index(activation),
  )
  _native.swiglu_grad_tile(tile, isa)
  return grads


def scale_rows_tile(x, weight=None, isa=None):
  """Returns `[rows, cols]`: weight `[rows]` f32 times x, or x."""
  out = np.zeros(x.shape, x.dtype)
  sizes = dict(ld_x=_pitch(x), ld_out=_pitch(out))
  sizes |= zip(('rows', 'cols'), x.shape, strict=True)
  tile = _tile(_SCALE_ROWS, x, x=x, out=out, weight=weight, **sizes)
  _native.scale_rows_tile(tile, isa)
  return out


def row_dot_tile(a, b, isa=None):
  """Returns `[rows, 1]` f32: a dot of each row."""
  out = np.zeros((len(a), 1), np.float32)
  sizes = dict(ld_a=_pitch(a), ld_b=_pitch(b))
  sizes |= zip(('rows', 'cols'), a.shape, strict=True)
  _native.row_dot_tile(_tile(_ROW_DOT, a, a=a, b=b, out=out, **sizes), isa)
  return out


def combine_tile(returned_rows, weights=None, isa=None):
  """Returns `[T, D]`: of `[T, K, D]`, times `[T, K]` f32, in slot order."""
  y = np.zeros(
    (len(returned_rows), returned_rows.shape[-1]), returned_rows.dtype
  )
  sizes = dict(ld=_pitch(returned_rows), ld_y=_pitch(y))
  sizes |= zip(('tokens', 'top_k', 'cols'), returned_rows.shape, strict=True)
  operands = dict(returned=returned_rows, weights=weights, y=y)
  _native.combine_tile(_tile(_COMBINE, y, **operands, **sizes), isa)
  return y


def code_gemm_tile(a, b, isa=None):
  """Returns `[m, n]` i32, `[m, k] @ [k, n]` of int8."""
  (m, k), n = a.shape, b.shape[1]
  c = np.full((m, n), -1, np.int32)
  sizes = dict(lda=_pitch(a), ldb=_pitch(b), ldc=n, m=m, n=n, k=k)
  _KERNELS.code_gemm_tile(_tile(_CODE_GEMM, a, a=a, b=b, c=c, **sizes), isa)
  return c


def quantise_rows_tile(x, isa=None):
  """Returns codes `[rows, cols]` int8 and scales `[rows, 1]` f32."""
  codes, scales = np.zeros(x.shape, np.int8), np.zeros((len(x), 1), np.float32)
  sizes = dict(ld_x=_pitch(x), ld_codes=_pitch(codes))
  sizes |= zip(('rows', 'cols'), x.shape, strict=True)
  tile = _tile(_QUANTISE_ROWS, x, x=x, codes=codes, scales=scales, **sizes)
  _KERNELS.quantise_rows_tile(tile, isa)
  return codes, scales


def code_swiglu_tile(
  sums,
  row_scales,
  col_scales,
  dtype,
  weight=None,
  activation='swiglu',
  isa=None,
):
  """Returns codes `[rows, F]` and scales `[rows, 1]` of sums `[rows, 2F]`."""
  rows, cols = sums.shape[0], sums.shape[1] // 2
  codes, scales = np.zeros((rows, cols), np.int8), np.zeros((rows, 1), 'f4')
  tile = _tile(
    _CODE_SWIGLU,
    np.zeros(0, dtype),
    **dict(gate=sums, up=sums[:, cols:], row_weight=weight),
    **dict(row_scales=row_scales, gate_scales=col_scales),
    **dict(up_scales=col_scales[cols:], codes=codes, scales=scales),
    **dict(ld_in=_pitch(sums), ld_codes=_pitch(codes), rows=rows, cols=cols),
    activation=_ACTIVATIONS.index(activation),
  )
  _KERNELS.code_swiglu_tile(tile, isa)
  return codes, scales


def dequantise_rows_tile(sums, row_scales, col_scales, dtype, isa=None):
  """Returns `[rows, cols]` of a dtype: (sum * row scale) * column scale."""
  out = np.zeros(sums.shape, dtype)
  tile = _tile(
    _DEQUANTISE_ROWS,
    out,
    **dict(sums=sums, row_scales=row_scales, col_scales=col_scales, out=out),
    **dict(ld_sums=_pitch(sums), ld_out=_pitch(out)),
    **dict(zip(('rows', 'cols'), sums.shape, strict=True)),
  )
  _KERNELS.dequantise_rows_tile(tile, isa)
  return out
