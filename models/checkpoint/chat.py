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
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import special_tokens

_FILE = 'chat_template.jinja'
_CONFIG = special_tokens.CONFIG


def render(
  files: Mapping[str, bytes], messages: Sequence[Mapping[str, str]]
) -> str:
  """Returns the prompt of a conversation, up to the model's answer.

  As `apply_chat_template` of transformers, with `add_generation_prompt`.

  Args:
    files: of the model's folder, by name.
    messages: `role` and `content` each.

  Raises:
    ValueError: there is no template, or it refuses the messages.
  """
  fields = special_tokens.read_fields(files)
  source = _source(files, fields)
  special = special_tokens.spellings(fields)
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


def _source(files: Mapping[str, bytes], fields: Mapping[str, Any]) -> str:
  """Returns the template 'default' in a folder's files."""
  for name in (_FILE, f'{config_file.TEMPLATES}/default.jinja'):
    if name in files:
      return files[name].decode()
  template = fields.get('chat_template')
  if isinstance(template, list):  # of several by name
    by_name = {t.get('name'): t.get('template') for t in template}
    template = by_name.get('default')
  if not isinstance(template, str):
    unread = [name for name in files if name.startswith(config_file.TEMPLATES)]
    raise ValueError(
      f'chat: expected a template in {_FILE} or {_CONFIG}, got '
      f'{", ".join(unread) or "none"}'
    )
  return template


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
  """Returns the Jinja environment of transformers' chat templates."""
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[jinja2.ext.loopcontrols, _Generation],
  )
  environment.filters['tojson'] = _tojson
  environment.globals['raise_exception'] = _refuse
  environment.globals['strftime_now'] = lambda f: (
    datetime.datetime.now().strftime(f)
  )
  return environment


class _Generation(jinja2.ext.Extension):
  """The block `{% generation %}`, which marks what training learns: its text.

  Source: `AssistantTracker` of transformers 5.23, which marks and adds nothing.
  """

  tags = {'generation'}  # noqa: RUF012, as jinja2 types it

  def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
    """Returns the statements of a block, in a scope of their own."""
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    return jinja2.nodes.Scope(body, lineno=line)


def _tojson(value: Any, **options: Any) -> str:
  # jinja2's own escapes what HTML needs.
  return json.dumps(value, **({'ensure_ascii': False} | options))


def _refuse(message: str) -> None:
  raise jinja2.TemplateError(message)
