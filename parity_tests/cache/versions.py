"""What figures were made with."""

import functools
import hashlib
import importlib.machinery
import importlib.util
import pathlib
import platform

from hpmoe.parity_tests.cache import programs


def versions() -> dict[str, str]:
  """Returns what the figures were made with."""
  return {
    'hyperparallel-moe': of('hyperparallel-moe'),
    'sources': sources(),
    'python': platform.python_version(),
    **{name: of(name) for name in ('jax', 'numpy', 'ml_dtypes')},
    'machine': f'{platform.system()} {platform.machine()}',
  }


@functools.cache
def sources() -> str:
  """Returns a digest of what judges and of what is judged, as it runs here.

  The digest covers all Python of the packages that are installed and their
  extension module, so that a report can be tied to a tree: two builds of one
  version may differ.
  """
  digest = hashlib.sha256()
  for package in ('reference', 'backend_ascend', 'parity_tests'):
    if importlib.util.find_spec(f'hpmoe.{package}') is not None:
      digest.update(programs.texts(f'hpmoe.{package}').encode())
  spec = _find_extension()
  if spec is not None and spec.origin:
    digest.update(pathlib.Path(spec.origin).read_bytes())
  return digest.hexdigest()[:16]


def _find_extension() -> importlib.machinery.ModuleSpec | None:
  try:
    return importlib.util.find_spec('hpmoe.backend_ascend._native')
  except ModuleNotFoundError:  # The backend is not installed.
    return None


def of(package: str) -> str:
  """Returns the version of an installed package."""
  import importlib.metadata  # Takes long, and only a JSON report needs it.

  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return 'not installed'
