"""Vocabularies of sentencepiece and tiktoken, read by their own libraries.

A `Vocabulary` has what callers need of `tokenizers.Tokenizer`.  Text is cut at
the tokens that other files of the folder add, longest first; what lies between
them goes to the library, piece by piece, as the tokenizers without a
tokenizer.json in transformers do it.  Decoded text leaves special ones out.
"""

import ast
import base64
from collections.abc import Callable, Collection, Mapping, Sequence
import functools
import importlib
import itertools
import re
from typing import Any, NamedTuple
import zlib

from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import special_tokens

PIECES, RANKS = config_file.PIECES, config_file.RANKS
_INSTALL = "pip install 'hyperparallel-moe[vocabularies]'"
# Classes whose text begins with bos_token where the folder does not say it.
# Source: transformers 5.24; openPangu's and InternLM's own code.
_BEGINNING = re.compile(r'(CodeLlama|Llama|InternLM2?|Pangu)Tokenizer(Fast)?')
_REPLACEMENT = '\ufffd'
# Tokens before new ones that decide how their text is joined on.
_CONTEXT = 16


class Encoded(NamedTuple):
  """Tokens of a text."""

  ids: list[int]


class Vocabulary:
  """Text to tokens and back.

  Args:
    added_ids: id of each added token.
    special: added tokens that are no text.
    begin: the tokens before a text; `end`: those after it.
    encode: of the library: text to ids.
    decode: of the library: ids to text.
    size: ids of the library.
    crc: of the files.
  """

  def __init__(
    self,
    added_ids: Mapping[str, int],
    special: Collection[str],
    begin: Sequence[int],
    end: Sequence[int],
    encode: Callable[[str], list[int]],
    decode: Callable[[list[int]], str],
    size: int,
    crc: int,
  ):
    self._ids_of_added, self._begin, self._end = (
      dict(added_ids),
      [*begin],
      [*end],
    )
    self._encode, self._decode = encode, decode
    self._size, self._crc = (
      max([size, *(i + 1 for i in added_ids.values())]),
      crc,
    )
    self._library_size = size
    self._texts = {i: '' if t in special else t for t, i in added_ids.items()}
    spellings = sorted(self._ids_of_added, key=len, reverse=True)
    self._cut = re.compile(f'({"|".join(map(re.escape, spellings))})')

  def encode(self, text: str, add_special_tokens: bool = True) -> Encoded:
    """Returns the tokens of a text."""
    ids: list[int] = []
    for part in self._cut.split(text) if self._ids_of_added else [text]:
      if part in self._ids_of_added:
        ids.append(self._ids_of_added[part])
      elif part:
        ids += self._encode(part)
    return Encoded(self._begin + ids + self._end if add_special_tokens else ids)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of tokens, without special ones."""
    own_ids = [int(i) for i in ids if self._texts.get(int(i)) != '']
    runs = itertools.groupby(own_ids, lambda i: i in self._texts)
    return ''.join(
      ''.join(self._texts[i] for i in run)
      if is_added
      else self._decode([i for i in run if i < self._library_size])
      for is_added, run in runs
    )

  def stream(self, prompt: Sequence[int]) -> Callable[[int], str]:
    """Returns a function of each next token: the text that it completes."""
    before, pending = [*prompt][-_CONTEXT:], []

    def step(token: int) -> str:
      nonlocal before, pending
      pending.append(token)
      text_before, text = self.decode(before), self.decode(before + pending)
      if text.endswith(_REPLACEMENT) or len(text) <= len(text_before):
        return ''
      before, pending = (before + pending)[-_CONTEXT:], []
      return text[len(text_before) :]

    return step

  def get_vocab_size(self) -> int:
    """Returns the number of ids."""
    return self._size

  def to_str(self) -> str:
    """Returns a text that differs for vocabularies that do."""
    return f'{self._crc} {sorted(self._ids_of_added.items())}'


def find_file(names: Sequence[str]) -> str | None:
  """Returns the file that is read here, of a folder's; None: there is none."""
  return next((name for name in (PIECES, RANKS) if name in names), None)


def is_read(names: Sequence[str]) -> bool:
  """Says whether a folder of such files has a tokenizer that is read here."""
  return config_file.TOKENIZER in names or find_file(names) is not None


def read(files: Mapping[str, bytes]) -> Vocabulary:
  """Returns the vocabulary of a folder without tokenizer.json.

  Args:
    files: its files, of which `find_file` finds one.

  Raises:
    ValueError: it is damaged, its library is not installed, or tokens are not
      said; names the file.
  """
  name = find_file([*files])
  assert name is not None
  try:
    return (_read_pieces if name == PIECES else _read_ranks)(files)
  except ImportError as error:
    raise ValueError(
      f'{name}: expected {error.name or error} to be installed, which reads '
      f'it, got none: {_INSTALL}; or {config_file.TOKENIZER} beside it'
    ) from error


def _read_pieces(files: Mapping[str, bytes]) -> Vocabulary:
  library = importlib.import_module('sentencepiece')
  try:
    pieces = library.SentencePieceProcessor(model_proto=files[PIECES])
  except Exception as error:  # of C++, none narrower
    raise ValueError(
      f'{PIECES}: expected a model of sentencepiece, got {_shorten(error)}'
    ) from error
  size = pieces.get_piece_size() if files[PIECES] else 0
  if not size:
    raise ValueError(f'{PIECES}: expected a model of sentencepiece, got none')

  def find_id(token: str) -> int | None:
    place = pieces.piece_to_id(token)
    is_known = (
      pieces.id_to_piece(place) == token if 0 <= place < size else False
    )
    return place if is_known else None

  return _make(
    files,
    find_id,
    pieces.encode,
    # Control pieces have no text.
    pieces.decode,
    size,
    PIECES,
  )


def _read_ranks(files: Mapping[str, bytes]) -> Vocabulary:
  library = importlib.import_module('tiktoken')
  fields = special_tokens.read_fields(files)
  if special_tokens.DECODER not in fields:
    raise ValueError(
      f'{RANKS}: expected {special_tokens.DECODER} in {special_tokens.CONFIG}, '
      'which has the tokens that are no ranks, got none'
    )
  try:
    rows = (line.split() for line in files[RANKS].splitlines() if line)
    ranks = {base64.b64decode(text): int(rank) for text, rank in rows}
  except ValueError as error:
    raise ValueError(
      f'{RANKS}: expected lines of a token in base64 and its rank, got '
      f'{_shorten(error)}'
    ) from error
  encoding = library.Encoding(
    RANKS,
    pat_str=_find_pattern(files),
    mergeable_ranks=ranks,
    special_tokens={},
  )
  return _make(
    files,
    lambda token: ranks.get(token.encode()),
    encoding.encode_ordinary,
    functools.partial(encoding.decode, errors='replace'),
    len(ranks),
    RANKS,
  )


def _make(
  files: Mapping[str, bytes],
  find_id: Callable[[str], int | None],
  encode: Callable[[str], list[int]],
  decode: Callable[[list[int]], str],
  size: int,
  name: str,
) -> Vocabulary:
  fields = special_tokens.read_fields(files)
  added_ids, special = special_tokens.list_ids(files, find_id, size)
  roles = special_tokens.spellings(fields)
  is_beginning = _BEGINNING.fullmatch(str(fields.get('tokenizer_class')))
  ends: list[list[int]] = []
  for role, default in (('bos', bool(is_beginning)), ('eos', False)):
    token = roles.get(f'{role}_token')
    is_there = fields.get(f'add_{role}_token')
    is_there = default if is_there is None else is_there
    ends.append([added_ids[token]] if is_there and token in added_ids else [])
  begin, end = ends
  crc = zlib.crc32(files[name])
  return Vocabulary(added_ids, special, begin, end, encode, decode, size, crc)


def _find_pattern(files: Mapping[str, bytes]) -> str:
  """Returns the pattern that cuts text, of the folder's own code.

  The code is parsed and never run: the pattern is the constant `pat_str`, or
  constants joined, as `'|'.join([...])`.

  Raises:
    ValueError: there is no such constant.
  """
  for name, content in files.items():
    if not config_file.is_code(name):
      continue
    try:
      tree = ast.parse(content)
    except (SyntaxError, ValueError):
      continue
    for node in ast.walk(tree):
      targets = node.targets if isinstance(node, ast.Assign) else ()
      names = {t.id.lower() for t in targets if isinstance(t, ast.Name)}
      if isinstance(node, ast.Assign) and 'pat_str' in names:
        pattern = _evaluate(node.value)
        if pattern is not None:
          return pattern
  raise ValueError(
    f'{RANKS}: expected pat_str = TEXT in a tokenization_*.py beside it, which '
    'says how text is cut, got none'
  )


def _evaluate(node: ast.expr) -> str | None:
  """Returns the text of a constant, or of constants joined; None: neither."""
  try:
    value = ast.literal_eval(node)
    return value if isinstance(value, str) else None
  except ValueError:
    pass
  if (
    isinstance(node, ast.Call)
    and isinstance(node.func, ast.Attribute)
    and node.func.attr == 'join'
    and len(node.args) == 1
  ):
    try:
      between: Any = ast.literal_eval(node.func.value)
      return between.join(ast.literal_eval(node.args[0]))
    except (AttributeError, TypeError, ValueError):
      return None
  return None


def _shorten(error: Exception) -> str:
  return ' '.join(str(error).split())[:120] or type(error).__name__
