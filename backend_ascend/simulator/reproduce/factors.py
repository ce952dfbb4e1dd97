"""Speed-ups of one system over others: the maximum and the mean of many."""

from collections.abc import Iterator, Mapping, Sequence
import math

STATISTICS = ('max', 'geomean')
Factors = Mapping[str, Mapping[str, Sequence[float]]]


def row_name(group: str, system: str, statistic: str) -> str:
  return f'{group} over {system}, {statistic}'


def published(factors: Factors) -> Iterator[tuple[str, str, str, float]]:
  """Yields (group, system, name of a row, factor)."""
  for group, systems in factors.items():
    for system, values in systems.items():
      for statistic, value in zip(STATISTICS, values):
        yield group, system, row_name(group, system, statistic), value


def values(group: str, system: str, gains: Sequence[float]) -> dict[str, float]:
  """Returns the rows of a system."""
  mean = math.exp(sum(map(math.log, gains)) / len(gains))
  return {
    row_name(group, system, statistic): value
    for statistic, value in zip(STATISTICS, (max(gains), mean))
  }
