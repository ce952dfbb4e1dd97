"""Makes what a compiler made of device source call the twin.

Clang's unoptimised LLVM IR has one instruction a line.  Three things of it
change: loads, stores and copies through pointers of the device's address spaces
become calls, so that the twin sees what the scalar unit touches; calls in the
user's own files say where they stand; and the start of a kernel, and the clock,
are the twin's.
"""

import dataclasses
import pathlib
import re

_LOAD = re.compile(
  r'^  (?P<result>%[\w.]+) = load (?:volatile )?(?P<value>[^,]+), '
  r'(?P<pointer>.+?addrspace\((?P<space>\d+)\)\*?) (?P<at>.+?), align \d+'
)
_STORE = re.compile(
  r'^  store (?:volatile )?(?P<value>\S+(?: addrspace\(\d+\)\*)?\**) '
  r'(?P<stored>.+?), '
  r'(?P<pointer>[^,]+? addrspace\((?P<space>\d+)\)\*?) (?P<at>.+?), align \d+'
)
_COPY = re.compile(
  r'^  (?:tail )?call void @llvm\.mem(?P<what>cpy|move|set)\.'
  r'[\w.]*\((?P<arguments>.*)\)'
)
_CALL = re.compile(r'^  (?:%[\w.]+ = )?(?:tail |musttail )?(?:call|invoke) ')
# Before these no call may stand.
_NO_PLACE = re.compile(r'^    |^  \]| = (?:phi|landingpad) |@llvm\.dbg\.')
_DEFINE = re.compile(r'^define .*?@("?)(?P<name>[\w.$]+)\1\(')
_DEBUG = re.compile(r', !dbg !(\d+)')
_BITS = dict(i1=8, i8=8, i16=16, i32=32, i64=64, half=16, float=32, double=64)
# Functions of Ascend C at whose start a core is ready, and whether by a TPipe.
_BEGINS = {
  re.compile(r'_ZN7AscendC5TPipeC[12]E'): 1,
  re.compile(r'_ZN7AscendC12InitSocState'): 0,
}
_CLOCK = re.compile(
  r'call i64 asm [^"]*"MOV \$0, SYS_CNT[^"]*", "[^"]*"\([^)]*\)'
)
_PER_CORE = 'section "hpmoe_local"'
_DECLARED = """
declare void @hpmoe_twin_at(i8*, i32)
declare void @hpmoe_twin_line(i8*, i32)
declare void @hpmoe_twin_begin(i32)
declare i64 @hpmoe_twin_cycle()
declare void @hpmoe_twin_copy(i32, i64, i32, i64, i64)
declare void @hpmoe_twin_fill(i32, i64, i32, i64)
"""


class Refused(ValueError):
  """Device source holds what the twin cannot make its own."""


@dataclasses.dataclass(frozen=True)
class Places:
  """Where instructions stand: of a debug location, file and line."""

  files: dict[str, str]  # of a scope
  lines: dict[str, tuple[str, int]]  # of a location: scope and line

  def of(self, line: str) -> tuple[str, int] | None:
    found = _DEBUG.search(line)
    at = self.lines.get(found[1]) if found else None
    if at is None or at[1] == 0 or at[0] not in self.files:
      return None
    return self.files[at[0]], at[1]


def _places(text: str) -> Places:
  """Returns the places that a module's metadata tells."""
  names, scopes, lines = {}, {}, {}
  for found in re.finditer(
    r'^!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)$', text, re.M
  ):
    number, kind, body = found.groups()
    if kind == 'DIFile':
      file = re.search(r'filename: "([^"]*)", directory: "([^"]*)"', body)
      if file:
        names[number] = str(pathlib.PurePath(file[2], file[1]))
    elif kind in ('DISubprogram', 'DILexicalBlock', 'DILexicalBlockFile'):
      file = re.search(r'\bfile: !(\d+)', body)
      if file:
        scopes[number] = file[1]
    elif kind == 'DILocation':
      line = re.search(r'line: (\d+)', body)
      scope = re.search(r'scope: !(\d+)', body)
      if scope:
        lines[number] = (scope[1], int(line[1]) if line else 0)
  files = {s: names[f] for s, f in scopes.items() if f in names}
  return Places(files, lines)


class _Module:
  """A module as it is rewritten."""

  def __init__(
    self,
    text: str,
    user: tuple[str, ...],
    ours: tuple[str, ...],
    lines: set[tuple[str, int]] | None,
  ):
    self.places = _places(text)
    self.user = user
    self.ours = ours
    self.strings: dict[str, str] = {}
    self.lines = lines
    self.counted: tuple[str, int] | None = None  # last, in this block
    self.count = 0
    self.opaque = re.search(r'\bload \S+, ptr\b', text) is not None
    self.text = text

  def fresh(self) -> str:
    self.count += 1
    return f'%hpmoe.{self.count}'

  def address(self, pointer: str, at: str, out: list[str]) -> str:
    name = self.fresh()
    out.append(f'  {name} = ptrtoint {pointer} {at} to i64')
    return name

  def load(self, found: re.Match, out: list[str], where: str) -> None:
    value, result = found['value'], found['result']
    address = self.address(found['pointer'], found['at'], out)
    bits = self.bits(value, where)
    call = f'call i{bits} @hpmoe_twin_load{bits}(i32 {found["space"]}, i64 '
    if value == f'i{bits}':
      out.append(f'  {result} = {call}{address})')
      return
    raw = self.fresh()
    out.append(f'  {raw} = {call}{address})')
    cast = _casts(value)[1]
    out.append(f'  {result} = {cast} i{bits} {raw} to {value}')

  def store(self, found: re.Match, out: list[str], where: str) -> None:
    value, stored = found['value'], found['stored']
    address = self.address(found['pointer'], found['at'], out)
    bits = self.bits(value, where)
    if value != f'i{bits}':
      raw = self.fresh()
      cast = _casts(value)[0]
      out.append(f'  {raw} = {cast} {value} {stored} to i{bits}')
      stored = raw
    out.append(
      f'  call void @hpmoe_twin_store{bits}(i32 {found["space"]}, '
      f'i64 {address}, i{bits} {stored})'
    )

  def bits(self, value: str, where: str) -> int:
    if _points(value):
      return 64
    if value not in _BITS:
      raise Refused(f'{where}: an access of {value} in device memory')
    return _BITS[value]

  def copy(self, found: re.Match, out: list[str]) -> bool:
    """A copy or fill, if it touches an address space."""
    arguments = _split(found['arguments'])
    if 'addrspace' not in found['arguments']:
      return False
    ends: list[tuple[str, str, str]] = []
    for argument in arguments[: 1 if found['what'] == 'set' else 2]:
      words = re.sub(r'\b(?:noundef|nonnull|noalias)\b ?', '', argument)
      words = re.sub(r'\b(?:align \d+|dereferenceable\(\d+\)) ', '', words)
      pointer, _, at = words.strip().partition('* ')
      pointer = pointer + '*' if at else 'ptr'
      if not at:
        pointer, _, at = words.strip().rpartition(' ')
      # Of the pointer itself: what it points to may be a pointer, too.
      named = re.search(r'addrspace\((\d+)\)', pointer)
      ends.append((named[1] if named else '0', pointer, at))
    if all(space == '0' for space, _, _ in ends):
      return False
    places = [(s, self.address(pointer, at, out)) for s, pointer, at in ends]
    if found['what'] == 'set':
      value = self.fresh()
      out.append(f'  {value} = zext {arguments[1].strip()} to i32')
      (space, to), length = places[0], arguments[2].strip()
      out.append(
        f'  call void @hpmoe_twin_fill(i32 {space}, i64 {to}, i32 {value}, '
        f'{length})'
      )
      return True
    (to_space, to), (space, source) = places
    out.append(
      f'  call void @hpmoe_twin_copy(i32 {to_space}, i64 {to}, i32 {space}, '
      f'i64 {source}, {arguments[2].strip()})'
    )
    return True

  def place(self, line: str, out: list[str], call: str = 'at') -> None:
    """Says where a call of the user's own file stands."""
    at = self.users(line)
    if at is None:
      return
    name = self.strings.setdefault(at[0], f'@hpmoe.file.{len(self.strings)}')
    array = f'[{len(at[0].encode()) + 1} x i8]'
    file = (
      name
      if self.opaque
      else f'getelementptr ({array}, {array}* {name}, i64 0, i64 0)'
    )
    kind = 'ptr' if self.opaque else 'i8*'
    out.append(f'  call void @hpmoe_twin_{call}({kind} {file}, i32 {at[1]})')

  def users(self, line: str) -> tuple[str, int] | None:
    """Returns where an instruction stands, in a file of the user's own."""
    at = self.places.of(line)
    if at is None or not at[0].startswith(self.user):
      return None
    return None if at[0].startswith(self.ours) else at

  def executed(self, line: str, out: list[str]) -> None:
    """Counts a line of the user's own file, where control comes to it."""
    if self.lines is None or _NO_PLACE.search(line):
      return
    at = self.users(line)
    if at is None or at == self.counted:
      return
    self.counted = at
    self.lines.add(at)
    self.place(line, out, 'line')

  def line(self, line: str, out: list[str]) -> None:
    """Appends what becomes of an instruction."""
    debug = _DEBUG.search(line)
    start = len(out)
    body = line
    self.executed(line, out)
    if 'addrspace(' in line:
      at = self.places.of(line)
      where = f'{at[0]}:{at[1]}' if at else 'somewhere'
      if found := _LOAD.match(line):
        if found['value'].count('(') == found['value'].count(')'):
          self.place(line, out)
          self.load(found, out, where)
          body = ''
      elif found := _STORE.match(line):
        self.place(line, out)
        self.store(found, out, where)
        body = ''
      elif found := _COPY.match(line):
        self.place(line, out)
        if self.copy(found, out):
          body = ''
      elif re.match(r'^  (?:%[\w.]+ = )?(atomicrmw|cmpxchg) ', line):
        raise Refused(f'{where}: an atomic access of device memory')
    if body and _CALL.match(line) and '@llvm.dbg.' not in line:
      self.place(line, out)
      body = _CLOCK.sub('call i64 @hpmoe_twin_cycle()', line)
    if body:
      out.append(body)
    if debug:
      for i in range(start, len(out) - (1 if body else 0)):
        out[i] += debug[0]

  def run(self) -> str:
    out: list[str] = []
    for line in self.text.split('\n'):
      if line.startswith('  '):
        self.line(line, out)
        continue
      if line.startswith('@') and _PER_CORE in line:
        # Clang 14 has those of a precompiled header as constants.
        line = line.replace(' constant ', ' global ', 1)
      out.append(line)
      self.counted = None
      if line.startswith('define '):
        out += _begin(line)
    return '\n'.join(out)


def _points(value: str) -> bool:
  return value.endswith('*') or value.startswith('ptr')


def _casts(value: str) -> tuple[str, str]:
  """Returns what makes an integer of a type's values, and the values of it."""
  if value == 'i1':
    return 'zext', 'trunc'
  return ('ptrtoint', 'inttoptr') if _points(value) else ('bitcast', 'bitcast')


def _split(arguments: str) -> list[str]:
  """Returns arguments, at commas outside of parentheses."""
  out, depth, start = [], 0, 0
  for i, letter in enumerate(arguments):
    depth += (letter in '([{') - (letter in ')]}')
    if letter == ',' and depth == 0:
      out.append(arguments[start:i])
      start = i + 1
  return [*out, arguments[start:]]


def _begin(line: str) -> list[str]:
  """Returns the call that a core begins, where a definition says it does."""
  name = _DEFINE.match(line)
  return [
    f'  call void @hpmoe_twin_begin(i32 {tpipe})'
    for pattern, tpipe in _BEGINS.items()
    if name and pattern.match(name['name'])
  ]


def rewrite(
  text: str,
  user: tuple[str, ...],
  ours: tuple[str, ...] = (),
  lines: set[tuple[str, int]] | None = None,
) -> str:
  """Returns a module that calls the twin.

  Args:
    text: LLVM IR as `clang -S -emit-llvm -O1 -Xclang -disable-llvm-passes -g`
      writes it.
    user: folders of the files whose lines errors name.
    ours: folders among them whose files no error names.
    lines: gets every line of those files that has code, and the code counts
      them as it runs; None: it does not.

  Raises:
    Refused: an access that no call stands for, with its place.
  """
  module = _Module(text, user, ours, lines)
  body = module.run()
  declared = _DECLARED
  for bits in (8, 16, 32, 64):
    declared += f'declare i{bits} @hpmoe_twin_load{bits}(i32, i64)\n'
    declared += f'declare void @hpmoe_twin_store{bits}(i32, i64, i{bits})\n'
  if module.opaque:
    declared = declared.replace('i8*', 'ptr')
  strings = ''
  for file, name in module.strings.items():
    raw = file.encode()
    shown = ''.join(
      chr(b) if 32 <= b < 127 and b not in (34, 92) else f'\\{b:02X}'
      for b in raw
    )
    strings += (
      f'{name} = private constant [{len(raw) + 1} x i8] c"{shown}\\00"\n'
    )
  # Declarations that the module has itself come from device.h.
  own = set(re.findall(r'^declare .*?(@hpmoe_twin_\w+)\(', body, re.M))
  kept = [
    line
    for line in declared.split('\n')
    if not (found := re.search(r'@hpmoe_twin_\w+', line)) or found[0] not in own
  ]
  return body + '\n' + strings + '\n'.join(kept) + '\n'
