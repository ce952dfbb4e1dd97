"""Operators in the log that MindSpore writes as it runs eagerly.

MindSpore gives `dry_run.py` operators, but for those that its backward pass
runs as graphs of one operator: the log alone has these.
"""

import collections
from collections.abc import Iterable
import re
from typing import NamedTuple

# Of a process, before it imports MindSpore: it logs to its stderr.
ENVIRONMENT = dict(
  GLOG_v='2', GLOG_logtostderr='1', MS_SUBMODULE_LOG_v='{PYNATIVE:0}'
)
# Such a line, of a thread.
_LINE = re.compile(r'\[[A-Z]+\] PYNATIVE\(\d+,(\w+),.*?\] \w+\] (.*)')
_RUN = re.compile(r'RunOp name (\w+) device \w+ id \d+ with (\w+) shape')
_OPERAND = re.compile(
  r'Update input edge kernel tensor .*? type:Tensor\[(\w+)\]'
)
_END = 'End update input device address'


class Log(NamedTuple):
  """What a log tells.

  Attributes:
    ran: operators that ran as a graph of one, whoever asked for them.
    emitted: of the backward pass, by name and dtypes of tensors: how many.
  """

  ran: frozenset[str]
  emitted: collections.Counter[tuple[str, tuple[str, ...]]]


def read(lines: Iterable[str]) -> Log:
  """Parses the lines of a log; other lines are ignored."""
  ran: set[str] = set()
  emitted: collections.Counter[tuple[str, tuple[str, ...]]]
  emitted = collections.Counter()
  open_in: dict[str, tuple[str, list[str]]] = {}
  for line in lines:
    match = _LINE.match(line)
    if not match:
      continue
    thread, message = match.groups()
    if run := _RUN.match(message):
      ran.add(run[1])
      # Only calls from Python know their shapes in advance.
      if run[2] == 'dynamic':
        open_in[thread] = run[1], []
    elif thread in open_in and (operand := _OPERAND.match(message)):
      open_in[thread][1].append(operand[1].lower())
    elif thread in open_in and message.startswith(_END):
      name, dtypes = open_in.pop(thread)
      emitted[name, tuple(dtypes)] += 1
  return Log(frozenset(ran), emitted)
