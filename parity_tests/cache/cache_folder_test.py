"""Where compiled oracles are kept, and for how long."""

import os

import pytest

from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import programs

KEY = b'key'


@pytest.fixture
def room(tmp_path):
  """Returns the folder of this machine, made."""
  with cache_folder.kept(tmp_path):
    pass
  return tmp_path / programs.machine()


class TestFolder:
  def test_the_users_cache_folder_unless_another_is_asked_for(self):
    of = lambda **e: cache_folder.folder(e) and str(cache_folder.folder(e))
    assert of(HOME='/h') == '/h/.cache/hpmoe'
    assert of(HOME='/h', XDG_CACHE_HOME='/x') == '/x/hpmoe'
    assert of(HOME='/h', HPMOE_CACHE='/y') == '/y'
    assert of(HOME='/h', HPMOE_CACHE='off') is None
    assert of(HOME='/h', JAX_COMPILATION_CACHE_DIR='/j') is None
    assert of() is None


class TestKept:
  def test_a_folder_that_cannot_be_made_is_done_without(self, tmp_path):
    (tmp_path / 'file').write_text('no folder')
    with cache_folder.kept(tmp_path / 'file'):
      assert programs.folder() is None

  def test_ours_is_used_meanwhile(self, room):
    before = programs.folder()
    with cache_folder.kept(room.parent):
      assert programs.folder() == room
    assert programs.folder() == before

  @pytest.mark.parametrize('mode', [0o770, 0o707, 0o700])
  def test_a_folder_of_others_or_for_them_is_not_used(
    self, room, monkeypatch, mode
  ):
    room.chmod(mode)
    if mode == 0o700:
      monkeypatch.setattr(os, 'getuid', lambda: room.stat().st_uid + 1)
    with cache_folder.kept(room.parent):
      assert programs.folder() is None


class TestDrop:
  def test_the_oldest_go_first(self, room):
    (room / 'folder').mkdir()
    for age, name in enumerate(('new', 'older', 'oldest')):
      (room / name).write_bytes(bytes(100))
      os.utime(room / name, (1e9 - age, 1e9 - age))
    cache_folder.drop(room, 250)
    left = {path.name for path in room.iterdir()}
    assert left == {'folder', 'new', 'older'}

  def test_programs_and_answers_have_a_measure_each(self, room, monkeypatch):
    monkeypatch.setattr(cache_folder, 'MOST_BYTES', 150)
    monkeypatch.setattr(cache_folder, 'MOST_BYTES_OF_ANSWERS', 50)
    answers = room / programs.ANSWERS
    answers.mkdir()
    for path in (room / 'program', answers / 'answer'):
      path.write_bytes(bytes(100))
    with cache_folder.kept(room.parent):
      pass
    assert (room / 'program').exists() and not list(answers.iterdir())

  def test_what_a_killed_run_left_goes_after_a_day(self, room):
    left, written = room / 'new-left', room / 'new-written'
    for path in (left, written):
      path.write_bytes(b'half of')
    os.utime(left, (1e9, 1e9))
    cache_folder.drop(room, cache_folder.MOST_BYTES)
    assert not left.exists() and written.exists()
