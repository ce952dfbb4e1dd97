"""Errors of our own backend become a failure of the candidate."""

from collections.abc import Iterator
import contextlib

from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import expert_placement as placement_lib
from hpmoe.parity_tests.candidates import candidates


@contextlib.contextmanager
def report_failures(
  name: str, view: placement_lib.View | None = None
) -> Iterator[None]:
  """Raises CandidateError for errors that are not the request's.

  Args:
    name: the candidate's name in reports.
    view: the placement of experts in which it launches; None: the layer's own.

  Raises:
    candidates.CandidateError: a proof rejected a flow of our compiler, the
      loader rejected an image or a plan's tables, or a launch ended early.
  """
  try:
    yield
  except (
    proofs.ProofError,
    runtime.ImageError,
    runtime.BrokenError,
  ) as error:
    raise candidates.CandidateError(f'{name}: {error}') from error
  except runtime.WaitError as error:
    diagnosis = error.diagnosis
    plan = view.restore(error.plan) if view else error.plan
    raise candidates.CandidateError(
      str(diagnosis), diagnosis, plan=plan
    ) from error
