"""Files are whole, or as they were, whatever happens to their writer."""

import pytest

from hpmoe.models.checkpoint import atomic_folder


class TestReplacing:
  def test_the_old_one_stays_until_the_new_one_is_whole(self, tmp_path):
    path = tmp_path / 'file'
    path.write_text('old')
    with atomic_folder.replacing(path) as unfinished:
      unfinished.write_text('ne')
      assert path.read_text() == 'old'
      unfinished.write_text('new')
    assert path.read_text() == 'new'
    assert [p.name for p in tmp_path.iterdir()] == ['file']

  def test_an_error_leaves_the_old_one_and_nothing_else(self, tmp_path):
    path = tmp_path / 'file'
    path.write_text('old')
    with (
      pytest.raises(OSError, match='full'),
      atomic_folder.replacing(path) as unfinished,
    ):
      unfinished.write_text('ne')
      raise OSError('full')
    assert path.read_text() == 'old'
    assert [p.name for p in tmp_path.iterdir()] == ['file']


class TestAppend:
  def test_adds_to_the_end(self, tmp_path):
    path = tmp_path / 'file'
    for content in (b'one', b'two'):
      atomic_folder.append(path, content)
    assert path.read_bytes() == b'onetwo'
