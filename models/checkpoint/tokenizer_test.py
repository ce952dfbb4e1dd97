"""Tokenizers: bytes are tokens, and files that others read."""

import json

import pytest

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
    made = tokenizer.load(tmp_path)
    assert made.encode(text).ids == list(text.encode())
    assert made.decode(list(text.encode())) == text

  def test_specials_follow_the_bytes(self):
    made = tokenizer.byte_level()
    assert made.get_vocab_size() == 258
    ids = made.encode(f'{tokenizer.SPECIALS[0]}a{tokenizer.SPECIALS[1]}').ids
    assert ids == [256, 97, 257]


class TestLoad:
  def test_no_file(self, tmp_path):
    with pytest.raises(ValueError, match='expected a folder with tokenizer'):
      tokenizer.load(tmp_path)

  @pytest.mark.parametrize('content', ['', '{', json.dumps({'version': 1})])
  def test_damaged(self, tmp_path, content):
    (tmp_path / tokenizer.FILE).write_text(content)
    with pytest.raises(ValueError, match='expected a tokenizer, got') as told:
      tokenizer.load(tmp_path)
    assert '\n' not in str(told.value)
