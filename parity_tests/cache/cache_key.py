"""What a compiled program or a result depends on, as text and digests.

A key holds the versions of the libraries that compile, the CPU, the settings
of JAX and XLA, and digests of the source text that is compiled.
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import pathlib
import platform
import sys

# Prefixes of environment variables that change what is compiled.
_SETTINGS = ('JAX_', 'XLA_')


def describe_environment() -> tuple[str, ...]:
  """Returns versions, machine, settings and the digest of the oracle's text."""
  settings = sorted(
    f'{name}={value}'
    for name, value in os.environ.items()
    if name.startswith(_SETTINGS)
  )
  return (
    *_versions(),
    digest_package('hpmoe.reference'),
    f'x64={_is_x64()}',
    *settings,
  )


def _is_x64() -> bool:
  """Returns whether JAX uses 64-bit types; False before it is imported.

  Environment variables that would set it are part of the key anyway.
  """
  if 'jax' not in sys.modules:
    return False
  import jax

  return jax.config.read('jax_enable_x64')


@functools.cache
def _versions() -> tuple[str, ...]:
  packages = ('jax', 'jaxlib', 'numpy', 'ml_dtypes')
  versions = [f'{name} {_version(name)}' for name in packages]
  return (*versions, sys.version, identify_machine())


def _version(package: str) -> str:
  """Returns an installed version, read from the name of its dist-info folder.

  Importing importlib.metadata takes longer than the rest of a small check.
  """
  spec = importlib.util.find_spec(package)
  if spec is not None and spec.origin is not None:
    site_packages = pathlib.Path(spec.origin).parents[1]
    matches = [
      path.stem for path in site_packages.glob(f'{package}-*.dist-info')
    ]
    if len(matches) == 1:
      return matches[0].removeprefix(f'{package}-')
  from importlib import metadata

  return metadata.version(package)


@functools.cache
def identify_machine() -> str:
  """Returns a digest of the CPU, which JAX's own cache keys do not include."""
  cpu = [platform.machine(), f'{os.cpu_count()} cores']
  with contextlib.suppress(OSError):
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
    names = ('model name', 'flags', 'Features', 'CPU part')
    cpu += sorted({line for line in lines if line.startswith(names)})
  return hashlib.sha256('\n'.join(cpu).encode()).hexdigest()[:16]


@functools.cache
def digest_module(module: str) -> str:
  """Returns a digest of a module's text, which may wrap the oracle's code."""
  spec = importlib.util.find_spec(module)
  assert spec is not None and spec.origin is not None
  text = pathlib.Path(spec.origin).read_bytes()
  return hashlib.sha256(text).hexdigest()


@functools.cache
def digest_package(package: str) -> str:
  """Returns a digest of the text of all modules of a package."""
  paths = []
  for folder in importlib.import_module(package).__path__:
    paths += sorted(pathlib.Path(folder).rglob('*.py'))
  digest = hashlib.sha256()
  for path in paths:
    text = path.read_bytes()
    digest.update(f'{path.name} {len(text)}\n'.encode() + text)
  return digest.hexdigest()
