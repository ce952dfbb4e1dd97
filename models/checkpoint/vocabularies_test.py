"""Vocabularies without a tokenizer.json: the ids of their own libraries."""

import base64
import json

import pytest
import sentencepiece
import tiktoken

from hpmoe.models import writing
from hpmoe.models.checkpoint import tokenizer
from hpmoe.models.checkpoint import vocabularies

_WORDS = 'Sir Walter Elliot, of Kellynch Hall, went home with Anne in 1814. '
_PATTERN = r"""\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+|[^\s\p{L}\p{N}]+"""
# As the code of a model says it: constants, joined.
_CODE = """
import missing_package
raise RuntimeError('it is never run')
class TikTokenTokenizer:
  pat_str = '|'.join([r'''\\p{L}+''', r'''\\p{N}{1,3}''', r'''\\s+(?!\\S)''',
    r'''\\s+''', r'''[^\\s\\p{L}\\p{N}]+'''])
"""
_TEXTS = (
  'Anne  went home.',
  ' a naïve 猫 🐈 1234567',
  'Sir Walter\n\tElliot\r\n of 1816',
  '',
)


def _token(content: str, special: bool) -> dict:
  return dict(content=content, special=special, lstrip=False, rstrip=False)


@pytest.fixture(scope='module', params=['bpe', 'unigram'])
def pieces(request, tmp_path_factory) -> bytes:
  """Returns a model of sentencepiece."""
  folder = tmp_path_factory.mktemp('pieces')
  (folder / 'text').write_text('\n'.join(_WORDS + str(n) for n in range(200)))
  sentencepiece.SentencePieceTrainer.train(
    input=str(folder / 'text'),
    model_prefix=str(folder / 'm'),
    vocab_size=320,
    model_type=request.param,
    byte_fallback=True,
    hard_vocab_limit=False,
    minloglevel=2,
  )
  return (folder / 'm.model').read_bytes()


def _config(**fields) -> dict[str, bytes]:
  return {'tokenizer_config.json': json.dumps(fields).encode()}


class TestPieces:
  @pytest.mark.parametrize('text', _TEXTS)
  def test_ids_and_text_are_the_librarys(self, pieces, text):
    library = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    read_tokenizer = tokenizer.from_files({'tokenizer.model': pieces})
    ids = read_tokenizer.encode(text).ids
    assert ids == library.encode(text)
    assert read_tokenizer.decode(ids) == library.decode(ids)
    assert read_tokenizer.get_vocab_size() == library.get_piece_size()

  @pytest.mark.parametrize(
    ('fields', 'begins'),
    [
      (dict(tokenizer_class='LlamaTokenizer'), True),
      (dict(tokenizer_class='LlamaTokenizer', add_bos_token=False), False),
      (dict(tokenizer_class='Ernie4_5_Tokenizer'), False),
      (dict(tokenizer_class='Foo', add_bos_token=True), True),
    ],
  )
  def test_text_begins_as_its_class_says(self, pieces, fields, begins):
    files = {'tokenizer.model': pieces} | _config(bos_token='<s>', **fields)
    ids = tokenizer.from_files(files).encode('Anne').ids
    assert (ids[0] == 1) == begins

  def test_added_tokens_cut_the_text(self, pieces):
    # given a token with a piece, one with an id of its own, one that is text
    decoder = {
      '2': _token('</s>', True),
      '400': _token('<|im_end|>', True),
      '401': _token('<tool>', False),
      '403': _token('<tool>s', False),
    }
    files = {'tokenizer.model': pieces}
    files |= _config(added_tokens_decoder=decoder, pad_token='<pad>')
    read_tokenizer = tokenizer.from_files(files)
    library = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    # when a text has them all,
    text = 'Anne<|im_end|> home</s><tool><pad><tool>s'
    ids = read_tokenizer.encode(text).ids
    # then each is one token, and the special ones are no text.
    parts = library.encode('Anne'), library.encode(' home')
    assert ids == [*parts[0], 400, *parts[1], 2, 401, 404, 403]
    assert read_tokenizer.decode(ids) == 'Anne home<tool><tool>s'
    assert read_tokenizer.get_vocab_size() == 405
    # A model may have more rows than there are tokens.
    assert read_tokenizer.decode([*parts[0], 402, 999]) == 'Anne'

  def test_text_comes_as_it_is_complete(self, pieces):
    files = {'tokenizer.model': pieces} | _config(eos_token='</s>')
    read_tokenizer = tokenizer.from_files(files)
    text = 'Anne went 猫 home, 🐈 of 1814.'
    ids = read_tokenizer.encode(text).ids
    writer = writing.Writer(read_tokenizer, ids[:1], [])
    steps = [writer.add(token) for token in [*ids[1:], 2]]
    assert '\ufffd' not in ''.join(steps)
    first = read_tokenizer.decode(ids[:1])
    assert first + ''.join(steps) + writer.end() == text

  @pytest.mark.parametrize('content', [b'', b'IQ== 0\n'])
  def test_damage_is_named(self, content):
    refusal = '^tokenizer.model: expected a model of sentencepiece, got '
    with pytest.raises(ValueError, match=refusal) as error:
      tokenizer.from_files({'tokenizer.model': content})
    assert len(str(error.value)) < 300


def _rank_files(**changes) -> tuple[dict[str, bytes], tiktoken.Encoding]:
  ranks = {bytes([i]): i for i in range(256)}
  for word in ('An', 'ne', 'Anne', ' w', 'en', 'ent', ' went'):
    ranks[word.encode()] = len(ranks)
  lines = [base64.b64encode(k) + b' %d' % v for k, v in ranks.items()]
  decoder = {'300': _token('[BOS]', True), '301': _token('<|tool|>', False)}
  files = {
    'tiktoken.model': b'\n'.join(lines),
    'tokenization_kimi.py': _CODE.encode(),
    **_config(added_tokens_decoder=decoder, bos_token='[BOS]'),
  }
  library = tiktoken.Encoding(
    'small',
    pat_str=_PATTERN,
    mergeable_ranks=ranks,
    special_tokens={'[BOS]': 300, '<|tool|>': 301},
  )
  return {n: c for n, c in (files | changes).items() if c is not None}, library


class TestRanks:
  @pytest.mark.parametrize('text', [*_TEXTS, 'Anne went[BOS]<|tool|> 12345'])
  def test_ids_and_text_are_the_librarys(self, text):
    files, library = _rank_files()
    read_tokenizer = tokenizer.from_files(files)
    ids = read_tokenizer.encode(text).ids
    assert ids == library.encode(text, allowed_special='all')
    assert read_tokenizer.decode(ids) == text.replace('[BOS]', '')

  def test_a_folder_is_read_with_its_code(self, tmp_path):
    files, library = _rank_files()
    for name, content in files.items():
      (tmp_path / name).write_bytes(content)
    ids = tokenizer.load(tmp_path).encode('Anne went').ids
    assert ids == library.encode('Anne went')

  @pytest.mark.parametrize(
    ('changes', 'refusal'),
    [
      ({'tokenization_kimi.py': None}, 'expected pat_str = TEXT in a'),
      ({'tokenization_kimi.py': b'pat_str = f()'}, 'expected pat_str = TEXT'),
      ({'tokenizer_config.json': b'{}'}, 'expected added_tokens_decoder in'),
      ({'tiktoken.model': b'QQ== x'}, 'expected lines of a token in base64'),
    ],
  )
  def test_what_lacks_is_named(self, changes, refusal):
    files, _ = _rank_files(**changes)
    with pytest.raises(
      ValueError, match=f'^tiktoken.model: {refusal}'
    ) as error:
      tokenizer.from_files(files)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
  ('name', 'package'),
  [('tokenizer.model', 'sentencepiece'), ('tiktoken.model', 'tiktoken')],
)
def test_a_missing_library_is_a_line(monkeypatch, name, package):
  def find(module):
    raise ModuleNotFoundError(module, name=module)

  monkeypatch.setattr(vocabularies.importlib, 'import_module', find)
  refusal = f'^{name}: expected {package} to be installed, which reads it, got '
  with pytest.raises(ValueError, match=refusal) as error:
    tokenizer.from_files({name: b''})
  assert '[vocabularies]' in str(error.value)
  assert len(str(error.value)) < 300
