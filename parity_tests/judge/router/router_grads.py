"""Gradients of a router's weights: their limits, and why they are wrong."""

from collections.abc import Iterator
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.router import grad_mistakes
from hpmoe.parity_tests.judge.router import router_gemm
from hpmoe.parity_tests.judge.router import router_logits
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import tensors

OF_WEIGHTS = tensors.ROUTER_GRADS[-1].name
_OF_LOGITS = passes.ROUTER_ROWS[0]


@dataclasses.dataclass(frozen=True)
class WeightRows(golden_lib.Rows):
  """Golden rows of `d_router_w` `[D, E]`, a sum over the tokens of all ranks.

  Attributes:
    d_logits: `[R T, E]` gradients of logits.
    sees_logits: whether they are the candidate's own.
  """

  d_logits: bounds.Bounded = dataclasses.field(
    default_factory=lambda: bounds.Bounded(np.zeros((0, 0)))
  )
  sees_logits: bool = True

  @classmethod
  def build(cls, golden: golden_lib.Rows) -> 'WeightRows':
    """Returns golden rows beside those of a backward pass."""
    ranks, tokens, width = golden.inputs['x'].shape
    parts = [
      golden.read_source(_OF_LOGITS, rank, 0, tokens) for rank in range(ranks)
    ]
    router_w = golden.inputs['router_w']
    return cls(
      # All ranks together are one.
      router_gemm.tile_tokens(1, ranks * tokens, router_w),
      golden.policy.of_router(),
      dict(x=golden.inputs['x'].reshape(1, -1, width)),
      golden.captured_tensors,
      d_logits=bounds.join(parts),
      sees_logits=_OF_LOGITS in golden.captured_tensors,
    )

  def rows(self, stage: str, rank: int, lo: int, hi: int) -> bounds.Bounded:
    """Returns rows `[hi - lo, E]` of the gradient."""
    x = bounds.exact(self.inputs['x'][rank, :, lo:hi])
    grad = bounds.weight_grad(self.policy, x, self.d_logits, self.dtype(stage))
    if self.sees_logits:
      return grad
    # All rows read the same errors of logits, which are no spread.
    return bounds.Bounded(grad.value, grad.error)

  def multiply(
    self, x: np.ndarray | None = None, d_logits: np.ndarray | None = None
  ) -> 'WeightRows':
    """Returns golden rows of other tokens or gradients, each `[R T, ...]`."""
    other = self
    if x is not None:
      other = dataclasses.replace(other, inputs=dict(x=x[None]))
    if d_logits is not None:
      other = dataclasses.replace(other, d_logits=bounds.exact(d_logits))
    return other


@dataclasses.dataclass(frozen=True)
class WeightGrad:
  """The gradient of a router's weights as a kernel returned it.

  Attributes:
    actual: `[D, E]`.
    golden: its golden rows.
    mistakes: what gradients of logits are made of, if the kernel did not return
      them.
    num_ranks: R.
  """

  actual: at.Float[np.ndarray, 'D E']
  golden: WeightRows
  mistakes: grad_mistakes.Inputs | None
  num_ranks: int

  @classmethod
  def of_answer(
    cls, case: pass_case.PassCase, answer: pass_case.Answer
  ) -> 'WeightGrad':
    """Returns the gradient that an answer to a case has."""
    sees_logits = _OF_LOGITS in answer.outputs
    return cls(
      answer.outputs[OF_WEIGHTS],
      WeightRows.build(case.golden(answer.sources)),
      None if sees_logits else _read_inputs(case, answer.sources),
      case.inputs.config.num_ranks,
    )

  def judge(self) -> list[verdicts.Result]:
    """Returns its rows."""
    results = _compare(self.actual, self.golden)
    if not any(result.failure for result in results):
      return results
    pattern = self._explain()
    return [_tell(result, pattern) for result in results]

  def _explain(self) -> str:
    for says, golden in self._list_others():
      rows = _compare(self.actual, golden)
      if all(row.verdict == verdicts.PASS for row in rows):
        return f'as if {says}'
    if self._matches_transposed():
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
    for says, other_x in router_logits.list_wrong_tokens(by_rank):
      yield says, golden.multiply(x=other_x.reshape(x.shape))
    for word, shift in router_logits.NEIGHBOURS:
      says = f'columns were those of the {word} expert'
      yield says, golden.multiply(d_logits=np.roll(d_logits, shift, 1))
    yield 'it had the opposite sign', golden.multiply(d_logits=-d_logits)
    if self.mistakes is not None:
      for says, grads in grad_mistakes.list_mistakes(self.mistakes):
        flat = grads.reshape(-1, grads.shape[-1])
        yield f'in {_OF_LOGITS} {says}', golden.multiply(d_logits=flat)

  def _matches_transposed(self) -> bool:
    shape = self.actual.shape
    back = self.actual.reshape(shape[::-1]).T
    rows = _compare(np.ascontiguousarray(back), self.golden)
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
  for says, grads in grad_mistakes.list_mistakes(_read_inputs(case, sources)):
    other_sources = {**sources, _OF_LOGITS: grads.astype(np.float32)}
    compute = functools.partial(case.recompute, name, other_sources)
    yield f'as if in {_OF_LOGITS} {says}', '', compute


def _read_inputs(
  case: pass_case.PassCase, sources: passes.Tensors
) -> grad_mistakes.Inputs:
  arrays, d_weights = case.inputs.arrays, sources.get('d_topk_weights')
  if d_weights is None:
    d_weights = case.recompute('d_topk_weights', sources)
  assert case.router is not None  # as the caller looked
  return grad_mistakes.Inputs(
    case.router,
    arrays['router_logits'].astype(np.float64),
    arrays.get('router_bias'),
    arrays['topk_ids'],
    lazy_tensors.load_whole(d_weights).astype(np.float64),
  )


def _compare(actual: np.ndarray, golden: WeightRows) -> list[verdicts.Result]:
  return tile_lanes.tolerances(OF_WEIGHTS, actual[None], golden, None, ())


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
