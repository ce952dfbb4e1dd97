"""A log of outcomes: one JSON object a line, so that a stopped run goes on."""

from collections.abc import Iterator
import dataclasses
import json
import pathlib
from typing import Any


def read(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the fields of each outcome of a log that may not exist yet."""
  for line in path.read_text().splitlines() if path.exists() else ():
    try:
      yield json.loads(line)
    except json.JSONDecodeError:  # its writer was stopped
      continue


def append(path: pathlib.Path, outcome: Any) -> None:
  """Adds a dataclass to the log."""
  with path.open('a') as file:
    file.write(json.dumps(dataclasses.asdict(outcome)) + '\n')
