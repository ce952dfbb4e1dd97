"""A function is found by its name, and nothing of the user's runs."""

import pathlib
import textwrap

import pytest

from hpmoe.parity_tests.candidates import find_function
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.case import case as case_lib

_RAISES = 'raise RuntimeError("it ran")\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> pathlib.Path:
  """A folder of a user, which is the current one."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'kernel.py').write_text(_RAISES + '\n\ndef moe(*a): pass\n')
  package = tmp_path / 'my_kernels'
  package.mkdir()
  (package / '__init__.py').write_text(_RAISES)
  (package / 'moe.py').write_text('if True:\n  layer = object()\n')
  # Of a name that a module of this process has.
  (tmp_path / 'textwrap.py').write_text('def moe(*a): pass\n')
  return tmp_path


@pytest.mark.parametrize(
  ('name', 'file', 'line'),
  [
    ('kernel.py:moe', 'kernel.py', 4),
    ('kernel:moe', 'kernel.py', 4),
    ('my_kernels.moe:layer.forward', 'my_kernels/moe.py', 2),
    ('textwrap:moe', 'textwrap.py', 1),
  ],
)
def test_a_function_is_found_at_its_line(folder, name, file, line):
  source = find_function.find_source(name)

  assert source == find_function.Source(source.file, line)
  assert source.file.resolve() == (folder / file).resolve()


def test_a_module_that_is_no_text_is_left_to_its_import():
  assert find_function.find_source('math:sqrt') is None


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('nofile.py:moe', r"expected a file, got 'nofile.py': there is none in /"),
    ('/no/file.py:moe', r"got '/no/file.py': there is none$"),
    ('kernal:moe', "expected a module in .*, got no module 'kernal'"),
    ('my_kernels.moa:layer', "got no module 'my_kernels.moa'"),
    ('kernel.moe:layer', "got no module 'kernel.moe'"),
    ('kernel.py:mow', "in kernel.py, got 'mow', .*: did you mean 'moe'"),
    ('kernel:unlike', "in kernel, got 'unlike', which is not in it$"),
  ],
)
def test_what_is_not_there_is_named_before_anything_runs(name, message):
  candidate = function_candidate.Subprocess(name)

  with pytest.raises(ValueError, match=message):
    candidate.ready(case_lib.Case(preset='tiny'))


@pytest.mark.parametrize('name', ['npx', 'n'])
def test_a_module_is_not_what_was_meant(folder, name):
  (folder / 'kernel.py').write_text('import numpy as np\n\ndef moe(*a): pass\n')

  with pytest.raises(ValueError, match=f'got {name!r}, which is not in it$'):
    find_function.find_source(f'kernel.py:{name}')


@pytest.mark.parametrize(
  'text',
  [
    'from elsewhere import *',
    'def __getattr__(name): return print',
    'globals()["moe"] = print',
    'for moe in [print]: pass',
    'with open("f") as moe: pass',
    'try:\n  import fast as moe\nexcept ImportError:\n  moe = None',
    'if True:\n  from fast import moe',
    '(moe := print)',
    'syntax error',
  ],
)
def test_a_module_that_may_bind_a_name_is_not_refused(folder, text):
  (folder / 'kernel.py').write_text(textwrap.dedent(text))

  find_function.find_source('kernel.py:moe')


def test_a_package_that_finds_its_modules_itself_is_not_refused(folder):
  text = 'import sys\nsys.modules["my_kernels.made"] = sys\n'
  (folder / 'my_kernels/__init__.py').write_text(text)

  assert find_function.find_source('my_kernels.made:moe') is None
