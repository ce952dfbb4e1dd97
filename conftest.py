"""What every test shares: a quiet CPU, float64 and seeds named by the test."""

from collections.abc import Iterator
import ctypes
import functools
import gc
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile
import zlib

# Before the first import of jax, which reads them once.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('GLOG_v', '3')
from absl import logging  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

# Not by environment variable: the commands that tests start must turn it on
# for themselves.
jax.config.update('jax_enable_x64', True)
logging.set_verbosity(logging.WARNING)

_ROOT = pathlib.Path(__file__).parent
# Collected where MindSpore is installed, and never skipped there.
_NEED_MINDSPORE = ['*_mindspore_test.py', '*models/mindspore/*_test.py']
_MINDSPORE = importlib.util.find_spec('mindspore') is not None
collect_ignore_glob = [] if _MINDSPORE else [*_NEED_MINDSPORE]
# `make test-torch` names a Python that has torch.
if 'HPMOE_TORCH_PYTHON' not in os.environ:
  collect_ignore_glob += ['*_torch_test.py']


def pytest_report_header() -> list[str]:
  """Says what is left out."""
  if _MINDSPORE:
    return []
  return [f'mindspore: not installed; none of {_NEED_MINDSPORE} is collected']


def pytest_configure(config: pytest.Config) -> None:
  """Keeps compiled oracles for this run only, one folder for all workers.

  A test run leaves nothing in its user's folders.
  """
  if 'HPMOE_CACHE' not in os.environ:
    folder = tempfile.mkdtemp(prefix='hpmoe-tests-')
    os.environ['HPMOE_CACHE'] = folder
    # Where the shell forbids bytecode, each of the hundreds of processes that
    # tests start would compile JAX's sources anew, which takes a second.
    if os.environ.pop('PYTHONDONTWRITEBYTECODE', None):
      os.environ['PYTHONPYCACHEPREFIX'] = f'{folder}/bytecode'
    config.add_cleanup(functools.partial(shutil.rmtree, folder, True))
  _keep_programs(config)
  try:
    from hpmoe.parity_tests.cache import cache_folder
  except ModuleNotFoundError:  # Bazel lays out what a test asks for
    return
  cache = cache_folder.use_cache(cache_folder.find_folder())
  cache.__enter__()
  config.add_cleanup(lambda: cache.__exit__(None, None, None))


def _keep_programs(config: pytest.Config) -> None:
  """Has each worker compile a program once, though modules let go of theirs.

  In a folder of its own: JAX writes what others may be reading.
  """
  folder = tempfile.mkdtemp(prefix='hpmoe-xla-')
  config.add_cleanup(functools.partial(shutil.rmtree, folder, True))
  jax.config.update('jax_compilation_cache_dir', folder)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


@pytest.fixture(autouse=True)
def _search_no_causes(
  request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
  """Leaves out the search for roundings in a `verdict_alone` test."""
  if request.node.get_closest_marker('verdict_alone'):
    from hpmoe.parity_tests.explain import roundings

    monkeypatch.setattr(roundings, 'explain', lambda stage: ('', 0))


def pytest_addoption(parser: pytest.Parser) -> None:
  """Adds --ends and --users_xla."""
  parser.addoption(
    '--ends',
    action='store_true',
    help='of each test in no folder of --users_xla only its first and its last '
    'parameters',
  )
  parser.addoption(
    '--users_xla',
    action='append',
    metavar='FOLDER',
    help='XLA optimises as for users in tests of this folder, and little in '
    'all others; without this option, as for users in all',
  )


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
  config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
  """Marks what `few` leaves for `make sweep`; drops what `--ends` leaves out.

  Slow ones are gone between the two, where `-m` asks for it.
  """
  _mark_few(items)
  yield
  if config.getoption('ends'):
    _keep_ends(config, items)


def _mark_few(items: list[pytest.Item]) -> None:
  """Marks slow all but n parameters, from first to last, of a `few(n)` test."""
  of_test: dict[str, list[pytest.Item]] = {}
  for item in items:
    if item.get_closest_marker('few') and not item.get_closest_marker('slow'):
      of_test.setdefault(item.nodeid.partition('[')[0], []).append(item)
  for cases in of_test.values():
    (n,) = cases[0].get_closest_marker('few').args
    quick = {i * (len(cases) - 1) // max(n - 1, 1) for i in range(n)}
    for i, item in enumerate(cases):
      if i not in quick:
        item.add_marker('slow')


def _keep_ends(config: pytest.Config, items: list[pytest.Item]) -> None:
  whole_folders = config.getoption('users_xla') or []
  of_test: dict[str, list[pytest.Item]] = {}
  for item in items:
    whole = _is_in(item, whole_folders)
    name = item.nodeid if whole else item.nodeid.partition('[')[0]
    of_test.setdefault(name, []).append(item)
  ends = {
    id(item) for cases in of_test.values() for item in (cases[0], cases[-1])
  }
  config.hook.pytest_deselected(items=[i for i in items if id(i) not in ends])
  items[:] = [item for item in items if id(item) in ends]


def _is_in(item: pytest.Item, folders: list[str]) -> bool:
  return any(item.path.is_relative_to(_ROOT / name) for name in folders)


def pytest_runtest_setup(item: pytest.Item) -> None:
  """Lets XLA optimise as `--users_xla` says, in commands of the test too."""
  folders = item.config.getoption('users_xla')
  little = folders is not None and not _is_in(item, folders)
  jax.config.update('jax_disable_most_optimizations', little)
  if little:
    os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = '1'
  else:
    os.environ.pop('JAX_DISABLE_MOST_OPTIMIZATIONS', None)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None):
  """Lets go of what JAX compiled, and what a module's tests kept, at its end.

  What is freed goes back to the system: glibc would keep it for its threads.
  """
  if nextitem is None or item.path != nextitem.path:
    jax.clear_caches()
    module = getattr(item, 'module', None)  # a C++ test has none
    for value in vars(module).values() if module else ():
      if getattr(value, '__module__', '') == module.__name__:
        getattr(value, 'cache_clear', lambda: None)()
    if trim := getattr(ctypes.CDLL(None), 'malloc_trim', None):
      trim(0)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
  """Returns a seed in [0, 2**32) that only the test's own name decides."""
  return zlib.crc32(request.node.name.encode())


def pytest_unconfigure() -> None:
  """Lets an xdist worker be interrupted at its end without JAX's complaint."""
  gc.callbacks.clear()


if __name__ == '__main__':  # `bazel test` runs a test file through this one.
  sys.exit(pytest.main(sys.argv[1:]))
