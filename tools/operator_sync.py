"""Leaves out the synchronising calls of public operators, one by one.

`tools.twin_samples --samples_sync` with --samples_public or
--samples_operators: an operator that is right is copied with all of its
repository, its calls are made optional (tools/sync/optional.py), and it is
launched without each.  Calls of public headers stay.

Where a launch shows nothing, a graph of what the operator gave its queues
(tools/sync/graph.py) says why: in no order of its instructions can it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import tempfile

from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.intrinsics.operators import operator_folder
from hpmoe.tools.sync import graph
from hpmoe.tools.sync import optional

_RIGHT = 'right'
# Missed: it shows nowhere, and the graph has a pair that nothing orders.
# Unexplained: it shows nowhere, and there is no graph.
KINDS = ('reported', 'wrong', 'redundant', 'missed', 'unexplained')
REPORTED, WRONG, REDUNDANT, MISS, UNEXPLAINED = KINDS
# In these a lack shows first.
_ORDERS: tuple[dict[str, object], ...] = (
  dict(mode='late', seed=1),
  dict(mode='seeded', seed=1),
)
# What a call that shows nowhere must not change, either.
_FURTHER_ORDERS: tuple[dict[str, object], ...] = (
  dict(mode='seeded', seed=2),
  dict(mode='seeded', seed=3),
  dict(mode='seeded', seed=4),
  dict(mode='order', seed=1),
)
_INSERTED = 'the compiler inserts it (auto_sync)'
_NO_FLAG = 'it takes no flag: its buffers are not taken again'
_ORDERED = 'clean and right in all modes and seeds'
# What each access of a launch is given, whatever the order.
_EVENTS: dict[str, object] = dict(mode='order', seed=1, hazards=False)
_ELSEWHERE = 'all that it orders is ordered without it'

# Launches an operator of a checkout with headers and options; 'right', or what
# is not.
Launch = Callable[..., str]


@dataclasses.dataclass(frozen=True)
class Subject:
  """An operator whose calls are left out.

  Attributes:
    name: for figures.
    root: a checkout.
    path: of the operator in it.
    launch: the operator, given a checkout, headers and options.
    inputs: names of other inputs that `launch` takes.
  """

  name: str
  root: pathlib.Path
  path: str
  launch: Launch
  inputs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of an operator without some calls.

  Attributes:
    calls: that were left out, by file and line.
    kind: one of `KINDS`.
    text: what the twin reports, how the result is wrong, or the reason.
  """

  calls: str
  kind: str
  text: str


def find_files(root: pathlib.Path, path: str) -> list[pathlib.Path]:
  """Returns the source of an operator's kernel, with its repository's headers.

  Args:
    root: a checkout.
    path: of an operator's folder in it, or of a kernel's file, without suffix.
  """
  root = root.resolve()
  folder = root / path
  if not folder.is_dir():
    return [folder.with_suffix('.cpp'), *sorted(folder.parent.glob('*.h'))]
  op = operator_folder.read(folder)
  work = build_kernel.make_cache_folder()
  files = operator_folder.find_includes(op, [op.source], work=work).files
  return [
    file
    for file in sorted(files)
    if file.is_relative_to(root) and 'op_host' not in file.parts
  ]


@contextlib.contextmanager
def _make_calls_optional(
  root: pathlib.Path, copy: pathlib.Path, files: Sequence[pathlib.Path]
) -> Iterator[list[optional.Call]]:
  """Makes the calls of files of a copy optional, and yields them."""
  calls: list[optional.Call] = []
  changed_files: list[tuple[pathlib.Path, pathlib.Path]] = []
  try:
    for file in files:
      original = file.read_text(errors='surrogateescape')
      text, file_calls = optional.make_optional(
        original, len(calls) + 1, file.name
      )
      if not file_calls:
        continue
      own = copy / file.relative_to(root.resolve())
      # The copy is a link.
      own.unlink()
      own.write_text(text, errors='surrogateescape')
      changed_files.append((file, own))
      calls += file_calls
    yield calls
  finally:
    for file, own in changed_files:
      own.unlink()
      os.link(file, own)


@contextlib.contextmanager
def _leave_out_calls(numbers: Sequence[int]) -> Iterator[pathlib.Path]:
  """Leaves out calls of launches; yields the file of their notes."""
  with tempfile.TemporaryDirectory() as folder:
    notes = pathlib.Path(folder, 'notes')
    before = dict(os.environ)
    os.environ.update(optional.list_variables(numbers, notes))
    try:
      yield notes
    finally:
      os.environ.clear()
      os.environ.update(before)


def _kind(text: str) -> str:
  return WRONG if text.startswith(WRONG) else REPORTED


def judge(
  run: Callable[..., str],
  group: Sequence[optional.Call],
  whole: graph.Launch | None,
) -> tuple[str, str]:
  """Returns the kind of outcome without some calls, and its text.

  Args:
    run: launches the operator with options.
    group: the calls.
    whole: the launch with them; None: there is no graph of it.
  """
  with _leave_out_calls([call.number for call in group]):
    for options in _ORDERS:
      if (text := run(**options)) != _RIGHT:
        return _kind(text), text
    kind, text = UNEXPLAINED, _ORDERED
    if whole:
      kind, text = explain(whole, group)
    if not text.startswith(_INSERTED):
      for options in _FURTHER_ORDERS:
        if (further := run(**options)) != _RIGHT:
          return _kind(further), further
  return kind, text


def explain(
  whole: graph.Launch, group: Sequence[optional.Call]
) -> tuple[str, str]:
  """Returns why nothing shows without some calls: their kind, and a text.

  Args:
    whole: the launch with them.
    group: the calls.
  """
  try:
    places = _find_places(whole, group)
    if pairs := whole.drop(places).find_unordered():
      return MISS, f'nothing orders {_spell(pairs[0])}'
    return REDUNDANT, _find_reason(whole, places)
  except graph.GraphError as error:
    return UNEXPLAINED, f'{_ORDERED}; its graph: {error}'


def _find_reason(whole: graph.Launch, places: set[str]) -> str:
  """Returns why a launch is ordered without calls at some places."""
  plain = whole.drop(inserted=False)
  remainder = whole.drop(places, inserted=False)
  before = set(plain.find_unordered())
  if pairs := [
    pair for pair in remainder.find_unordered() if pair not in before
  ]:
    return f'{_INSERTED}: {_spell(pairs[0])}'
  if before:  # the operator counts on the compiler
    plain, remainder = whole, whole.drop(places)
  if count := graph.count_orders(plain, remainder):
    return (
      f'the {count} pairs of accesses that it alone orders have no bytes in '
      'common'
    )
  return _ELSEWHERE + _find_other(plain, places)


def _find_other(launch: graph.Launch, places: set[str]) -> str:
  """Returns which other calls order the same, to be appended."""
  for other in launch.calls:
    if other & places:
      continue
    try:
      alone = set(launch.drop(other).find_unordered())
      both_pairs = launch.drop(places | other).find_unordered()
    except graph.GraphError:  # a wait without its set
      continue
    if pairs := [pair for pair in both_pairs if pair not in alone]:
      names = ', '.join(sorted(pathlib.Path(place).name for place in other))
      return f' ({names}): without both, nothing orders {_spell(pairs[0])}'
  return ', by several calls'


def _find_places(
  launch: graph.Launch, group: Sequence[optional.Call]
) -> set[str]:
  places = set()
  ordered = {place for own in launch.calls for place in own}
  for call in group:
    end = f'{call.file}:{call.line}'
    own = {place for place in ordered if pathlib.Path(place).name == end}
    if not own:
      raise graph.GraphError(f'expected a flag or barrier at {end}, got none')
    places |= own
  return places


def _spell(pair: tuple[graph.Event, graph.Event]) -> str:
  return ' and '.join(event.name for event in pair)


def _read_graphs(
  run: Callable[..., str], folder: pathlib.Path, inputs: Sequence[str]
) -> dict[str, graph.Launch]:
  launches = {name: _read_graph(run, folder, name) for name in inputs}
  return {name: launch for name, launch in launches.items() if launch}


def _try_inputs(
  run_without: Callable[..., str],
  group: Sequence[optional.Call],
  launches: Mapping[str, graph.Launch],
  text: str,
) -> tuple[str, str]:
  """Returns the kind and text of a redundant call: where it is needed.

  Args:
    run_without: launches the operator without calls.
    group: the calls.
    launches: graphs of launches by the name of their inputs.
    text: why the call is redundant for the first inputs.
  """
  for name, launch in launches.items():
    try:
      places = _find_places(launch, group)
      pairs = launch.drop(places).find_unordered()
    except graph.GraphError:  # it does not run
      continue
    if not pairs:
      continue
    verdict = run_without(calls=group, **_ORDERS[0], inputs=name)
    if verdict == _RIGHT:
      return MISS, f'with {name}, nothing orders {_spell(pairs[0])}'
    return REDUNDANT, f'{text}; with {name}: {verdict}'
  return REDUNDANT, text


def _read_graph(
  run: Callable[..., str], folder: pathlib.Path, inputs: str = ''
) -> graph.Launch | None:
  """Returns the graph of an operator's launch; None: it has none."""
  path = folder / 'events'
  own = {'inputs': inputs} if inputs else {}
  if (verdict := run(**_EVENTS, **own, events=str(path))) != _RIGHT:
    print(f'  {inputs}: no graph: {verdict}')
    return None
  try:
    launch = graph.Launch(graph.read(path.read_text()))
    if pairs := launch.find_unordered():
      print(f'  the graph has no order of {_spell(pairs[0])}')
      return None
  except graph.GraphError as error:
    print(f'  no graph: {error}')
    return None
  return launch


def leave_out(
  subject: Subject, headers: pathlib.Path, work: pathlib.Path
) -> list[Outcome]:
  """Returns the outcome for each call of an operator, and pair of calls.

  Args:
    subject: the operator.
    headers: of Ascend C.
    work: where copies lie.

  Raises:
    ValueError: with its calls optional the operator is not right.
  """
  root, path = subject.root, subject.path
  copy, muted = _make_copies(subject, headers, work)
  outcomes = []
  with _make_calls_optional(root, copy, find_files(root, path)) as calls:

    def run(**options: object) -> str:
      text = subject.launch(copy, muted, **options)
      return text.replace(f'{copy}/', '')

    def run_without(calls: Sequence[optional.Call], **options: object) -> str:
      with _leave_out_calls([call.number for call in calls]):
        return run(**options)

    with _leave_out_calls(()) as notes:
      text = run(**_ORDERS[0])
      if text != _RIGHT:
        raise ValueError(f'{path}: expected to be right as it is, got {text}')
      whole = _read_graph(run, work)
      other_graphs = _read_graphs(run, work, subject.inputs)
      ran, flagged = optional.read_notes(notes)
    calls_run = [call for call in calls if call.number in ran]
    for group in optional.list_groups(calls_run):
      kind, text = REDUNDANT, _NO_FLAG
      if any(call.number in flagged for call in group):
        kind, text = judge(run, group, whole)
      if kind == REDUNDANT:
        kind, text = _try_inputs(run_without, group, other_graphs, text)
      text = text.replace(f'{copy}/', '')
      outcomes.append(Outcome(_name(group), kind, text))
      print(f'  {_name(group)[:90]}: {kind}: {text[:150]}', flush=True)
  return outcomes


def explain_again(
  subject: Subject,
  headers: pathlib.Path,
  work: pathlib.Path,
  outcomes: Sequence[Outcome],
) -> list[Outcome]:
  """Returns outcomes of before, where nothing shows with a graph's reason.

  It launches the operator once for each inputs.

  Args:
    subject: the operator.
    headers: of Ascend C.
    work: where copies lie.
    outcomes: of `leave_out`.

  Raises:
    ValueError: there is no graph of the operator.
  """

  def run(**options: object) -> str:
    return subject.launch(subject.root, headers, **options)

  whole = _read_graph(run, work)
  if whole is None:
    raise ValueError(f'{subject.path}: expected a graph, got none')
  other_graphs = _read_graphs(run, work, subject.inputs)
  new_outcomes = []
  for outcome in outcomes:
    if outcome.kind in (REDUNDANT, UNEXPLAINED) and outcome.text != _NO_FLAG:
      group = _read_calls(outcome.calls)
      kind, text = explain(whole, group)
      if kind == REDUNDANT:
        kind, text = _try_inputs(
          lambda **options: _launch_without(subject, headers, work, **options),
          group,
          other_graphs,
          text,
        )
      text = text.replace(f'{subject.root}/', '')
      outcome = Outcome(outcome.calls, kind, text)
      print(f'  {outcome.calls[:90]}: {kind}: {text[:150]}', flush=True)
    new_outcomes.append(outcome)
  return new_outcomes


def _read_calls(names: str) -> list[optional.Call]:
  """Returns the calls that `_name` has named; their numbers are unknown."""
  calls = []
  for name in re.split(r' \+ (?=[\w.]+:\d+: )', names):
    file, line, text = name.split(':', 2)
    calls.append(optional.Call(0, file, int(line), text.strip(), ''))
  return calls


def _launch_without(
  subject: Subject,
  headers: pathlib.Path,
  work: pathlib.Path,
  calls: Sequence[optional.Call],
  **options: object,
) -> str:
  """Launches an operator without some calls, and returns what is said."""
  copy, muted = _make_copies(subject, headers, work)
  files = find_files(subject.root, subject.path)
  places = {(call.file, call.line) for call in calls}
  with _make_calls_optional(subject.root, copy, files) as own:
    numbers = [c.number for c in own if (c.file, c.line) in places]
    with _leave_out_calls(numbers):
      return subject.launch(copy, muted, **options).replace(f'{copy}/', '')


def _make_copies(
  subject: Subject, headers: pathlib.Path, work: pathlib.Path
) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns copies of an operator's checkout, and of headers, to change."""
  copy, muted = work / subject.root.name, work / 'headers'
  if not copy.exists():
    shutil.copytree(subject.root, copy, copy_function=os.link, symlinks=True)
  if not muted.exists():
    optional.mute(headers, muted)
  return copy, muted


def _name(group: Sequence[optional.Call]) -> str:
  return ' + '.join(f'{call.file}:{call.name}' for call in group)
