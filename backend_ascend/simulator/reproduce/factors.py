"""Factors of a system over others: the greatest and the mean of many."""

from collections.abc import Iterator, Mapping, Sequence
import math

WHICH = ('max', 'geomean')
Factors = Mapping[str, Mapping[str, Sequence[float]]]


def row_name(group: str, system: str, which: str) -> str:
  return f'{group} over {system}, {which}'


def published(factors: Factors) -> Iterator[tuple[str, str, str, float]]:
  """Yields (group, system, name of a row, factor)."""
  for group, systems in factors.items():
    for system, values in systems.items():
      for which, value in zip(WHICH, values):
        yield group, system, row_name(group, system, which), value


def values(group: str, system: str, gains: Sequence[float]) -> dict[str, float]:
  """Returns the rows of a system."""
  mean = math.exp(sum(map(math.log, gains)) / len(gains))
  return {
    row_name(group, system, which): value
    for which, value in zip(WHICH, (max(gains), mean))
  }
