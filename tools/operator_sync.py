"""Leaves out the synchronising calls of public operators, one by one.

`tools.twin_samples --samples_sync` with --samples_public or
--samples_operators: an operator that is right is copied with all of its
repository, its calls are made optional (tools/sync/optional.py), and it is
launched without each.  Calls of public headers stay.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import tempfile

from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.intrinsics import build_operator
from hpmoe.tools.sync import optional

_RIGHT = 'right'
# Unexplained: it shows nowhere, and why is not known.
KINDS = ('reported', 'wrong', 'redundant', 'unexplained')
REPORTED, WRONG, REDUNDANT, UNEXPLAINED = KINDS
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
_STRICT: dict[str, object] = dict(mode='late', seed=1, auto_sync=False)
_INSERTED = 'the compiler inserts it (auto_sync)'
_NO_FLAG = 'it takes no flag: its buffers are not taken again'
# The compiler orders two accesses of V that meet on an AIV.
_OF_V = re.compile(r'(?:\w+::)*(?:PipeBarrier<PIPE_V>\(|pipe_barrier\(PIPE_V)')
_ORDERED = 'clean and right in all modes and seeds'
# Others beside which a call may be redundant: the nearest.
_BESIDE = 6

# Launches an operator of a checkout with headers and options; 'right', or what
# is not.
Launch = Callable[..., str]


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
  op = build_operator.read(folder)
  work = build_kernel.make_cache_folder()
  files = build_operator.find_includes(op, [op.source], work=work).files
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
  run: Callable[..., str], group: Sequence[optional.Call], strict: bool
) -> tuple[str, str]:
  """Returns the kind of outcome without some calls, and its text.

  Args:
    run: launches the operator with options.
    group: the calls.
    strict: whether the operator is right without what the compiler inserts.
  """
  with _leave_out_calls([call.number for call in group]):
    for options in _ORDERS:
      if (text := run(**options)) != _RIGHT:
        return _kind(text), text
    if strict and (text := run(**_STRICT)) != _RIGHT:
      return REDUNDANT, f'{_INSERTED}: {text}'
    if not strict and all(_OF_V.match(call.text) for call in group):
      return REDUNDANT, _INSERTED
    for options in _FURTHER_ORDERS:
      if (text := run(**options)) != _RIGHT:
        return _kind(text), text
  return UNEXPLAINED, _ORDERED


def leave_out(
  root: pathlib.Path,
  path: str,
  headers: pathlib.Path,
  work: pathlib.Path,
  launch: Launch,
) -> list[Outcome]:
  """Returns the outcome for each call of an operator, and pair of calls.

  Args:
    root: a checkout.
    path: of the operator in it.
    headers: of Ascend C.
    work: where copies lie.
    launch: the operator, given a checkout, headers and options.

  Raises:
    ValueError: with its calls optional the operator is not right.
  """
  copy, muted = work / root.name, work / 'headers'
  if not copy.exists():
    shutil.copytree(root, copy, copy_function=os.link, symlinks=True)
  if not muted.exists():
    optional.mute(headers, muted)
  outcomes = []
  with _make_calls_optional(root, copy, find_files(root, path)) as calls:

    def run(**options: object) -> str:
      text = launch(copy, muted, **options)
      return text.replace(f'{copy}/', '')

    with _leave_out_calls(()) as notes:
      text = run(**_ORDERS[0])
      if text != _RIGHT:
        raise ValueError(f'{path}: expected to be right as it is, got {text}')
      strict = run(**_STRICT) == _RIGHT
      ran, flagged = optional.read_notes(notes)
    calls_run = [call for call in calls if call.number in ran]
    kinds: list[tuple[tuple[optional.Call, ...], str, str]] = []
    for group in optional.list_groups(calls_run):
      kind, text = REDUNDANT, _NO_FLAG
      if any(call.number in flagged for call in group):
        kind, text = judge(run, group, strict)
      kinds.append((group, kind, text))
      print(f'  {_name(group)[:90]}: {kind}: {text[:150]}', flush=True)
    silent = [group for group, kind, _ in kinds if kind == UNEXPLAINED]
    for group, kind, text in kinds:
      if kind == UNEXPLAINED and (
        reason := _beside(run, group, silent, strict)
      ):
        kind, text = REDUNDANT, reason
        print(f'  {_name(group)[:90]}: {text[:150]}', flush=True)
      outcomes.append(Outcome(_name(group), kind, text))
  return outcomes


def _name(group: Sequence[optional.Call]) -> str:
  return ' + '.join(f'{call.file}:{call.name}' for call in group)


def _beside(
  run: Callable[..., str],
  group: Sequence[optional.Call],
  silent: Sequence[Sequence[optional.Call]],
  strict: bool,
) -> str:
  """Returns which call near one suffices in its place; '': none is known."""
  own = {call.number for call in group}
  neighbours = [neighbour for neighbour in silent if neighbour is not group]
  neighbours.sort(
    key=lambda neighbour: abs(neighbour[0].number - group[0].number)
  )
  options = _STRICT if strict else _ORDERS[0]
  for neighbour in neighbours[:_BESIDE]:
    with _leave_out_calls([*own | {call.number for call in neighbour}]):
      if (text := run(**options)) != _RIGHT:
        return f'{_name(neighbour)} orders the same: without both, {text}'
  return ''
