"""What our own backend reports as wrong is its failure, not the request's."""

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
  """Tells what our own backend made wrong from a request that was wrong.

  Args:
    name: what reports call it.
    view: in which it launches; None: as the layer is.

  Raises:
    candidates.CandidateError: a proof refused a flow of our compiler, the
      loader an image, the check of the plan its tables, or a launch ended
      early.
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
    found = error.diagnosis
    plan = view.restore(error.plan) if view else error.plan
    raise candidates.CandidateError(str(found), found, plan=plan) from error
