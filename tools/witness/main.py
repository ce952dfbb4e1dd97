"""The vendor's compiler as a witness of the twin: `make witness`.

  python -m hpmoe.tools.witness.main --witness_tool=PATH/bishengir-opt
      [--witness_programs=2000] [--witness_first=0] [--witness_show=SEED]
      [--nowitness_order]

Random programs of loads, stores and vector instructions, straight and in
loops, are written for the vendor's compiler and for the twin.  The vendor's two
solvers put flags and barriers into them.  The twin runs each program so, then
without each of these calls, then without all, adding what it asks for.  What
instructions and programs compute is compared with the vendor's lowering to a
CPU, where Debian's LLVM 19 is there to compile it.

Exit code 0: where both differ the vendor asks for more, and why is known.
1: they differ otherwise: the twin is wrong, or the vendor.
2: the request is wrong.
"""

from collections.abc import Iterator, Sequence
import pathlib
import sys
import tempfile

from absl import app
from absl import flags

from hpmoe.tools.docs import figures
from hpmoe.tools.witness import compare_orders
from hpmoe.tools.witness import cpu
from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import order
from hpmoe.tools.witness import programs
from hpmoe.tools.witness import twin as twins
from hpmoe.tools.witness import values
from hpmoe.tools.witness import vendor

_TOOL = flags.DEFINE_string(
  'witness_tool', None, 'bishengir-opt of ascendnpu-ir.'
)
_PROGRAMS = flags.DEFINE_integer('witness_programs', 2000, 'How many.')
_FIRST = flags.DEFINE_integer('witness_first', 0, 'Seed of the first.')
_SHOW = flags.DEFINE_integer(
  'witness_show', None, 'Print this program and what is said of it, only.'
)
_ORDER = flags.DEFINE_bool(
  'witness_order', True, 'Compare order; else values alone.'
)
_STORE = flags.DEFINE_bool(
  'witness_store', False, 'Write the data of witness_test.py, only.'
)

DATA = pathlib.Path(__file__).parent / 'data'
_NUM_STORED = 12  # programs
_BATCH = 100
_VALUES = 500  # programs
_HEAD = '// make witness WITNESS_FLAGS=--witness_store\n'
_ROWS = {
  'programs': 'programs',
  compare_orders.CLEAN: 'clean',
  compare_orders.CLEAN_IF_COUNTED: 'clean with `flags_count`',
  'left out': 'flags and barriers',
  'demands': 'that the twin asks for',
  compare_orders.REPORTED: 'left out: reported',
  compare_orders.TWICE: compare_orders.TWICE,
  compare_orders.ROUNDS: compare_orders.ROUNDS,
  compare_orders.WHOLE_ARRAY: compare_orders.WHOLE_ARRAY,
}


def judge(
  tool: pathlib.Path, seeds: range, solver: str
) -> Iterator[compare_orders.Verdict]:
  """Yields the verdict of each seed's program, for one of the solvers."""
  for begin in range(seeds.start, seeds.stop, _BATCH):
    batch = [
      programs.write(seed)
      for seed in range(begin, min(begin + _BATCH, seeds.stop))
    ]
    pairs = vendor.synchronise(tool, batch, solver)
    yield from judge_batch(pairs)


def judge_batch(
  pairs: Sequence[tuple[programs.Program, hivm.Body]],
) -> list[compare_orders.Verdict]:
  with (
    tempfile.TemporaryDirectory(prefix='hpmoe-witness-') as folder,
    twins.Twin(pairs, pathlib.Path(folder)) as twin,
  ):
    return [compare_orders.judge(*pair, twin) for pair in pairs]


def rows(
  verdicts: dict[str, list[compare_orders.Verdict]],
) -> list[list[object]]:
  """Returns the table's rows: a count of each solver; what is wrong last."""
  counts = {
    name: compare_orders.tally(of_solver)
    for name, of_solver in verdicts.items()
  }
  wrong = {kind: kind for kind in compare_orders.WRONG}
  return [
    [head, *(f'{counts[name][kind]:,}' for name in verdicts)]
    for kind, head in (_ROWS | wrong).items()
    if kind in _ROWS or any(counts[name][kind] for name in verdicts)
  ]


def examples(
  verdicts: dict[str, list[compare_orders.Verdict]],
) -> dict[str, dict]:
  """Returns of each kind of difference the first seed, by solver."""
  firsts: dict[str, dict] = {}
  for solver, of_solver in verdicts.items():
    for verdict in of_solver:
      for kind in (verdict.whole, *verdict.parts):
        if kind not in (compare_orders.CLEAN, compare_orders.REPORTED):
          firsts.setdefault(kind, {}).setdefault(
            solver, {'seed': verdict.seed, 'said': verdict.example}
          )
  return firsts


def show(pair: tuple[programs.Program, hivm.Body], solver: str) -> str:
  """Returns a program with the vendor's calls, and what became of each."""
  program, body = pair
  (verdict,) = judge_batch([pair])
  trace = order.Trace(body)
  remarks = {
    number: f'  # group {group}: {verdict.parts[group]}'
    for group, numbers in enumerate(trace.groups)
    for number in numbers
  }
  lines = [f'p{program.seed} by {solver}: {verdict.whole} {verdict.example}']
  number = 0

  def add(nodes: hivm.Body, indent: str) -> None:
    nonlocal number
    for node in nodes:
      if isinstance(node, hivm.Round):
        lines.append(f'{indent}for {node.rounds} rounds')
        add(node.body, indent + '  ')
        continue
      lines.append(f'{number:4}{indent}{node}{remarks.get(number, "")}')
      number += 1

  add(body, '  ')
  return '\n'.join(lines)


def store(tool: pathlib.Path) -> None:
  """Writes what the vendor's solvers make of the first programs."""
  batch = [programs.write(seed) for seed in range(_NUM_STORED)]
  for solver in vendor.SOLVERS:
    text = vendor.run(tool, hivm.write(batch), solver)
    (DATA / f'{solver}.mlir').write_text(_HEAD + text)


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  tool = pathlib.Path(_TOOL.value or '')
  if not tool.is_file():
    print(
      "witness_tool: expected bishengir-opt of PyPI's ascendnpu-ir, got "
      f'{_TOOL.value}: make witness installs it',
      file=sys.stderr,
    )
    sys.exit(2)
  if _STORE.value:
    store(tool)
  elif _SHOW.value is not None:
    for solver in vendor.SOLVERS:
      pairs = vendor.synchronise(tool, [programs.write(_SHOW.value)], solver)
      print(show(pairs[0], solver))
  else:
    seeds = range(_FIRST.value, _FIRST.value + _PROGRAMS.value)
    wrong = _ORDER.value and _run_order(tool, seeds)
    sys.exit(int(_run_values(tool, seeds) or wrong))


def _run_order(tool: pathlib.Path, seeds: range) -> bool:
  """Judges all programs; returns whether one side is wrong."""
  verdicts = {
    solver: list(judge(tool, seeds, solver)) for solver in vendor.SOLVERS
  }
  table = rows(verdicts)
  for row in table:
    print('|'.join(map(str, row)))
  if figures.KEEP.value:
    run = _source()
    columns = ('', *vendor.SOLVERS)
    figures.write('witness', columns, table, [run], examples=examples(verdicts))
  kinds = {
    kind
    for of_solver in verdicts.values()
    for verdict in of_solver
    for kind in (verdict.whole, *verdict.parts)
  }
  return bool(kinds & set(compare_orders.WRONG))


def _source() -> dict[str, str]:
  run = figures.run('make witness')
  return run | dict(processor=figures.ANY, load=figures.ANY)


def _run_values(tool: pathlib.Path, seeds: range) -> bool:
  """Compares values; returns whether some differ for no known reason."""
  absent = cpu.lacks()
  if absent:
    print(cpu.NO_TOOLS.format(absent))
    return False
  counts = values.judge(tool, seeds[:_VALUES])
  table = values.rows(counts)
  for row in table:
    print('|'.join(map(str, row)))
  for count in counts:
    if not count.is_explained:
      print(f'NOT EXPLAINED: {count.name}: {count.example}')
  if figures.KEEP.value:
    run = _source()
    columns = ('values of', 'elements', *values.KINDS, 'why')
    examples_of = {c.name: c.example for c in counts if c.example}
    figures.write('witness_values', columns, table, [run], examples=examples_of)
  return not all(count.is_explained for count in counts)


if __name__ == '__main__':
  app.run(main)
