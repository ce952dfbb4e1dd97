"""A stage that failed, with all that its explanation takes."""

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
    name: of the stage.
    rank: which.
    actual: the candidate's `[R, ...]`.
    expected: what it should have, same shape.
    bad: `[R, ...]` bool, what a lane refuses of the rows that hold something.
    reads: what it is computed from, by name; and if nobody saw some of these,
      what they are, by stage, the last one first.
    recompute: computes the first of some stages from other tensors, then the
      rest up to this one.
    tiling: where its rows belong.
    exact: whether right values are equal, not near.
    misreads: what else may be wrong of a tensor that is read, and what it then
      is.
    before: tensors of the same pass, as the call before read and wrote them.
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

  @functools.cached_property
  def ranks(self) -> tuple[int, ...]:
    """Those with anything wrong, that of the first failure first."""
    bad = (rank for rank, bad_rows in enumerate(self.bad) if bad_rows.any())
    return tuple(sorted(bad, key=lambda rank: rank != self.rank))
