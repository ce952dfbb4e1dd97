"""Versions and digests that a report records."""

import functools
import hashlib
import importlib.machinery
import importlib.util
import pathlib
import platform

from hpmoe.parity_tests.cache import cache_key


def list_versions() -> dict[str, str]:
  """Returns versions of packages and Python, the machine, and `sources`."""
  return {
    'hyperparallel-moe': installed_version('hyperparallel-moe'),
    'sources': digest_sources(),
    'python': platform.python_version(),
    **{name: installed_version(name) for name in ('jax', 'numpy', 'ml_dtypes')},
    'machine': f'{platform.system()} {platform.machine()}',
  }


@functools.cache
def digest_sources() -> str:
  """Returns a digest of the installed source text and extension module.

  The digest covers all Python of the packages that are installed and their
  extension module, so that a report can be tied to a tree: two builds of one
  version may differ.
  """
  digest = hashlib.sha256()
  for package in ('reference', 'backend_ascend', 'parity_tests'):
    if importlib.util.find_spec(f'hpmoe.{package}') is not None:
      digest.update(cache_key.digest_package(f'hpmoe.{package}').encode())
  spec = _find_extension()
  if spec is not None and spec.origin:
    digest.update(pathlib.Path(spec.origin).read_bytes())
  return digest.hexdigest()[:16]


def _find_extension() -> importlib.machinery.ModuleSpec | None:
  try:
    return importlib.util.find_spec('hpmoe.backend_ascend._native')
  except ModuleNotFoundError:  # The backend is not installed.
    return None


def installed_version(package: str) -> str:
  """Returns the version of an installed package."""
  import importlib.metadata  # Slow to import; only a JSON report needs it.

  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return 'not installed'
