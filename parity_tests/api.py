"""A check from Python: what `hpmoe check` does, on objects."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import host
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import check as check_lib
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards as standards_lib
from hpmoe.parity_tests.kept import compiled
from hpmoe.parity_tests.report import matrix
from hpmoe.parity_tests.report import report as report_lib
from hpmoe.parity_tests.report import report_html

Candidate = str | Callable[..., Mapping] | candidates.Candidate | None


@dataclasses.dataclass(frozen=True)
class Report:
  """What a check found; `print` shows it as the command does.

  Attributes:
    found: every comparison, and what decided the outcome.
  """

  found: check_lib.Report

  @property
  def passed(self) -> bool:
    return self.found.verdict == verdicts.PASS

  @property
  def stages(self) -> dict[str, str]:
    """'pass', 'fail' or 'not judged' of each stage, in dependency order."""
    return {
      stage: matrix.worst_verdict(results)
      for stage, results in matrix.stages(self.found).items()
    }

  @property
  def first_failure(self) -> verdicts.Failure | None:
    """The failing tile that comes first in dependency order."""
    return self.found.first_failure

  def to_json(self) -> dict[str, Any]:
    """Returns the whole report as plain data."""
    return report_lib.to_json(self.found)

  def to_html(self) -> str:
    """Returns a page that needs nothing beside it."""
    return report_html.to_html(self.found)

  def __str__(self) -> str:
    return report_lib.text(self.found, matrix.table(self.found))


@dataclasses.dataclass(frozen=True)
class _Call(check_lib.Request):
  """A request whose replay is a line of Python."""

  def replay(self, *lanes: str) -> str:
    """See `Request`."""
    changed = {
      f.name: getattr(self.case, f.name)
      for f in dataclasses.fields(self.case)
      if getattr(self.case, f.name) is not f.default
    }
    if isinstance(self.case.input, Mapping):
      changed['input'] = '...'
    fields = ', '.join(f'{name}={value!r}' for name, value in changed.items())
    fields = fields.replace(repr('...'), '...')
    asked = f', lanes={lanes}' if lanes else ''
    return f'hpmoe.check({_typed(self.candidate)}, hpmoe.Case({fields}){asked})'


def check(
  candidate: Candidate = None,
  case: case_lib.Case = case_lib.Case(),
  *,
  lanes: Sequence[str] = verdicts.LANES,
  standards: Sequence[str] = standards_lib.DEFAULT,
  tiles: int | None = None,
  repeat: int | None = None,
  allow_nondeterministic: bool = False,
  timeout_s: float = 600.0,
) -> Report:
  """Compares a candidate with the oracle, tile by tile.

  Args:
    candidate: a function of (inputs, config, policy) that returns tensors by
      name, called in this process; 'pkg.module:function', in a process of its
      own, which may crash or hang; or None, for our own backend.
    case: what is asked.
    lanes: some of 'exact', 'bitwise', 'bounded', 'standard'.
    standards: names of records for lane 'standard'.
    tiles: tiles of each stage to judge, the others not; None: all.
    repeat: runs of each pass on real data, which must give the same bits; None:
      two of a kernel of yours where that is cheap.
    allow_nondeterministic: whether they may differ; then each is judged.
    timeout_s: seconds that a candidate in a process of its own may take.

  Raises:
    ValueError: the request was wrong; the text names the argument.
    CandidateError: the candidate crashed, hung or could not run.
  """
  request = _Call(
    case=case,
    candidate=_candidate(candidate, timeout_s),
    judgement=judgement_lib.Judgement(
      tuple(lanes), tuple(standards), tiles, repeat, allow_nondeterministic
    ),
  )
  with compiled.kept(compiled.folder()):
    return Report(check_lib.run(request))


def assert_parity(
  candidate: Candidate = None,
  case: case_lib.Case = case_lib.Case(),
  **options: Any,
) -> Report:
  """Returns the report of `check`, whose arguments it takes, if it passed.

  Raises:
    AssertionError: it did not; the text is the first failure.
    ValueError, CandidateError: see `check`.
  """
  __tracebackhide__ = True  # pytest shows the caller's line
  report = check(candidate, case, **options)
  if not report.passed:
    raise AssertionError(report_lib.why_not(report.found))
  return report


def _typed(candidate: candidates.Candidate) -> str:
  """Returns what one types for a candidate."""
  if isinstance(candidate, host.Megakernel):
    return 'None'
  if isinstance(candidate, in_process.Function):
    module, _, named = candidate.name.partition(':')
    is_there = module != '__main__' and '<' not in named
    return f'{module}.{named}' if is_there else named
  return repr(candidate.name)


def _candidate(given: Candidate, timeout_s: float) -> candidates.Candidate:
  if given is None:
    return host.Megakernel()
  if isinstance(given, str):
    return user_candidate.Subprocess(given, timeout_s)
  if isinstance(given, candidates.Candidate):
    return given
  if callable(given):
    return in_process.Function(given)
  raise ValueError(
    "candidate: expected a function, 'pkg.module:function' or None, got "
    f'{given!r}'
  )
