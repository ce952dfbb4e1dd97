"""The tables of `parity_tests/data/`."""

import functools
import pathlib
import tomllib
from typing import Any

_DATA = pathlib.Path(__file__).parents[1] / 'data'


@functools.cache
def read(name: str) -> dict[str, dict[str, Any]]:
  """Returns the tables of a file of `data/`."""
  return tomllib.loads((_DATA / f'{name}.toml').read_text(encoding='utf-8'))
