r"""Runs the public samples of Ascend C on the twin, as they are.

  python -m hpmoe.tools.twin_samples --samples_include=DIR [--samples_only=add]
      [--samples_sync] [--samples_operators=CSRC] [--samples_public=CHECKOUTS]

DIR is a checkout of asc-devkit.  Of each sample for A2 and A3 its README says
how it is built, which data it takes and how its answer is judged: just that is
done, with the twin in place of the NPU, in order, seeded and late.  Then
--samples_sync leaves out each of its calls that synchronise, one by one, and
keeps what the twin says.  --samples_operators runs operators of vllm-ascend in
their place: CSRC is its folder of this name.  --samples_public runs the
operators of twin_operators.toml: CHECKOUTS holds their repositories, metadef
and opbase.  With either, --samples_sync leaves out calls of those operators;
with --samples_graph it leaves out none, and explains those of the figures.

Exit codes: 0 all that run are right, or operators were asked for; 1 not; 2 DIR
is missing.
"""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import types

from absl import app
from absl import flags

from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.tools import operator_sync
from hpmoe.tools import twin_operators
from hpmoe.tools import twin_samples_operators
from hpmoe.tools.docs import figures
from hpmoe.tools.sync import optional

_INCLUDE = flags.DEFINE_string(
  'samples_include', None, 'A checkout of asc-devkit.'
)
_SELECTED = flags.DEFINE_list(
  'samples_only', [], 'Samples by the end of their folder.'
)
_JSON = flags.DEFINE_string(
  'samples_json', None, 'Write the table here; what it holds is not run again.'
)
_VERSION = flags.DEFINE_string(
  'samples_version', '', 'Of the headers, for the file.'
)
_OPERATORS = flags.DEFINE_string(
  'samples_operators', None, 'csrc of a checkout of vllm-ascend.'
)
_PUBLIC = flags.DEFINE_string(
  'samples_public', None, 'Checkouts of public repositories, by name.'
)
_WORK = flags.DEFINE_string('samples_work', None, 'Keep what is built here.')
_GRAPH = flags.DEFINE_bool(
  'samples_graph',
  False,
  'With --samples_sync: explain the calls of operator_sync.json again.',
)
_SYNC = flags.DEFINE_bool(
  'samples_sync', False, 'Leave out each call that synchronises, too.'
)

_ROOMS = (
  'examples/01_simd_cpp_api/00_introduction',
  'examples/01_simd_cpp_api/03_basic_api',
)
_SECONDS = 300
# Limit of a sample; it ends one that polls forever.
_INSTRUCTIONS = 1 << 20
# What a program does not say of itself.
_OPTIONS: dict[str, dict[str, object]] = {
  '04_memory_management/tbufpool_management': dict(zero_memory=1),
  '05_sync_control/cross_core_set_wait_flag': dict(zero_memory=1),
  '05_sync_control/data_sync_barrier': dict(flags='0', zero_memory=1),
  '05_sync_control/group_barrier': dict(flags='0'),
  '05_sync_control/ib_set_wait': dict(flags='2'),
  '05_sync_control/sequential_block_sync': dict(flags='2', zero_memory=1),
  '09_utils/gm_by_dcache': dict(flags='1'),
  '09_utils/gm_by_pass_dcache': dict(zero_memory=1),
}
# Calls whose leaving out is not reported, by sample and line: why.
_AT_END = 'redundant: the end of its TPipe waits for all pipes'
_BY_FLAGS = 'redundant: V_MTE2 and MTE2_V around the next load order the sums'
_SUMS = 'redundant: the word begins as 0, and 0 + a + b is 0 + b + a'
_NO_OTHER_PIPE = 'redundant: only the scalar unit works, in program order'
_SILENT: dict[str, dict[int, str]] = {
  '01_memory_vector_compute/compare': {89: _AT_END},
  '01_memory_vector_compute/reduce': {
    157: 'redundant: only a mask is set before the flag of EnQue',
  },
  '01_memory_vector_compute/reduce_repeat': {98: _AT_END},
  '01_memory_vector_compute/transpose': {94: _AT_END},
  '04_memory_management/tensor_allocation': {198: _AT_END},
  '05_sync_control/data_sync_barrier': {
    58: _NO_OTHER_PIPE,
  },
  '05_sync_control/sync_all': {93: _BY_FLAGS, 100: _BY_FLAGS},
  '06_atomic/data_movement_with_atomic_operations': {
    45: 'redundant: each core reads only x and adds atomically to y; adds '
    'of several cores need no order',
  },
  '06_atomic/set_atomic_deterministic_computation': {63: _SUMS},
  '09_utils/gm_by_pass_dcache': {
    42: 'redundant: the value stored is computed from the one loaded, and '
    'nothing else is accessed',
    58: _NO_OTHER_PIPE,
  },
}
_NOT_RUN = 'does not run'
_UNKNOWN = 'not explained'
# Orders in which what lacks shows.
_ORDERS = ('late', 'seeded')
_STRICT = dict(auto_sync=0)
_INSERTED = 'right: the compiler inserts it (auto_sync)'
# Calls of the advanced API need headers that a build of CANN generates.
_ADVANCED = '_advanced_api'


@dataclasses.dataclass(frozen=True)
class Sample:
  """What a sample's README says of it.

  Attributes:
    folder: where it lies.
    source: its program.
    defines: -D of its build.
    before, after: commands before and after the program, from its build folder.
  """

  folder: pathlib.Path
  source: pathlib.Path
  defines: tuple[str, ...]
  before: tuple[str, ...]
  after: tuple[str, ...]


def _substitute(text: str, names: dict[str, str]) -> str:
  return re.sub(
    r'\$\{?(\w+)\}?', lambda match: names.get(match[1], match[0]), text
  )


def _sample(folder: pathlib.Path) -> Sample:
  readme = (folder / 'README.md').read_text()
  lines = [line.split('#')[0].strip() for line in readme.splitlines()]
  names = dict(re.findall(r'^\s*(SCENARIO_NUM)=(\d+)', readme, re.M)[:1])
  builds = [
    _substitute(line, names) for line in lines if line.startswith('cmake ')
  ]
  defines = re.findall(r'-D(?!CMAKE)\w+=\w+', builds[0]) if builds else []
  cmake = (folder / 'CMakeLists.txt').read_text()
  if 'ARCH_NUM' in cmake:
    defines.append('-DASC_ARCHITECTURES=2201')
  scripts = [
    _substitute(line, names) for line in lines if line.startswith('python3 ')
  ]
  data = [line for line in scripts if 'gen_data' in line][:1]
  judges = [line for line in scripts if 'verify' in line][:1]
  (source,) = folder.glob('*.asc')
  return Sample(folder, source, tuple(defines), tuple(data), tuple(judges))


def samples(headers: pathlib.Path) -> Iterator[Sample]:
  """Yields the samples for A2 and A3 of the basic API."""
  for room in _ROOMS:
    for readme in sorted((headers / room).rglob('README.md')):
      folder = readme.parent
      if folder.name.endswith(_ADVANCED) or not list(folder.glob('*.asc')):
        continue
      if 'Atlas A2' in readme.read_text():
        yield _sample(folder)


def _options(sample: Sample) -> dict[str, object]:
  folder = str(sample.folder)
  return next((o for end, o in _OPTIONS.items() if folder.endswith(end)), {})


def silent(folder: str, findings: dict[str, str]) -> dict[str, str]:
  """Returns the reason why the twin reports nothing, for each such call."""
  reasons = next((w for end, w in _SILENT.items() if folder.endswith(end)), {})
  return {
    call: finding.removeprefix('right: ')
    if finding != 'right'
    else reasons.get(int(call.split(':')[0].split()[-1]), _UNKNOWN)
    for call, finding in findings.items()
    if finding.startswith('right')
  }


def _run(
  command: str,
  folder: pathlib.Path,
  environment: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[int, str]:
  words = shlex.split(command)
  words[0] = sys.executable if words[0] == 'python3' else words[0]
  try:
    process = subprocess.run(
      words,
      cwd=folder,
      env={**os.environ, **environment},
      text=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      timeout=_SECONDS,
    )
  except subprocess.TimeoutExpired:
    return 1, f'no end after {_SECONDS} s'
  return process.returncode, process.stdout


def verdict(
  sample: Sample,
  kernel: build_kernel.Kernel,
  mode: str,
  omitted_call: int = 0,
  **extra_options: object,
) -> str:
  """Returns 'right', or the first problem of a run of a sample.

  Args:
    sample: to judge.
    kernel: its source, compiled.
    mode: the order of instructions that flags do not order.
    omitted_call: number of the call that is left out, from 1; `_NOT_RUN` is
      returned where it does not run.
    **extra_options: options of run_program.cc.
  """
  with tempfile.TemporaryDirectory() as folder:
    own = pathlib.Path(folder, sample.folder.name)
    shutil.copytree(sample.folder, own)
    build = own / 'build'
    build.mkdir()
    for command in sample.before:
      code, output = _run(command, build)
      if code:
        return f'its data: {output.strip().splitlines()[-1]}'
    options: dict[str, object] = dict(
      mode=mode, seed=1, auto_sync=1, max_instructions=_INSTRUCTIONS
    )
    options |= _options(sample) | extra_options
    words = build_kernel.command(kernel, **options)
    notes = pathlib.Path(folder, 'notes')
    variables = optional.list_variables((omitted_call,), notes)
    code, output = _run(shlex.join([*words, '--']), build, variables)
    if omitted_call and omitted_call not in optional.read_notes(notes)[1]:
      return _NOT_RUN
    reports = re.findall(r'^twin: (?!launches)(.*)', output, re.M)
    if reports:
      return reports[0]
    if code:
      return f'exit {code}: {output.strip().splitlines()[-1:]}'
    if not re.search(r'^twin: launches: [1-9]', output, re.M):
      return 'no launch'
    for command in sample.after:
      code, output = _run(command, build)
      if code or 'error' in output.lower().replace('error ratio', ''):
        return f'wrong: {output.strip().splitlines()[-1]}'
  return 'right'


def _find_first_wrong(verdicts: Iterable[str]) -> str:
  """Returns the first verdict that is not 'right'."""
  return next(
    (verdict_ for verdict_ in verdicts if verdict_ != 'right'), 'right'
  )


def left_out(
  sample: Sample, headers: pathlib.Path, work: pathlib.Path
) -> dict[str, str]:
  """Returns the finding for each left-out call, by line and call.

  Calls that do not run are not included.
  """
  folder = work / 'left_out' / sample.folder.relative_to(headers)
  shutil.copytree(sample.folder, folder, dirs_exist_ok=True)
  source = folder / sample.source.name
  names: list[str] = []
  for path in (source, *sorted(folder.glob('*.h'))):
    original = (sample.folder / path.name).read_text()
    text, of_file = optional.make_optional(original, len(names) + 1)
    path.write_text(text)
    prefix = '' if path == source else f'{path.name} '
    names += [prefix + call.name for call in of_file]
  # Not where the sample's own lines are.
  choice = work / 'built/left_out.h'
  choice.write_text(optional.HEADER)
  changed_sample = dataclasses.replace(sample, folder=folder, source=source)
  options = ('-include', str(choice), *sample.defines)
  kernel = build_kernel.build(source, headers, work / 'built', options)
  findings: dict[str, str] = {}
  for number, name in enumerate(names, 1):
    finding = _find_first_wrong(
      verdict(changed_sample, kernel, m, number) for m in _ORDERS
    )
    if (
      finding == 'right'
      and verdict(changed_sample, kernel, 'late', **_STRICT) == finding
    ):
      strict = verdict(changed_sample, kernel, 'late', number, **_STRICT)
      finding = 'right' if strict == finding else f'{_INSERTED}, or {strict}'
    if finding != _NOT_RUN:
      findings[name] = finding.replace(f'{work / "left_out"}/', '')
    print(f'  {name}: {finding[:60]}', flush=True)
  return findings


def judge(
  name: str, sample: Sample, headers: pathlib.Path, work: pathlib.Path
) -> dict:
  """Returns the findings of a sample: a row of the table."""
  row: dict = dict(sample=name, defines=' '.join(sample.defines))
  row['options'] = ' '.join(f'{k}={v}' for k, v in _options(sample).items())
  try:
    kernel = build_kernel.build(
      sample.source, headers, work / 'built', sample.defines
    )
  except build_kernel.BuildError as error:
    print(f'{name}: {error}', flush=True)
    return row | dict(compiles=str(error))
  row['compiles'] = 'yes'
  for mode in build_kernel.MODES:
    row[mode] = verdict(sample, kernel, mode)
    if row[mode] != 'right':
      break
  print(f'{name}: {row.get("late", row[mode])}', flush=True)
  if _SYNC.value and row.get('late') == 'right':
    row['left_out'] = left_out(sample, headers, work)
  return row


_VLLM_ASCEND = 'vllm-project/vllm-ascend'
_SHIPPED = 'operators of vllm-ascend'
_SHIPPED_RIGHT = 'operators right against NumPy, in all modes'
_OF_PUBLIC = 'public operators:'
_SYNC_FIGURES = 'operator_sync'
_SHIPPED_OTHER = 'operators for another chip'


def shipped(csrc: pathlib.Path, headers: pathlib.Path) -> list[dict]:
  """Returns a row for each operator of vllm-ascend."""
  table = []
  for case in twin_samples_operators.CASES:
    if _SELECTED.value and not case.name.endswith(tuple(_SELECTED.value)):
      continue
    row = dict(operator=case.name)
    for mode in build_kernel.MODES:
      row[mode] = twin_samples_operators.verdict(
        case, csrc, str(headers), mode=mode, seed=1
      )
      if row[mode] != 'right':
        break
    table.append(row)
    print(f'{case.name}: {list(row.values())[-1]}', flush=True)
  return table


def keep_shipped(table: list[dict]) -> None:
  """Writes the figures of operators beside those of samples."""
  kept_figures = figures.load('samples')
  other = sum('expected an operator for' in r['order'] for r in table)
  right = sum(r.get('late') == 'right' for r in table)
  counts = {
    _SHIPPED: len(table),
    _SHIPPED_RIGHT: right,
    _SHIPPED_OTHER: other,
  }
  rows = [row for row in kept_figures.pop('rows') if row[0] not in counts]
  rows += [[label, str(count)] for label, count in counts.items()]
  command = 'python -m hpmoe.tools.twin_samples --samples_operators=CSRC'
  runs = [r for r in kept_figures.pop('runs') if r['command'] != command]
  runs.append(figures.run(command))
  kept_figures['operators'] = table
  figures.write(
    'samples', kept_figures.pop('columns'), rows, runs, **kept_figures
  )


def judge_public(
  checkouts: pathlib.Path, headers: pathlib.Path, path: pathlib.Path | None
) -> list[dict]:
  """Returns a row for each operator of twin_operators.toml.

  Args:
    checkouts: the repositories, metadef and opbase, by name.
    headers: of Ascend C.
    path: a file that rows are added to; those that it holds are not run again.
  """
  rows = json.loads(path.read_text()) if path and path.exists() else []
  names = {row['operator'] for row in rows}
  host = tuple(str(checkouts / name) for name in ('metadef', 'opbase'))
  for operator in twin_operators.select(_SELECTED.value):
    if operator.name in names:
      continue
    root = checkouts / operator.repository.split('/')[1]
    row = dict(operator=operator.name)
    for mode in reversed(build_kernel.MODES):
      row[mode] = twin_operators.verdict(
        operator, root, str(headers), host, mode=mode, seed=1
      )
      if row[mode] != 'right':
        break
    rows.append(row)
    print(f'{operator.name}: {list(row.values())[-1]}', flush=True)
    if path:
      path.write_text(json.dumps(rows, indent=1) + '\n')
  return rows


def keep_public(table: list[dict]) -> None:
  """Writes the figures of public operators beside those of samples."""
  content = figures.load('samples')
  last = [list(row.values())[-1] for row in table]
  right = last.count('right')
  lacks = sum(v.startswith('refused') for v in last)
  wrong = sum(v.startswith('wrong') for v in last)
  counts = {
    f'{_OF_PUBLIC} tried': len(table),
    f'{_OF_PUBLIC} right': right,
    f'{_OF_PUBLIC} reported': len(table) - right - lacks - wrong,
    f'{_OF_PUBLIC} refused': lacks,
    f'{_OF_PUBLIC} wrong': wrong,
  }
  rows = [r for r in content.pop('rows') if not r[0].startswith(_OF_PUBLIC)]
  rows += [[label, str(count)] for label, count in counts.items()]
  command = 'python -m hpmoe.tools.twin_samples --samples_public=CHECKOUTS'
  runs = [r for r in content.pop('runs') if r['command'] != command]
  runs.append(figures.run(command))
  content['public'] = table
  content['public_commits'] = twin_operators.read()[1]
  figures.write('samples', content.pop('columns'), rows, runs, **content)


def _list_subjects(
  csrc: pathlib.Path | None, checkouts: pathlib.Path | None
) -> Iterator[operator_sync.Subject]:
  """Yields each operator asked for."""
  if csrc:
    for case in twin_samples_operators.CASES:
      if case.verdict == 'right':

        def shipped_launch(copy, headers, case=case, **options):
          return twin_samples_operators.verdict(
            case, copy, str(headers), **options
          )

        yield operator_sync.Subject(
          f'{_VLLM_ASCEND}/csrc/{case.name}',
          csrc,
          case.name,
          shipped_launch,
          tuple(case.inputs),
        )
  if checkouts:
    host = tuple(str(checkouts / name) for name in ('metadef', 'opbase'))
    for row in twin_operators.select(()):

      def public_launch(copy, headers, row=row, **options):
        return twin_operators.verdict(row, copy, str(headers), host, **options)

      root = checkouts / row.repository.split('/')[1]
      yield operator_sync.Subject(row.name, root, row.path, public_launch)


def leave_out_of_operators(
  subjects: Iterable[operator_sync.Subject],
  headers: pathlib.Path,
  work: pathlib.Path,
  path: pathlib.Path | None,
) -> list[dict]:
  """Returns a row for each operator that is right: what is left out of it.

  Args:
    subjects: the operators.
    headers: of Ascend C.
    work: where copies lie.
    path: a file that rows are added to; those that it holds are not run again.
  """
  rows = json.loads(path.read_text()) if path and path.exists() else []
  names = {row['operator'] for row in rows}
  for subject in subjects:
    name = subject.name
    if name in names or (
      _SELECTED.value and not name.endswith(tuple(_SELECTED.value))
    ):
      continue
    print(name, flush=True)
    try:
      outcomes = operator_sync.leave_out(subject, headers, work)
    except ValueError as error:
      rows.append(dict(operator=name, not_run=str(error)))
    else:
      calls = [dataclasses.asdict(outcome) for outcome in outcomes]
      rows.append(dict(operator=name, calls=calls))
    if path:
      path.write_text(json.dumps(rows, indent=1) + '\n')
  return rows


def explain_operators(
  subjects: Iterable[operator_sync.Subject],
  headers: pathlib.Path,
  work: pathlib.Path,
) -> list[dict]:
  """Returns the rows of figures, explained again by graphs of launches."""
  rows = figures.load(_SYNC_FIGURES)['operators']
  own = {subject.name: subject for subject in subjects}
  new_rows = []
  for row in rows:
    subject = own[row['operator']]
    print(subject.name, flush=True)
    outcomes = operator_sync.explain_again(
      subject,
      headers,
      work,
      [operator_sync.Outcome(**call) for call in row['calls']],
    )
    calls = [dataclasses.asdict(outcome) for outcome in outcomes]
    new_rows.append(dict(operator=subject.name, calls=calls))
  return new_rows


def keep_left_out(rows: list[dict]) -> None:
  """Writes the figures of calls left out of operators."""
  run = [row for row in rows if row.get('calls')]
  kinds = [call['kind'] for row in run for call in row['calls']]
  counts = [
    ['operators', str(len(run))],
    *([kind, str(kinds.count(kind))] for kind in operator_sync.KINDS),
  ]
  folders = {
    '--samples_operators=CSRC': _OPERATORS.value,
    '--samples_public=CHECKOUTS': _PUBLIC.value,
  }
  words = [word for word, folder in folders.items() if folder]
  words.append('--samples_sync')
  runs = []
  if _GRAPH.value:
    words.append('--samples_graph')
    runs = figures.load(_SYNC_FIGURES)['runs'][:1]
  command = ' '.join(['python -m hpmoe.tools.twin_samples', *words])
  columns = ('calls left out of operators', str(len(kinds)))
  figures.write(
    _SYNC_FIGURES,
    columns,
    counts,
    [*runs, figures.run(command)],
    operators=rows,
    commits=_find_commits(run),
  )


def _find_commits(rows: list[dict]) -> dict[str, str]:
  """Returns the commit of each repository with a row."""
  commits = {_VLLM_ASCEND: twin_samples_operators.COMMIT}
  commits |= twin_operators.read()[1]
  return {
    repository: commit
    for repository, commit in commits.items()
    if any(row['operator'].startswith(repository) for row in rows)
  }


def keep(table: list[dict], headers: pathlib.Path) -> None:
  """Writes the figures, and the page that shows them."""
  table = json.loads(json.dumps(table).replace(f'{headers}/', ''))
  findings = [
    finding for row in table for finding in row.get('left_out', {}).values()
  ]
  reasons = [w for row in table for w in row.get('not_reported', {}).values()]
  modes = ('late', 'seeded', 'order', 'compiles')
  verdicts = [next(row[m] for m in modes if m in row) for row in table]
  right = verdicts.count('right')
  lacks = sum(v.startswith('refused') or 'not compile' in v for v in verdicts)
  wrong = sum(v.startswith('wrong') for v in verdicts)
  rows = [
    ['right in all modes', str(right)],
    ['want what the twin lacks', str(lacks)],
    *([['give other results', str(wrong)]] if wrong else []),
    ['hold what it reports', str(len(table) - right - lacks - wrong)],
  ]
  if findings:
    rows += [
      ['calls left out', str(len(findings))],
      [
        'reported',
        str(sum(not finding.startswith('right') for finding in findings)),
      ],
      [
        'redundant',
        str(sum(not w.startswith((_UNKNOWN, 'matters')) for w in reasons)),
      ],
    ]
  ran = figures.run('python -m hpmoe.tools.twin_samples --samples_include=DIR')
  columns = ('samples', str(len(table)))
  operators = figures.load('samples').get('operators', [])
  extra_fields = dict(
    headers=_VERSION.value, samples=table, operators=operators
  )
  figures.write('samples', columns, rows, [ran], **extra_fields)


def main(argv: list[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  headers = pathlib.Path(_INCLUDE.value or '')
  if not (headers / build_kernel.HEADERS[0]).is_file():
    print(
      '--samples_include: expected a checkout of asc-devkit', file=sys.stderr
    )
    return 2
  path = pathlib.Path(_JSON.value) if _JSON.value else None
  work = pathlib.Path(_WORK.value or tempfile.mkdtemp(prefix='twin_samples'))
  if _SYNC.value and (_OPERATORS.value or _PUBLIC.value):
    csrc, checkouts = (
      pathlib.Path(folder) if folder else None
      for folder in (_OPERATORS.value, _PUBLIC.value)
    )
    subjects = _list_subjects(csrc, checkouts)
    if _GRAPH.value:
      rows = explain_operators(subjects, headers, work)
    else:
      rows = leave_out_of_operators(subjects, headers, work, path)
    if figures.KEEP.value:
      keep_left_out(rows)
    unexplained = [
      call['calls']
      for row in rows
      for call in row.get('calls', ())
      if call['kind'] in (operator_sync.UNEXPLAINED, operator_sync.MISS)
    ]
    print(f'{len(unexplained)} missed or not explained')
    return int(bool(unexplained))
  if _OPERATORS.value:
    operators = shipped(pathlib.Path(_OPERATORS.value), headers)
    if figures.KEEP.value:
      keep_shipped(operators)
    return 0
  if _PUBLIC.value:
    public = judge_public(pathlib.Path(_PUBLIC.value), headers, path)
    if figures.KEEP.value:
      keep_public(public)
    return 0
  (work / 'built').mkdir(parents=True, exist_ok=True)
  rows_before = json.loads(path.read_text()) if path and path.exists() else []
  row_of_sample = {row['sample']: row for row in rows_before}
  table = []
  for sample in samples(headers):
    name = str(sample.folder.relative_to(headers / 'examples/01_simd_cpp_api'))
    if _SELECTED.value and not name.endswith(tuple(_SELECTED.value)):
      continue
    row = row_of_sample.get(name) or judge(name, sample, headers, work)
    if 'left_out' in row:
      row['not_reported'] = silent(name, row['left_out'])
    table.append(row)
    if path:
      path.write_text(json.dumps(table, indent=1) + '\n')
  right = sum(row.get('late') == 'right' for row in table)
  print(f'{right} of {len(table)} right')
  if figures.KEEP.value:
    keep(table, headers)
  return int(right < len(table))


if __name__ == '__main__':
  app.run(main)
