"""A tensor of a kernel's routing beside the expected tensor."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import tensors as tensors_lib

# Tokens of one tile row.
_TOKEN_BLOCK = 64


GRAD = tensors_lib.ROUTER_GRADS[0].name


@dataclasses.dataclass(frozen=True)
class RouterTensor:
  """A tensor of a kernel's routing, and the expected tensor.

  Attributes:
    actual: `[R, T, K]`, or `[R, T, E]` of logits.
    expected: in the same shape and dtype.
    is_bad: bool in the same shape.
    pattern: a description of the bad elements, or ''.
    excess: by how much they exceed their limits, in words; '': there is no
      limit.
  """

  actual: np.ndarray
  expected: np.ndarray
  is_bad: at.Bool[np.ndarray, 'R T *of_experts']
  pattern: str
  excess: str = ''

  def make_result(self, stage, lane, rule, request) -> verdicts.Result:
    """Returns the row of a stage."""
    grids = tuple(
      np.add.reduceat(bad.sum(-1), starts, axis=0)[:, None]
      for bad in self.is_bad
      for starts in [np.arange(0, len(bad), _TOKEN_BLOCK)]
    )
    failures = sum(int((grid > 0).sum()) for grid in grids)
    result = verdicts.Result(
      stage,
      lane,
      rule,
      tiles=sum(grid.size for grid in grids),
      grids=grids,
      experts=tuple(np.full(len(g), tiles.NO_EXPERT) for g in grids),
    )
    if not failures:
      return result
    replay = request.replay(lane)
    failure = self._make_failure(stage, lane, rule, replay)
    return dataclasses.replace(
      result,
      failed_tiles=failures,
      worst_ulp=failure.ulp,
      verdict=verdicts.FAIL,
      reason=self.excess or self.pattern,
      failure=failure,
    )

  def _make_failure(self, stage, lane, rule, replay) -> verdicts.Failure:
    rank, token, slot = (int(i) for i in np.argwhere(self.is_bad)[0])
    index, block = (rank, token, slot), token // _TOKEN_BLOCK
    rows = slice(block * _TOKEN_BLOCK, (block + 1) * _TOKEN_BLOCK)
    tile = self.is_bad[rank, rows]
    distance = ulp.distance(
      self.actual[rank, token], self.expected[rank, token]
    )[slot]
    return verdicts.Failure(
      stage=stage,
      lane=lane,
      rule=rule,
      rank=rank,
      expert=None,
      row_block=block,
      col_block=0,
      token=token,
      source_rank=rank,
      slot=None if stage == GRAD else slot,
      index=index,
      actual=float(self.actual[index]),
      expected=float(self.expected[index]),
      ulp=int(distance),
      bad_rows=int(tile.any(-1).sum()),
      bad_cols=int(tile.any(0).sum()),
      rows=tile.shape[0],
      cols=tile.shape[1],
      pattern=self.pattern,
      replay=replay,
    )
