"""config.json, and the files beside weights that travel with them."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

from hpmoe.models import config as config_lib

NAME = 'config.json'
TOKENIZER = 'tokenizer.json'
_EXTRAS = (
  'chat_template.jinja',
  'generation_config.json',
  'merges.txt',
  'special_tokens_map.json',
  TOKENIZER,
  'tokenizer.model',
  'tokenizer_config.json',
  'vocab.json',
)


def read(
  folder: pathlib.Path,
) -> tuple[dict[str, Any], config_lib.ModelConfig]:
  """Returns the contents of config.json, and what they mean.

  Weights in float16 are float32 from here on: every value is one.

  Raises:
    ValueError: there is no such file, it is not JSON, or it is not the config
      of a model here; names the field.
  """
  path = folder / NAME
  if not path.is_file():
    raise ValueError(f'{folder}: expected a folder with {NAME}, got none')
  fields = config_lib.read_json(path)
  known = {family.architecture for family in config_lib.FAMILIES.values()}
  for name in fields.get('architectures') or ():
    if name not in known:
      raise ValueError(
        f'{path}: architectures: expected one of {sorted(known)}, got {name!r}'
      )
  widened = {
    name: 'float32'
    for name in ('dtype', 'torch_dtype')
    if fields.get(name) == 'float16'
  }
  try:
    return fields, config_lib.from_hf(fields | widened)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def described(fields: Mapping[str, Any], dtype: str) -> dict[str, Any]:
  """Returns the contents of config.json as they are true of weights read."""
  kept = {k: v for k, v in fields.items() if k != 'quantization_config'}
  name = 'torch_dtype' if 'torch_dtype' in kept else 'dtype'
  return kept | {name: dtype}


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  path.write_text(json.dumps(content, indent=2, sort_keys=True) + '\n')


def extras(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns the files of a folder that belong to its model's text, by name."""
  found = [name for name in _EXTRAS if (folder / name).is_file()]
  return {name: (folder / name).read_bytes() for name in found}
