"""Text as it comes: whole characters, and nothing of a stop string."""

import pytest
import tokenizers

from hpmoe.models import writing
from hpmoe.models.checkpoint import tokenizer

TEXTS = (
  '',
  'plain words',
  ' a\n\tb  ',
  'na\u00efve \u732b \U0001f408',
  'ab' * 99,
)
BYTES = tokenizer.byte_level()


def _pieces(text, stops=()):
  writer = writing.Writer(BYTES, [], stops)
  pieces = []
  for byte in text.encode():
    pieces.append(writer.add(byte))
    if writer.stopped is not None:
      break
  return [*pieces, writer.end()], writer


class TestWriter:
  @pytest.mark.parametrize('text', TEXTS)
  def test_pieces_are_the_text(self, text):
    pieces, writer = _pieces(text)
    assert ''.join(pieces) == writer.text == text
    assert all(len(piece) < 2 for piece in pieces)

  def test_a_letter_of_two_bytes_comes_whole(self):
    pieces, _ = _pieces('a\u00efb')
    assert pieces == ['a', '', '\u00ef', 'b', '']

  def test_specials_are_left_out(self):
    writer = writing.Writer(BYTES, [])
    assert ''.join(map(writer.add, [256, 97, 257])) == 'a'

  def test_a_space_after_the_prompt_stays(self):
    # given a tokenizer whose text begins without the space of its first word
    words = {'\u2581She': 0, '\u2581was': 1, '?': 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, '?'))
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    # when, then
    assert writing.Writer(tokenizer, [0]).add(1) == ' was'

  @pytest.mark.parametrize(
    'text, stops, want, stop',
    [
      ('one END two', ['END'], 'one ', 'END'),
      ('one EN two', ['END'], 'one EN two', None),
      ('one EEND', ['END'], 'one E', 'END'),
      ('aab', ['ab'], 'a', 'ab'),
      ('one E', ['END'], 'one E', None),
      ('a,b.c', ['.', ','], 'a', ','),
      ('abc', ['bc', 'b'], 'a', 'b'),
    ],
  )
  def test_stops(self, text, stops, want, stop):
    pieces, writer = _pieces(text, stops)
    assert ''.join(pieces) == writer.text == want
    assert writer.stopped == stop

  def test_the_first_of_two_that_come_at_once(self):
    # given one token that is a whole text
    tokenizer = tokenizers.Tokenizer(
      tokenizers.models.WordLevel({'a.b,c': 0, '?': 1}, '?')
    )
    writer = writing.Writer(tokenizer, [], [',', '.'])
    # when, then
    assert writer.add(0) == 'a' and writer.stopped == '.'
