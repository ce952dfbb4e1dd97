"""Text: parts that share nothing, batches that only seed and place decide."""

import math

import numpy as np
import pytest

from hpmoe.models.train import text

WORDS = np.frombuffer(b'the cat sat on the mat; ' * 40, np.uint8)


class TestRead:
  def test_the_shipped_text_is_english_in_plain_ascii(self):
    shipped = text.read()
    assert 200_000 < len(shipped) < 500_000
    assert set(shipped.tolist()) <= {ord('\n'), *range(32, 127)}
    # The commonest letter of English.
    assert np.bincount(shipped)[ord('a') : ord('z') + 1].argmax() == 4

  def test_a_path_that_is_not_there(self, tmp_path):
    with pytest.raises(OSError):
      text.read(tmp_path / 'no.txt')


class TestSplit:
  @pytest.mark.parametrize('part', [0.05, 0.5, 0.001])
  def test_both_parts_are_the_text(self, part):
    cut = text.split(WORDS, part)
    np.testing.assert_array_equal(np.concatenate([*vars(cut).values()]), WORDS)
    assert len(cut.held_out) == int(len(WORDS) * part)

  @pytest.mark.parametrize('part', [0, 1, -0.5, 2, float('nan')])
  def test_refuses(self, part):
    with pytest.raises(ValueError, match='held_out: expected between 0 and 1'):
      text.split(WORDS, part)


class TestBatch:
  def test_rows_are_in_the_text(self, seed):
    rows = text.batch(WORDS, 16, 5, seed, 3)
    assert rows.shape == (5, 17) and rows.dtype == np.int32
    assert all(bytes(row.tolist()) in WORDS.tobytes() for row in rows)

  def test_a_place_has_one_batch_whatever_was_read_before(self, seed):
    # given a run in one piece
    run = [text.batch(WORDS, 16, 5, seed, place) for place in range(6)]
    # when another begins in the middle
    resumed = [text.batch(WORDS, 16, 5, seed, place) for place in range(3, 6)]
    # then it reads the same
    np.testing.assert_array_equal(run[3:], resumed)

  def test_seeds_and_places_differ(self, seed):
    one = text.batch(WORDS, 16, 5, seed, 0)
    assert (one != text.batch(WORDS, 16, 5, seed, 1)).any()
    assert (one != text.batch(WORDS, 16, 5, seed + 1, 0)).any()

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
    with pytest.raises(ValueError, match='at least 9 bytes.* got 8'):
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
    with pytest.raises(ValueError, match='at least 31 bytes.* got 30'):
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
    got = text.bigram_entropy(np.frombuffer(data, np.uint8))
    assert got == pytest.approx(nats, rel=1e-15)

  def test_of_the_shipped_text_lies_below_its_letters(self):
    shipped = text.read()
    p = np.bincount(shipped) / len(shipped)
    single = -(p[p > 0] * np.log(p[p > 0])).sum()
    assert 0.6 * single < text.bigram_entropy(shipped) < 0.9 * single

  def test_needs_a_pair(self):
    with pytest.raises(ValueError, match='at least 2 bytes, got 1'):
      text.bigram_entropy(WORDS[:1])


# Of numpy 1.26; other versions must give them too.
STARTS = [16, 66, 31, 14, 113, 174, 126, 165]
