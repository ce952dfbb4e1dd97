"""How far a modelled plan may be off: as far as published ones came out."""

from collections.abc import Sequence
import dataclasses
import pathlib
import tomllib
from typing import Any

_TABLES: dict[str, list[dict[str, Any]]] = tomllib.loads(
  pathlib.Path(__file__).with_suffix('.toml').read_text()
)
_ALIKE = 4.0  # as many parameters, within this factor


@dataclasses.dataclass(frozen=True)
class PublishedRate:
  """A published plan whose tokens a second are known.

  Attributes:
    name: the model, and its devices.
    family: of machines: the first word of the name of one that ships.
    parameters: of the model.
    ratio: modelled tokens a second over published ones, nothing fitted.
  """

  name: str
  family: str
  parameters: float
  ratio: float


RATES = tuple(PublishedRate(**row) for row in _TABLES['rates'])
# Modelled over published, of one plan over another.
RATIOS = {row['name']: float(row['ratio']) for row in _TABLES['ratios']}
# Plans whose times differ by less are not told apart.
RESOLUTION = max(max(ratio, 1 / ratio) for ratio in RATIOS.values())


def similar_rates(parameters: float, family: str) -> tuple[PublishedRate, ...]:
  """Returns the published plans of the kind of a plan.

  Those of models of about the size, of the machine's family if there are any;
  of a size that nobody published, the nearest.

  Args:
    parameters: of the model.
    family: of the machine.
  """

  def factor(rate: PublishedRate) -> float:
    return max(rate.parameters / parameters, parameters / rate.parameters)

  limit = max(_ALIKE, min(map(factor, RATES)))
  alike = [rate for rate in RATES if factor(rate) <= limit]
  family_rates = [rate for rate in alike if rate.family == family]
  return tuple(family_rates or alike)


def corrected(
  value: float, rates: Sequence[PublishedRate], power: int = -1
) -> tuple[float, float]:
  """Returns the least and the most that a figure would be in truth.

  Args:
    value: modelled.
    rates: published plans of its kind; it is as far off as one of them.
    power: -1 of a rate, which was modelled `ratio` times too high; 1 of a time.
  """
  values = [value * rate.ratio**power for rate in rates]
  return min(values), max(values)


def rank_groups(
  seconds: Sequence[float], resolution: float = RESOLUTION
) -> list[tuple[int, int]]:
  """Returns the first and the last rank that each plan may have.

  Args:
    seconds: of a step, ascending.
    resolution: plans whose times differ by less than this factor are not told
      apart; a group begins with the first plan that no former one is like.
  """
  starts: list[int] = []
  for rank, time in enumerate(seconds):
    if not starts or time > resolution * seconds[starts[-1]]:
      starts.append(rank)
  ends = [*starts[1:], len(seconds)]
  return [
    (start + 1, end)
    for start, end in zip(starts, ends)
    for _ in range(start, end)
  ]
