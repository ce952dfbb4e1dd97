"""Scores simulated figures against published ones: errors, goals, evidence.

A goal is met only if the simulator's error is less than that of every null
predictor.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from hpmoe.backend_ascend.simulator.reproduce import null
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib


@dataclasses.dataclass(frozen=True)
class ScoredRow:
  """A row and its simulated value.

  Attributes:
    row: as published.
    value: simulated, in the row's unit.
  """

  row: witness_lib.Row
  value: float

  @property
  def error(self) -> float:
    """Simulated over published, less one."""
    return self.value / self.row.published - 1


@dataclasses.dataclass(frozen=True)
class Group:
  """Rows of one kind that are evidence: held out, and no sums of others.

  Attributes:
    name: the group.
    rows: how many of its rows are evidence.
    mean_error: mean of their absolute errors.
    worst: name of the row with the greatest.
    limit: what the mean must not exceed; None without a goal.
    nulls: mean absolute error of each null predictor, of the rows it knows.
    beside: the simulator's, of the same rows.
    unknown: by null predictor, the rows that it knows nothing of.
    withdrawal: why the group is no evidence, or ''.
  """

  name: str
  rows: int
  mean_error: float
  worst: str
  limit: float | None
  nulls: Mapping[str, float]
  beside: Mapping[str, float]
  unknown: Mapping[str, tuple[str, ...]]
  withdrawal: str = ''

  @property
  def has_skill(self) -> bool:
    """Whether all null predictors have larger errors.

    One beside the best constant must know a row: of rows that spread widely
    any constant is far off.
    """
    return bool(set(self.nulls) - {null.CONSTANT}) and all(
      self.beside[name] < error for name, error in self.nulls.items()
    )

  @property
  def holds(self) -> bool:
    within_limit = self.limit is None or self.mean_error <= self.limit
    return within_limit and (self.limit is None or self.has_skill)


@dataclasses.dataclass(frozen=True)
class Score:
  """The result of `hpmoe reproduce` for a witness.

  Attributes:
    witness: whose.
    rows: all, in the order of the witness.
    groups: of rows that are evidence.
    claims: text, whether it holds, and the reason if it does not.
    trivial: texts of the claims that a null predictor meets.
  """

  witness: witness_lib.Witness
  rows: tuple[ScoredRow, ...]
  groups: tuple[Group, ...]
  claims: tuple[tuple[str, bool, str], ...]
  trivial: tuple[str, ...]

  @property
  def holds(self) -> bool:
    """Whether every goal is met; claims have no part in it."""
    return all(group.holds for group in self.groups)

  @property
  def failing_claims(self) -> tuple[tuple[str, str], ...]:
    """Text and reason of each claim that does not hold."""
    return tuple(
      (text, reason) for text, holds, reason in self.claims if not holds
    )

  @property
  def worst_fitted(self) -> float:
    """The largest absolute error of a fitted row."""
    return max((abs(s.error) for s in self.rows if s.row.fitted), default=0.0)


def _mean(rows: Sequence[ScoredRow]) -> float:
  return sum(abs(scored_row.error) for scored_row in rows) / len(rows)


def _group(
  name: str, rows: Sequence[ScoredRow], limit, predicted, withdrawal: str
) -> Group:
  worst = max(rows, key=lambda scored_row: abs(scored_row.error)).row.name
  rows_by_predictor = {
    n: covered_rows
    for n, values in predicted.items()
    if (covered_rows := [s for s in rows if s.row.name in values])
  }
  scored_by_predictor = {
    n: [ScoredRow(s.row, predicted[n][s.row.name]) for s in covered_rows]
    for n, covered_rows in rows_by_predictor.items()
  }
  unknown = {
    n: tuple(s.row.name for s in rows if s.row.name not in values)
    for n, values in predicted.items()
  }
  return Group(
    name,
    len(rows),
    _mean(rows),
    worst,
    limit,
    {n: _mean(scores) for n, scores in scored_by_predictor.items()},
    {n: _mean(scores) for n, scores in rows_by_predictor.items()},
    {n: names for n, names in unknown.items() if names},
    withdrawal,
  )


def _meets(claim: witness_lib.Claim, witness, values) -> bool:
  """Whether a null predictor with these values meets a claim."""
  fitted_values = {
    row.name: row.published for row in witness.rows if row.fitted
  }
  try:
    return not claim.fails(fitted_values | values)
  except KeyError:
    return False


def score(
  witness: witness_lib.Witness,
  values: witness_lib.Values,
  machines: witness_lib.Machines,
) -> Score:
  """Returns errors, by row and by group of rows that are evidence.

  Args:
    witness: whose.
    values: simulated, by row.
    machines: that they were simulated on; the roofline has their rates.

  Raises:
    ValueError: a goal for a group without evidence.
  """
  rows = tuple(ScoredRow(row, float(values[row.name])) for row in witness.rows)
  predicted = null.predictions(witness, machines)
  limits = {goal.group: goal.limit for goal in witness.goals}
  reasons = {w.group: w.reason for w in witness.withdrawals}
  evidence: dict[str, list[ScoredRow]] = {}
  for scored_row in rows:
    if scored_row.row.counts:
      evidence.setdefault(scored_row.row.group, []).append(scored_row)
  missing = set(limits) - set(evidence)
  if missing:
    raise ValueError(
      f'goals: expected a group with held-out rows, got {sorted(missing)}'
    )
  return Score(
    witness,
    rows,
    tuple(
      _group(n, g, limits.get(n), predicted, reasons.get(n, ''))
      for n, g in evidence.items()
    ),
    tuple(
      (claim.text, not (reason := claim.fails(values)), reason)
      for claim in witness.claims
    ),
    tuple(
      claim.text
      for claim in witness.claims
      if any(_meets(claim, witness, p) for p in predicted.values() if p)
    ),
  )
