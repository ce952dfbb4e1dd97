"""Makes a vocabulary with its own library, and what transformers makes of it.

Run as: python vocabulary_torch_testing.py FOLDER bpe|unigram|tiktoken
In FOLDER, made by this script, ids.json has texts and the ids of transformers,
which this script holds to be those of the library.
"""

import base64
import json
import pathlib
import sys

import sentencepiece
import tiktoken
from tiktoken import _educational
import transformers
from transformers.convert_slow_tokenizer import TikTokenConverter

# None begins with a space: LlamaTokenizer then adds none, sentencepiece one.
TEXTS = (
  'Anne  went home.',
  'a na\u00efve \u732b 1234567',
  'Sir Walter\n\tElliot\r\n of 1816',
)
_WORDS = 'Sir Walter Elliot, of Kellynch Hall, went home with Anne in 1814. '
_PATTERN = (
  r"""[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+|[^\s\p{L}\p{N}]+"""
)


def main(name: str, kind: str) -> None:
  folder = pathlib.Path(name)
  folder.mkdir()
  if kind == 'tiktoken':
    ids = _write_ranks(folder / 'tiktoken.model')
  else:
    ids = _write_pieces(folder / 'tokenizer.model', kind)
  (folder / 'ids.json').write_text(json.dumps([*zip(TEXTS, ids)]))


def _write_pieces(path: pathlib.Path, kind: str) -> list[list[int]]:
  """Returns the ids of `TEXTS`; the file has a model of pieces."""
  text = path.with_name('text.txt')
  text.write_text('\n'.join([_WORDS + str(n) for n in range(200)]))
  sentencepiece.SentencePieceTrainer.train(
    input=str(text),
    model_prefix=str(path.with_suffix('')),
    vocab_size=320,
    model_type=kind,
    byte_fallback=True,
    hard_vocab_limit=False,
    # As Llama's, whose class changes no spaces.
    normalization_rule_name='identity',
    remove_extra_whitespaces=False,
    minloglevel=2,
  )
  config = dict(tokenizer_class='LlamaTokenizer')
  path.with_name('tokenizer_config.json').write_text(json.dumps(config))
  folder = str(path.parent)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
  ids = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
  assert ids == [pieces.encode(text) for text in TEXTS]
  return ids


def _write_ranks(path: pathlib.Path) -> list[list[int]]:
  """Returns the ids of `TEXTS`; the file has the ranks of bytes."""
  ranks = _educational.bpe_train(_WORDS * 9, 300, _PATTERN, visualise=None)
  lines = (base64.b64encode(k) + b' %d' % v for k, v in ranks.items())
  path.write_bytes(b'\n'.join(lines))
  code = path.with_name('tokenization_small.py')
  code.write_text(f'PAT_STR = {_PATTERN!r}')
  config = dict(added_tokens_decoder={'300': dict(content='[BOS]')})
  path.with_name('tokenizer_config.json').write_text(json.dumps(config))
  tokenizer = TikTokenConverter(str(path), _PATTERN).converted()
  encoding = tiktoken.Encoding(
    'small', pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={}
  )
  ids = [tokenizer.encode(text).ids for text in TEXTS]
  assert ids == [encoding.encode(text) for text in TEXTS]
  return ids


if __name__ == '__main__':
  main(*sys.argv[1:])
