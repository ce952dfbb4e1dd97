"""Text: parts that share nothing, batches that only seed and place decide."""

import dataclasses
import math

import numpy as np
import pytest
import tokenizers

from hpmoe.models.train import text

WORDS = np.frombuffer(b'the cat sat on the mat; ' * 40, np.uint8)


class TestRead:
  def test_the_shipped_text_is_english_in_plain_ascii(self):
    shipped = text.read().tokens
    assert 200_000 < len(shipped) < 500_000
    assert set(shipped.tolist()) <= {ord('\n'), *range(32, 127)}
    # The commonest letter of English.
    assert np.bincount(shipped)[ord('a') : ord('z') + 1].argmax() == 4

  def test_a_path_that_is_not_there(self, tmp_path):
    with pytest.raises(OSError):
      text.read(tmp_path / 'no.txt')


def _words() -> text.Encoding:
  """Returns tokens that are words, 7 of them; what it lacks is token 0."""
  vocabulary = ['?', 'a', 'cat', 'sat', '\n', 'on', '<end>']
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({w: i for i, w in enumerate(vocabulary)}, '?')
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(
    tokenizers.Regex('[a-z]+|\n'), 'removed', invert=True
  )
  return text.Encoding(tokenizer, end=6, vocabulary=7)


class TestDocuments:
  @pytest.fixture
  def folder(self, tmp_path):
    (tmp_path / 'b').mkdir()
    (tmp_path / 'b/two.txt').write_text('a cat\n')
    (tmp_path / 'one.jsonl').write_text(
      '{"text": "sat", "id": 3}\n\n{"text": "on a\\ncat"}\n'
    )
    (tmp_path / 'notes.md').write_text('sat')
    return tmp_path

  def test_of_a_folder_in_the_order_of_its_paths(self, folder):
    documents = [b''.join(d) for d in text.documents(folder)]
    assert documents == [b'a cat\n', b'sat', b'on a\ncat']

  def test_tokens_of_a_tokenizer_with_ends_between(self, folder):
    read = text.read(folder, _words()).tokens
    assert read.tolist() == [1, 2, 4, 6, 3, 6, 5, 1, 4, 2]

  def test_bytes_without_one(self, folder):
    ends = text.Encoding(end=257, vocabulary=258)
    read = text.read(folder, ends).tokens
    want = [*b'a cat\n', 257, *b'sat', 257, *b'on a\ncat']
    assert read.tolist() == want

  def test_one_file_is_its_bytes_whatever_they_are(self, tmp_path):
    all_bytes = bytes(range(256)) * 999  # more than one piece
    (tmp_path / 'file').write_bytes(all_bytes)
    assert text.read(tmp_path / 'file').tokens.tolist() == [*all_bytes]

  def test_the_sum_tells_texts_and_tokenizers_apart(self, folder):
    ends = text.Encoding(end=257, vocabulary=258)
    first = text.read(folder, ends).crc
    assert text.read(folder, ends).crc == first
    assert text.read(folder, _words()).crc != first
    (folder / 'b/two.txt').write_text('a sat\n')
    assert text.read(folder, ends).crc != first

  @pytest.mark.parametrize(
    'line, message',
    [
      ('{"text": 3}', 'one.jsonl:2: expected an object with a text, got'),
      ('["text"]', 'one.jsonl:2: expected an object with a text, got'),
      ('{"text"', 'one.jsonl:2: expected JSON, got'),
    ],
  )
  def test_refuses_a_line(self, tmp_path, line, message):
    (tmp_path / 'one.jsonl').write_text(f'{{"text": "a"}}\n{line}\n')
    with pytest.raises(ValueError, match=message):
      text.read(tmp_path)

  def test_refuses_a_folder_without_text(self, tmp_path):
    with pytest.raises(ValueError, match='expected files .* in it, got none'):
      text.read(tmp_path)

  def test_refuses_a_token_that_the_model_lacks(self, folder):
    small = dataclasses.replace(_words(), vocabulary=5)
    with pytest.raises(ValueError, match='below vocab_size=5, got 5'):
      text.read(folder, small)


def test_both_parts_are_the_text():
  learnt, held_out = text.split(WORDS)
  np.testing.assert_array_equal(np.concatenate([learnt, held_out]), WORDS)
  assert len(held_out) == len(WORDS) // 20


class TestBatch:
  def test_rows_are_in_the_text(self, seed):
    rows = text.batch(WORDS, 16, 5, seed, 3)
    assert rows.shape == (5, 17) and rows.dtype == np.int32
    assert all(bytes(row.tolist()) in WORDS.tobytes() for row in rows)

  def test_bits_are_the_same_on_every_numpy(self):
    rows = text.batch(np.arange(200, dtype=np.uint8), 1, 8, seed=7, position=9)
    assert rows[:, 0].tolist() == STARTS

  def test_every_start_is_reached_and_none_past_the_end(self):
    rows = text.batch(np.arange(6, dtype=np.uint8), 3, 200, 1, 0)
    assert sorted(set(rows[:, 0].tolist())) == [0, 1, 2]

  def test_a_text_of_one_row(self):
    row = text.batch(WORDS[:9], 8, 2, 0, 0)
    np.testing.assert_array_equal(row, np.stack([WORDS[:9]] * 2))

  def test_a_text_shorter_than_a_sequence(self):
    with pytest.raises(ValueError, match='at least 9 tokens.* got 8'):
      text.batch(WORDS[:8], 8, 2, 0, 0)

  @pytest.mark.parametrize('length, size', [(0, 1), (1, 0), (-1, 1)])
  def test_refuses(self, length, size):
    with pytest.raises(ValueError, match='expected a positive integer'):
      text.batch(WORDS, length, size, 0, 0)


class TestWindows:
  def test_every_target_once_and_in_order(self):
    batches = text.windows(WORDS, 10, 3)
    targets = np.concatenate([rows[:, 1:].ravel() for rows in batches])
    np.testing.assert_array_equal(targets, WORDS[1 : 1 + len(targets)])
    assert len(WORDS) - 1 - len(targets) < 10 * 3

  def test_a_text_that_does_not_fill_a_batch(self):
    with pytest.raises(ValueError, match='at least 31 tokens.* got 30'):
      text.windows(WORDS[:30], 10, 3)


class TestBigramEntropy:
  @pytest.mark.parametrize(
    'data, nats',
    [
      (b'abababab', 0.0),
      (b'aaaa', 0.0),
      # After a: a or b, half each; after b: always a.
      (b'aabaaba', 4 / 6 * math.log(2)),
    ],
  )
  def test_of_known_texts(self, data, nats):
    actual = text.bigram_entropy(np.frombuffer(data, np.uint8))
    assert actual == pytest.approx(nats, rel=1e-15)

  def test_needs_a_pair(self):
    with pytest.raises(ValueError, match='at least 2 tokens, got 1'):
      text.bigram_entropy(WORDS[:1])


# Of numpy 1.26; other versions must give them too.
STARTS = [16, 66, 31, 14, 113, 174, 126, 165]
