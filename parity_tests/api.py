"""A check from Python: what `hpmoe check` does, on objects."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import sys
from typing import TYPE_CHECKING, Any
import warnings

from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.candidates import backends
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import external_program
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import check as check_lib
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import lane_table
from hpmoe.parity_tests.report import report_html
from hpmoe.parity_tests.report import report_json
from hpmoe.parity_tests.report import report_text

# Names of 0.3, which work until 1.0.
_OLD_NAMES = dict(passed='is_pass', found='check_report')

Candidate = str | Callable[..., Mapping] | candidates.Candidate | None


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
  """The result of a check; `print` shows it as the command does.

  A prompt shows the verdict in three lines, a notebook a table.

  Attributes:
    check_report: every comparison, and what decided the verdict.
  """

  check_report: check_lib.Report

  if not TYPE_CHECKING:  # a type checker names unknown attributes

    def __getattr__(self, name):
      new_name = _OLD_NAMES.get(name)
      if new_name is None:
        raise AttributeError(f'Report: expected an attribute, got {name!r}')
      warnings.warn(
        f'Report.{name} is now called Report.{new_name}',
        DeprecationWarning,
        stacklevel=2,
      )
      return getattr(self, new_name)

  @property
  def is_pass(self) -> bool:
    """Whether the verdict is 'pass'."""
    return self.check_report.verdict == verdicts.PASS

  @property
  def stages(self) -> dict[str, str]:
    """'pass', 'fail' or 'not judged' of each stage, in dependency order."""
    return {
      stage: lane_table.find_worst_verdict(results)
      for stage, results in lane_table.group_by_stage(self.check_report).items()
    }

  @property
  def first_failure(self) -> verdicts.Failure | None:
    """The failing tile that comes first in dependency order."""
    return self.check_report.first_failure

  def to_json(self) -> dict[str, Any]:
    """Returns the whole report as plain data."""
    return report_json.to_json(self.check_report)

  def to_html(self) -> str:
    """Returns the report as one HTML file."""
    return report_html.to_html(self.check_report)

  def _repr_html_(self) -> str:
    """Returns the HTML that a notebook shows."""
    return report_html.to_fragment(self.check_report)

  def __repr__(self) -> str:
    return report_text.format_brief(self.check_report)

  def __str__(self) -> str:
    return report_text.format_report(
      self.check_report, lane_table.format_table(self.check_report)
    )


@dataclasses.dataclass(frozen=True)
class _Call(check_lib.Request):
  """A request whose replay is a line of Python."""

  def replay(self, *lanes: str) -> str:
    """See `Request`."""
    typed = _format_candidate(self.candidate)
    if typed is None:
      return (
        f'none: no import finds {self.candidate.name}; call hpmoe.check on the '
        'function itself'
      )
    case = _changed_fields(self.case)
    if isinstance(self.case.input, Mapping):
      case['input'] = ...
    judgement_fields = _changed_fields(self.judgement) | (
      dict(lanes=lanes) if lanes else {}
    )
    words = [typed, f'hpmoe.Case({", ".join(_format_arguments(case))})']
    words += _format_arguments(judgement_fields)
    for name in ('layout', 'device'):
      value = getattr(self.candidate, name, '')
      words += [f'{name}={value!r}'] if value else []
    return f'hpmoe.check({", ".join(words)})'


def check(
  candidate: Candidate = None,
  case: case_lib.Case = case_lib.Case(),
  *,
  lanes: Sequence[str] = judgement_lib.Judgement.lanes,
  standards: Sequence[str] = judgement_lib.Judgement.standards,
  tiles: int | None = judgement_lib.Judgement.tiles,
  repeat: int | None = judgement_lib.Judgement.repeat,
  allow_nondeterministic: bool = judgement_lib.Judgement.allow_nondeterministic,
  search_roundings: bool = judgement_lib.Judgement.search_roundings,
  timeout_s: float = function_candidate.Subprocess.timeout_s,
  layout: str = function_candidate.Subprocess.layout,
  device: str = '',
) -> Report:
  """Compares a candidate with the oracle, tile by tile.

  Args:
    candidate: a function of (inputs, config, policy) that returns tensors by
      name, called in this process; 'pkg.module:function' or 'FILE.py:function',
      in a process of its own, which may crash or hang; 'command:./moe {case}
      {out}', a program; 'outputs:FOLDER', outputs computed elsewhere for a case
      `Case.from_folder(folder)`; or None, for the megakernel.
    case: the layer, its data and its passes.
    lanes: some of 'exact', 'bitwise', 'bounded', 'standard'.
    standards: names of records for lane 'standard'.
    tiles: number of tiles to judge of each stage; None: all.
    repeat: runs of each pass on real data, which must return the same bits;
      None: two for a kernel of yours if they are cheap.
    allow_nondeterministic: whether runs may differ; then each is judged.
    search_roundings: whether the roundings that explain a failure are searched
      for, which may take a minute.
    timeout_s: seconds that a candidate in a process of its own may take.
    layout: the project whose layout its tensors have, such as 'vllm', where
      w_gate_up is [E, 2F, D]; '': ours.
    device: 'cpu' or 'cuda': a function of this process gets torch tensors on
      that device; '': numpy arrays.  It may return either.

  Raises:
    ValueError: the request was wrong; the text names the argument.
    CandidateError: the candidate crashed, hung or could not run.
  """
  if not isinstance(case, case_lib.Case):
    raise ValueError(
      f"case: expected a case, such as hpmoe.Case(preset='tiny'), got {case!r}"
    )
  for name, value in (('lanes', lanes), ('standards', standards)):
    if isinstance(value, str):
      raise ValueError(f'{name}: expected a list, [{value!r}], got {value!r}')
  request = _Call(
    case=case,
    candidate=_build_candidate(candidate, timeout_s, layout, device),
    judgement=judgement_lib.Judgement(
      tuple(lanes),
      tuple(standards),
      tiles,
      repeat,
      allow_nondeterministic,
      search_roundings,
    ),
  )
  with cache_folder.use_cache(cache_folder.find_folder()):
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
  if not report.is_pass:
    raise AssertionError(report_text.format_outcome(report.check_report))
  return report


def _changed_fields(part: Any) -> dict[str, Any]:
  """Returns the fields that differ from their defaults."""
  fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
  return {n: v for n, v in fields.items() if v is not getattr(type(part), n)}


def _format_arguments(arguments: Mapping[str, Any]) -> list[str]:
  return [
    f'{name}={"..." if value is ... else repr(value)}'
    for name, value in arguments.items()
  ]


def _format_candidate(candidate: candidates.Candidate) -> str | None:
  """Returns a candidate as Python text; None: no name leads to it."""
  if backends.is_default(candidate):
    return 'None'
  if not isinstance(candidate, in_process.Function):
    return repr(candidate.name)
  module, _, qualified_name = candidate.name.partition(':')
  value: Any = sys.modules.get(module)
  for part in qualified_name.split('.'):
    value = getattr(value, part, None)
  if value is not candidate.function:
    return None
  return (
    qualified_name if module == '__main__' else f'{module}.{qualified_name}'
  )


def _build_candidate(
  candidate: Candidate, timeout_s: float, layout: str, device: str
) -> candidates.Candidate:
  is_function = callable(candidate) and not isinstance(
    candidate, candidates.Candidate
  )
  if device and not is_function:
    raise ValueError(
      f'device: expected none, except for a function object, got {device!r}'
    )
  if isinstance(candidate, str):
    kind, _, rest = candidate.partition(':')
    if kind == 'command':
      return external_program.Program(rest, timeout_s=timeout_s, layout=layout)
    if kind != 'outputs':
      return function_candidate.Subprocess(candidate, timeout_s, layout=layout)
  elif callable(candidate) and is_function:
    return in_process.Function(candidate, layout=layout, device=device)
  if layout:
    raise ValueError(
      'layout: expected none, except for a function or a program, got '
      f'{layout!r}'
    )
  if candidate is None:
    return backends.default_candidate()
  if isinstance(candidate, str):
    return outputs.Outputs(candidate.partition(':')[2])
  if isinstance(candidate, candidates.Candidate):
    return candidate
  raise ValueError(
    "candidate: expected a function, 'pkg.module:function' or None, got "
    f'{candidate!r}'
  )
