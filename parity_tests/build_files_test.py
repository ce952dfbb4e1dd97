"""The BUILD files are what the tree calls for."""

import pathlib
import textwrap

import pytest

from parity_tests import build_files

HOST = 'backend_ascend/kernels/host'
FRONT = 'backend_ascend/frontends'
INCLUDE_GEMM = f'#include "{HOST}/gemm.h"'
TREE = {
    'pyproject.toml': """
        [project]
        dependencies = ['jax>=0.7', 'absl-py>=2.1']
        [project.optional-dependencies]
        mindspore = ["mindspore==2.10.0; python_version < '3.13'"]
        test = ['pytest>=8']
    """,
    'conftest.py': 'import pytest',
    'reference/__init__.py': '',
    'reference/config.py': 'import dataclasses',
    'reference/layer.py': 'import jax\nfrom reference import config',
    'reference/layer_test.py': 'from reference import layer',
    'parity_tests/text.py': "FOLDER = 'testdata'",
    'parity_tests/testdata/text.txt': '',
    'backend_ascend/run.py': 'from backend_ascend import _native',
    'backend_ascend/native_module.cc': '#include <nanobind/nanobind.h>',
    'backend_ascend/kernels/image.h': '#include <stdint.h>',
    f'{HOST}/gemm.h': '#include "backend_ascend/kernels/image.h"',
    f'{HOST}/gemm.cc': INCLUDE_GEMM,
    f'{HOST}/gemm_avx2.cc': INCLUDE_GEMM,
    f'{HOST}/gemm_binding.cc': INCLUDE_GEMM,
    f'{FRONT}/jax_ffi_module.cc': '#include <nanobind/nanobind.h>',
    f'{FRONT}/jax_ffi_binding.cc': '#include <xla/ffi/api/ffi.h>',
    f'{FRONT}/layer.py': 'from backend_ascend.frontends import _jax_ffi',
}


def put(root: pathlib.Path, path: str, text: str) -> None:
  (root / path).parent.mkdir(parents=True, exist_ok=True)
  (root / path).write_text(textwrap.dedent(text))


@pytest.fixture(name='tree')
def fixture_tree(tmp_path):
  """A small tree whose BUILD files agree with it."""
  for path, text in TREE.items():
    put(tmp_path, path, text)
  build_files.write(tmp_path)
  assert not list(build_files.differences(tmp_path))
  return tmp_path


def targets(root: pathlib.Path, folder: str) -> dict:
  rules = build_files.parse((root / folder / 'BUILD').read_text())
  return {r.attributes.get('name'): (r.kind, r.attributes) for r in rules}


def changes(root: pathlib.Path) -> list[str]:
  """Returns the changed lines of the diff, without its file headers."""
  return [
      line.replace(' ', '')
      for line in build_files.differences(root)
      if line[0] in '+-' and line[:3] not in ('+++', '---')
  ]


class TestTree:

  def test_build_files_agree_with_the_tree(self):
    diff = list(build_files.differences())
    assert not diff, (
        'stale: run `python -m parity_tests.build_files --write`\n'
        + '\n'.join(diff)
    )

  def test_every_file_is_in_exactly_one_target(self):
    owners: dict[str, list[str]] = {}
    for folder, rules in build_files.expected().items():
      for rule in rules:
        for key in ('srcs', 'hdrs'):
          for name in rule.attributes.get(key, []):
            if not name.startswith(('glob', '//:conftest')):
              owners.setdefault(f'{folder}/{name}', []).append(rule.kind)
    root = build_files.import_graph.ROOT
    files = set(build_files.import_graph.files()) - {'conftest.py'}
    assert {p for p in owners if (root / p).is_file()} >= files
    assert not {p: o for p, o in owners.items() if p in files and len(o) != 1}


class TestDerivation:

  def test_python_deps_are_the_imports(self, tree):
    reference = targets(tree, 'reference')
    kind, layer = reference['layer']
    assert kind == 'py_library'
    assert layer['deps'] == [':config', 'requirement("jax")']
    assert 'deps' not in reference['config'][1]

  def test_test_runs_through_conftest(self, tree):
    kind, test = targets(tree, 'reference')['layer_test']
    assert kind == 'py_test'
    assert test['main'] == '//:conftest.py'
    assert test['args'] == ['reference/layer_test.py']
    assert test['deps'] == [':layer', 'requirement("pytest")']

  def test_header_and_source_share_a_target(self, tree):
    host = targets(tree, HOST)
    assert host['gemm_cc'][1]['hdrs'] == ['gemm.h']
    assert host['gemm_cc'][1]['srcs'] == ['gemm.cc']
    assert host['gemm_cc'][1]['deps'] == ['//backend_ascend/kernels:image_cc']
    assert host['gemm_avx2_cc'][1]['alwayslink'] is True
    assert host['gemm_binding_cc'][0] == 'nanobind_library'

  def test_extension_links_every_source_and_is_data(self, tree):
    backend = targets(tree, 'backend_ascend')
    kind, native = backend['_native']
    assert kind == 'nanobind_extension'
    assert native['deps'] == [
        f'//{HOST}:gemm_avx2_cc',
        f'//{HOST}:gemm_binding_cc',
        f'//{HOST}:gemm_cc',
    ]
    assert backend['run'][1]['data'] == [':_native']

  def test_extension_in_a_folder_links_the_libraries_above_it(self, tree):
    front = targets(tree, FRONT)
    kind, jax_ffi = front['_jax_ffi']
    assert kind == 'nanobind_extension'
    assert jax_ffi['deps'] == [
        ':jax_ffi_binding_cc',
        f'//{HOST}:gemm_avx2_cc',
        f'//{HOST}:gemm_cc',
    ]
    assert front['layer'][1]['data'] == [':_jax_ffi']

  def test_testdata_follows_who_names_it(self, tree):
    parity = targets(tree, 'parity_tests')
    assert parity['text'][1]['data'] == [':testdata']
    assert parity['testdata'][0] == 'filegroup'


class TestStale:

  def test_new_file(self, tree):
    put(tree, 'reference/swiglu.py', '')
    assert '+name="swiglu",' in changes(tree)

  def test_removed_file(self, tree):
    (tree / HOST / 'gemm_avx2.cc').unlink()
    assert '-name="gemm_avx2_cc",' in changes(tree)

  def test_removed_folder(self, tree):
    (tree / 'parity_tests/text.py').unlink()
    assert '-name="text",' in changes(tree)

  def test_new_import(self, tree):
    put(tree, 'reference/config.py', 'from absl import logging')
    assert '+deps=[requirement("absl-py")],' in changes(tree)

  def test_missing_dep(self, tree):
    path = tree / 'reference/BUILD'
    path.write_text(path.read_text().replace('        ":config",\n', ''))
    assert any('":config"' in line for line in changes(tree))

  def test_missing_build_file(self, tree):
    (tree / 'reference/BUILD').unlink()
    assert '+name="layer",' in changes(tree)

  def test_layout_and_comments_do_not_count(self, tree):
    path = tree / 'reference/BUILD'
    path.write_text('# Mine.\n' + path.read_text().replace(',\n)', '\n)'))
    assert not changes(tree)


class TestRefusals:

  @pytest.mark.parametrize(
      'path, text, message',
      [
          ('reference/a.py', 'import torch', 'pyproject.toml.*got torch'),
          ('reference/a.py', 'import pytest', 'every user, got pytest'),
          ('reference/a.py', 'import reference.b', 'a.py:1.*got reference.b'),
          ('reference/config.py', 'import reference.layer', 'circle.*config'),
          ('backend_ascend/a.h', '#include "image.h"', 'root, got image.h'),
      ],
  )
  def test_bad_import(self, tree, path, text, message):
    put(tree, path, text)
    with pytest.raises(ValueError, match=message):
      build_files.expected(tree)

  def test_optional_framework_is_open_to_users(self, tree):
    put(tree, 'backend_ascend/a.py', 'import mindspore')
    build_files.write(tree)
    _, rule = targets(tree, 'backend_ascend')['a']
    assert rule['deps'] == ['requirement("mindspore")']

  @pytest.mark.parametrize('text', ['x = 1', '[f(a) for a in b]', 'a.b()'])
  def test_build_file_that_computes(self, text):
    with pytest.raises(ValueError, match='line 1: expected a call'):
      build_files.parse(text)
