"""Text as tokens: train and held-out parts, and batches that a seed decides.

One pipeline for all commands: documents are streamed from a file or a folder,
and become the tokens of a model's tokenizer, or bytes.  A batch is a function
of (seed, position) and of nothing else, so a run that stops and resumes reads
what a run in one piece reads.
"""

from collections.abc import Iterator
import dataclasses
import json
import os
import pathlib
import tempfile
from typing import Any
import zlib

from jaxtyping import Int
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import vocabularies

SHIPPED = pathlib.Path(__file__).parent / 'data' / 'persuasion.txt'

_SUFFIXES = ('.jsonl', '.txt')
# Bytes of whole lines that are encoded at once.
_PIECE = 1 << 16
# Of a model of bytes: those, and what begins and ends a text.
_OF_BYTES = 258
# Part of a text that a model is judged on and does not learn from.
_HELD_OUT = 0.05
# Tokens that `bigram_entropy` counts, at most.
_MAX_COUNTED = 1 << 24


@dataclasses.dataclass(frozen=True)
class Encoding:
  """How text becomes tokens.

  Attributes:
    tokenizer: of `checkpoint/tokenizer.py`; None for bytes, whose tokens are
      their values.
    end: the token between two documents; None for none.
    vocabulary: tokens that the model has.
  """

  tokenizer: Any = None
  end: int | None = None
  vocabulary: int = 256

  @property
  def unit(self) -> str:
    """What a token is called."""
    return 'byte' if self.tokenizer is None else 'token'

  def encode(self, text: bytes) -> Int[np.ndarray, ' N']:
    """Returns the tokens `[N]` int64 of a piece of text.

    Raises:
      ValueError: the model lacks one.
    """
    if self.tokenizer is None:
      ids = np.frombuffer(text, np.uint8).astype(np.int64)
    else:
      encoding = self.tokenizer.encode(
        text.decode(errors='replace'), add_special_tokens=False
      )
      ids = np.array(encoding.ids, np.int64)
    if ids.size and ids.max() >= self.vocabulary:
      raise ValueError(
        f'text: expected tokens below vocab_size={self.vocabulary}, got '
        f'{ids.max()}'
      )
    return ids


def encoding_of(
  model: str | os.PathLike[str], config: config_lib.ModelConfig
) -> Encoding:
  """Returns the encoding of a model: its tokenizer's, or bytes.

  Args:
    model: its folder, a file in it, or a name without files.
    config: sizes and options.

  Raises:
    ValueError: its tokenizer.json is damaged, or its vocabulary is in another
      file.
  """
  end = next(iter(config.eos_token_id), None)
  folder = _folder_of(model)
  names = [path.name for path in folder.glob('*')]
  if not vocabularies.is_read(names):
    config_file.check_tokenizer(names)
    return Encoding(None, end, config.vocab_size)
  # Only here: bytes need no library.
  from hpmoe.models.checkpoint import tokenizer

  return Encoding(tokenizer.load(folder), end, config.vocab_size)


def caution(
  model: str | os.PathLike[str], config: config_lib.ModelConfig
) -> str:
  """Returns a warning if a model of words reads bytes, or ''.

  Args:
    model: as of `encoding_of`.
    config: sizes and options.
  """
  if vocabularies.is_read([p.name for p in _folder_of(model).glob('*')]):
    return ''
  if config.vocab_size == _OF_BYTES:
    return ''
  return (
    f'{model}: its vocabulary has {config.vocab_size} tokens, and no '
    f'{config_file.TOKENIZER}: text is read as bytes'
  )


def _folder_of(model: str | os.PathLike[str]) -> pathlib.Path:
  path = pathlib.Path(model)
  return path.parent if path.is_file() else path


@dataclasses.dataclass(frozen=True)
class Data:
  """A data set.

  Attributes:
    tokens: `[S]`, mapped from a file without a name.
    crc: of its text, and of its tokenizer.
  """

  tokens: Int[np.ndarray, ' S']
  crc: int


def read(
  path: str | os.PathLike[str] | None = None,
  encoding: Encoding = Encoding(),
) -> Data:
  """Returns the tokens of a text; None means the one shipped.

  Memory holds one piece of it, a disk all its tokens.

  Args:
    path: a file or a folder, see `documents`.
    encoding: what its tokens are.

  Raises:
    OSError: a file cannot be read.
    ValueError: a file is not as `documents` wants it, or has a token that the
      model lacks.
  """
  tokenizer = encoding.tokenizer
  crc = zlib.crc32(tokenizer.to_str().encode()) if tokenizer else 0
  dtype = np.uint16 if encoding.vocabulary <= 1 << 16 else np.uint32
  with tempfile.TemporaryFile(prefix='hpmoe-tokens-') as file:
    for number, document in enumerate(documents(path)):
      if number and encoding.end is not None:
        file.write(dtype(encoding.end).tobytes())
      for piece in document:
        crc = zlib.crc32(piece, crc)
        file.write(encoding.encode(piece).astype(dtype).tobytes())
    if not file.tell():
      return Data(np.zeros(0, dtype), crc)
    file.flush()
    return Data(np.asarray(np.memmap(file, dtype, 'r')), crc)


def documents(
  path: str | os.PathLike[str] | None = None,
) -> Iterator[Iterator[bytes]]:
  """Yields documents, each in pieces of whole lines.

  A .jsonl has a document in each line, under `text`; any other file is one.
  Of a folder these are all .txt and .jsonl below it, by their paths.

  Raises:
    OSError: a file cannot be read.
    ValueError: a folder has no such file, or a line of a .jsonl no text.
  """
  for file in _files(pathlib.Path(SHIPPED if path is None else path)):
    if file.suffix == '.jsonl':
      yield from _lines(file)
    else:
      yield _pieces(file)


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  if not path.is_dir():
    return [path]
  files = [p for p in path.rglob('*') if p.suffix in _SUFFIXES and p.is_file()]
  if not files:
    raise ValueError(f'{path}: expected files {_SUFFIXES} in it, got none')
  return sorted(files, key=lambda p: p.relative_to(path).parts)


def _pieces(path: pathlib.Path) -> Iterator[bytes]:
  with open(path, 'rb') as file:
    while lines := file.readlines(_PIECE):
      yield b''.join(lines)


def _lines(path: pathlib.Path) -> Iterator[Iterator[bytes]]:
  with open(path, 'rb') as file:
    for number, line in enumerate(file, 1):
      if line.strip():
        yield iter((_text_of(line, f'{path}:{number}'),))


def _text_of(line: bytes, location: str) -> bytes:
  try:
    content = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{location}: expected JSON, got {error}') from error
  text = content.get('text') if isinstance(content, dict) else None
  if not isinstance(text, str):
    raise ValueError(
      f'{location}: expected an object with a text, got {str(content)[:40]}'
    )
  return text.encode(errors='replace')


def split(
  text: Int[np.ndarray, ' S'],
) -> tuple[Int[np.ndarray, ' T'], Int[np.ndarray, ' H']]:
  """Splits a text; returns the training part and the held-out end."""
  cut = len(text) - int(len(text) * _HELD_OUT)
  return text[:cut], text[cut:]


def batch(
  text: Int[np.ndarray, ' S'],
  length: int,
  size: int,
  seed: int,
  position: int,
) -> Int[np.ndarray, 'B T+1']:
  """Returns batch number `position`, `[B, T + 1]` int32: inputs and targets.

  Row b holds `length + 1` consecutive tokens; its first `length` are inputs and
  its last `length` the targets, one token on. Where a row begins is uniform and
  depends on (seed, position) alone.

  Args:
    text: `[S]` tokens.
    length: T, tokens of one sequence.
    size: B, sequences of one batch.
    seed: of the whole run.
    position: number of the batch, from 0.

  Raises:
    ValueError: a number is out of range, or the text is shorter than a row.
  """
  _check_positive('length', length)
  _check_positive('size', size)
  check_length(text, length)
  # A generator of its own for each batch, from a hash of both numbers: numpy
  # documents that SeedSequence and Philox keep their streams.
  bits = np.random.Philox(np.random.SeedSequence([seed, position]))
  draws = bits.random_raw(size) % np.uint64(len(text) - length)
  rows = draws.astype(np.int64)[:, None] + np.arange(length + 1)
  return text[rows].astype(np.int32)


def windows(
  text: Int[np.ndarray, ' S'], length: int, size: int
) -> list[Int[np.ndarray, 'B T+1']]:
  """Returns the whole text in order, as batches of the shape of `batch`.

  Each target stands in one window and no window overlaps another's targets;
  what does not fill a last batch is left out.

  Raises:
    ValueError: the text does not fill one batch.
  """
  rows = max(0, len(text) - 1) // length
  if rows < size:
    raise ValueError(
      f'text: expected at least {size * length + 1} tokens, one batch of '
      f'{size} sequences of {length}, got {len(text)}'
    )
  starts = np.arange(rows - rows % size) * length
  cut = text[starts[:, None] + np.arange(length + 1)].astype(np.int32)
  return list(cut.reshape(-1, size, length + 1))


def check_length(text: Int[np.ndarray, ' S'], length: int) -> None:
  """Refuses a text that is shorter than one sequence and its last target.

  Raises:
    ValueError: it is.
  """
  if len(text) < length + 1:
    raise ValueError(
      f'text: expected at least {length + 1} tokens, one sequence of {length} '
      f'and the one after it, got {len(text)}'
    )


def bigram_entropy(text: Int[np.ndarray, ' S']) -> float:
  """Returns the entropy of a token given the one before it, in nats.

  H = - sum over pairs (a, b) of p(a, b) ln p(b | a), with p counted on the
  text itself, of a longer one on its first 2^24 tokens. No model that sees one
  token has a lower mean loss on this text, so a loss below it shows that more
  context is used. Divide by ln 2 for bits.

  Raises:
    ValueError: the text has no pair.
  """
  if len(text) < 2:
    raise ValueError(f'text: expected at least 2 tokens, got {len(text)}')
  tokens = text[:_MAX_COUNTED].astype(np.int64)
  values = int(tokens.max()) + 1
  pairs, n = np.unique(tokens[:-1] * values + tokens[1:], return_counts=True)
  first = np.bincount(pairs // values, weights=n, minlength=values)
  return float(-(n * np.log(n / first[pairs // values])).sum() / n.sum())


def _check_positive(name: str, value: int) -> None:
  if value < 1:
    raise ValueError(f'{name}: expected a positive integer, got {value}')
