"""Fields of a record under the keys that a command's JSON has for them."""

import dataclasses
from typing import Any


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
