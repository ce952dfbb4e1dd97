"""A failed stage, with everything that its explanation needs."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.explain import known_bugs

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class FailedStage:
  """A stage that failed, on the rank of its first failure.

  Attributes:
    name: name of the stage.
    rank: rank of the first failure.
    actual: `[R, ...]` the candidate's tensor.
    expected: `[R, ...]` what it should be.
    bad: `[R, ...]` bool, valid elements that a lane refuses.
    reads: by stage, the tensors that it reads, by name: this stage first, then
      the stages before it that the candidate did not return.
    recompute: computes this stage again with some bugs: the first stage that
      has one, and every stage after it.
    tiling: where its rows belong.
    exact: whether right values are equal, not only near.
    misreads: by tensor that is read, other mistakes: words and a `Bug`.
    before: tensors that the previous call of this pass read and wrote.
    variants: other layers that a kernel may compute in its place: words, where
      to look, and what computes the stage so.
  """

  name: str
  rank: int
  actual: np.ndarray
  expected: np.ndarray
  bad: np.ndarray
  reads: Mapping[str, Arrays]
  recompute: Callable[[known_bugs.Bugs], np.ndarray]
  tiling: tiles.Tiling
  exact: bool
  misreads: Mapping[str, Sequence[tuple[str, known_bugs.Bug]]]
  before: Arrays = dataclasses.field(default_factory=dict)
  variants: Sequence[tuple[str, str, Callable[[], np.ndarray]]] = ()

  @functools.cached_property
  def ranks(self) -> tuple[int, ...]:
    """Ranks with a bad element, the rank of the first failure first."""
    bad = (rank for rank, bad_rows in enumerate(self.bad) if bad_rows.any())
    return tuple(sorted(bad, key=lambda rank: rank != self.rank))
