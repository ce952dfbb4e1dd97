"""The wheel: one import package, one command, and every module."""

import configparser
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.kernels.ascendc.twin.launch import _ascend_twin
from hpmoe.parity_tests.judge.limits import _chunk_sums
from hpmoe.tools import import_graph

_BUILD = """
import sys
from scikit_build_core import build
print(build.build_wheel(sys.argv[1], {'wheel.cmake': 'false'}))
"""

# What a user's kernel looks like in a repository whose folders have the names
# of ours.
_CANDIDATE = """
import hpmoe
import models
import parity_tests
import reference

from hpmoe.parity_tests.examples import fused_moe

def layer(inputs, config, policy):
  assert '/site/hpmoe/' in hpmoe.__file__
  assert models.MINE and reference.MINE and parity_tests.MINE
  return fused_moe.fused_moe(inputs, config, policy)
"""

# They test or maintain the tree.
_LEFT_OUT = ('_test.py', '_testing.py', 'test_util.py')


@pytest.fixture(scope='module')
def installed(tmp_path_factory) -> pathlib.Path:
  """Returns a folder that holds the wheel's files, and the extension."""
  folder = tmp_path_factory.mktemp('wheel')
  subprocess.run(
    [sys.executable, '-c', _BUILD, folder],
    cwd=import_graph.ROOT,
    check=True,
    stdout=subprocess.DEVNULL,
  )
  (wheel,) = folder.glob('*.whl')
  zipfile.ZipFile(wheel).extractall(folder / 'site')
  # CMake's part, which takes a minute to build.
  for extension in (_native, _ascend_twin, _chunk_sums):
    module = pathlib.PurePosixPath(extension.__name__.replace('.', '/'))
    shutil.copy(extension.__file__, folder / 'site' / module.parent)
  return folder / 'site'


class TestWheel:
  def test_one_import_package_and_one_command(self, installed):
    names = sorted(path.name for path in installed.iterdir())
    (info,) = installed.glob('*.dist-info')
    assert names == ['hpmoe', info.name]
    scripts = configparser.ConfigParser()
    scripts.read(info / 'entry_points.txt')
    assert scripts.sections() == ['console_scripts']
    assert list(scripts['console_scripts']) == ['hpmoe']

  def test_holds_every_module_and_no_test(self, installed):
    want = {'__init__.py'} | {
      path
      for path in import_graph.files()
      if path.endswith('.py')
      and not path.endswith(_LEFT_OUT)
      and '/' in path
      and not path.startswith(('benchmarks/', 'tools/'))
    }
    package = installed / 'hpmoe'
    found = {p.relative_to(package).as_posix() for p in package.rglob('*.py')}
    assert found == want

  def test_holds_the_text_that_it_reads(self, installed):
    for text in ('parity_tests/testdata/alice', 'models/train/data/persuasion'):
      assert (installed / f'hpmoe/{text}.txt').is_file()

  def test_the_users_names_are_the_users(self, installed, tmp_path):
    # given a repository with folders of our names
    for name in ('models', 'reference', 'parity_tests', 'backend_ascend'):
      (tmp_path / name).mkdir()
      (tmp_path / name / '__init__.py').write_text('MINE = True')
    (tmp_path / 'mine.py').write_text(_CANDIDATE)
    # when its kernel is checked from there, with itself on the path; outside
    # the environment, whose editable install would answer for the wheel
    path = ['.', str(installed), sysconfig.get_path('purelib')]
    ran = subprocess.run(
      [sys._base_executable, '-m', 'hpmoe.parity_tests.commands.main', 'check']
      + ['--candidate=mine:layer', '--preset=tiny', '--ranks=2']
      + ['--routing=balanced', '--lane=exact'],
      cwd=tmp_path,
      env=dict(os.environ, PYTHONPATH=os.pathsep.join(path)),
      capture_output=True,
      text=True,
    )
    # then everyone got his own
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert 'PASS' in ran.stdout.splitlines()[-1]
