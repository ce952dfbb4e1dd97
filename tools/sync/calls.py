"""Synchronisation calls of the device source, and what a forgetful author does.

Each call is left out in turn, and swapped with its neighbour.  A change keeps
the source's lines, so that what the twin says of it names the true ones.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import re

# Calls that order: pipes of a core, cores, the scalar unit's cache.
_SYNC = (
  'SetFlag',
  'WaitFlag',
  'PipeBarrier',
  'CrossCoreSetFlag',
  'CrossCoreWaitFlag',
  'DataCacheCleanAndInvalid',
  'DataSyncBarrier',
)
# No instruction: what a compiler does without it, read_counter_test.py sees.
_OF_COMPILER = ('CompilerBarrier',)
# The queue of calls that always go to the same.
_QUEUES = {
  'Mmad': 'M',
  'Fixpipe': 'FIX',
  'LoadData': 'MTE1',
  'LoadDataWithTranspose': 'MTE1',
}
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/', re.DOTALL)
_CALL = re.compile(r'(?:[\w.]+(?:::|\.|->))*(\w+)\s*(<[^;=]*?>)?\s*\(')
_CONTROL = re.compile(r'(?:if(?:\s+constexpr)?|for|while)\s*(?=\()')
# What stands before a statement and takes no parentheses.
_LABEL = re.compile(
  r'(?:else\b|do\b|default\s*:|case\b[^;:?]*(?:::[^;:?]*)*:(?!:))'
)


@dataclasses.dataclass(frozen=True)
class Statement:
  """One statement that ends in a semicolon.

  Attributes:
    begin: first character in the file.
    end: one past the semicolon.
    line: of the call, from 1.
    call: name of the function that it calls.
    queue: that the call goes to; '' if not known.
    syncs: whether it is a synchronisation call.
    text: as it stands, in one line.
  """

  begin: int
  end: int
  line: int
  call: str
  queue: str
  syncs: bool
  text: str


@dataclasses.dataclass(frozen=True)
class Change:
  """One change of one file.

  Attributes:
    name: of the change, once in the tree.
    file: path from the root of the tree.
    line: of the call, from 1.
    call: as it stands.
    change: 'left out', or what it is swapped with.
    pieces: (begin, end, text) that replace the file's, in order.
  """

  name: str
  file: str
  line: int
  call: str
  change: str
  pieces: tuple[tuple[int, int, str], ...]

  def plant(self, text: str) -> str:
    """Returns the file's text with the change."""
    for begin, end, new in reversed(self.pieces):
      text = text[:begin] + new + text[end:]
    return text


def _blank(match: re.Match) -> str:
  return re.sub(r'[^\n]', ' ', match.group())


def without_comments(text: str) -> str:
  """Returns a text of the same length."""
  return _COMMENT.sub(_blank, text)


def _spans(code: str) -> Iterator[tuple[int, int, int]]:
  """Yields begin, end and block of each statement."""
  begin, depth, block = 0, 0, 0
  for place, char in enumerate(code):
    if char == '(':
      depth += 1
    elif char == ')':
      depth -= 1
    elif char in '{}' and not depth:
      block += 1
      begin = place + 1
    elif char == ';' and not depth:
      yield begin, place + 1, block
      begin = place + 1


def _queue(call: str, arguments: str) -> str:
  if call in _QUEUES:
    return _QUEUES[call]
  event = re.search(r'HardEvent::(\w+?)_(\w+)', arguments)
  if event:
    return event.group(1 if call == 'SetFlag' else 2)
  barrier = re.search(r'PIPE_(\w+)', arguments)
  return barrier.group(1) if barrier else ''


def statements(
  text: str, helpers: Sequence[str] = ()
) -> Iterator[list[Statement]]:
  """Yields the runs of neighbouring calls of a file, block by block.

  Args:
    text: of the file.
    helpers: functions of the source that do nothing but synchronise.
  """
  code = without_comments(text)
  run: list[Statement] = []
  last = -1
  for begin, end, block in _spans(code):
    begin += len(code[begin:end]) - len(code[begin:end].lstrip())
    match = _CALL.match(after_control(code[begin:end]))
    if block != last or not match:
      if run:
        yield run
      run, last = [], block
    if match:
      call, arguments = match.group(1), match.group(2) or ''
      place = code.index(match.group(0), begin)
      run.append(
        Statement(
          begin,
          end,
          code.count('\n', 0, place) + 1,
          call,
          _queue(call, arguments),
          call in _SYNC or call in helpers,
          ' '.join(code[begin:end].split()),
        )
      )
  if run:
    yield run


def after_control(code: str) -> str:
  """Returns the statement after if, for, while, else and labels."""
  if label := _LABEL.match(code):
    return after_control(code[label.end() :].lstrip())
  if not _CONTROL.match(code):
    return code
  depth = 0
  for place, char in enumerate(code):
    depth += (char == '(') - (char == ')')
    if char == ')' and not depth:
      return after_control(code[place + 1 :].lstrip())
  return code


def helpers(files: Mapping[str, str]) -> tuple[str, ...]:
  """Returns the functions that do nothing but synchronise, by name."""
  names = set()
  for text in files.values():
    code = without_comments(text)
    for match in re.finditer(r'(\w+)\([^(){};]*\)\s*(?:const\s*)?\{', code):
      body = code[match.end() : code.find('}', match.end())]
      lines = [s.strip() for s in body.split(';')]
      calls = [_CALL.match(s) for s in lines if s]
      if calls and all(c and c.group(1) in _SYNC for c in calls):
        names.add(match.group(1))
  return tuple(sorted(names))


def _order_matters(a: Statement, b: Statement) -> bool:
  """Returns whether swapping neighbours may change the program.

  They are not where each goes to a queue of its own; the scalar unit's is the
  order of all, but it does not wait for what it only queues.
  """
  if not (a.syncs or b.syncs) or {a.call, b.call} & set(_OF_COMPILER):
    return False
  sets = any(s.call == 'SetFlag' and s.queue == 'S' for s in (a, b))
  queued = any(s.call == 'WaitFlag' and s.queue != 'S' for s in (a, b))
  if sets and queued:
    return False
  queues = {a.queue, b.queue}
  return len(queues) == 1 or bool(queues & {'', 'S', 'ALL'})


def _blanked(text: str, begin: int, end: int) -> str:
  return re.sub(r'[^\n]', ' ', text[begin:end])[:-1] + ';'


def changes(
  files: Mapping[str, str], extra_calls: Sequence[str] = ()
) -> list[Change]:
  """Returns every change of the source, `files` by path.

  Args:
    files: of the source.
    extra_calls: further calls that synchronise.
  """
  change_list = []
  pure = (*helpers(files), *extra_calls)
  for file, text in sorted(files.items()):
    for run in statements(text, pure):
      for i, statement in enumerate(run):
        if statement.syncs:
          change_list.append(_leave_out(file, text, statement))
        before = run[i - 1] if i else None
        if before and _order_matters(before, statement):
          change_list.append(_swapped(file, text, before, statement))
  return change_list


def _leave_out(file: str, text: str, statement: Statement) -> Change:
  return Change(
    f'{file}:{statement.line} left out',
    file,
    statement.line,
    statement.text,
    'left out',
    (
      (
        statement.begin,
        statement.end,
        _blanked(text, statement.begin, statement.end),
      ),
    ),
  )


def _swapped(file: str, text: str, a: Statement, b: Statement) -> Change:
  first, second = text[a.begin : a.end], text[b.begin : b.end]
  return Change(
    f'{file}:{a.line} and {b.line} swapped',
    file,
    a.line,
    a.text,
    f'swapped with {b.text}',
    ((a.begin, a.end, second), (b.begin, b.end, first)),
  )
