"""The installed backend, if there is one."""

import dataclasses
import functools
from typing import Any

from hpmoe.parity_tests import plugins
from hpmoe.parity_tests.candidates import candidate_kind as row_lib
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking as checking_lib
from hpmoe.parity_tests.candidates import tiling_fields
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import granularity


@functools.cache
def load_backend() -> row_lib.Backend | None:
  """Returns the installed backend, or None."""
  return next(iter(plugins.load_plugins(plugins.BACKENDS)), None)


def require_backend(argument: str) -> row_lib.Backend:
  """Returns the installed backend.

  Raises:
    ValueError: no backend is installed; names the argument.
  """
  backend = load_backend()
  if backend is None:
    raise ValueError(plugins.explain_missing(argument))
  return backend


@dataclasses.dataclass(frozen=True)
class NoBackend(candidates.Candidate):
  """Stands in for the backend's default candidate where none is installed."""

  name: str = 'no backend'
  options: granularity.Options = granularity.Options()
  checking: checking_lib.Checking = checking_lib.Checking()

  def ready(self, case, beside=''):
    """See `Candidate`.

    Raises:
      ValueError: always.
    """
    raise ValueError(
      'candidate: expected a kernel to judge (--candidate, --command or '
      f'--outputs), or the Ascend backend ({plugins.INSTALL}), got neither'
    )

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    """See `Candidate`."""
    raise AssertionError('a candidate that is never ready cannot run')


def default_row() -> row_lib.Row:
  """Returns the kind of candidate that is judged if no flag names another."""
  if (backend := load_backend()) is not None:
    return backend.default
  names = tuple(f.name for f in (*tiling_fields.FLAGS, *checking_lib.FLAGS))
  return row_lib.Row(NoBackend, None, None, names, 'no backend is installed')


def default_candidate() -> candidates.Candidate:
  """Returns the backend's launch on the host."""
  return default_row().kind()


def is_default(candidate: Any) -> bool:
  """Says whether a candidate is the backend's launch on the host."""
  return isinstance(candidate, default_row().kind)
