"""Gradients of a router's weights and bias: limits, and why they are wrong."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.parity_tests.judge.router import grad_mistakes
from hpmoe.parity_tests.judge.router import router_gemm
from hpmoe.parity_tests.judge.router import router_logits
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import tensors

OF_WEIGHTS = tensors.ROUTER_GRADS[-1].name
OF_BIAS = tensors.ROUTER_BIAS_GRAD.name
_OF_LOGITS = passes.ROUTER_ROWS[0]
# Its module imports JAX, which a check of few tensors does without.
_sum_tokens = programs.Program(
  'hpmoe.reference.expert_gemm_grad:router_weight_grad', 1, compiled=False
)


@dataclasses.dataclass(frozen=True)
class WeightRows(golden_lib.Rows):
  """Golden rows of a sum over the tokens of all ranks.

  It is `d_router_w` `[D, E]`; or `d_router_bias` `[E]`, whose tokens are ones.

  Attributes:
    d_logits: `[R T, E]` gradients of logits.
    sees_logits: whether they are the candidate's own.
  """

  d_logits: bounded_values.Bounded = dataclasses.field(
    default_factory=lambda: bounded_values.Bounded(np.zeros((0, 0)))
  )
  sees_logits: bool = True

  @classmethod
  def build(
    cls, golden: golden_lib.Rows, name: str, d_logits: bounded_values.Bounded
  ) -> 'WeightRows':
    """Returns golden rows beside those of a backward pass.

    Args:
      golden: of the pass.
      name: `OF_WEIGHTS` or `OF_BIAS`.
      d_logits: `[R T, E]`.
    """
    tokens = golden.inputs['x'].reshape(1, -1, golden.inputs['x'].shape[-1])
    if name == OF_BIAS:
      tokens = np.ones((*tokens.shape[:2], 1), np.float32)
    shape = tokens.shape[-1], d_logits.value.shape[-1]
    return cls(
      # All ranks together are one.
      router_gemm.tile_tokens(1, tokens.shape[1], np.broadcast_to(0, shape)),
      golden.policy.of_router(),
      dict(x=tokens),
      golden.captured_tensors,
      d_logits=d_logits,
      sees_logits=_OF_LOGITS in golden.captured_tensors,
    )

  def rows(
    self, stage: str, rank: int, lo: int, hi: int
  ) -> bounded_values.Bounded:
    """Returns rows `[hi - lo, E]` of the gradient."""
    x = bounded_values.exact(self.inputs['x'][rank, :, lo:hi])
    grad = gemm_bounds.weight_grad(
      self.policy, x, self.d_logits, self.dtype(stage)
    )
    if self.sees_logits:
      return grad
    # All rows read the same errors of logits, which are no spread.
    return bounded_values.Bounded(grad.value, grad.error)

  def multiply(
    self, x: np.ndarray | None = None, d_logits: np.ndarray | None = None
  ) -> 'WeightRows':
    """Returns golden rows of other tokens or gradients, each `[R T, ...]`."""
    other = self
    if x is not None:
      other = dataclasses.replace(other, inputs=dict(x=x[None]))
    if d_logits is not None:
      other = dataclasses.replace(
        other, d_logits=bounded_values.exact(d_logits)
      )
    return other


@dataclasses.dataclass(frozen=True)
class WeightGrad:
  """The gradient of a router's weights or bias as a kernel returned it.

  Attributes:
    name: `OF_WEIGHTS` or `OF_BIAS`.
    actual: `[D, E]`, or `[E]`.
    golden: its golden rows.
    mistakes: what gradients of logits are made of, if the kernel did not return
      them.
    num_ranks: R.
  """

  name: str
  actual: at.Float[np.ndarray, '... E']
  golden: WeightRows
  mistakes: grad_mistakes.Inputs | None
  num_ranks: int

  def judge(
    self,
    records: Sequence[standards.Standard] = (),
    d_logits: at.Float[np.ndarray, 'R T E'] | None = None,
  ) -> list[verdicts.Result]:
    """Returns its rows.

    Args:
      records: standards to judge by.
      d_logits: the oracle's gradients of logits, or the kernel's; None if no
        record asks.
    """
    sees_logits = self.golden.sees_logits
    fit_records = [r for r in records if r.layer or sees_logits]
    benchmark = self._compute_benchmark(d_logits) if fit_records else None
    results = tile_lanes.tolerances(
      self.name, self.actual[None], self.golden, benchmark, fit_records
    )
    if any(result.failure for result in results):
      pattern = self._explain()
      results = [_tell(result, pattern) for result in results]
    return results + [
      verdicts.not_captured(self.name, 'standard', r.name, _OF_LOGITS)
      for r in records
      if r not in fit_records
    ]

  def _compute_benchmark(self, d_logits) -> np.ndarray:
    """Returns the oracle's `[1, D, E]` or `[1, E]`."""
    policy = self.golden.policy.storing(self.name)
    policy = dataclasses.replace(policy, storage=policy.dtype(self.name))
    grad = _sum_tokens(policy, self.golden.inputs['x'], np.asarray(d_logits))
    return np.asarray(grad).reshape(1, *self.actual.shape)

  def _explain(self) -> str:
    for says, golden in self._list_others():
      rows = self._compare(self.actual, golden)
      if all(row.verdict == verdicts.PASS for row in rows):
        return f'as if {says}'
    if self.actual.ndim > 1 and self._matches_transposed():
      return 'as if it was written as [E, D]'
    return ''

  def _list_others(self) -> Iterator[tuple[str, WeightRows]]:
    golden, ranks = self.golden, self.num_ranks
    x, d_logits = golden.inputs['x'][0], golden.d_logits.value
    tokens = len(x) // ranks
    for rank in range(ranks) if ranks > 1 else ():
      is_own = (np.arange(len(x)) // tokens == rank)[:, None]
      says = f'the sum was over tokens of rank {rank} alone'
      yield says, golden.multiply(d_logits=np.where(is_own, d_logits, 0))
    counts = {ranks: 'ranks', len(x): 'tokens'}
    for count, noun in counts.items():
      if count > 1:
        says = f'the sum was divided by {count}, the number of {noun}'
        yield says, golden.multiply(d_logits=d_logits / count)
    by_rank = x.reshape(ranks, tokens, -1)
    reads_x = self.name == OF_WEIGHTS
    for says, other_x in (
      router_logits.list_wrong_tokens(by_rank) if reads_x else ()
    ):
      yield says, golden.multiply(x=other_x.reshape(x.shape))
    for word, shift in router_logits.NEIGHBOURS:
      says = f'columns were those of the {word} expert'
      yield says, golden.multiply(d_logits=np.roll(d_logits, shift, 1))
    yield 'it had the opposite sign', golden.multiply(d_logits=-d_logits)
    if self.mistakes is not None:
      for says, grads in grad_mistakes.list_mistakes(self.mistakes):
        flat = grads.reshape(-1, grads.shape[-1])
        yield f'in {_OF_LOGITS} {says}', golden.multiply(d_logits=flat)

  def _compare(
    self, actual: np.ndarray, golden: WeightRows
  ) -> list[verdicts.Result]:
    return tile_lanes.tolerances(self.name, actual[None], golden, None, ())

  def _matches_transposed(self) -> bool:
    shape = self.actual.shape
    back = self.actual.reshape(shape[::-1]).T
    rows = self._compare(np.ascontiguousarray(back), self.golden)
    return all(row.verdict == verdicts.PASS for row in rows)


def list_mistakes(
  case: pass_case.PassCase,
  name: str,
  sources: passes.Tensors,
  chain: tuple[str, ...],
) -> Iterator[pass_case.Variant]:
  """Yields a stage whose part from the router is wrong.

  Args:
    case: the pass.
    name: of the stage.
    sources: what the kernel returned.
    chain: the stage, and those before it that it did not return.
  """
  of_tokens = passes.ROUTER_ROWS[1]
  if case.router is None or of_tokens not in chain:
    return
  router_w = case.inputs.arrays['router_w']
  for says, other in router_logits.list_wrong_weights(router_w):
    arrays = {**case.inputs.arrays, 'router_w': other}
    inputs = dataclasses.replace(case.inputs, arrays=arrays)
    other_case = dataclasses.replace(case, inputs=inputs)
    compute = functools.partial(other_case.recompute, name, sources)
    yield f'as if {says} in {of_tokens}', '', compute
  if _OF_LOGITS not in chain:
    return
  for says, grads in grad_mistakes.list_mistakes(read_inputs(case, sources)):
    other_sources = {**sources, _OF_LOGITS: grads.astype(np.float32)}
    compute = functools.partial(case.recompute, name, other_sources)
    yield f'as if in {_OF_LOGITS} {says}', '', compute


def read_inputs(
  case: pass_case.PassCase, sources: passes.Tensors
) -> grad_mistakes.Inputs:
  """Returns what gradients of logits are made of, in a case with a router."""
  arrays = case.inputs.arrays
  assert case.router is not None  # as the caller looked
  return grad_mistakes.Inputs(
    case.router,
    arrays['router_logits'].astype(np.float64),
    arrays.get('router_bias'),
    arrays['topk_ids'],
    read_weights_grad(case, sources),
  )


def read_weights_grad(
  case: pass_case.PassCase, sources: passes.Tensors
) -> np.ndarray:
  """Returns gradients `[R, T, K]` float64 of weights, or computes them."""
  d_weights = sources.get('d_topk_weights')
  if d_weights is None:
    d_weights = case.recompute('d_topk_weights', sources)
  return lazy_tensors.load_whole(d_weights).astype(np.float64)


def _tell(result: verdicts.Result, pattern: str) -> verdicts.Result:
  if result.failure is None:
    return result
  return result.part.but(
    lambda failure: dataclasses.replace(
      failure,
      pattern=pattern or failure.pattern,
      index=failure.index[1:],  # it has no axis of ranks
    )
  )
