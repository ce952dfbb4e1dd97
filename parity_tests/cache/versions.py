"""What figures were made with."""

import functools
import hashlib
import pathlib
import platform

from hpmoe.backend_ascend import _native
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

  It is that of all Python of the three floors and of the machine code: a report
  can be tied to a tree, for two builds of one version may differ.
  """
  digest = hashlib.sha256(pathlib.Path(_native.__file__).read_bytes())
  for package in ('reference', 'backend_ascend', 'parity_tests'):
    digest.update(programs.texts(f'hpmoe.{package}').encode())
  return digest.hexdigest()[:16]


def of(package: str) -> str:
  """Returns the version of an installed package."""
  import importlib.metadata  # Takes long, and only a JSON report needs it.

  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return 'not installed'
