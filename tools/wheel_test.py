"""The judge's wheel: pure Python, one package, one command, every module."""

import configparser
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile

import numpy as np
import pytest

from hpmoe.parity_tests.judge import trial_testing
from hpmoe.tools import import_graph

_BUILD = """
import sys
from scikit_build_core import build
print(build.build_wheel(sys.argv[1]))
"""

# What a user's kernels look like in a folder that has the name of one of ours.
_KERNELS = """
import trial

def right(inputs, config, policy):
  return trial.Kernel().forward(config, policy, inputs)

def wrong(inputs, config, policy):
  return {'y': right(inputs, config, policy)['y'] * 2}
"""
_TESTS = """
import hpmoe
import pytest
from models import mine

@pytest.mark.parametrize('kernel', ['right', 'wrong'])
def test_layer(kernel):
  case = hpmoe.Case(preset='tiny', ranks=2, routing='balanced')
  hpmoe.assert_parity(getattr(mine, kernel), case, lanes=['bounded'])
"""
_TYPED = """import hpmoe
case = hpmoe.Case(preset='tiny')
is_pass: bool = hpmoe.check(None, case).is_pass
wrong: str = hpmoe.check(None, case).is_pass
hpmoe.MoEConfig(num_rank=2)
"""
_IMPORTS = """
import importlib.util
import models.mine, reference.mine
import hpmoe.reference.layer
print(models.mine.MINE, reference.mine.MINE)
names = ('backend_ascend', 'parity_tests', 'tools', 'benchmarks')
found = [name for name in names if importlib.util.find_spec(name)]
print(found + [hpmoe.reference.layer.__package__])
"""

# Where the packages that the wheel depends on are installed, and this project.
_SITE = pathlib.Path(np.__file__).parents[1]
# What runs the `hpmoe` command as a module.
_COMMAND = 'hpmoe_command'
# They test or maintain the tree.
_LEFT_OUT = ('_test.py', '_testing.py', 'test_util.py')
# Folders that are in no wheel, and those of the backend's wheel.
_ELSEWHERE = (
  'benchmarks/',
  'tools/',
  'backend_ascend/',
  'parity_tests/ascend/',
)
# What describes each distribution.
_PROJECTS = ('.', 'backend_ascend', 'backend_ascend/twin')


@pytest.fixture(scope='module')
def site_folder(tmp_path_factory) -> pathlib.Path:
  """Returns a folder that holds the wheel's files, and nothing else."""
  folder = tmp_path_factory.mktemp('wheel')
  subprocess.run(
    [sys.executable, '-c', _BUILD, folder],
    cwd=import_graph.ROOT,
    check=True,
    stdout=subprocess.DEVNULL,
  )
  (wheel,) = folder.glob('*.whl')
  assert wheel.name.endswith('-py3-none-any.whl')
  assert wheel.stat().st_size < 3e6
  zipfile.ZipFile(wheel).extractall(folder / 'site')
  # Its environment: this one without the project, whose backend would be found.
  (folder / 'packages').mkdir()
  (folder / 'packages' / f'{_COMMAND}.py').write_text(
    'from hpmoe.parity_tests.commands import main\nmain.run()\n'
  )
  for path in _SITE.iterdir():
    if not path.name.startswith(('hyperparallel_moe', '_editable', 'hpmoe')):
      (folder / 'packages' / path.name).symlink_to(path)
  return folder / 'site'


def _run(site_folder, folder, line: str) -> subprocess.CompletedProcess[str]:
  """Runs a module outside of the environment.

  Its editable install would answer for the wheel.
  """
  packages = str(site_folder.with_name('packages'))
  path = os.pathsep.join(['.', str(site_folder), packages])
  return subprocess.run(
    [sys._base_executable, '-m', *line.split()],
    cwd=folder,
    env=dict(os.environ, PYTHONPATH=path),
    capture_output=True,
    text=True,
  )


class TestWheel:
  def test_one_import_package_and_one_command(self, site_folder):
    names = sorted(path.name for path in site_folder.iterdir())
    (info,) = site_folder.glob('*.dist-info')
    assert names == ['hpmoe', info.name]
    scripts = configparser.ConfigParser()
    scripts.read(info / 'entry_points.txt')
    assert scripts.sections() == ['console_scripts']
    assert list(scripts['console_scripts']) == ['hpmoe']

  def test_holds_every_module_and_no_test(self, site_folder):
    want = {'__init__.py'} | {
      path
      for path in import_graph.files()
      if path.endswith('.py')
      and not path.endswith(_LEFT_OUT)
      and '/' in path
      and not path.startswith(_ELSEWHERE)
    }
    package = site_folder / 'hpmoe'
    modules = {p.relative_to(package).as_posix() for p in package.rglob('*.py')}
    assert modules == want

  @pytest.mark.parametrize(
    ('line', 'text'),
    [
      ('check --preset=tiny', 'candidate: expected a kernel to judge'),
      ('compile --preset=tiny', 'compile: expected the Ascend backend'),
      ('shared', 'command: expected one of'),
    ],
  )
  @pytest.mark.few(2)
  def test_without_a_backend_a_request_says_what_it_needs(
    self, site_folder, tmp_path, line, text
  ):
    ran = _run(site_folder, tmp_path, f'{_COMMAND} {line}')
    assert ran.returncode == 2
    assert ran.stderr.startswith('hpmoe') and text in ran.stderr, ran.stderr
    assert ("'hyperparallel-moe[ascend]'" in ran.stderr) == (line != 'shared')

  def test_without_a_backend_its_names_say_what_they_need(
    self, site_folder, tmp_path
  ):
    (tmp_path / 'mine.py').write_text('import hpmoe\nhpmoe.compile\n')
    ran = _run(site_folder, tmp_path, 'mine')
    assert 'hpmoe.compile: expected the Ascend backend' in ran.stderr

  def test_holds_the_text_that_it_reads(self, site_folder):
    for text in ('parity_tests/data/alice', 'models/train/data/persuasion'):
      assert (site_folder / f'hpmoe/{text}.txt').is_file()

  def test_holds_nothing_that_only_tests_read(self, site_folder):
    paths = [p.relative_to(site_folder) for p in site_folder.rglob('*')]
    assert not [p for p in paths if 'testdata' in p.parts]
    assert not [
      p for p in paths if p.suffix in ('.safetensors', '.npz', '.bin')
    ]

  def test_a_pytest_of_the_user(self, site_folder, tmp_path):
    # given tests beside folders of our names, one of which must fail
    (tmp_path / 'models').mkdir()
    (tmp_path / 'models' / 'mine.py').write_text(_KERNELS)
    shutil.copy(trial_testing.__file__, tmp_path / 'trial.py')
    (tmp_path / 'mine_test.py').write_text(_TESTS)
    # when they run from there
    command = 'pytest -q -p no:cacheprovider mine_test.py'
    ran = _run(site_folder, tmp_path, command)
    # then the failure says where
    assert '1 failed, 1 passed' in ran.stdout, ran.stdout + ran.stderr
    assert 'AssertionError: first failure: y (bounded: ' in ran.stdout
    assert 'api.py' not in ran.stdout  # the line of the user's is shown

  @pytest.mark.slow
  def test_a_type_checker_of_the_user_sees_types(self, site_folder, tmp_path):
    # given an environment of their own that has the wheel
    venv.create(tmp_path / 'env')
    (site,) = (tmp_path / 'env').glob('lib/*/site-packages')
    paths = (str(site_folder), str(site_folder.with_name('packages')))
    (site / 'hpmoe.pth').write_text('\n'.join(paths))
    (tmp_path / 'mine.py').write_text(_TYPED)
    # when mypy reads two wrong lines
    ran = subprocess.run(
      [sys.executable, '-m', 'mypy', 'mine.py']
      + [f'--python-executable={tmp_path}/env/bin/python'],
      cwd=tmp_path,
      capture_output=True,
      text=True,
    )
    # then it names both, and nothing else
    assert [line.split(':')[1] for line in ran.stdout.splitlines()[:-1]] == [
      '4',
      '5',
    ], ran.stdout


def _read_project(folder: str) -> dict:
  text = (import_graph.ROOT / folder / 'pyproject.toml').read_text()
  return tomllib.loads(text)['project']


class TestDistributions:
  def test_are_of_one_version_and_ask_for_it(self):
    judge, backend, twin = map(_read_project, _PROJECTS)
    version = judge['version']
    assert {backend['version'], twin['version']} == {version}
    assert f'hyperparallel-moe=={version}' in backend['dependencies']
    assert f'ascend-twin=={version}' in backend['dependencies']
    extra = judge['optional-dependencies']['ascend']
    assert extra == [f'hyperparallel-moe-ascend=={version}']

  def test_the_backend_s_entry_points_are_there(self):
    groups = _read_project('backend_ascend')['entry-points']
    assert sorted(groups) == ['hpmoe.backends', 'hpmoe.commands']
    for entries in groups.values():
      for name, value in entries.items():
        entry = importlib.metadata.EntryPoint(name, value, 'group')
        assert entry.load()


class TestCheckout:
  def test_nothing_but_hpmoe_is_importable(self, tmp_path):
    # given folders of our names without __init__.py, as a user's may be
    for name in ('models', 'reference'):
      (tmp_path / name).mkdir()
      (tmp_path / name / 'mine.py').write_text('MINE = True')
    # when the environment of this checkout runs a program of theirs
    ran = subprocess.run(
      [sys.executable, '-c', _IMPORTS],
      cwd=tmp_path,
      capture_output=True,
      text=True,
    )
    # then it finds theirs, and ours under one name
    assert ran.stdout.splitlines() == ['True True', "['hpmoe.reference']"], (
      ran.stderr
    )
