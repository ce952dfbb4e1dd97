"""Tokenizers: bytes are tokens, and files that others read."""

import json

import pytest
import tokenizers

from hpmoe.models.checkpoint import tokenizer

TEXTS = (
  '',
  'plain words',
  ' a\n\tb  ',
  'naïve — 猫 🐈',
  '\x00\x7f',
  'ab' * 999,
)


class TestByteLevel:
  @pytest.mark.parametrize('text', TEXTS)
  def test_tokens_are_the_bytes_and_survive_a_file(self, tmp_path, text):
    tokenizer.byte_level().save(str(tmp_path / tokenizer.FILE))
    loaded_tokenizer = tokenizer.load(tmp_path)
    assert loaded_tokenizer.encode(text).ids == list(text.encode())
    assert loaded_tokenizer.decode(list(text.encode())) == text

  def test_specials_follow_the_bytes(self):
    byte_tokenizer = tokenizer.byte_level()
    assert byte_tokenizer.get_vocab_size() == 258
    ids = byte_tokenizer.encode(
      f'{tokenizer.SPECIALS[0]}a{tokenizer.SPECIALS[1]}'
    ).ids
    assert ids == [256, 97, 257]


TEXT = 'a <x> b <s> c </s> a<t>b <u>  c'
_PLAIN = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]


def _token(content: str, **flags: bool) -> dict:
  names = ('lstrip', 'rstrip', 'normalized', 'single_word', 'special')
  return dict.fromkeys(names, False) | dict(content=content) | flags


# Files beside tokenizer.json, and the ids that transformers 5.23.0 makes of
# TEXT with them (`PreTrainedTokenizerFast.from_pretrained`).
BESIDE = {
  'listed': (
    {
      'tokenizer_config.json': dict(
        added_tokens_decoder={
          '9': _token('<x>'),
          '7': _token('<t>', lstrip=True, special=True),
        },
        bos_token='<s>',
      )
    },
    [1, 5, 2, 6, 3, 0, 0, 0, 1, 4, 2, 0, 0, 0, 3],
  ),
  'listed and named': (
    {
      'tokenizer_config.json': dict(
        added_tokens_decoder={
          '4': _token('<s>'),
          '5': _token('<x>', rstrip=True),
        },
        bos_token='<s>',
        extra_special_tokens=['<u>'],
      )
    },
    [1, 5, 2, 4, 3, 0, 0, 0, 1, 0, 0, 0, 2, 6, 3],
  ),
  'map': (
    {
      'tokenizer_config.json': {},
      'special_tokens_map.json': dict(
        bos_token='<s>',
        eos_token=_token('</s>'),
        additional_special_tokens=['<u>'],
      ),
    },
    [1, 0, 0, 0, 2, 4, 3, 5, 1, 0, 0, 0, 2, 6, 3],
  ),
  'map beside a list': (
    {
      'tokenizer_config.json': dict(added_tokens_decoder={'9': _token('<x>')}),
      'special_tokens_map.json': dict(bos_token='<s>'),
    },
    [1, 4, 2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3],
  ),
  'older list': (
    {
      'tokenizer_config.json': dict(eos_token='</s>'),
      'added_tokens.json': {'<x>': 5, '</s>': 4},
    },
    [1, 5, 2, 0, 0, 0, 3, 4, 1, 0, 0, 0, 2, 0, 0, 0, 3],
  ),
}


def _words(folder) -> tokenizers.Tokenizer:
  vocabulary = {word: i for i, word in enumerate(('[UNK]', 'a', 'b', 'c'))}
  words = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(vocabulary, unk_token='[UNK]')
  )
  words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  words.save(str(folder / tokenizer.FILE))
  return words


class TestAsTransformers:
  def test_all_of_a_text_whatever_the_file_truncates_and_pads_to(
    self, tmp_path
  ):
    # given a tokenizer that was saved after use with a length
    words = _words(tmp_path)
    words.enable_truncation(4)
    words.enable_padding(length=6, pad_id=3)
    words.save(str(tmp_path / tokenizer.FILE))
    # then
    assert tokenizer.load(tmp_path).encode(TEXT).ids == _PLAIN

  @pytest.mark.parametrize('files, ids', BESIDE.values(), ids=BESIDE)
  def test_tokens_of_files_beside_it(self, tmp_path, files, ids):
    _words(tmp_path)
    for name, content in files.items():
      (tmp_path / name).write_text(json.dumps(content))
    assert tokenizer.load(tmp_path).encode(TEXT).ids == ids

  def test_special_tokens_are_left_out_of_text(self, tmp_path):
    _words(tmp_path)
    files, ids = BESIDE['listed']
    for name, content in files.items():
      (tmp_path / name).write_text(json.dumps(content))
    words = tokenizer.load(tmp_path)
    assert words.decode(ids[:6]) == 'a <x> b c [UNK]'


class TestLoad:
  @pytest.mark.parametrize(
    'name, package',
    [
      ('spiece.model', 'sentencepiece protobuf'),
      ('qwen.tiktoken', 'tiktoken'),
      ('vocab.json', 'transformers'),
    ],
  )
  def test_another_file_is_named_and_never_bytes(self, name, package):
    refusal = f'^{name}: expected tokenizer.json beside it, got none; '
    refusal += f'pip install .*{package}; '
    with pytest.raises(ValueError, match=refusal) as error:
      tokenizer.from_files({name: b'', 'tokenizer_config.json': b'{}'})
    assert len(str(error.value)) < 300

  def test_a_list_that_is_none_is_refused(self, tmp_path):
    _words(tmp_path)
    text = json.dumps(dict(added_tokens_decoder=['<x>']))
    (tmp_path / 'tokenizer_config.json').write_text(text)
    refusal = 'tokenizer_config.json: added_tokens_decoder: expected ids'
    with pytest.raises(ValueError, match=refusal):
      tokenizer.load(tmp_path)

  def test_no_file(self, tmp_path):
    with pytest.raises(ValueError, match='expected a folder with tokenizer'):
      tokenizer.load(tmp_path)

  @pytest.mark.parametrize('content', ['', '{', json.dumps({'version': 1})])
  def test_damaged(self, tmp_path, content):
    (tmp_path / tokenizer.FILE).write_text(content)
    with pytest.raises(ValueError, match='expected a tokenizer, got') as error:
      tokenizer.load(tmp_path)
    assert '\n' not in str(error.value)
