"""Logits that a kernel computes by itself: how they are judged, and why wrong.

A failure is named by what would make it right: another rounding, which a policy
can declare, or other weights, tokens or bias.  Each is judged by the same
limits.
"""

from collections.abc import Iterator
import dataclasses

import numpy as np

from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.router import router_gemm
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision

LOGITS = router_gemm.LOGITS
_ROUNDINGS = (
  *(f'{LOGITS}={dtype}' for dtype in ('float32', 'bfloat16', 'float16')),
  *(f'operands={dtype}' for dtype in ('bfloat16', 'tf32', 'tf32_rz')),
  'accumulator=bfloat16',
)


# How far a neighbour's row or column is moved to be read in place of one.
NEIGHBOURS = (('next', -1), ('previous', 1))


def list_wrong_weights(
  router_w: at.Float[np.ndarray, 'D E'],
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields weights `[D, E]` as kernels read them wrong, after its words."""
  flat = np.ascontiguousarray(router_w).reshape(router_w.shape[::-1]).T
  yield 'router_w was read as [E, D]', np.ascontiguousarray(flat)
  for word, shift in NEIGHBOURS:
    says = f'router_w was that of the {word} expert'
    yield says, np.roll(router_w, shift, 1)


def list_wrong_tokens(
  x: at.Float[np.ndarray, 'R T D'],
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields tokens `[R, T, D]` as kernels read them wrong, after its words."""
  for word, shift in NEIGHBOURS:
    yield f'x was that of the {word} token', np.roll(x, shift, 1)


@dataclasses.dataclass(frozen=True)
class RouterGemm:
  """The GEMM of a router.

  Attributes:
    policy: of the layer.
    x: `[R, T, D]`.
    router_w: `[D, E]`.
    bias: `[E]` of the rule, or None.
    adds_bias: whether the GEMM adds it.
  """

  policy: precision.PrecisionPolicy
  x: at.Float[np.ndarray, 'R T D']
  router_w: at.Float[np.ndarray, 'D E']
  bias: at.Float[np.ndarray, 'E'] | None = None
  adds_bias: bool = False

  @property
  def added_bias(self) -> np.ndarray | None:
    """The bias, if it is one of the logits."""
    return self.bias if self.adds_bias else None

  @property
  def inputs(self) -> dict[str, np.ndarray]:
    """What a kernel gets beside x."""
    inputs = dict(router_w=self.router_w)
    if self.bias is not None:
      inputs['router_bias'] = self.bias
    return inputs

  def bound_logits(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns logits `[R, T, E]` float64, and how far others may be off."""
    logits = router_gemm.bound_logits(
      self.policy, self.x, self.router_w, self.added_bias
    )
    shape = *self.x.shape[:2], self.router_w.shape[1]
    return logits.value.reshape(shape), logits.bound().reshape(shape)

  def judge(self, actual: np.ndarray | None) -> list[verdicts.Result]:
    """Returns the rows of a kernel's logits `[R, T, E]`, or of none."""
    if actual is None:
      rule = 'bounded', verdicts.BOUND_RULE
      return [verdicts.not_captured(LOGITS, *rule, LOGITS)]
    results = self._compare(actual)
    if not any(result.failure for result in results):
      return results
    pattern = self._explain(actual, results)
    return [_tell(result, pattern) for result in results]

  def _compare(self, actual: np.ndarray) -> list[verdicts.Result]:
    inputs = dict(x=self.x, router_w=self.router_w)
    if self.added_bias is not None:
      inputs['router_bias'] = self.added_bias
    rows = router_gemm.RouterRows.build(self.policy, inputs)
    return tile_lanes.tolerances(LOGITS, actual, rows, None, ())

  def _explain(self, actual, results) -> str:
    for says, other in (*self._list_roundings(), *self._list_others(actual)):
      if all(r.verdict == verdicts.PASS for r in other._compare(actual)):
        return f'as if {says}'
    return next((r.failure.pattern for r in results if r.failure), '')

  def _list_roundings(self) -> Iterator[tuple[str, 'RouterGemm']]:
    """Yields other roundings in words, and the GEMM with them."""
    own = {*self.policy.points}
    for word in _ROUNDINGS:
      point, _, dtype = word.partition('=')
      points = [p for p in own if p.partition('=')[0] != point]
      policy = dataclasses.replace(self.policy, points=(*points, word))
      says = f'{point} was rounded to {dtype}; --policy={word} allows it'
      if policy != self.policy:
        yield says, dataclasses.replace(self, policy=policy)

  def _list_others(self, actual) -> Iterator[tuple[str, 'RouterGemm']]:
    """Yields mistakes in words, and the GEMM with them."""
    weights = self.router_w
    empty = ~actual.any((0, 1))
    if empty.any():
      names = ', '.join(map(str, np.flatnonzero(empty)[:4]))
      other_weights = np.where(empty, 0, weights).astype(weights.dtype)
      says = f'the column of expert {names} of router_w was missing'
      yield (
        says,
        dataclasses.replace(self, router_w=other_weights, adds_bias=False),
      )
    for says, other_weights in list_wrong_weights(weights):
      yield says, dataclasses.replace(self, router_w=other_weights)
    for says, other_tokens in list_wrong_tokens(self.x):
      yield says, dataclasses.replace(self, x=other_tokens)
    if self.bias is not None:
      word = 'left out' if self.adds_bias else 'added to router_logits'
      other = dataclasses.replace(self, adds_bias=not self.adds_bias)
      yield f'router_bias was {word}', other


def _tell(result: verdicts.Result, pattern: str) -> verdicts.Result:
  if result.failure is None:
    return result
  return result.part.but(
    lambda failure: dataclasses.replace(failure, pattern=pattern)
  )
