"""Keys change with everything that compiles and with the compiled text."""

import hashlib
import pathlib
import sys

import numpy as np
import pytest

from hpmoe.parity_tests.cache import cache_key
from hpmoe.parity_tests.cache import programs_testing as testing

without_jax_cache = testing.without_jax_cache
no_results = testing.no_results


@pytest.mark.usefixtures('no_results')
class TestKey:
  @pytest.mark.parametrize(
    ('name', 'value'),
    [
      ('_versions', ('jax 0',)),
      ('digest_package', 'other text'),
      ('digest_module', 'other text'),
      ('_is_x64', not cache_key._is_x64()),
      ('XLA_FLAGS_OF_TEST', ''),
    ],
  )
  def test_what_compiles_and_what_is_compiled(
    self, tmp_path, monkeypatch, name, value
  ):
    testing.run_checked(tmp_path)
    if name.startswith('XLA'):
      monkeypatch.setenv(name, value)
    else:
      monkeypatch.setattr(cache_key, name, lambda *_: value)
    assert testing.run_checked(tmp_path) == 1

  def test_the_text_is_that_of_the_file(self):
    text = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    assert cache_key.digest_module(__name__) == text

  def test_versions_name_all_that_compile(self):
    versions = ' '.join(cache_key._versions())
    for name in ('jax', 'jaxlib', 'numpy', 'ml_dtypes'):
      assert f'{name} {sys.modules[name].__version__}' in versions
    assert sys.version in versions and cache_key.identify_machine() in versions

  def test_a_version_is_found_where_no_folder_tells_it(self, monkeypatch):
    version = cache_key._version('numpy')
    monkeypatch.setattr(cache_key.importlib.util, 'find_spec', lambda _: None)
    assert cache_key._version('numpy') == version == np.__version__

  def test_sources_are_read(self, monkeypatch, tmp_path):
    import hpmoe.reference

    before = cache_key.digest_package.__wrapped__('hpmoe.reference')
    (tmp_path / 'combine.py').write_text('# changed')
    monkeypatch.setattr(
      hpmoe.reference, '__path__', [*hpmoe.reference.__path__, str(tmp_path)]
    )
    assert cache_key.digest_package.__wrapped__('hpmoe.reference') != before
