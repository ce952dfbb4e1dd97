"""Values as JSON has them: plain data, and fields under their keys."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import numpy as np


def rename_fields(record: Any, **keys: str) -> dict[str, Any]:
  """Returns the fields of a dataclass by key.

  Args:
    record: the dataclass; its values stay as they are.
    **keys: the key of a field, if it is not the field's name.
  """
  return {
    keys.get(field.name, field.name): getattr(record, field.name)
    for field in dataclasses.fields(record)
  }


def to_plain_data(value):
  """Returns plain data; floats that JSON lacks become strings."""
  if isinstance(value, Mapping):
    return {str(k): to_plain_data(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [to_plain_data(v) for v in value]
  if isinstance(value, np.generic):
    return to_plain_data(value.item())
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  if dataclasses.is_dataclass(value):
    names = [field.name for field in dataclasses.fields(value)]
    return {name: to_plain_data(getattr(value, name)) for name in names}
  return value
