"""The golden: each stage in float64, from what the candidate itself stored.

A stage is judged on the inputs that the candidate captured for it, so a fault
is reported where it happens and not again in every stage after it.  Inputs
that it did not capture are computed here, from the last that it did, and
bring their rounding bound along.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import functools

import numpy as np

from parity_tests import bounds
from parity_tests import tiles
from reference import precision

_BEFORE = {
    'gate_up': 'expert_in',
    'activation': 'gate_up',
    'expert_out': 'activation',
}


@dataclasses.dataclass(frozen=True)
class Golden:
  """Golden rows with their rounding bound, a few at a time.

  Attributes:
    tiling: where rows belong.
    policy: the candidate's precision policy.
    inputs: tensors of `tensors.INPUTS` by name.
    captured: the candidate's stage tensors by name; empty for the fused layer,
      from x to y.
    chunk: elements computed at once.
  """

  tiling: tiles.Tiling
  policy: precision.PrecisionPolicy
  inputs: Mapping[str, np.ndarray]
  captured: Mapping[str, np.ndarray]
  chunk: int = 1 << 19

  def rows(self, stage: str, rank: int, lo: int, hi: int) -> bounds.Bounded:
    """Returns `[hi - lo, columns]`, rows of one rank of a stage tensor.

    Raises:
      KeyError: 'returned' is asked for and `expert_out` was not captured.
    """
    if stage == 'expert_in':
      return bounds.exact(self._tokens('x', rank, lo, hi))
    if stage == 'gate_up':
      return self._gemm(stage, 'w_gate_up', rank, lo, hi)
    if stage == 'activation':
      weight = None
      if self.policy.placement == 'before_down':
        weight = self._slot_weight(rank, lo, hi)
      return bounds.activation(
          self.policy, self._source(stage, rank, lo, hi), weight
      )
    if stage == 'expert_out':
      return self._gemm(stage, 'w_down', rank, lo, hi)
    if stage == 'returned':
      return bounds.exact(self._sent_back(rank, lo, hi))
    return self._y(rank, lo, hi)

  def _source(self, stage: str, rank: int, lo: int, hi: int) -> bounds.Bounded:
    return self._held(_BEFORE[stage], rank, lo, hi)

  def _held(self, stage: str, rank: int, lo: int, hi: int) -> bounds.Bounded:
    """Returns what the candidate holds in a stage, or should."""
    if stage not in self.captured:
      return self.rows(stage, rank, lo, hi)
    own = self.tiling.rows(stage, self.captured[stage], rank)
    return bounds.exact(own[lo:hi])

  def _tokens(self, name: str, rank: int, lo: int, hi: int) -> np.ndarray:
    values = self.inputs[name]
    token = self.tiling.slot_of_row[rank][lo:hi] // self.tiling.config.top_k
    return values.reshape(-1, values.shape[-1])[token]

  def _slot_weight(self, rank: int, lo: int, hi: int) -> np.ndarray:
    slots = self.tiling.slot_of_row[rank][lo:hi]
    return self.inputs['topk_weights'].reshape(-1)[slots]

  def _gemm(
      self, stage: str, weights: str, rank: int, lo: int, hi: int
  ) -> bounds.Bounded:
    source = self._source(stage, rank, lo, hi)
    shape = (hi - lo, self.tiling.columns(stage))
    value, error = np.empty(shape), np.empty(shape)
    for expert, begin, end in self._experts(rank, lo, hi):
      part = bounds.gemm(
          self.policy, source[begin:end], self.inputs[weights][rank, expert]
      )
      value[begin:end], error[begin:end] = part.value, part.error
    return bounds.Bounded(value, error)

  def _experts(
      self, rank: int, lo: int, hi: int
  ) -> Iterator[tuple[int, int, int]]:
    """Yields (local expert, its rows less `lo`) for the experts in a range."""
    edges = tiles.expert_rows(self.tiling.config, self.tiling.counts, rank)
    edges = np.clip(edges, lo, hi) - lo
    for expert in np.flatnonzero(np.diff(edges)):
      yield int(expert), int(edges[expert]), int(edges[expert + 1])

  def _sent_back(self, rank: int, lo: int, hi: int) -> np.ndarray:
    ids = self.tiling.topk_ids[rank].reshape(-1)[lo:hi]
    row = self.tiling.row_of_slot[rank].reshape(-1)[lo:hi]
    owner = ids // self.tiling.config.experts_per_rank
    return self.captured['expert_out'][owner, row]

  def _y(self, rank: int, lo: int, hi: int) -> bounds.Bounded:
    k = self.tiling.config.top_k
    if 'returned' in self.captured:
      rows = self.captured['returned'][rank, lo:hi]
      weights = self._combine_weights()[rank, lo:hi]
      return bounds.combine(self.policy, bounds.exact(rows), weights)
    first = rank * self.tiling.config.num_tokens
    total = self._sums[first + lo : first + hi]
    return total.total(self.policy, k)

  def _combine_weights(self) -> np.ndarray:
    weights = self.inputs['topk_weights']
    at_combine = self.policy.placement == 'combine'
    return weights if at_combine else np.ones_like(weights)

  @functools.cached_property
  def _sums(self) -> bounds.CombineSums:
    """All tokens' sums, filled owner by owner: no `returned` is ever held."""
    config = self.tiling.config
    weights = self._combine_weights().reshape(-1)
    tokens = config.num_ranks * config.num_tokens
    sums = bounds.CombineSums.zeros(tokens, config.d_model)
    for rank in range(config.num_ranks):
      cut = self.tiling.cut('gate_up', rank)
      for first, last in cut.chunks(self.chunk):
        lo, hi = int(cut.starts[first]), int(cut.starts[last])
        out = self._held('expert_out', rank, lo, hi)
        slots = self.tiling.slot_of_row[rank][lo:hi]
        for slot in range(config.top_k):
          mine = slots % config.top_k == slot
          sums.add(
              slots[mine] // config.top_k, out[mine], weights[slots[mine]]
          )
    return sums
