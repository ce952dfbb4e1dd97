"""Tokens that the two sides route to different experts, and the reasons."""

from collections.abc import Iterator, Mapping
import dataclasses

import numpy as np

from hpmoe.parity_tests.compare import metrics


@dataclasses.dataclass(frozen=True)
class Choice:
  """One token whose experts differ.

  Attributes:
    rank, token: of the token.
    npu, bench: experts that only this side chose, ascending; both empty if only
      the order of the slots differs.
    npu_scores, bench_scores: router scores of those experts, of the candidate's
      choice and then of the reference's, as each side computed them.
    why: the reason in a few words.
  """

  rank: int
  token: int
  npu: tuple[int, ...]
  bench: tuple[int, ...]
  npu_scores: tuple[float, ...]
  bench_scores: tuple[float, ...]
  reason: str

  def __str__(self) -> str:
    place = f'token {self.token} of rank {self.rank}'
    if not self.npu:
      return f'{place}: {self.reason}'
    experts = (*self.npu, *self.bench)

    def format_scores(scores):
      return ', '.join(
        f'{e}: {s:.9g}' for e, s in zip(experts, scores, strict=True)
      )

    return (
      f'{place}: {self.reason}: NPU chose {list(self.npu)}, bench '
      f'{list(self.bench)}; scores of NPU {format_scores(self.npu_scores)}; '
      f'of bench {format_scores(self.bench_scores)}'
    )


def choices(
  npu: Mapping[str, np.ndarray], bench: Mapping[str, np.ndarray]
) -> Iterator[Choice]:
  """Yields the tokens whose ids differ, in order.

  Args:
    npu: `scores` `[R, T, E]` and `topk_ids` `[R, T, K]` of the candidate.
    bench: those of the reference.
  """
  row = metrics.compare('', None, '', npu['scores'], bench['scores'])
  apart = (npu['topk_ids'] != bench['topk_ids']).any(axis=-1)
  for rank, token in np.argwhere(apart):
    choices_by_side = [
      set(side['topk_ids'][rank, token].tolist()) for side in (npu, bench)
    ]
    differing = [
      sorted(choices_by_side[0] - choices_by_side[1]),
      sorted(choices_by_side[1] - choices_by_side[0]),
    ]
    experts = [*differing[0], *differing[1]]
    scores = [
      side['scores'][rank, token, experts].tolist() for side in (npu, bench)
    ]
    yield Choice(
      int(rank),
      int(token),
      npu=tuple(differing[0]),
      bench=tuple(differing[1]),
      npu_scores=tuple(scores[0]),
      bench_scores=tuple(scores[1]),
      reason=_find_reason(row, bool(experts), scores[0] == scores[1]),
    )


def _find_reason(
  row: metrics.Row, other_experts: bool, equal_scores: bool
) -> str:
  if not other_experts:
    return 'the same experts in another order of slots'
  if row.result != metrics.PASS:
    return 'scores differ by more than rounding before the choice'
  if equal_scores and row.same_bits:
    return 'another choice from the same scores, so the routers differ'
  return 'near tie: scores agree within rounding, the choice does not'
