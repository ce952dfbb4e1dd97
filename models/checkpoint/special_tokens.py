"""Tokens that the files beside tokenizer.json name, as transformers has them.

`tokenizer_config.json` lists added tokens (`added_tokens_decoder`) and names
special ones (`bos_token`).  Where it lists none, legacy files do:
`special_tokens_map.json` and `added_tokens.json`.  Source: `from_pretrained`
and `TokenizersBackend` of transformers 5.23, which gives an added token the
next free id, whatever id the file lists.
"""

from collections.abc import Callable, Mapping
import json
from typing import Any

import tokenizers

CONFIG = 'tokenizer_config.json'
_MAP = 'special_tokens_map.json'
_LEGACY = 'added_tokens.json'
DECODER = 'added_tokens_decoder'
_ROLES = tuple(
  f'{name}_token' for name in ('bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask')
)
_EXTRA = ('extra_special_tokens', 'additional_special_tokens')
_FLAGS = ('lstrip', 'rstrip', 'normalized', 'single_word', 'special')


def read_fields(files: Mapping[str, bytes]) -> dict[str, Any]:
  """Returns the fields on tokens in the files of a folder.

  Raises:
    ValueError: a file is not JSON.
  """
  fields = _object(files, CONFIG)
  if DECODER in fields:
    return fields
  return fields | {n: v for n, v in _object(files, _MAP).items() if v}


def spellings(fields: Mapping[str, Any]) -> dict[str, str]:
  """Returns the spelling of each special token that has a name."""
  return {
    name: _spelling(value)
    for name, value in fields.items()
    if name.endswith('_token') and isinstance(value, dict | str)
  }


def add_to(tokenizer: tokenizers.Tokenizer, files: Mapping[str, bytes]) -> None:
  """Adds the tokens that files beside tokenizer.json name.

  Raises:
    ValueError: a file is not JSON, or lists something else than tokens.
  """
  fields = read_fields(files)
  present = [*tokenizer.get_added_tokens_decoder().values()]
  reprs = {*map(repr, present)}
  tokens = [t for t in _list_tokens(fields, files) if repr(t) not in reprs]
  contents = {token.content for token in (*present, *tokens)}
  roles = _roles(fields)
  for token in tokens:
    token.special = token.special or token.content in roles
  for value in (*(fields.get(name) for name in _ROLES), *_extra(fields)):
    if value and _spelling(value) not in contents:
      contents.add(_spelling(value))
      tokens.append(_token(value, special=True))
  tokenizer.add_tokens(tokens)


def list_ids(
  files: Mapping[str, bytes], find_id: Callable[[str], int | None], size: int
) -> tuple[dict[str, int], set[str]]:
  """Returns the id of each added token, and which of these are special.

  They are those that files beside a vocabulary list.  A token that is named
  without an id has that of its piece, or the next.

  Args:
    files: of the folder.
    find_id: of a piece of the vocabulary; None: there is none.
    size: ids of the vocabulary.

  Raises:
    ValueError: a file is not JSON, or lists something else than tokens.
  """
  fields = read_fields(files)
  try:
    if DECODER in fields:
      rows = [
        (int(place), _token(row)) for place, row in fields[DECODER].items()
      ]
      ids = {token.content: place for place, token in rows}
      special = {token.content for _, token in rows if token.special}
    else:
      ids = {text: int(i) for text, i in _object(files, _LEGACY).items()}
      special = set()
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{CONFIG}: {DECODER}: expected ids and a token of each, got {error!r}'
    ) from error
  for value in (*(fields.get(name) for name in _ROLES), *_extra(fields)):
    if not value:
      continue
    special.add(_spelling(value))
    if _spelling(value) not in ids:
      place = find_id(_spelling(value))
      last = max([size - 1, *ids.values()])
      ids[_spelling(value)] = last + 1 if place is None else place
  return ids, special


def _list_tokens(
  fields: Mapping[str, Any], files: Mapping[str, bytes]
) -> list[tokenizers.AddedToken]:
  """Returns the tokens that a file lists under ids, in the order of these."""
  try:
    if DECODER in fields:
      rows = sorted((int(place), row) for place, row in fields[DECODER].items())
      return [_token(row) for _, row in rows]
    special = _roles(fields) | {*map(_spelling, _extra(fields))}
    places = sorted(
      (place, text) for text, place in _object(files, _LEGACY).items()
    )
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{CONFIG}: {DECODER}: expected ids and a token of each, got {error!r}'
    ) from error
  return [
    _token(text, special=text in special, normalized=text not in special)
    for _, text in places
  ]


def _roles(fields: Mapping[str, Any]) -> set[str]:
  """Returns the spellings of the special tokens that have a role."""
  return {*spellings({name: fields.get(name) for name in _ROLES}).values()}


def _extra(fields: Mapping[str, Any]) -> list[Any]:
  """Returns the special tokens without a role."""
  for name in _EXTRA:
    if value := fields.get(name):
      return [*(value.values() if isinstance(value, dict) else value)]
  return []


def _spelling(value: Any) -> str:
  return value['content'] if isinstance(value, dict) else str(value)


def _token(value: Any, **flags: bool) -> tokenizers.AddedToken:
  options = value if isinstance(value, dict) else {}
  flags = {name: options[name] for name in _FLAGS if name in options} | flags
  return tokenizers.AddedToken(_spelling(value), **flags)


def _object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
  try:
    content = json.loads(files.get(name, b'{}'))
  except ValueError as error:
    raise ValueError(f'{name}: expected JSON, got {error}') from error
  return content if isinstance(content, dict) else {}
