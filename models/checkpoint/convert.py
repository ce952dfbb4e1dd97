"""Folders of weights in any of the formats, read by what lies in them."""

import os
import pathlib
from typing import Any

from hpmoe.models.checkpoint import atomic_folder
from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import hf_folder
from hpmoe.models.checkpoint import mindspore_folder
from hpmoe.models.checkpoint import weights as weights_lib

# A module each: `HELP`, `is_one`, `read` and `write`.
FORMATS: dict[str, Any] = {'hf': hf_folder, 'mindspore': mindspore_folder}


def format_of(path: str | os.PathLike[str]) -> str:
  """Returns the name of the format of a folder.

  Raises:
    ValueError: it is no folder, or holds weights in none or several formats.
  """
  folder = pathlib.Path(path)
  if not folder.is_dir():
    raise ValueError(f'{folder}: expected a folder, got none')
  formats = [name for name, form in FORMATS.items() if form.is_one(folder)]
  if len(formats) != 1:
    raise ValueError(
      f'{folder}: expected weights in one of {list(FORMATS)}, got '
      f'{formats or "none"}'
    )
  return formats[0]


def read(
  path: str | os.PathLike[str], dtype: str | None = None
) -> weights_lib.Weights:
  """Returns the weights of a folder in any format; reads only headers.

  Args:
    path: the folder.
    dtype: to round weights to; None takes the config's, and then no weight may
      be rounded.

  Raises:
    OSError: a file cannot be read.
    ValueError: what is there is not a model's; see `hf_folder.read`.
  """
  return FORMATS[format_of(path)].read(path, dtype)


def write(
  path: str | os.PathLike[str], weights: weights_lib.Weights, form: str = 'hf'
) -> None:
  """Writes a folder, which is there whole or not at all.

  Args:
    path: a folder that is not there yet.
    weights: what.
    form: a key of `FORMATS`.

  Raises:
    OSError: a file cannot be written.
    ValueError: something is there, or a parameter is damaged or not finite.
  """
  with atomic_folder.writing(path) as unfinished:
    config_file.write_json(unfinished / config_file.NAME, weights.fields)
    for name, content in weights.extras.items():
      (unfinished / name).parent.mkdir(exist_ok=True)
      (unfinished / name).write_bytes(content)
    FORMATS[form].write(unfinished, weights)
