"""Simulated beside published: errors, goals, and which rows are evidence."""

from collections.abc import Sequence
import dataclasses

from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib


@dataclasses.dataclass(frozen=True)
class Scored:
  """A row with what the simulator says.

  Attributes:
    row: as published.
    simulated: in the row's unit.
  """

  row: witness_lib.Row
  simulated: float

  @property
  def error(self) -> float:
    """Simulated over published, less one."""
    return self.simulated / self.row.published - 1


@dataclasses.dataclass(frozen=True)
class Group:
  """Rows of one kind that were held out.

  Attributes:
    name: the group.
    rows: how many of its rows are held out.
    mean_error: mean of their absolute errors.
    worst: name of the row with the greatest.
    limit: what the mean must not exceed; None where nothing is asked.
  """

  name: str
  rows: int
  mean_error: float
  worst: str
  limit: float | None

  @property
  def holds(self) -> bool:
    return self.limit is None or self.mean_error <= self.limit


@dataclasses.dataclass(frozen=True)
class Score:
  """What `hpmoe reproduce` says of a witness.

  Attributes:
    witness: whose.
    rows: all, in the order of the witness.
    groups: of held-out rows.
    claims: text, whether it holds, and why it does not.
  """

  witness: witness_lib.Witness
  rows: tuple[Scored, ...]
  groups: tuple[Group, ...]
  claims: tuple[tuple[str, bool, str], ...]

  @property
  def holds(self) -> bool:
    """Whether every goal is met and every claim holds."""
    return all(g.holds for g in self.groups) and all(
      holds for _, holds, _ in self.claims
    )

  @property
  def worst_fitted(self) -> float:
    """The greatest absolute error of a fitted row; what fitting left over."""
    return max((abs(s.error) for s in self.rows if s.row.fitted), default=0.0)


def _group(name: str, rows: Sequence[Scored], limit: float | None) -> Group:
  errors = [abs(scored.error) for scored in rows]
  worst = max(rows, key=lambda scored: abs(scored.error))
  return Group(
    name, len(rows), sum(errors) / len(errors), worst.row.name, limit
  )


def _judged(claim: witness_lib.Claim, values) -> tuple[str, bool, str]:
  holds = claim.holds(values)
  return claim.text, holds, '' if holds else claim.why(values)


def score(witness: witness_lib.Witness, values: witness_lib.Values) -> Score:
  """Returns errors, by row and by group of held-out rows."""
  rows = tuple(Scored(row, float(values[row.name])) for row in witness.rows)
  limits = {goal.group: goal.limit for goal in witness.goals}
  held_out: dict[str, list[Scored]] = {}
  for scored in rows:
    if not scored.row.fitted:
      held_out.setdefault(scored.row.group, []).append(scored)
  missing = set(limits) - set(held_out)
  if missing:
    raise ValueError(
      f'goals: expected a group with held-out rows, got {sorted(missing)}'
    )
  return Score(
    witness,
    rows,
    tuple(_group(n, g, limits.get(n)) for n, g in held_out.items()),
    tuple(_judged(claim, values) for claim in witness.claims),
  )
