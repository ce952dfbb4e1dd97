"""The golden of the backward pass; `golden` has the forward pass."""

from collections.abc import Callable
import dataclasses
import functools
import threading

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import prefetch
from hpmoe.parity_tests.judge.limits import golden
from hpmoe.parity_tests.judge.limits import router_grad
from hpmoe.parity_tests.judge.limits.bounds import activation_grad_bounds
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import combine_bounds
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.parity_tests.judge.limits.bounds import norm_bounds
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.parity_tests.judge.limits.bounds import weighting_bounds
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import tensors

# The rows and the weights that each transposed GEMM reads.
_GEMMS = tensors.TRANSPOSED_GEMMS
# (saved rows, gradient) whose outer products a weight gradient sums.
_WEIGHT_GRADS = tensors.WEIGHT_GRADS


@dataclasses.dataclass(frozen=True)
class GoldenGrad(golden.Rows):
  """The backward layer; captured tensors are of `tensors.grads`.

  `inputs` are `tensors.inputs`, dy and the saved forward tensors that
  `layer_grad.reads` names; the candidate recomputed those that are missing.
  With a router they are also router_logits `[R, T, E]`, router_w `[D, E]` and
  router_bias `[E]`, if the rule has one.

  Attributes:
    router: the rule of a layer with its router's GEMM, whose part dx then has;
      None: the routing is given.
  """

  router: router_lib.Router | None = None
  _expert: dict = golden.own(dict)
  # The thread that computes an expert's rows waits for no other.
  _making: threading.RLock = golden.own(threading.RLock)

  def rows(
    self, stage: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, columns]`, rows of one rank of a gradient.

    Rows are those of `Tiling.rows`.

    Raises:
      ValueError: `stage` is not one of `tensors.grads`.
    """
    if (routed := tensors.routed(stage)) != stage:
      return self.shared.rows(routed, rank, lo, hi)
    if stage in _GEMMS:
      source = self.operand(stage, _GEMMS[stage][0], rank, lo, hi)
      return self.gemm(stage, source, rank, lo, self.dtype(stage))
    if stage in _WEIGHT_GRADS:
      return self._weight_grad(stage, rank, lo, hi)
    compute: dict[str, Callable[[int, int, int], bounded_values.Bounded]] = {
      'd_expert_out': functools.partial(self.dispatched, 'd_expert_out', 'dy'),
      'd_topk_weights': self._d_topk_weights,
      'd_gate_up': self._d_gate_up,
      'd_b_down': functools.partial(self._bias_grad, 'd_expert_out'),
      'd_b_gate_up': functools.partial(self._bias_grad, 'd_gate_up'),
      'd_returned': functools.partial(self.sent_back, 'd_expert_in'),
      'dx': self._dx,
      'dy': self._dy,
      'd_w_norm': self._d_w_norm,
      'd_router_logits': self._d_router_logits,
      'd_router_in': self._d_router_in,
    }
    if stage not in compute:
      raise ValueError(f'stage: expected a gradient, got {stage!r}')
    return compute[stage](rank, lo, hi)

  def _read_saved(
    self, name: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns rows of a tensor `[R, N, ...]` that the forward pass saved."""
    if name in self.inputs:
      return bounded_values.exact(self.inputs[name][rank, lo:hi])
    return self._forward.read_source(name, rank, lo, hi)

  @functools.cached_property
  def _forward(self) -> golden.Golden:
    stages = {*self.inputs} & {*tensors.stages(self.tiling.config)}
    captured_tensors = {name: self.inputs[name] for name in stages}
    return golden.Golden(
      self.tiling, self.policy, self.inputs, captured_tensors, self.chunk
    )

  def _d_gate_up(self, rank: int, lo: int, hi: int) -> bounded_values.Bounded:
    return activation_grad_bounds.activation_grad(
      self.policy,
      self._read_saved('gate_up', rank, lo, hi),
      self.read_source('d_activation', rank, lo, hi),
      self.early_weight(rank, lo, hi),
      self.dtype('d_gate_up'),
    )

  def _weight_grad(
    self, stage: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    height = self.inputs[stage.removeprefix('d_')].shape[2]
    parts = []
    for expert in range(lo // height, -(-hi // height)):
      begin = max(lo, expert * height) - expert * height
      end = min(hi, (expert + 1) * height) - expert * height
      parts.append(self._expert_grad(stage, rank, expert, slice(begin, end)))
    return bounded_values.join(parts)

  def _expert_grad(
    self, stage: str, rank: int, expert: int, part: slice
  ) -> bounded_values.Bounded:
    """Returns a few rows of one expert's weight gradient."""
    saved_name, grad = _WEIGHT_GRADS[stage]
    edges = tiles.expert_rows(self.tiling.config, self.tiling.counts, rank)
    lo, hi = int(edges[expert]), int(edges[expert + 1])
    # Chunks that share an expert come one after another: keep its gradient.
    key = (grad, rank, expert)
    with self._making:
      if key not in self._expert:
        self._expert.clear()
        columns = (
          self._read_saved(saved_name, rank, lo, hi),
          self._d_out(stage, grad, rank, lo, hi),
        )
        self._expert[key] = self._columns(stage, *columns)
      rows, d_out = self._expert[key]
    policy, dtype = self.policy.of_gemm(stage), self.dtype(stage)
    return gemm_bounds.weight_grad(policy, rows[:, part], d_out, dtype)

  def _columns(
    self, stage: str, *operands: bounded_values.Bounded
  ) -> tuple[bounded_values.Bounded, ...]:
    """Returns all rows `[n, X]` of an expert as a weight gradient reads them.

    Quantised to one form by columns, perhaps after another one by rows.
    """
    names, columns = recipes.OPERANDS[stage], []
    for name, rows in zip(names, operands, strict=True):
      forms = self.policy.forms(stage, name)
      if forms and len(rows.value):
        rows = self._requantise(forms[:-1], rows)
        rows = self._requantise(forms[-1:], rows.T).T
      columns.append(rows)
    return tuple(columns)

  def _d_out(
    self, stage: str, grad: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, y]`, what rows are multiplied with."""
    d_out = self.read_source(grad, rank, lo, hi)
    if stage != 'd_w_down' or self.policy.placement != 'epilogue':
      return d_out
    # Nobody stored rows that have the weight of the sums.
    weight = self.slot_weight(rank, lo, hi)
    dtype = self.operand_dtype or self.dtype(stage)
    return weighting_bounds.weighted_operand(self.policy, d_out, weight, dtype)

  def _bias_grad(
    self, grad: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns the sums over the rows of experts `lo` to `hi`.

    The weight gradient of one column, of ones; of b_down, where the routing
    weight is early, of those.
    """
    edges = tiles.expert_rows(self.tiling.config, self.tiling.counts, rank)
    parts = []
    for expert in range(lo, hi):
      rows = rank, int(edges[expert]), int(edges[expert + 1])
      column = self.early_weight(*rows)
      if column is None or grad != 'd_expert_out':
        column = np.ones(rows[2] - rows[1])
      else:
        column = weighting_bounds.factors(self.policy, column)
      factors, d_out = (
        bounded_values.exact(column[:, None]),
        self.read_source(grad, *rows),
      )
      dtype = self.dtype({'d_expert_out': 'd_b_down'}.get(grad, 'd_b_gate_up'))
      parts.append(gemm_bounds.weight_grad(self.policy, factors, d_out, dtype))
    return bounded_values.join(parts)

  def _d_topk_weights(
    self, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    dots = self._sum_products(rank, lo, hi)
    dtype = self.dtype('d_topk_weights')
    if dtype == self.policy.accumulate:
      return dots
    return rounding.store(self.policy, dots, dtype)

  def _sum_products(
    self, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, K]`, d_topk_weights before it is stored."""
    if self.policy.placement in tensors.EARLY:
      first = rank * self.tiling.config.num_tokens
      return self._dots[first + lo : first + hi]
    config = self.tiling.config
    step = max(1, self.chunk // (config.top_k * config.d_model))
    return bounded_values.join(
      [
        self._token_dots(rank, begin, min(begin + step, hi))
        for begin in range(lo, hi, step)
      ]
    )

  def _token_dots(self, rank: int, lo: int, hi: int) -> bounded_values.Bounded:
    """Returns `[hi - lo, K]`: tokens times what their slots returned.

    Tokens are dy; or x, if it was weighted, and slots have its gradients.
    """
    source = 'x' if self.policy.placement == 'input' else 'dy'
    tokens = bounded_values.exact(self.inputs[source][rank, lo:hi, None])
    return gemm_bounds.inner_product(
      self.policy, self._read_returned(rank, lo, hi), tokens, 'd_weighted'
    )

  def _read_returned(
    self, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns `[hi - lo, K, D]`, rows that came home, before a weight."""
    config = self.tiling.config
    count = config.top_k
    slots = rank, lo * count, hi * count
    if self.policy.placement == 'input':
      rows = self.read_source('d_returned', *slots)
    elif self.policy.placement == 'returned':
      rows = self._forward.sent_back('expert_out', *slots)
    elif 'returned' in self.inputs:
      return bounded_values.exact(self.inputs['returned'][rank, lo:hi])
    else:
      rows = self._forward.read_source('returned', *slots)
    return rows.reshape(hi - lo, count, config.d_model)

  @functools.cached_property
  def _dots(self) -> bounded_values.Bounded:
    """`[R T, K]`: rows' weight gradients at placements of `tensors.EARLY`.

    Those of ranks that are not judged, and of slots that are not used, are 0.
    """
    parts, order = [], []
    for (*_, slots), dots in prefetch.prefetch_map(
      self._row_dots, self.iterate_packed()
    ):
      order.append(slots)
      parts.append(dots)
    slots_in_order = np.concatenate(order)
    position = np.full(self.tiling.topk_ids.size, -1)
    position[slots_in_order] = np.arange(len(slots_in_order))
    of_slot = bounded_values.join(parts)[position[position >= 0]].among(
      position >= 0
    )
    return of_slot.reshape(-1, self.tiling.config.top_k)

  def _row_dots(self, part) -> bounded_values.Bounded:
    rank, lo, hi, _ = part
    epilogue = self.policy.placement == 'epilogue'
    return activation_grad_bounds.row_weight_grad(
      self.policy,
      self._read_saved('activation' if epilogue else 'gate_up', rank, lo, hi),
      self.read_source('d_activation', rank, lo, hi),
      self._of_bias(rank, lo, hi),
    )

  def _of_bias(
    self, rank: int, lo: int, hi: int
  ) -> tuple[bounded_values.Bounded, np.ndarray] | None:
    """Returns d_expert_out and b_down `[hi - lo, D]` of rows."""
    if not self.tiling.config.bias:
      return None
    of_row = np.empty((hi - lo, self.tiling.config.d_model))
    for expert, begin, end in self._experts(rank, lo, hi):
      of_row[begin:end] = self.inputs['b_down'][rank, expert]
    return self.read_source('d_expert_out', rank, lo, hi), of_row

  def _dx(self, rank: int, lo: int, hi: int) -> bounded_values.Bounded:
    if 'd_returned' not in self.captured_tensors:
      return self.total(self._sums, rank, lo, hi, self._lasts)
    return self.combined('dx', 'd_returned', rank, lo, hi, self._lasts)

  def _dy(self, rank: int, lo: int, hi: int) -> bounded_values.Bounded:
    return norm_bounds.norm_grad(
      self.policy,
      self.read_source('dx', rank, lo, hi),
      self._read_saved('y', rank, lo, hi),
      self.inputs['w_norm'][rank],
      self.dtype('dy'),
    )

  def _d_w_norm(self, rank: int, lo: int, hi: int) -> bounded_values.Bounded:
    tokens = rank, 0, self.tiling.config.num_tokens
    dx, y = self.read_source('dx', *tokens), self._read_saved('y', *tokens)
    return norm_bounds.gain_grad(self.policy, dx, y)[lo:hi]

  @functools.cached_property
  def _sums(self) -> combine_bounds.CombineSums:
    return self.recall_sums('dx', 'd_expert_in')

  @property
  def _lasts(self) -> tuple[str, ...]:
    of_shared = ('d_shared_in',) if self.tiling.config.d_shared else ()
    of_router = ('d_router_in',) if self.router is not None else ()
    return of_shared + of_router

  def _d_router_logits(
    self, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    assert self.router is not None  # or nobody asks
    return router_grad.bound_logits_grad(
      self.router,
      self.inputs['router_logits'][rank, lo:hi],
      self.inputs.get('router_bias'),
      self.inputs['topk_ids'][rank, lo:hi],
      self.read_source('d_topk_weights', rank, lo, hi),
      rounding.kernels(self.policy),
    )

  def _d_router_in(self, rank: int, lo: int, hi: int) -> bounded_values.Bounded:
    d_logits = self.read_source('d_router_logits', rank, lo, hi)
    policy, dtype = self.policy.of_router(), self.dtype('d_router_in')
    return gemm_bounds.gemm(policy, d_logits, self._router_weights, dtype)

  @functools.cached_property
  def _router_weights(self) -> gemm_bounds.Weights:
    transposed = np.ascontiguousarray(self.inputs['router_w'].T)
    return gemm_bounds.Weights.prepare(self.policy.of_router(), transposed)

  @property
  def facts(self) -> tuple:
    """See `golden.Rows`."""
    own = super().facts
    return own if self.router is None else (*own, repr(self.router))
