"""Chat templates of a model's folder.

A template is a program in a file that may come from anywhere: it runs in
jinja2's sandbox, which changes nothing and reaches no attribute of Python's.
"""

from collections.abc import Mapping, Sequence
import datetime
import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

_FILE = 'chat_template.jinja'
_CONFIG = 'tokenizer_config.json'


def render(
  files: Mapping[str, bytes], messages: Sequence[Mapping[str, str]]
) -> str:
  """Returns what a model reads of a conversation, up to where it answers.

  As `apply_chat_template` of transformers, with `add_generation_prompt`.

  Args:
    files: of the model's folder, by name.
    messages: `role` and `content` each.

  Raises:
    ValueError: there is no template, or it refuses the messages.
  """
  config = _object(files.get(_CONFIG, b'{}'))
  source = _source(files, config)
  special = {
    name: value.get('content') if isinstance(value, dict) else value
    for name, value in config.items()
    if name.endswith('_token') and isinstance(value, dict | str)
  }
  try:
    template = _environment().from_string(source)
    return template.render(
      **special, messages=[*messages], add_generation_prompt=True
    )
  except (jinja2.TemplateError, TypeError, ValueError, OverflowError) as error:
    reason = ' '.join(str(error).split())
    raise ValueError(
      f'chat: expected messages that the template takes, got {reason}'
    ) from error


def _source(files: Mapping[str, bytes], config: Mapping[str, Any]) -> str:
  if _FILE in files:
    return files[_FILE].decode()
  found = config.get('chat_template')
  if isinstance(found, list):  # of several by name
    found = {t.get('name'): t.get('template') for t in found}.get('default')
  if not isinstance(found, str):
    raise ValueError(
      f'chat: expected a template in {_FILE} or {_CONFIG}, got none'
    )
  return found


def _object(content: bytes) -> dict[str, Any]:
  try:
    found = json.loads(content)
  except ValueError as error:
    raise ValueError(f'{_CONFIG}: expected JSON, got {error}') from error
  return found if isinstance(found, dict) else {}


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
  """Returns what templates are written for: transformers' environment."""
  made = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
  )
  made.filters['tojson'] = _tojson
  made.globals['raise_exception'] = _refuse
  made.globals['strftime_now'] = lambda f: datetime.datetime.now().strftime(f)
  return made


def _tojson(value: Any, **options: Any) -> str:
  # jinja2's own escapes what HTML needs.
  return json.dumps(value, **({'ensure_ascii': False} | options))


def _refuse(message: str) -> None:
  raise jinja2.TemplateError(message)
