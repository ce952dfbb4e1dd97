"""Rows or experts that a kernel exchanged: which, and what it then writes."""

from collections.abc import Iterator
import functools

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.explain import failed_stage
from hpmoe.parity_tests.explain import known_bugs
from hpmoe.parity_tests.explain import locations
from hpmoe.parity_tests.judge.limits import ulp


def list_exchanged_experts(
  stage: failed_stage.FailedStage,
) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields the stage with two experts exchanged, if its rows say which."""
  pair = locations.find_experts(stage)
  if len(pair) != 2:
    return
  bugs = {
    gemm: {name: known_bugs.exchange_experts(*pair)}
    for gemm in stage.reads
    for name in known_bugs.GEMMS.get(gemm, ())[1:]
    if name in stage.reads[gemm] and stage.reads[gemm][name].ndim == 4
  }
  if bugs:
    says = f'as if experts {pair[0]} and {pair[1]} were exchanged'
    yield says, known_bugs.EXPERT, stage.recompute(bugs)


def find_exchanged_rows(
  stage: failed_stage.FailedStage, rank: int
) -> tuple[str, np.ndarray, int] | None:
  """Returns words, the tensor with a rank's exchanged rows, and their count."""
  tiling = stage.tiling
  actual, expected, wrong = (
    tiling.rows(stage.name, a, rank)
    for a in (stage.actual, stage.expected, stage.bad)
  )
  # A row that is its own is none of others.
  unlike = ulp.bits(actual) != ulp.bits(expected)
  bad = np.flatnonzero(wrong.any(axis=1) & unlike.any(axis=1))
  expert_of_row = functools.partial(tiling.expert_of, stage.name, rank)
  first: dict[object, int] = {}
  for row in range(len(expected)):
    row_bytes = expected[row].tobytes()
    # A token's row is the same in each of its experts.
    first.setdefault((expert_of_row(row), row_bytes), row)
    first.setdefault(row_bytes, row)
  source = np.full(len(bad), -1)
  for position, row in enumerate(bad):
    row_bytes = actual[row].tobytes()
    source[position] = first.get(
      (expert_of_row(int(row)), row_bytes), first.get(row_bytes, -1)
    )
  bad, source = bad[source >= 0], source[source >= 0]
  if not len(bad):
    return None
  exchanged = stage.expected.copy()
  tiling.rows(stage.name, exchanged, rank)[bad] = expected[source]
  owner = 'other rows'
  if expert_of_row(int(bad[0])) != tiles.NO_EXPERT:
    is_same_expert = all(
      expert_of_row(int(a)) == expert_of_row(int(b))
      for a, b in zip(bad, source)
    )
    owner += ' of the same expert' if is_same_expert else ' of other experts'
  return (
    f'as if rows of {stage.name} were {owner}',
    exchanged,
    len(bad),
  )
