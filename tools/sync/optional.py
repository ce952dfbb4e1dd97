"""Source whose synchronising calls are left out when it runs, by number.

It is compiled once: `list_variables` chooses the calls.  Operators and samples
of others are changed so; our own device source is compiled for each change.
"""

from collections.abc import Collection, Iterator, Sequence
import dataclasses
import pathlib
import re
import shutil

from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.tools.sync import calls

# Calls of others that our own source has not: between cores, and the names
# that the device's compiler or an operator's macros give them.
_CALLS = (
  *('SyncAll', 'IBSet', 'IBWait', 'NotifyNextBlock', 'WaitPreBlock'),
  *('set_flag', 'wait_flag', 'pipe_barrier', 'dcci', 'dsb'),
  *('SET_FLAG', 'WAIT_FLAG', 'PIPE_BARRIER'),
  *('ffts_cross_core_sync', 'wait_flag_dev'),
)
# Of a queue, whose flags order.
_QUEUE_CALL = re.compile(
  r'(?P<queue>(?:[\w\[\]]+(?:\.|->))+)(?:template )?'
  r'(?P<call>EnQue|DeQue|AllocTensor|FreeTensor)\b(?=\s*[<(])'
)
_DIRECTIVE = re.compile(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.M)
_FLAG = re.compile(
  r'(?:\w+::)*(?:(?P<set>set_?flag)|wait_?flag)\b(?P<rest>.*)', re.I
)
_NUMBERS = 'HPMOE_LEFT_OUT'
_RAN = 'HPMOE_LEFT_OUT_RAN'
_MOST_CALLS = 1 << 14
_HEADER_NAME = 'hpmoe_left_out.h'
HEADER = f"""
#ifndef HPMOE_LEFT_OUT_H_
#define HPMOE_LEFT_OUT_H_
#include <cstdio>
#include <cstdlib>
#include <cstring>
static int hpmoe_call = 0;  // of a queue, that runs
static bool HpmoeIsLeftOut(int number) {{
  static const char* const numbers = std::getenv("{_NUMBERS}");
  char word[16];
  std::snprintf(word, sizeof(word), ",%d,", number);
  return numbers != nullptr && std::strstr(numbers, word) != nullptr;
}}
static void HpmoeNote(const char* what, int number, bool* noted) {{
  static const char* const path = std::getenv("{_RAN}");
  if (path == nullptr || noted[number]) return;
  noted[number] = true;
  if (std::FILE* const file = std::fopen(path, "a")) {{
    std::fprintf(file, "%s %d\\n", what, number);
    std::fclose(file);
  }}
}}
static bool HpmoeLeftOut(int number) {{
  static bool noted[{_MOST_CALLS}];
  HpmoeNote("flag", number, noted);
  return HpmoeIsLeftOut(number);
}}
static bool HpmoeNoFlag() {{
  return hpmoe_call != 0 && HpmoeLeftOut(hpmoe_call);
}}
struct HpmoeQuiet {{
  explicit HpmoeQuiet(int number) {{
    static bool noted[{_MOST_CALLS}];
    HpmoeNote("call", number, noted);
    hpmoe_call = number;
  }}
  ~HpmoeQuiet() {{ hpmoe_call = 0; }}
}};
#define set_flag(...) (HpmoeNoFlag() ? (void)0 : (void)set_flag(__VA_ARGS__))
#define wait_flag(...) (HpmoeNoFlag() ? (void)0 : (void)wait_flag(__VA_ARGS__))
#define pipe_barrier(...) \\
  (HpmoeNoFlag() ? (void)0 : (void)pipe_barrier(__VA_ARGS__))
#endif
"""
_MUTED = re.compile(r'\b(?:set_flag|wait_flag|pipe_barrier)\s*\(')


@dataclasses.dataclass(frozen=True)
class Call:
  """A call that can be left out.

  Attributes:
    number: that chooses it.
    file: its name.
    line: from 1.
    text: in one line.
    pair: calls with the same text here only work together; '': it is alone.
  """

  number: int
  file: str
  line: int
  text: str
  pair: str

  @property
  def name(self) -> str:
    return f'{self.line}: {self.text}'


def _blank(match: re.Match) -> str:
  return re.sub(r'[^\n]', ' ', match.group())


def _queue_pair(match: re.Match) -> str:
  # AllocTensor alone waits for what FreeTensor sets: a TPipe's end takes it.
  return match['queue'] if match['call'] in ('EnQue', 'DeQue') else ''


def _flag_pair(text: str) -> str:
  match = _FLAG.match(text)
  return ''.join(match['rest'].split()) if match else ''


def make_optional(
  text: str, first: int = 1, file: str = ''
) -> tuple[str, list[Call]]:
  """Returns source whose synchronising calls can be left out at run time.

  Of a call of a queue, only the flags are left out.  Line numbers stay.

  Args:
    text: of the source.
    first: number of its first call.
    file: its name.

  Returns:
    The source, and its calls.
  """
  code = _DIRECTIVE.sub(_blank, calls.without_comments(text))
  closing = build_kernel.find_closing
  pieces = []
  for change in calls.changes({'': code}, _CALLS):
    if change.change == 'left out':
      begin, end, _ = change.pieces[0]
      begin = end - len(calls.after_control(code[begin:end]))
      pair = _flag_pair(code[begin:end])
      pieces.append((begin, end, '{if(!HpmoeLeftOut(%d)){', '}}', pair))
  for call in _QUEUE_CALL.finditer(code):
    end = closing(code, call.end())
    pair = _queue_pair(call)
    pieces.append((call.start(), end, '(HpmoeQuiet(%d),', ')', pair))
  file_calls, out, last = [], '', 0
  for number, piece in enumerate(sorted(pieces), first):
    begin, end, before, after, pair = piece
    line = text.count('\n', 0, begin) + 1
    plain = ' '.join(text[begin:end].split())
    file_calls.append(Call(number, file, line, plain, pair))
    out += text[last:begin] + before % number + text[begin:end] + after
    last = end
  return out + text[last:], file_calls


def list_groups(all_calls: Sequence[Call]) -> Iterator[tuple[Call, ...]]:
  """Yields what is left out at once: a call, or the calls of a pair.

  Flags are left out alone and with their waits; EnQue and DeQue together, for
  one takes what the other sets; FreeTensor never, since a TPipe's end waits for
  it.
  """
  pairs: dict[tuple[str, str], list[Call]] = {}
  for call in all_calls:
    queue = _QUEUE_CALL.match(call.text)
    if call.pair:
      pairs.setdefault((call.file, call.pair), []).append(call)
    if not queue or queue['call'] == 'AllocTensor':
      yield (call,)
  for pair in pairs.values():
    if len(pair) > 1 or _QUEUE_CALL.match(pair[0].text):
      yield tuple(pair)


def list_variables(
  numbers: Collection[int], notes: pathlib.Path
) -> dict[str, str]:
  """Returns the variables that leave out calls.

  Args:
    numbers: of the calls.
    notes: a file that `read_notes` reads after the run.
  """
  return {_NUMBERS: f',{",".join(map(str, numbers))},', _RAN: str(notes)}


def read_notes(notes: pathlib.Path) -> tuple[set[int], set[int]]:
  """Returns which calls a run has come to, and which set or take a flag."""
  words = notes.read_text().split() if notes.exists() else []
  pairs = list(zip(words[::2], map(int, words[1::2])))
  return {n for _, n in pairs}, {n for event, n in pairs if event == 'flag'}


def mute(headers: pathlib.Path, target: pathlib.Path) -> None:
  """Copies headers of Ascend C, in which flags of a queue can be left out."""
  for part in ('include', 'impl'):
    shutil.copytree(headers / part, target / part, dirs_exist_ok=True)
  (target / 'include' / _HEADER_NAME).write_text(HEADER)
  for path in target.rglob('*.h'):
    text = path.read_text(errors='surrogateescape')
    if path.name != _HEADER_NAME and _MUTED.search(text):
      first = f'#include "{_HEADER_NAME}"\n#line 1\n'
      # A byte order mark stands first or not at all.
      whole = first + text.removeprefix('\ufeff')
      path.write_text(whole, errors='surrogateescape')
