"""Operands that a kernel quantises along another axis, or in other groups."""

from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors
from hpmoe.reference.quantised import quantise


def list_mistakes(
  form: quantised.Form,
  gemm: str,
  operand: str,
  values: at.Float[np.ndarray, 'R ...'],
  edges: Sequence[np.ndarray],
) -> Iterator[tuple[str, at.Float[np.ndarray, 'R ...']]]:
  """Yields a mistake in words, and the operand float32 as it is multiplied.

  Args:
    form: what it is quantised to; of groups along one axis.
    gemm: the stage that it computes.
    operand: the tensor that it reads.
    values: rows `[R, N, X]`, or a weight `[R, L, X, Y]`.
    edges: by rank `[L + 1]`, the first row of each expert and the end.
  """
  across, along = form.group
  if across != 1 or not along:
    return
  wide = values.astype(np.float32)
  if tensors.SPECS[operand].role == 'weight':
    depth = -2 if gemm in tensors.GEMMS else -1
    other = {-2: -1, -1: -2}[depth]
    says = f'{operand} was quantised along its other axis'
    yield says, _read(form, wide, other)
    return
  if gemm not in tensors.WEIGHT_GRADS:
    columns = _read_columns(form, wide, edges)
    yield f'{operand} was quantised by columns, not by rows', columns
    return
  yield f'{operand} was quantised by rows, not by columns', _read(form, wide)
  whole = [np.array([0, of_rank[-1]]) for of_rank in edges]
  yield (
    f'groups of columns of {operand} began at the first row of the rank',
    _read_columns(form, wide, whole),
  )


def share_scales(
  form: quantised.Form,
  rows: at.Float[np.ndarray, 'R N X'],
  edges: Sequence[np.ndarray],
) -> at.Float[np.ndarray, 'R N X']:
  """Returns rows float32, quantised with one scale for those of an expert.

  Args:
    form: what each is quantised to by itself.
    rows: of all ranks.
    edges: by rank `[L + 1]`, the first row of each expert and the end.
  """
  whole = dataclasses.replace(form, group=(0, 0))
  values = np.zeros(rows.shape, np.float32)
  for rank, of_rank in enumerate(edges):
    for lo, hi in zip(of_rank[:-1], of_rank[1:]):
      if hi > lo:
        values[rank, lo:hi] = _read(whole, rows[rank, lo:hi].astype(np.float32))
  return values


def _read(form: quantised.Form, values: np.ndarray, depth: int = -1):
  codes = quantise.quantise(form, values, depth)
  return np.asarray(quantise.dequantise(form, codes, depth))


def _read_columns(
  form: quantised.Form, rows: np.ndarray, edges: Sequence[np.ndarray]
) -> np.ndarray:
  """Returns rows `[R, N, X]`, quantised by columns between edges."""
  columns = np.zeros_like(rows)
  for rank, of_rank in enumerate(edges):
    for lo, hi in zip(of_rank[:-1], of_rank[1:]):
      if hi > lo:
        columns[rank, lo:hi] = _read(form, rows[rank, lo:hi], -2)
  return columns
