"""What other distributions add to the judge: objects behind entry points."""

import functools
import importlib.metadata
from typing import Any

BACKENDS = 'hpmoe.backends'  # of `candidates.candidate_kind.Backend`
COMMANDS = 'hpmoe.commands'  # mappings from a purpose to `cli.Command`s
INSTALL = "pip install 'hyperparallel-moe[ascend]'"


@functools.cache
def _read_entry_points() -> Any:
  # Every installed distribution is read, so that is done once.
  return importlib.metadata.entry_points()


def explain_missing(name: str) -> str:
  """Returns what a user reads who asked for something of the backend."""
  return (
    f'{name}: expected the Ascend backend to be installed, got the judge '
    f'alone; {INSTALL} installs it'
  )


def load_plugins(group: str) -> list[Any]:
  """Returns the objects that installed distributions offer in a group."""
  return [entry.load() for entry in _read_entry_points().select(group=group)]
