"""The tokenizer of a model's folder, and that of our byte-level models."""

from collections.abc import Mapping
import json
import os
import pathlib

import tokenizers

from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import special_tokens
from hpmoe.models.checkpoint import vocabularies

# What text is encoded with.
Tokenizer = tokenizers.Tokenizer | vocabularies.Vocabulary
FILE = config_file.TOKENIZER
# After the 256 bytes, in this order.
SPECIALS = ('<|begin_of_text|>', '<|end_of_text|>')


def load(folder: str | os.PathLike[str]) -> Tokenizer:
  """Returns the tokenizer of a folder.

  Raises:
    ValueError: there is none, or it is damaged.
  """
  files = config_file.extras(pathlib.Path(folder))
  if not vocabularies.is_read([*files]):
    raise ValueError(f'{folder}: expected a folder with {FILE}, got none')
  try:
    return from_files(files)
  except ValueError as error:
    raise ValueError(f'{folder}/{error}') from error


def from_files(files: Mapping[str, bytes]) -> Tokenizer:
  """Returns the tokenizer in a folder's files; without one, that of bytes.

  It gives the ids that transformers gives: the whole text is encoded, whatever
  length the file truncates or pads to, with the tokens that other files add.

  Raises:
    ValueError: it is damaged, or in another file.
  """
  if FILE not in files:
    if vocabularies.is_read([*files]):
      return vocabularies.read(files)
    config_file.check_tokenizer(files)
    return byte_level()
  try:
    tokenizer = tokenizers.Tokenizer.from_buffer(files[FILE])
  except Exception as error:  # the library raises nothing narrower
    reason = ' '.join(str(error).split())
    raise ValueError(f'{FILE}: expected a tokenizer, got {reason}') from error
  tokenizer.no_truncation()
  tokenizer.no_padding()
  special_tokens.add_to(tokenizer, files)
  return tokenizer


def byte_level() -> tokenizers.Tokenizer:
  """Returns the tokenizer whose token 65 is the byte 65.

  Text is encoded as UTF-8. Tokens 256 and 257 are `SPECIALS`; in a text they
  are recognised by their spelling.
  """
  vocabulary = {char: byte for byte, char in enumerate(_alphabet())}
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.BPE(vocab=vocabulary, merges=[])
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  tokenizer.add_special_tokens(list(SPECIALS))
  return tokenizer


def byte_level_files() -> dict[str, bytes]:
  """Returns the files, by name, that make `byte_level` a model's tokenizer."""
  begin, end = SPECIALS
  config = dict(
    tokenizer_class='PreTrainedTokenizerFast', bos_token=begin, eos_token=end
  )
  return {
    FILE: byte_level().to_str(pretty=True).encode(),
    'tokenizer_config.json': json.dumps(config, indent=2).encode(),
  }


def _alphabet() -> list[str]:
  """Returns the character that stands for each byte in a tokenizer.json.

  Printable ones stand for themselves, the others follow from 256 on: the
  convention of GPT-2, which the library's ByteLevel has too.
  """
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  substitutes = iter(range(256, 512))
  return [chr(b if b in printable else next(substitutes)) for b in range(256)]
