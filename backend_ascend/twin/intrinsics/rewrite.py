"""Rewrites the LLVM IR of device source so that it calls the twin.

Clang's unoptimised LLVM IR has one instruction a line.  Three things change:
loads, stores and copies through pointers of the device's address spaces become
calls, so that the twin sees what the scalar unit accesses; calls in the user's
own files report their line; and the twin starts kernels and has the clock.
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
# No call may be inserted before these.
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
_DECLARATIONS = """
declare void @hpmoe_twin_at(i8*, i32)
declare void @hpmoe_twin_line(i8*, i32)
declare void @hpmoe_twin_begin(i32)
declare i64 @hpmoe_twin_cycle()
declare void @hpmoe_twin_copy(i32, i64, i32, i64, i64)
declare void @hpmoe_twin_fill(i32, i64, i32, i64)
"""


class RewriteError(ValueError):
  """Device source has an access that the twin cannot intercept."""


@dataclasses.dataclass(frozen=True)
class Places:
  """File and line of debug locations."""

  files: dict[str, str]  # file of a scope
  lines: dict[str, tuple[str, int]]  # scope and line of a location

  def find(self, line: str) -> tuple[str, int] | None:
    debug = _DEBUG.search(line)
    location = self.lines.get(debug[1]) if debug else None
    if location is None or location[1] == 0 or location[0] not in self.files:
      return None
    return self.files[location[0]], location[1]


def _places(text: str) -> Places:
  """Returns the places in a module's metadata."""
  names, scopes, lines = {}, {}, {}
  for node in re.finditer(
    r'^!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)$', text, re.M
  ):
    number, kind, body = node.groups()
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
  """A module while it is rewritten."""

  def __init__(
    self,
    text: str,
    user: tuple[str, ...],
    own_folders: tuple[str, ...],
    lines: set[tuple[str, int]] | None,
  ):
    self.places = _places(text)
    self.user = user
    self.own_folders = own_folders
    self.strings: dict[str, str] = {}
    self.lines = lines
    self.last_line: tuple[str, int] | None = None  # last, in this block
    self.count = 0
    self.opaque = re.search(r'\bload \S+, ptr\b', text) is not None
    self.text = text

  def fresh(self) -> str:
    self.count += 1
    return f'%hpmoe.{self.count}'

  def address(self, pointer: str, operand: str, out: list[str]) -> str:
    name = self.fresh()
    out.append(f'  {name} = ptrtoint {pointer} {operand} to i64')
    return name

  def load(self, match: re.Match, out: list[str], location: str) -> None:
    value, result = match['value'], match['result']
    address = self.address(match['pointer'], match['at'], out)
    bits = self.bits(value, location)
    call = f'call i{bits} @hpmoe_twin_load{bits}(i32 {match["space"]}, i64 '
    if value == f'i{bits}':
      out.append(f'  {result} = {call}{address})')
      return
    raw = self.fresh()
    out.append(f'  {raw} = {call}{address})')
    cast = _casts(value)[1]
    out.append(f'  {result} = {cast} i{bits} {raw} to {value}')

  def store(self, match: re.Match, out: list[str], location: str) -> None:
    value, operand = match['value'], match['stored']
    address = self.address(match['pointer'], match['at'], out)
    bits = self.bits(value, location)
    if value != f'i{bits}':
      raw = self.fresh()
      cast = _casts(value)[0]
      out.append(f'  {raw} = {cast} {value} {operand} to i{bits}')
      operand = raw
    out.append(
      f'  call void @hpmoe_twin_store{bits}(i32 {match["space"]}, '
      f'i64 {address}, i{bits} {operand})'
    )

  def bits(self, value: str, location: str) -> int:
    if _points(value):
      return 64
    if value not in _BITS:
      raise RewriteError(f'{location}: an access of {value} in device memory')
    return _BITS[value]

  def copy(self, match: re.Match, out: list[str]) -> bool:
    """Rewrites a copy or fill of device memory; returns whether it is one."""
    arguments = _split(match['arguments'])
    if 'addrspace' not in match['arguments']:
      return False
    ends: list[tuple[str, str, str]] = []
    for argument in arguments[: 1 if match['what'] == 'set' else 2]:
      words = re.sub(r'\b(?:noundef|nonnull|noalias)\b ?', '', argument)
      words = re.sub(r'\b(?:align \d+|dereferenceable\(\d+\)) ', '', words)
      pointer, _, operand = words.strip().partition('* ')
      pointer = pointer + '*' if operand else 'ptr'
      if not operand:
        pointer, _, operand = words.strip().rpartition(' ')
      # Of the pointer itself: what it points to may be a pointer, too.
      space_match = re.search(r'addrspace\((\d+)\)', pointer)
      ends.append((space_match[1] if space_match else '0', pointer, operand))
    if all(space == '0' for space, _, _ in ends):
      return False
    places = [
      (s, self.address(pointer, operand, out)) for s, pointer, operand in ends
    ]
    if match['what'] == 'set':
      value = self.fresh()
      out.append(f'  {value} = zext {arguments[1].strip()} to i32')
      (space, target), length = places[0], arguments[2].strip()
      out.append(
        f'  call void @hpmoe_twin_fill(i32 {space}, i64 {target}, i32 {value}, '
        f'{length})'
      )
      return True
    (to_space, target), (space, source) = places
    out.append(
      f'  call void @hpmoe_twin_copy(i32 {to_space}, i64 {target}, i32 '
      f'{space}, i64 {source}, {arguments[2].strip()})'
    )
    return True

  def place(self, line: str, out: list[str], call: str = 'at') -> None:
    """Reports the line of a call in the user's own file."""
    location = self.users(line)
    if location is None:
      return
    name = self.strings.setdefault(
      location[0], f'@hpmoe.file.{len(self.strings)}'
    )
    array = f'[{len(location[0].encode()) + 1} x i8]'
    file = (
      name
      if self.opaque
      else f'getelementptr ({array}, {array}* {name}, i64 0, i64 0)'
    )
    kind = 'ptr' if self.opaque else 'i8*'
    out.append(
      f'  call void @hpmoe_twin_{call}({kind} {file}, i32 {location[1]})'
    )

  def users(self, line: str) -> tuple[str, int] | None:
    """Returns file and line of an instruction in a file of the user's."""
    location = self.places.find(line)
    if location is None or not location[0].startswith(self.user):
      return None
    return None if location[0].startswith(self.own_folders) else location

  def executed(self, line: str, out: list[str]) -> None:
    """Counts a line of the user's own file when it runs."""
    if self.lines is None or _NO_PLACE.search(line):
      return
    location = self.users(line)
    if location is None or location == self.last_line:
      return
    self.last_line = location
    self.lines.add(location)
    self.place(line, out, 'line')

  def line(self, line: str, out: list[str]) -> None:
    """Appends an instruction, rewritten if need be."""
    debug = _DEBUG.search(line)
    start = len(out)
    body = line
    self.executed(line, out)
    if 'addrspace(' in line:
      location = self.places.find(line)
      location_text = (
        f'{location[0]}:{location[1]}' if location else 'somewhere'
      )
      if match := _LOAD.match(line):
        if match['value'].count('(') == match['value'].count(')'):
          self.place(line, out)
          self.load(match, out, location_text)
          body = ''
      elif match := _STORE.match(line):
        self.place(line, out)
        self.store(match, out, location_text)
        body = ''
      elif match := _COPY.match(line):
        self.place(line, out)
        if self.copy(match, out):
          body = ''
      elif re.match(r'^  (?:%[\w.]+ = )?(atomicrmw|cmpxchg) ', line):
        raise RewriteError(
          f'{location_text}: an atomic access of device memory'
        )
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
      self.last_line = None
      if line.startswith('define '):
        out += _begin(line)
    return '\n'.join(out)


def _points(value: str) -> bool:
  return value.endswith('*') or value.startswith('ptr')


def _casts(value: str) -> tuple[str, str]:
  """Returns the casts from a type to an integer, and back."""
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
  """Returns the call for the begin of a core, if the definition is one."""
  name = _DEFINE.match(line)
  return [
    f'  call void @hpmoe_twin_begin(i32 {tpipe})'
    for pattern, tpipe in _BEGINS.items()
    if name and pattern.match(name['name'])
  ]


def rewrite(
  text: str,
  user: tuple[str, ...],
  own_folders: tuple[str, ...] = (),
  lines: set[tuple[str, int]] | None = None,
) -> str:
  """Returns a module that calls the twin.

  Args:
    text: LLVM IR as `clang -S -emit-llvm -O1 -Xclang -disable-llvm-passes -g`
      writes it.
    user: folders of the files whose lines errors name.
    own_folders: folders among them whose files no error names.
    lines: a set to add each line of those files that has code to; the code then
      counts them when it runs.  None: no counts.

  Raises:
    RewriteError: no call can stand for an access; names its place.
  """
  module = _Module(text, user, own_folders, lines)
  body = module.run()
  declarations = _DECLARATIONS
  for bits in (8, 16, 32, 64):
    declarations += f'declare i{bits} @hpmoe_twin_load{bits}(i32, i64)\n'
    declarations += f'declare void @hpmoe_twin_store{bits}(i32, i64, i{bits})\n'
  if module.opaque:
    declarations = declarations.replace('i8*', 'ptr')
  strings = ''
  for file, name in module.strings.items():
    raw = file.encode()
    escaped = ''.join(
      chr(b) if 32 <= b < 127 and b not in (34, 92) else f'\\{b:02X}'
      for b in raw
    )
    strings += (
      f'{name} = private constant [{len(raw) + 1} x i8] c"{escaped}\\00"\n'
    )
  # compiler_builtins.h already declares some of them.
  own = set(re.findall(r'^declare .*?(@hpmoe_twin_\w+)\(', body, re.M))
  missing_declarations = [
    line
    for line in declarations.split('\n')
    if not (match := re.search(r'@hpmoe_twin_\w+', line)) or match[0] not in own
  ]
  return body + '\n' + strings + '\n'.join(missing_declarations) + '\n'
