"""The golden: each stage in float64, from the candidate's own tensors.

A stage is judged on the inputs that the candidate returned, so a fault is
reported in the stage that has it and not again in later stages.  Inputs that it
did not return are computed here from earlier ones, with their rounding bound.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import threading
from typing import Any, Self

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import prefetch
from hpmoe.parity_tests.judge.limits import coded_rows
from hpmoe.parity_tests.judge.limits import golden_cache
from hpmoe.parity_tests.judge.limits.bounds import activation_bounds
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import combine_bounds
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.parity_tests.judge.limits.bounds import norm_bounds
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.parity_tests.judge.limits.bounds import weighting_bounds
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import tensors

# The rows and the weights that each GEMM reads.
_GEMMS = tensors.GEMMS
# The number of products from which a layer's experts take all ranks at once.
_MANY_PRODUCTS = 1 << 32


def own(factory: Callable[[], Any]) -> Any:
  """Returns a private field of a dataclass."""
  return dataclasses.field(
    default_factory=factory, init=False, repr=False, compare=False
  )


@dataclasses.dataclass(frozen=True)
class Rows:
  """Golden rows with their rounding bound, a few at a time.

  Attributes:
    tiling: the expert and the tile of each row.
    policy: the candidate's precision policy.
    inputs: stored tensors that are not judged, by name.
    captured_tensors: the candidate's tensors by name; empty for the fused
      layer.
    chunk: elements computed at once.
    deviations: the largest errors of captured tensors, by name; others are
      exact.
    operand_dtype: dtype of rows that a stage rounds for itself; '': the dtype
      that it writes.
    unrounded: a tensor that is not rounded to storage; '': none.
    companions: called with (rank, lo, hi) of the rows that `slot_sums` has
      computed, by the thread that still holds their weights and products.
  """

  tiling: tiles.Tiling
  policy: precision.PrecisionPolicy
  inputs: Mapping[str, np.ndarray]
  captured_tensors: Mapping[str, np.ndarray]
  chunk: int = 1 << 19
  deviations: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  operand_dtype: str = ''
  unrounded: str = ''
  companions: list[Callable[[int, int, int], None]] = own(list)
  _whole: dict = own(dict)
  _before_rounding: dict = own(dict)
  _ready: threading.local = dataclasses.field(
    default_factory=threading.local, repr=False, compare=False
  )

  def rows(
    self, stage: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, columns]`, rows of one rank of a tensor."""
    raise NotImplementedError

  def dtype(self, stage: str) -> str:
    """Returns the dtype that a tensor is stored in."""
    if stage == self.unrounded:
      return self.policy.accumulate
    return self.policy.dtype(stage)

  def read_source(
    self, stage: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns the candidate's rows of a tensor, or else golden ones."""
    if stage not in self.captured_tensors:
      if self.tiling.config.sublayer and stage in self.inputs:
        return bounded_values.exact(self.inputs[stage][rank, lo:hi])
      rows = self.before_rounding(stage).rows(stage, rank, lo, hi)
      return self.as_stored(stage, rows)
    own = self.tiling.rows(stage, self.captured_tensors[stage], rank)[lo:hi]
    if stage not in self.deviations:
      return bounded_values.exact(own)
    max_error = self.tiling.rows(stage, self.deviations[stage], rank)[lo:hi]
    return bounded_values.exact(own, max_error)

  def before_rounding(self, stage: str) -> Self:
    """Returns the golden whose `stage` is not rounded to storage.

    It is this golden unless float32 sums are stored narrower in this tensor
    alone: then two right kernels mostly store the same number, which a variance
    cannot express, so the next stage must read the rounded golden.
    """
    if rounding.is_narrow(self.policy) or stage == self.unrounded:
      return self
    if self.policy.dtype(stage) == self.policy.accumulate:
      return self
    if stage not in self._before_rounding:
      wide = dataclasses.replace(self, unrounded=stage)
      self._before_rounding[stage] = wide
    return self._before_rounding[stage]

  def as_stored(
    self, stage: str, rows: bounded_values.Bounded
  ) -> bounded_values.Bounded:
    """Returns rows of `before_rounding`, as the next stage reads them."""
    if self.before_rounding(stage) is self:
      return rows
    return rounding.rounded(self.policy, self.policy.dtype(stage), rows)

  def share_weights(self, other: 'Rows') -> Self:
    """Returns this golden with the weights that another one prepares."""
    return dataclasses.replace(self, _ready=other._ready)

  def static_scales(
    self, name: str, rank: int, lo: int, hi: int
  ) -> np.ndarray | None:
    """Returns `[hi - lo, 1]` float64, scales that are an input, or None."""
    if f'{name}_scale' not in self.policy.static_scales:
      return None
    of_experts = self.inputs[f'{name}_scale'][rank]
    of_rows = self.tiling.repeat_experts(rank, of_experts)
    return of_rows[lo:hi, None].astype(np.float64)

  def tokens(
    self, name: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, D]`, tokens `[R, T, D]` at packed rows."""
    config = self.tiling.config
    token = self.tiling.slot_of_row[rank][lo:hi] // config.top_k
    if config.sublayer:
      return self._of_tokens(name)[token]
    source, token = np.divmod(token, config.num_tokens)
    return bounded_values.exact(self.inputs[name][source, token])

  def dispatched(
    self, stage: str, source: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, D]`, tokens as rows, perhaps times their weights."""
    tokens = self.tokens(source, rank, lo, hi)
    if tensors.role(stage, self.policy.placement) == 'movement':
      return tokens
    weight = self.slot_weight(rank, lo, hi)
    return weighting_bounds.weighted(
      self.policy, tokens, weight, self.dtype(stage)
    )

  def _of_tokens(self, name: str) -> bounded_values.Bounded:
    """Returns `[R T, D]`, a sub-layer's tensor of all ranks' tokens."""
    if name not in self._whole:
      config = self.tiling.config
      self._whole[name] = bounded_values.join(
        [
          self.read_source(name, rank, 0, config.num_tokens)
          for rank in range(config.num_ranks)
        ]
      )
    return self._whole[name]

  def slot_weight(self, rank: int, lo: int, hi: int) -> np.ndarray:
    """Returns `[hi - lo]`, the routing weights of packed rows."""
    slots = self.tiling.slot_of_row[rank][lo:hi]
    return self.inputs['topk_weights'].reshape(-1)[slots]

  def early_weight(self, rank: int, lo: int, hi: int) -> np.ndarray | None:
    """Returns `slot_weight` if the expert's rank applies it, or None."""
    if self.policy.placement not in tensors.EARLY:
      return None
    return self.slot_weight(rank, lo, hi)

  def operand(
    self, gemm: str, name: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns rows `[hi - lo, X]` of a tensor as a GEMM multiplies them.

    If it quantises them, these are the values of the candidate's own codes, or
    of right kernels' codes if it returned none.
    """
    policy = self.policy.of_gemm(gemm)
    names = quantised.parts(policy.rows, name)
    scales = self.static_scales(name, rank, lo, hi) if policy.rows else None
    if names and {*names} <= {*self.captured_tensors}:
      codes, *own_scales = (
        self.tiling.rows(n, self.captured_tensors[n], rank)[lo:hi]
        for n in names
      )
      form = quantised.FORMS[policy.rows]
      if own_scales:
        return coded_rows.read(form, codes, own_scales[0], scales)
      assert scales is not None  # as the codes have none of their own
      return coded_rows.read(form, codes, scales)
    forms = recipes.find_forms(policy.operand_forms, gemm, name)
    if not forms:
      return coded_rows.quantise_rows(
        policy, self.read_source(name, rank, lo, hi), scales
      )
    if all(form.group[0] == 1 for form in forms):
      return self._requantise(forms, self.read_source(name, rank, lo, hi))
    edges = tiles.expert_rows(self.tiling.config, self.tiling.counts, rank)
    parts = []
    for expert, begin, end in self._experts(rank, lo, hi):
      first, last = int(edges[expert]), int(edges[expert + 1])
      whole = self._requantise(forms, self.read_source(name, rank, first, last))
      parts.append(whole[lo + begin - first : lo + end - first])
    return bounded_values.join(parts or [self.read_source(name, rank, lo, lo)])

  def _requantise(
    self, forms: Sequence[quantised.Form], rows: bounded_values.Bounded
  ) -> bounded_values.Bounded:
    for form in forms:
      rows = coded_rows.requantise(self.policy, form, rows)
    return rows

  def gemm(
    self,
    gemm: str,
    source: bounded_values.Bounded,
    rank: int,
    lo: int,
    dtype: str,
    bias: tuple[str, np.ndarray] | None = None,
    after: np.ndarray | None = None,
  ) -> bounded_values.Bounded:
    """Returns packed rows from `lo` on, as `operand`, times the GEMM's weights.

    `bias` is the name of a bias `[R, L, Y]` and its factor for each row `[n]`.
    The sums are multiplied by `after` `[n]`.
    """
    hi = lo + len(source.value)
    policy = self.policy.of_gemm(gemm)

    def multiply(begin: int, end: int, expert: int) -> bounded_values.Bounded:
      rows, bias_name = source[begin:end], None
      if bias is not None:
        bias_name, factors = bias
        # The bias is another term: a column of the rows, and a row of the
        # weights.  It is the first term, as kernels begin or end with it.
        column = bounded_values.exact(factors[begin:end, None])
        rows = bounded_values.beside(column, rows)
      weights = self._weights(gemm, rank, expert, bias_name)
      weight = None if after is None else after[begin:end]
      return gemm_bounds.gemm(policy, rows, weights, dtype, weight)

    parts = [
      multiply(begin, end, expert)
      for expert, begin, end in self._experts(rank, lo, hi)
    ]
    # An expert without rows.
    return bounded_values.join(parts or [multiply(0, 0, 0)])

  def _weights(
    self, gemm: str, rank: int, expert: int, bias: str | None
  ) -> gemm_bounds.Weights:
    """Returns one expert's weights as a GEMM multiplies them, below its bias.

    Each thread caches the last weights of each name: consecutive calls have
    rows of one expert, under several policies.
    """
    _, name = recipes.OPERANDS[gemm]
    array, biases = self.inputs[name], self.inputs.get(bias or '')
    forms = recipes.find_forms(self.policy.operand_forms, gemm, name)
    operand_dtype = self.policy.rounding('operands')
    key = id(array), id(biases), rank, expert, gemm, operand_dtype, forms
    by_name = vars(self._ready)
    if by_name.get(name, (None,))[0] != key:
      by_name.pop(name, None)
      stored_weights = array[rank, expert]
      stored_weights = (
        stored_weights.T if gemm in tensors.TRANSPOSED_GEMMS else stored_weights
      )
      row = None if biases is None else biases[rank, expert][None]
      if forms:
        weights = self._requantise(
          forms, bounded_values.exact(stored_weights.T)
        ).T
        if row is not None:
          weights = bounded_values.beside(
            bounded_values.exact(row.T), weights.T
          ).T
        by_name[name] = key, gemm_bounds.Weights.prepare(self.policy, weights)
      else:
        if row is not None:
          # numpy has no dtype that holds float16 and bfloat16.
          has_one_dtype = row.dtype == stored_weights.dtype
          dtype = row.dtype if has_one_dtype else np.dtype('float32')
          stored_weights = np.concatenate([row, stored_weights], dtype=dtype)
        by_name[name] = (
          key,
          gemm_bounds.Weights.prepare(self.policy, stored_weights),
        )
    return by_name[name][1]

  def _experts(
    self, rank: int, lo: int, hi: int
  ) -> Iterator[tuple[int, int, int]]:
    """Yields (local expert, its rows less `lo`) for the experts in a range."""
    edges = tiles.expert_rows(self.tiling.config, self.tiling.counts, rank)
    edges = np.clip(edges, lo, hi) - lo
    for expert in np.flatnonzero(np.diff(edges)):
      yield int(expert), int(edges[expert]), int(edges[expert + 1])

  def sent_back(
    self, source: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, D]`, packed rows `source` at a rank's own slots.

    Unused slots are zeros.
    """
    ids = self.tiling.topk_ids[rank].reshape(-1)[lo:hi]
    is_used = ids != tensors.UNUSED
    row = self.tiling.row_of_slot[rank].reshape(-1)[lo:hi][is_used]
    owner = ids[is_used] // self.tiling.config.experts_per_rank
    if source in self.captured_tensors:
      max_error = (
        self.deviations[source][owner, row]
        if source in self.deviations
        else None
      )
      return bounded_values.exact(
        self.captured_tensors[source][owner, row], max_error
      ).among(is_used)
    first = rank * self.tiling.config.num_tokens * self.tiling.config.top_k
    row_of_slot, rows = self._of_slots(source)
    return rows[row_of_slot[first + lo : first + hi][is_used]].among(is_used)

  def _of_slots(self, source: str) -> tuple[np.ndarray, bounded_values.Bounded]:
    """Returns packed rows of a tensor that was not captured.

    Before them, `[R T K]`, which of them is of a slot of the judged ranks.
    """
    if source not in self._whole:
      parts = [
        (slots, self.read_source(source, rank, lo, hi))
        for rank, lo, hi, slots in self.iterate_packed()
      ]
      slots_in_order = np.concatenate([slots for slots, _ in parts])
      row = np.zeros(self.tiling.topk_ids.size, np.int64)
      row[slots_in_order] = np.arange(len(slots_in_order))
      self._whole[source] = (
        row,
        bounded_values.join([rows for _, rows in parts]),
      )
    return self._whole[source]

  def iterate_packed(self) -> Iterator[tuple[int, int, int, np.ndarray]]:
    """Yields (rank, rows lo to hi, their slots) of rows of the judged ranks.

    They are of one expert and of one rank's tokens: what is computed of them
    has the same bits whoever else is judged.  Of a layer with many products
    whose ranks are all judged, they are of one expert and of all ranks' tokens:
    weights are read once.  Of no row there is one of none.
    """
    config = self.tiling.config
    slots_of_rank = config.num_tokens * config.top_k
    max_rows = max(1, self.chunk // self.tiling.columns('gate_up'))
    is_judged = np.zeros(config.num_ranks, bool)
    is_judged[[*self.tiling.judged_ranks]] = True
    if not (self.tiling.topk_ids[is_judged] != tensors.UNUSED).any():
      yield 0, 0, 0, np.zeros(0, np.int64)
    for rank in range(config.num_ranks):
      slots = self.tiling.slot_of_row[rank]
      edges = tiles.expert_rows(config, self.tiling.counts, rank)
      expert = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
      key = expert * config.num_ranks + slots // slots_of_rank
      begins = np.flatnonzero(np.diff(key, prepend=-1))
      if is_judged.all() and self.has_many_products:
        begins = np.flatnonzero(np.diff(expert, prepend=-1))
      for begin, end in zip(begins, [*begins[1:], len(key)]):
        if is_judged[key[begin] % config.num_ranks]:
          for lo in range(int(begin), int(end), max_rows):
            hi = min(lo + max_rows, int(end))
            yield rank, lo, hi, slots[lo:hi]

  @property
  def has_many_products(self) -> bool:
    """Whether experts are so large that reading one twice takes long."""
    config = self.tiling.config
    rows = config.num_ranks * config.num_tokens * config.top_k
    return 3 * rows * config.d_model * config.d_ff > _MANY_PRODUCTS

  def slot_sums(
    self,
    stage: str,
    source: str,
    weights: np.ndarray | None,
  ) -> combine_bounds.CombineSums:
    """Returns all tokens' sums of weighted rows, filled owner by owner.

    The rows are never held together.

    Args:
      stage: what the sums are.
      source: a packed tensor `[R, N, D]`.
      weights: `[R, T, K]` of the slots; None: 1.
    """
    config = self.tiling.config
    late = self.policy.placement == 'returned' and stage == 'y'
    tokens = config.num_ranks * config.num_tokens
    sums = combine_bounds.CombineSums.zeros(
      self.policy, stage, config.top_k, tokens, config.d_model
    )

    def read(part: tuple) -> bounded_values.Bounded:
      rows = self.read_source(source, *part[:3])
      for companion in self.companions:
        companion(*part[:3])
      return rows

    parts = prefetch.prefetch_map(read, self.iterate_packed())
    for (*_, slots), out in parts:
      for slot in range(config.top_k):
        is_slot = slots % config.top_k == slot
        own = slots[is_slot]
        rows = out[is_slot]
        if late:
          wide = self.before_rounding('returned')
          rows = self.as_stored('returned', wide.late(own, rows))
        weight = None if weights is None else weights.reshape(-1)[own]
        sums.add(own // config.top_k, rows, weight)
    return sums

  def recall_sums(self, stage: str, source: str) -> combine_bounds.CombineSums:
    """Returns `slot_sums`, from the cache where a large layer was drawn."""
    weights = self._sum_weights(stage)
    weights_used = {} if weights is None else {'slot_weights': weights}
    sums = golden_cache.recall(
      ('slot_sums', stage, source, *self.facts),
      {**self.arrays, **weights_used},
      lambda: self.slot_sums(stage, source, weights).arrays(),
    )
    slots = self.tiling.config.top_k
    return combine_bounds.CombineSums(self.policy, stage, slots, **sums)

  @property
  def facts(self) -> tuple:
    """Plain data that decides all rows, beside `arrays`."""
    tiling = self.tiling
    own = type(self).__name__, self.policy, self.chunk, self.operand_dtype
    return *own, self.unrounded, tiling.config, tuple(tiling.judged_ranks)

  @property
  def arrays(self) -> dict[str, np.ndarray]:
    """All tensors that decide rows, by name."""
    groups = dict(
      inputs=self.inputs,
      captured_tensors=self.captured_tensors,
      deviations=self.deviations,
    )
    by_name = {
      f'{group}/{name}': array
      for group, tensors_by_name in groups.items()
      for name, array in tensors_by_name.items()
    }
    plan = ('counts', 'row_of_slot', 'topk_ids')
    return by_name | {name: getattr(self.tiling, name) for name in plan}

  def late(
    self, slots: np.ndarray, rows: bounded_values.Bounded
  ) -> bounded_values.Bounded:
    """Returns rows of slots, weighted and stored as they come home."""
    weight = self.inputs['topk_weights'].reshape(-1)[slots]
    return weighting_bounds.weighted(
      self.policy, rows, weight, self.dtype('returned')
    )

  def _sum_weights(self, stage: str) -> np.ndarray | None:
    """Returns `[R, T, K]`, the weights of rows in a sum; None: they are 1."""
    is_weighted = self.policy.placement == tensors.WEIGHTED_SUMS[stage]
    return self.inputs['topk_weights'] if is_weighted else None

  def combined(
    self,
    stage: str,
    source: str,
    rank: int,
    lo: int,
    hi: int,
    lasts: Sequence[str] = (),
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, D]`, captured rows `source` summed by their weights.

    And tensors `lasts`, each `[R, T, D]`.
    """
    top_k = self.tiling.config.top_k
    rows = self.read_source(source, rank, lo * top_k, hi * top_k)
    rows = rows.reshape(hi - lo, top_k, rows.value.shape[-1])
    weights = self._sum_weights(stage)
    weights = None if weights is None else weights[rank, lo:hi]
    last_rows = [self.read_source(last, rank, lo, hi) for last in lasts]
    return combine_bounds.combine(self.policy, stage, rows, weights, last_rows)

  @functools.cached_property
  def shared(self) -> Self:
    """The golden of the layer that the shared experts are."""
    tokens = {n: self.inputs[n] for n in ('x', 'dy') if n in self.inputs}
    captured_rows = tensors.as_routed({**self.captured_tensors, **tokens})
    # A rank's tokens are its rows: so are their codes, if a kernel made them.
    rows = quantised.ROWS[0]
    for part in tensors.TOKEN_CODES:
      if part.name in self.captured_tensors:
        captured_rows[f'{rows}_{part.kind}'] = self.captured_tensors[part.name]
    return dataclasses.replace(
      self,
      tiling=self.tiling.shared,
      policy=self.policy.of_shared(),
      inputs=tensors.as_routed(self.inputs),
      captured_tensors=captured_rows,
      deviations=tensors.as_routed(self.deviations),
    )

  def total(
    self,
    sums: combine_bounds.CombineSums,
    rank: int,
    lo: int,
    hi: int,
    lasts: Sequence[str] = (),
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, D]`, the sums of a rank's own tokens as stored.

    With tensors `lasts`, each `[R, T, D]`, added.
    """
    first = rank * self.tiling.config.num_tokens
    last_rows = [self.read_source(last, rank, lo, hi) for last in lasts]
    return sums[first + lo : first + hi].total(*last_rows)


@dataclasses.dataclass(frozen=True)
class Golden(Rows):
  """The forward layer: inputs are `tensors.inputs`, captured its stages."""

  def rows(
    self, stage: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, columns]`, rows of one rank of a stage tensor."""
    if (routed := tensors.routed(stage)) != stage:
      return self.shared.rows(routed, rank, lo, hi)
    if stage == 'expert_in':
      return self.dispatched(stage, 'x', rank, lo, hi)
    if stage == 'x':
      y, dtype = self.read_source('y', rank, lo, hi), self.dtype(stage)
      return norm_bounds.norm(
        self.policy, y, self.inputs['w_norm'][rank], dtype
      )
    weight = None
    if tensors.WEIGHTED[self.policy.placement] == stage:
      weight = self.early_weight(rank, lo, hi)
    if stage in _GEMMS:
      source = self.operand(stage, _GEMMS[stage][0], rank, lo, hi)
      bias, dtype = self._bias(stage, rank, lo, hi), self.dtype(stage)
      return self.gemm(stage, source, rank, lo, dtype, bias, weight)
    if stage == 'activation':
      source = self.read_source('gate_up', rank, lo, hi)
      return activation_bounds.activation(
        self.policy, source, weight, self.dtype(stage)
      )
    if stage == 'returned':
      rows = self.sent_back('expert_out', rank, lo, hi)
      if self.policy.placement != 'returned':
        return rows
      first = rank * self.tiling.config.num_tokens * self.tiling.config.top_k
      return self.late(np.arange(first + lo, first + hi), rows)
    if 'returned' not in self.captured_tensors:
      return self.total(self._sums, rank, lo, hi, self._lasts)
    token_range = rank, lo, hi, self._lasts
    return self.combined('y', 'returned', *token_range)

  def _bias(
    self, stage: str, rank: int, lo: int, hi: int
  ) -> tuple[str, np.ndarray] | None:
    """Returns the bias of a GEMM, and its factors `[hi - lo]`."""
    if not self.tiling.config.bias:
      return None
    factors = np.ones(hi - lo)
    if stage == 'gate_up':
      return 'b_gate_up', factors
    if self.policy.placement == 'before_down':
      factors = weighting_bounds.factors(
        self.policy, self.slot_weight(rank, lo, hi)
      )
    return 'b_down', factors

  @functools.cached_property
  def _sums(self) -> combine_bounds.CombineSums:
    return self.recall_sums('y', 'expert_out')

  @property
  def _lasts(self) -> tuple[str, ...]:
    return ('shared_out',) if self.tiling.config.d_shared else ()
