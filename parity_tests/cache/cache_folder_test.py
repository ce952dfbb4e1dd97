"""Where compiled oracles are kept, and for how long."""

import os

import pytest

from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import cache_key

KEY = b'key'


@pytest.fixture
def room(tmp_path):
  """Returns the folder of this machine, made."""
  with cache_folder.use_cache(tmp_path):
    pass
  return tmp_path / cache_key.identify_machine()


class TestFolder:
  def test_the_users_cache_folder_unless_another_is_asked_for(self):
    find = lambda **e: (
      cache_folder.find_folder(e) and str(cache_folder.find_folder(e))
    )
    assert find(HOME='/h') == '/h/.cache/hpmoe'
    assert find(HOME='/h', XDG_CACHE_HOME='/x') == '/x/hpmoe'
    assert find(HOME='/h', HPMOE_CACHE='/y') == '/y'
    assert find(HOME='/h', HPMOE_CACHE='off') is None
    assert find(HOME='/h', JAX_COMPILATION_CACHE_DIR='/j') is None
    assert find() is None


class TestKept:
  def test_a_folder_that_cannot_be_made_is_done_without(self, tmp_path):
    (tmp_path / 'file').write_text('no folder')
    with cache_folder.use_cache(tmp_path / 'file'):
      assert cache_folder.active_folder() is None

  def test_ours_is_used_meanwhile(self, room):
    before = cache_folder.active_folder()
    with cache_folder.use_cache(room.parent):
      assert cache_folder.active_folder() == room
    assert cache_folder.active_folder() == before

  @pytest.mark.parametrize('mode', [0o770, 0o707, 0o700])
  def test_a_folder_of_others_or_for_them_is_not_used(
    self, room, monkeypatch, mode
  ):
    room.chmod(mode)
    if mode == 0o700:
      monkeypatch.setattr(os, 'getuid', lambda: room.stat().st_uid + 1)
    with cache_folder.use_cache(room.parent):
      assert cache_folder.active_folder() is None


class TestDrop:
  def test_the_oldest_go_first(self, room):
    (room / 'folder').mkdir()
    for age, name in enumerate(('new', 'older', 'oldest')):
      (room / name).write_bytes(bytes(100))
      os.utime(room / name, (1e9 - age, 1e9 - age))
    cache_folder.trim(room, 250)
    names = {path.name for path in room.iterdir()}
    assert names == {'folder', 'new', 'older'}

  def test_programs_and_answers_have_a_measure_each(self, room, monkeypatch):
    monkeypatch.setattr(cache_folder, 'MAX_PROGRAM_BYTES', 150)
    monkeypatch.setattr(cache_folder, 'MAX_RESULT_BYTES', 50)
    answers = room / cache_folder.RESULTS
    answers.mkdir()
    for path in (room / 'program', answers / 'answer'):
      path.write_bytes(bytes(100))
    with cache_folder.use_cache(room.parent):
      pass
    assert (room / 'program').exists() and not list(answers.iterdir())

  def test_what_a_killed_run_left_goes_after_a_day(self, room):
    stale, partial = room / 'new-left', room / 'new-partial'
    for path in (stale, partial):
      path.write_bytes(b'half of')
    os.utime(stale, (1e9, 1e9))
    cache_folder.trim(room, cache_folder.MAX_PROGRAM_BYTES)
    assert not stale.exists() and partial.exists()
