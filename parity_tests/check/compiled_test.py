"""What is kept of compiled functions, and what is not believed."""

import os
import subprocess
import sys

import pytest

from hpmoe.parity_tests.check import compiled

ENTRY = 'jit_f-0123-cache'

# Prints how many functions JAX compiled, and how many it found.
_PROGRAM = """
import pathlib, sys
import jax
from hpmoe.parity_tests.check import compiled
seen = []
jax.monitoring.register_event_listener(lambda event, **kw: seen.append(event))
with compiled.kept(compiled.folder()):
  assert jax.jit(lambda x: x * 3 + 1)(2.0) == 7
for name in ('cache_misses', 'cache_hits'):
  print(sum(event.endswith(name) for event in seen))
"""


def _counts(environment) -> tuple[int, ...]:
  out = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    env={
      name: value
      for name, value in (os.environ | environment).items()
      if not name.startswith('JAX_') or name == 'JAX_PLATFORMS'
    },
    check=True,
    capture_output=True,
    text=True,
  ).stdout
  return tuple(map(int, out.split()))


def add(where, name=ENTRY, data=b'compiled'):
  run = compiled.begin(where)
  (run / name).write_bytes(data)
  compiled.end(run)


def held(where) -> dict[str, bytes]:
  """Returns what a run finds."""
  run = compiled.begin(where)
  found = {path.name: path.read_bytes() for path in run.iterdir()}
  compiled.end(run)
  return found


class TestFolder:
  def test_the_users_cache_folder_unless_another_is_asked_for(self):
    of = lambda **e: compiled.folder(e) and str(compiled.folder(e))
    assert of(HOME='/h') == '/h/.cache/hpmoe'
    assert of(HOME='/h', XDG_CACHE_HOME='/x') == '/x/hpmoe'
    assert of(HOME='/h', HPMOE_CACHE='/y') == '/y'
    assert of(HOME='/h', HPMOE_CACHE='off') is None
    assert of(HOME='/h', JAX_COMPILATION_CACHE_DIR='/j') is None
    assert of() is None


class TestKept:
  def test_a_second_run_compiles_nothing(self, tmp_path):
    where = {compiled.VARIABLE: str(tmp_path)}
    compiled_first, found_first = _counts(where)
    assert compiled_first > 0 and found_first == 0
    assert _counts(where) == (0, compiled_first)

  def test_off_keeps_nothing(self, tmp_path):
    where = {compiled.VARIABLE: 'off', 'HOME': str(tmp_path)}
    assert _counts(where) == (0, 0)
    assert not list(tmp_path.iterdir())

  def test_a_folder_that_cannot_be_made_is_done_without(self, tmp_path):
    (tmp_path / 'file').write_text('no folder')
    with compiled.kept(tmp_path / 'file'):
      pass


class TestRuns:
  def test_a_run_finds_what_others_ended_with_and_adds_its_own(self, tmp_path):
    add(tmp_path)
    add(tmp_path, 'jit_g-4567-cache', b'other')
    assert held(tmp_path) == {ENTRY: b'compiled', 'jit_g-4567-cache': b'other'}
    assert not list(tmp_path.glob('run-*'))

  def test_what_a_run_is_writing_is_not_found(self, tmp_path):
    run = compiled.begin(tmp_path)
    (run / ENTRY).write_bytes(b'half of')
    assert held(tmp_path) == {}

  def test_two_that_add_the_same_leave_one(self, tmp_path):
    runs = [compiled.begin(tmp_path) for _ in range(2)]
    for run in runs:
      (run / ENTRY).write_bytes(b'compiled')
    for run in runs:
      compiled.end(run)
    assert held(tmp_path) == {ENTRY: b'compiled'}

  @pytest.mark.parametrize('damage', [b'', b'compilee', b'compiled and more'])
  def test_a_changed_entry_is_thrown_away(self, tmp_path, damage):
    add(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert held(tmp_path) == {}
    assert not path.exists()

  def test_the_oldest_go_first(self, tmp_path, monkeypatch):
    for age, name in enumerate(('new-cache', 'older-cache', 'oldest-cache')):
      add(tmp_path, name, bytes(100))
      (path,) = tmp_path.glob(f'{name}.*')
      os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(compiled, 'MOST_BYTES', 250)
    assert set(held(tmp_path)) == {'new-cache', 'older-cache', 'oldest-cache'}
    assert set(held(tmp_path)) == {'new-cache', 'older-cache'}

  def test_what_a_killed_run_left_goes_after_a_day(self, tmp_path):
    killed, running = (compiled.begin(tmp_path) for _ in range(2))
    os.utime(killed, (1e9, 1e9))
    held(tmp_path)
    assert not killed.exists() and running.exists()
