"""generation_config.json: what ends a text."""

from collections.abc import Mapping
import dataclasses
import json

from hpmoe.models import config as config_lib

_FILE = 'generation_config.json'
_NAME = 'eos_token_id'


def applied(
  config: config_lib.ModelConfig, files: Mapping[str, bytes]
) -> config_lib.ModelConfig:
  """Returns a config with the tokens that end a text as this file has them.

  Of chat models they are more than config.json says.

  Args:
    config: sizes and options.
    files: of the model's folder, by name.

  Raises:
    ValueError: the file is damaged, or names no tokens.
  """
  try:
    fields = json.loads(files.get(_FILE, b'{}'))
    ends = fields.get(_NAME)
  except (ValueError, AttributeError) as error:
    raise ValueError(f'{_FILE}: expected an object, got {error}') from error
  if ends is None:
    return config
  ends = ends if isinstance(ends, list) else [ends]
  if not all(isinstance(end, int) and end >= 0 for end in ends):
    raise ValueError(f'{_FILE}: expected {_NAME} of integers, got {ends}')
  return dataclasses.replace(config, eos_token_id=tuple(ends))
