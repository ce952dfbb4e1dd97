"""The `hpmoe` command.

Exit codes: 0 parity holds, 1 it fails, 2 the request was wrong, 3 the candidate
crashed, hung or could not run, 130 interrupted.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import importlib.metadata
import json
import math
import os
import pathlib
import shutil
import sys
import textwrap

from absl import flags

PARITY, NO_PARITY, WRONG_REQUEST, CANDIDATE_FAILED = 0, 1, 2, 3
INTERRUPTED = 130  # What a shell says of a program that SIGINT ended.

_DTYPES = {
    'f32': 'float32',
    'bf16': 'bfloat16',
    'float32': 'float32',
    'bfloat16': 'bfloat16',
}
_RUNS_TOGETHER = ('exact', 'bitwise', 'bounded', 'standard')


# What libraries call an option, and what the user types.
_FLAG_OF = {
    'num_ranks': 'ranks',
    'num_tokens': 'tokens',
    'num_aic': 'aic',
    'num_aiv': 'aiv',
    'deadline_s': 'deadline',
    'timeout_s': 'timeout',
}
_MAX_THREADS = 4096


class UsageError(ValueError):
  """The command line was wrong."""


@dataclasses.dataclass(frozen=True)
class Command:
  """One subcommand.

  Attributes:
    name: as typed.
    help: one line.
    examples: command lines.
    define: defines its flags.
    execute: runs it with parsed flags and the arguments; returns the exit code.
    codes: what its exit codes mean.
  """

  name: str
  help: str
  examples: tuple[str, ...]
  define: Callable[[flags.FlagValues], None]
  execute: Callable[[flags.FlagValues], int]
  codes: str

  def flags(self) -> flags.FlagValues:
    values = flags.FlagValues()
    self.define(values)
    return values

  def usage(self) -> str:
    values = self.flags()
    lines = [f'hpmoe {self.name}: {self.help}', '', 'examples:']
    lines += [f'  {example}' for example in self.examples]
    lines += ['', 'options:']
    for name in sorted(values):
      flag = values[name]
      unset = flag.default in (None, [])
      default = '' if unset else f' Default: {_text(flag.default)}.'
      lines.append(_wrapped(f'  --{name}: {flag.help}{default}'))
    lines += ['', _wrapped(f'exit codes: {self.codes}, 130 interrupted')]
    return '\n'.join(lines)


def _wrapped(text: str) -> str:
  return textwrap.fill(
      text, 88, subsequent_indent=6 * ' ', break_on_hyphens=False,
      break_long_words=False,
  )  # fmt: skip


def _text(value: object) -> str:
  return ','.join(value) if isinstance(value, list) else str(value)


_PLACEMENT = (
    'Where the routing weight multiplies: `combine`, the returned rows as they '
    'are summed, or `before_down`, the activation before the down GEMM.'
)


def _define_layer(f: flags.FlagValues) -> None:
  flags.DEFINE_string(
      'preset', 'small', 'Shape of the layer; `tiny`, `small`, `deepseek_v3`, '
      '`qwen3_moe`, `mixtral` run here, `*_full` and `ep16` only compile.',
      flag_values=f,
  )  # fmt: skip
  flags.DEFINE_integer(
      'tokens', None, "Tokens of ONE rank. Default: the preset's.",
      flag_values=f,
  )  # fmt: skip
  flags.DEFINE_enum(
      'dtype', 'f32', list(_DTYPES), 'Storage dtype.', flag_values=f
  )
  flags.DEFINE_enum(
      'placement', 'combine', ['combine', 'before_down'],
      _PLACEMENT, flag_values=f,
  )  # fmt: skip
  flags.DEFINE_integer(
      'capacity', None, 'Rows that one rank can hold. Default: as many as the '
      'routing needs; compile: lossless.', flag_values=f,
  )  # fmt: skip


def _define_granularity(f: flags.FlagValues, aic=24, aiv=48) -> None:
  of_preset = '' if aic else " Default: the preset's, 24 aic and 48 aiv."
  flags.DEFINE_enum(
      'event_grain', 'row_block', ['expert', 'row_block'],
      'What an event stands for.', flag_values=f,
  )  # fmt: skip
  for name, default, text in (
      ('row_block', 64, 'Rows of one expert in a tile.'),
      ('col_block', 128, 'Columns of a GEMM tile.'),
      ('put_rows', None, 'Rows of one put. Default: --row_block.'),
      ('token_block', None, 'Tokens of a combine tile. Default: --row_block.'),
      ('aic', aic, f'Cube workers of one rank.{of_preset}'),
      ('aiv', aiv, f'Vector workers of one rank.{of_preset}'),
  ):
    flags.DEFINE_integer(name, default, text, flag_values=f)


def _define_data(f: flags.FlagValues) -> None:
  flags.DEFINE_integer('ranks', 4, 'Expert-parallel ranks.', flag_values=f)
  flags.DEFINE_string(
      'routing', 'text', '`text`, `balanced`, `zipf`, `hot`, `one_rank`, '
      '`empty_experts`, or a .safetensors or .npz file with topk_ids int32 '
      '[R,T,K] and optionally topk_weights float32 [R,T,K].', flag_values=f,
  )  # fmt: skip
  flags.DEFINE_string(
      'input', None, 'A .safetensors or .npz file with x, topk_ids, '
      'topk_weights, w_gate_up, w_down; its shapes replace the preset.',
      flag_values=f,
  )  # fmt: skip
  flags.DEFINE_string(
      'text', None, 'A text to embed and route. Default: the one that ships.',
      flag_values=f,
  )  # fmt: skip
  flags.DEFINE_integer('seed', 0, 'Seed of all values.', flag_values=f)


def _define_check(f: flags.FlagValues) -> None:
  from backend_ascend.kernels.host import faults
  from parity_tests import standards

  _define_layer(f)
  _define_granularity(f)
  _define_data(f)
  flags.DEFINE_list(
      'lane', ['all'], '`all`, or some of exact, bitwise, bounded, standard; '
      "lane exact asks the candidate for policy.activation 'product'.",
      flag_values=f,
  )  # fmt: skip
  flags.DEFINE_list(
      'standard', [], f'Records of lane standard, some of '
      f'{", ".join(standards.STANDARDS)}. Default: '
      f'{",".join(standards.DEFAULT)}.', flag_values=f,
  )  # fmt: skip
  flags.DEFINE_integer(
      'threads', None, 'OS threads of our backend. Default: one per core.',
      flag_values=f,
  )  # fmt: skip
  flags.DEFINE_float(
      'deadline', 60.0, 'Seconds without progress before our backend gives up.',
      flag_values=f,
  )  # fmt: skip
  flags.DEFINE_string(
      'candidate', None, 'pkg.module:function that takes the place of our '
      'backend: function(inputs, config, policy) -> dict of names, with y; '
      'see docs/find_a_bug.md.', flag_values=f,
  )  # fmt: skip
  flags.DEFINE_float(
      'timeout', 600.0, 'Seconds that a --candidate may take.', flag_values=f
  )
  flags.DEFINE_string(
      'fault', None, 'Fault that our backend commits, one of '
      f'{", ".join(faults.SPECS)}.', flag_values=f,
  )  # fmt: skip
  _define_json(f)


def _define_json(f: flags.FlagValues) -> None:
  flags.DEFINE_string('json', None, 'Write the report here.', flag_values=f)


def _options(f: flags.FlagValues):
  from backend_ascend.taskflow import flow as flow_lib

  return flow_lib.Options(
      event_grain=f.event_grain,
      row_block=f.row_block,
      col_block=f.col_block,
      put_rows=f.put_rows,
      token_block=f.token_block,
      num_aic=f.aic,
      num_aiv=f.aiv,
  )


def _lanes(f: flags.FlagValues) -> tuple[str, ...]:
  asked = _RUNS_TOGETHER if f.lane == ['all'] else tuple(f.lane)
  wrong = [lane for lane in asked if lane not in _RUNS_TOGETHER]
  if wrong or not asked:
    raise UsageError(
        f'lane: expected all or some of {list(_RUNS_TOGETHER)}, got '
        f'{",".join(f.lane)!r}'
    )
  return asked


def _arguments(f: flags.FlagValues, without: Sequence[str]) -> tuple[str, ...]:
  """Returns the flags that were given, as a command line."""
  given = (f[name] for name in sorted(f) if f[name].present)
  return tuple(
      flag.serialize() for flag in given if flag.name not in without
  )


# What a flag that was given says of a file's layer: (flag, how to read it).
_SAID_BY_INPUT: tuple[tuple[str, Callable], ...] = (
    ('ranks', lambda made: made.config.num_ranks),
    ('tokens', lambda made: made.config.num_tokens),
    ('dtype', lambda made: made.policy.storage),
)
_REPLACED_BY_INPUT = ('preset', 'routing', 'text')


def _refuse_contradictions(f: flags.FlagValues) -> None:
  """Refuses options that were given and would have no effect.

  Raises:
    UsageError: one contradicts the file of --input, or --text the routing.
    ValueError: the file cannot be read.
  """
  if f.input is None:
    if f['text'].present and f.routing != 'text':
      raise UsageError(f'text: expected --routing=text, got {f.routing!r}')
    return
  for name in _REPLACED_BY_INPUT:
    if f[name].present and f[name].value is not None:
      raise UsageError(
          f'{name}: expected none beside --input={f.input}, got {f[name].value}'
      )
  asked = [(n, said) for n, said in _SAID_BY_INPUT if f[n].present]
  if not asked:
    return
  from parity_tests import inputs

  made = inputs.load_safetensors(f.input, f.placement, f.capacity)
  for name, said in asked:
    value = _DTYPES.get(f[name].value, f[name].value)
    if value is not None and value != said(made):
      raise UsageError(
          f'{name}: expected {said(made)}, as in {f.input}, got {f[name].value}'
      )


def _refuse_out_of_range(f: flags.FlagValues) -> None:
  """Refuses what our runtime would refuse only after the inputs are made."""
  if f.threads is not None and not 1 <= f.threads <= _MAX_THREADS:
    raise UsageError(
        f'threads: expected 1 to {_MAX_THREADS}, got {f.threads}'
    )
  for name in {'deadline', 'timeout'} & set(f):
    seconds = float(f[name].value or 0)
    if not 0 < seconds < math.inf:
      raise UsageError(
          f'{name}: expected seconds, more than 0, got {seconds:g}'
      )


def _request(f: flags.FlagValues):
  from parity_tests import check
  from parity_tests import standards

  _refuse_out_of_range(f)
  _refuse_contradictions(f)
  for name in f.standard:
    standards.get(name)
  return check.Request(
      preset=f.preset,
      ranks=f.ranks,
      tokens=f.tokens,
      dtype=_DTYPES[f.dtype],
      routing=f.routing,
      input=f.input,
      text=f.text,
      seed=f.seed,
      placement=f.placement,
      capacity=f.capacity,
      lanes=_lanes(f),
      standards=tuple(f.standard) or standards.DEFAULT,
      options=_options(f),
      threads=f.threads,
      deadline_s=f.deadline,
      candidate=f.candidate,
      timeout_s=f.timeout,
      fault=f.fault,
      arguments=_arguments(f, without=('lane', 'json')),
  )


@contextlib.contextmanager
def _progress(total: int | None = None):
  """Yields a function that names the step which begins.

  The bar shows in a terminal only, and only for what takes over 2 s.
  """
  import tqdm

  # tqdm takes a terminal that does not say its size for one without lines.
  columns, lines = shutil.get_terminal_size()
  with tqdm.tqdm(
      total=total, delay=2, leave=False, disable=not sys.stderr.isatty(),
      ncols=columns - 1, nrows=lines, miniters=1, mininterval=0,
      bar_format='{desc} {bar} {n_fmt}/{total_fmt} [{elapsed}]',
  ) as bar:  # fmt: skip

    def step(name: str) -> None:
      # A refresh here would not wait for the delay.
      bar.set_description_str(name, refresh=False)
      bar.update()

    yield step


def _write_json(path: str | None, content: object) -> None:
  if path is None:
    return
  text = json.dumps(content, indent=2, allow_nan=False) + '\n'
  pathlib.Path(path).write_text(text)


def _check_writable(name: str, path: str | None) -> None:
  """Refuses a file that cannot be written before the work, not after."""
  if path is None:
    return
  target = pathlib.Path(path)
  if target.is_dir() or not os.access(target.parent, os.W_OK):
    raise UsageError(
        f'{name}: expected a file that can be written, got {path!r}'
    )


def _colour() -> bool:
  return sys.stdout.isatty() and not os.environ.get('NO_COLOR')


def _check(f: flags.FlagValues) -> int:
  from parity_tests import candidates
  from parity_tests import check
  from parity_tests import report as report_lib

  _check_writable('json', f.json)
  request = _request(f)
  try:
    with _progress(check.count_steps(request)) as step:
      report = check.run(request, step)
  except candidates.CandidateError as error:
    _write_json(f.json, report_lib.error_json(request, error))
    raise
  _write_json(f.json, report_lib.to_json(report))
  print(report_lib.heading(report))
  print(report_lib.table(report, _colour()))
  for part in (report_lib.notes, report_lib.failure, report_lib.summary):
    text = part(report)
    if text:
      print(f'\n{text}')
  return PARITY if report.verdict == 'pass' else NO_PARITY


# Lossless, the table of ep16 has 12 million tasks, nearly all of them empty.
_FULL_SHAPE_FACTOR = 2.0


def _sized(f: flags.FlagValues, preset):
  """Returns (config, options) with the capacities that were asked for."""
  from parity_tests import presets

  config = presets.config(
      preset, f.ranks or preset.num_ranks, f.tokens, f.capacity
  )
  options = _options(f)
  factor = f.capacity_factor
  if factor is None and f.capacity is None and not preset.runs_here:
    factor = _FULL_SHAPE_FACTOR
  if factor is None:
    return config, options
  if f.capacity is not None:
    raise UsageError('capacity_factor: expected no --capacity beside it')
  if not 1 <= factor < math.inf:
    raise UsageError(
        f'capacity_factor: expected at least 1, got {factor:g}'
    )
  rows = math.ceil(config.num_tokens * config.top_k * factor)
  lossless = config.num_ranks * config.num_tokens
  return (
      dataclasses.replace(config, capacity=min(config.num_rows, rows)),
      dataclasses.replace(
          options,
          expert_capacity=min(
              lossless, math.ceil(rows / config.experts_per_rank)
          ),
      ),
  )


def _define_compile(f: flags.FlagValues) -> None:
  _define_layer(f)
  _define_granularity(f, aic=None, aiv=None)
  flags.DEFINE_integer(
      'ranks', None, "Expert-parallel ranks. Default: the preset's.",
      flag_values=f,
  )  # fmt: skip
  flags.DEFINE_float(
      'capacity_factor', None, 'Rows that a rank and an expert can hold, as a '
      'multiple of balanced routing. Default: lossless for shapes that run '
      f'here, {_FULL_SHAPE_FACTOR:g} for full shapes.', flag_values=f,
  )  # fmt: skip
  flags.DEFINE_string('out', None, 'Write the image here.', flag_values=f)
  flags.DEFINE_string(
      'check', None, 'Prove this image, which --out wrote, and compile '
      'nothing.', flag_values=f,
  )  # fmt: skip
  _define_json(f)


def _load_image(path: str):
  """Returns the image in a file as if it had just been compiled.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is not an image, is truncated or has another bit flipped.
  """
  from backend_ascend import compiler
  from backend_ascend.taskflow import flow as flow_lib
  from backend_ascend.taskflow import image as image_lib
  from backend_ascend.taskflow import layout
  from backend_ascend.taskflow import proofs

  blob = bytearray(pathlib.Path(path).read_bytes())
  try:
    proof = proofs.prove(blob)
    parsed = image_lib.parse(blob)
  except ValueError as error:
    raise UsageError(f'check: {path}: {error}') from error
  flow = flow_lib.Flow(
      config=parsed.config,
      policy=parsed.policy,
      options=parsed.options,
      direction=layout.Direction(int(parsed.header['direction'])),
      wave=parsed.tables['tasks'][:0],  # Only placement reads it.
      **parsed.tables,
  )
  return compiler.Compiled(blob, flow, proof)


def _check_image(f: flags.FlagValues) -> int:
  for name in sorted(f):
    if f[name].present and name not in ('check', 'json'):
      raise UsageError(
          f'{name}: expected none beside --check={f.check}, got '
          f'{_text(f[name].value)}'
      )
  loaded = _load_image(f.check)
  summary = loaded.summary()
  _write_json(f.json, summary)
  _print_summary(summary)
  for violation in loaded.proof.violations:
    print(violation.text)
  return PARITY if loaded.proof.proved else NO_PARITY


def _compile(f: flags.FlagValues) -> int:
  if f.check is None:
    return _compile_layer(f)
  _check_writable('json', f.json)
  return _check_image(f)


def _compile_layer(f: flags.FlagValues) -> int:
  import time

  from backend_ascend import compiler
  from parity_tests import presets
  from reference import precision

  _check_writable('json', f.json)
  _check_writable('out', f.out)
  preset = presets.get(f.preset)
  for name, default in (('aic', preset.num_aic), ('aiv', preset.num_aiv)):
    f[name].value = default if f[name].value is None else f[name].value
  config, options = _sized(f, preset)
  policy = precision.PrecisionPolicy(
      storage=_DTYPES[f.dtype], placement=f.placement
  )
  start = time.perf_counter()
  compiled = compiler.compile_forward(config, policy, options)
  seconds = time.perf_counter() - start
  summary = compiled.summary() | dict(compile_seconds=round(seconds, 3))
  if f.out is not None:
    pathlib.Path(f.out).write_bytes(compiled.image)
  _write_json(f.json, summary)
  _print_summary(summary)
  return PARITY


def _print_summary(summary: dict) -> None:
  proofs = {
      rule['name']: f'{_OUTCOME[rule["proved"]]}, {rule["checked"]} checked'
      for rule in summary['proofs']
  }
  for line in _flat(summary | dict(proofs=proofs)):
    print(line)


_OUTCOME = {True: 'proved', False: 'refused'}


def _flat(content, prefix: str = '') -> list[str]:
  """Returns nested plain data as `name  value` lines."""
  lines = []
  for name, value in content.items():
    if isinstance(value, dict):
      lines += _flat(value, f'{prefix}{name}.')
    else:
      lines.append(f'{prefix + name:<36}{value}')
  return lines


def _define_faults(f: flags.FlagValues) -> None:
  _define_layer(f)
  f['preset'].value = f['preset'].default = 'tiny'
  _define_granularity(f)
  # A small tile, so that a fault has neighbours to be told from.
  f['row_block'].value = f['row_block'].default = 16
  _define_data(f)
  flags.DEFINE_integer(
      'threads', None, 'OS threads. Default: one per core.', flag_values=f
  )
  _define_json(f)


def _faults(f: flags.FlagValues) -> int:
  from parity_tests import check
  from parity_tests import faults_table

  _check_writable('json', f.json)
  _refuse_out_of_range(f)
  _refuse_contradictions(f)
  request = check.Request(
      preset=f.preset,
      ranks=f.ranks,
      tokens=f.tokens,
      dtype=_DTYPES[f.dtype],
      routing=f.routing,
      input=f.input,
      text=f.text,
      seed=f.seed,
      placement=f.placement,
      capacity=f.capacity,
      options=_options(f),
      threads=f.threads,
      arguments=_arguments(f, without=('json',)),
  )
  with _progress(len(faults_table.names()) + 1) as step:
    rows = faults_table.run(request, step)
  _write_json(f.json, faults_table.to_json(rows))
  print(faults_table.table(rows))
  return PARITY if all(row.caught for row in rows) else NO_PARITY


def _define_sweep(f: flags.FlagValues) -> None:
  from parity_tests import inputs
  from parity_tests import presets

  for name, default, text in (
      ('preset', list(presets.RUNS_HERE), 'Shapes.'),
      ('ranks', ['1', '2', '4', '8'], 'Expert-parallel ranks.'),
      ('routing', list(inputs.ROUTINGS), 'Routings.'),
      ('dtype', ['f32', 'bf16'], 'Storage dtypes.'),
      ('event_grain', ['expert', 'row_block'], 'Event grains.'),
      ('row_block', ['16', '64', '128'], 'Rows of a tile.'),
  ):
    flags.DEFINE_list(name, default, f'{text} A list.', flag_values=f)
  flags.DEFINE_integer(
      'tokens', None, "Tokens of ONE rank. Default: the preset's.",
      flag_values=f,
  )  # fmt: skip
  flags.DEFINE_integer('seed', 0, 'Seed of all values.', flag_values=f)
  flags.DEFINE_enum(
      'placement', 'combine', ['combine', 'before_down'],
      _PLACEMENT, flag_values=f,
  )  # fmt: skip
  flags.DEFINE_string(
      'out', 'sweep.jsonl', 'Write one JSON line for each case here.',
      flag_values=f,
  )  # fmt: skip


def _integers(name: str, values: Sequence[str]) -> tuple[int, ...]:
  try:
    return tuple(int(value) for value in values)
  except ValueError as error:
    raise UsageError(f'{name}: expected integers, got {values}') from error


def _dtype_list(values: Sequence[str]) -> tuple[str, ...]:
  for value in values:
    if value not in _DTYPES:
      raise UsageError(
          f'dtype: expected some of {list(_DTYPES)}, got {value!r}'
      )
  return tuple(_DTYPES[value] for value in values)


def _sweep(f: flags.FlagValues) -> int:
  from parity_tests import sweep

  plan = sweep.Plan(
      presets=tuple(f.preset),
      ranks=_integers('ranks', f.ranks),
      routings=tuple(f.routing),
      dtypes=_dtype_list(f.dtype),
      grains=tuple(f.event_grain),
      row_blocks=_integers('row_block', f.row_block),
      tokens=f.tokens,
      seed=f.seed,
      placement=f.placement,
  )
  _check_writable('out', f.out)
  with _progress(plan.cases) as step, open(f.out, 'w') as out:
    cases = sweep.run(
        plan, lambda line: print(json.dumps(line), file=out, flush=True), step
    )
  print(sweep.summary(cases))
  return PARITY if all(case.verdict == 'pass' for case in cases) else NO_PARITY


COMMANDS = {
    command.name: command
    for command in (
        Command(
            'check',
            'compares a candidate with the oracle, tile by tile.',
            (
                'hpmoe check --preset=small --ranks=4 --routing=text '
                '--lane=all --json=out.json',
                'hpmoe check --dtype=bf16 --event_grain=expert --row_block=16',
                'hpmoe check --candidate=my_pkg.kernels:moe_forward '
                '--lane=bounded,standard',
                'hpmoe check --fault=stale_row',
            ),
            _define_check,
            _check,
            '0 parity holds, '
            '1 it fails, '
            '2 the request was wrong, '
            '3 the candidate crashed, '
            'hung or could not run',
        ),
        Command(
            'compile',
            'compiles, proves and serialises a layer.',
            (
                'hpmoe compile --preset=ep16 --out=flow.img',
                'hpmoe compile --preset=small --ranks=2 --event_grain=expert',
                'hpmoe compile --check=flow.img',
            ),
            _define_compile,
            _compile,
            '0 the image is proved, '
            '1 a proof of --check is refused, '
            '2 the request was wrong or the image is damaged',
        ),
        Command(
            'faults',
            'commits every fault in turn and says whether it was caught.',
            ('hpmoe faults', 'hpmoe faults --dtype=bf16 --json=faults.json'),
            _define_faults,
            _faults,
            '0 every fault is caught, '
            '1 one is missed, '
            '2 the request was wrong, '
            '3 the run without a fault failed',
        ),
        Command(
            'sweep',
            'checks every preset, rank count, routing, dtype and granularity.',
            (
                'hpmoe sweep --out=sweep.jsonl',
                'hpmoe sweep --preset=tiny --ranks=1,2 --routing=zipf,hot',
            ),
            _define_sweep,
            _sweep,
            '0 every case holds, '
            '1 one does not, '
            '2 the request was wrong',
        ),
    )
}


def usage() -> str:
  lines = ['hpmoe: verifies fused mixture-of-experts kernels', '']
  for command in COMMANDS.values():
    lines.append(f'  hpmoe {command.name:<9}{command.help}')
    lines.append(f'      {command.examples[0]}')
  lines += ['', 'hpmoe COMMAND --help lists the options of a command, '
            'hpmoe --version says which this is.']  # fmt: skip
  return '\n'.join(lines)


def _version() -> str:
  try:
    return importlib.metadata.version('hyperparallel-moe')
  except importlib.metadata.PackageNotFoundError:
    return 'not installed'


def _parse(command: Command, arguments: Sequence[str]) -> flags.FlagValues:
  values = command.flags()
  try:
    left = values([f'hpmoe {command.name}', *arguments])[1:]
  except flags.Error as error:
    raise UsageError(' '.join(str(error).split())) from error
  if left:
    raise UsageError(f'arguments: expected --options only, got {left[0]!r}')
  return values


def main(arguments: Sequence[str]) -> int:
  """Runs a command line (without the program's name); returns its exit code."""
  if arguments and arguments[0] == '--version':
    print(f'hpmoe {_version()}')
    return PARITY
  if not arguments or arguments[0] in ('--help', '-h', 'help'):
    print(usage())
    return PARITY if arguments else WRONG_REQUEST
  name, rest = arguments[0], arguments[1:]
  if name not in COMMANDS:
    print(
        f'hpmoe: command: expected one of {list(COMMANDS)}, got {name!r}',
        file=sys.stderr,
    )
    return WRONG_REQUEST
  command = COMMANDS[name]
  if {'--help', '-h', '--helpfull'} & set(rest):
    print(command.usage())
    return PARITY
  return _guarded(command, rest)


def _guarded(command: Command, arguments: Sequence[str]) -> int:
  def tell(text: object) -> None:
    print(f'hpmoe {command.name}: {_one_line(text)}', file=sys.stderr)

  try:
    parsed = _parse(command, arguments)
    return command.execute(parsed)
  except ValueError as error:
    tell(_as_typed(str(error)))
    return WRONG_REQUEST
  except OSError as error:
    tell(f'{error.filename}: expected a file to use, got {error.strerror}')
    return WRONG_REQUEST
  except RuntimeError as error:
    from parity_tests import candidates

    if not isinstance(error, candidates.CandidateError):
      raise
    tell(error)
    return CANDIDATE_FAILED
  except KeyboardInterrupt:
    tell('interrupted')
    return INTERRUPTED


def _as_typed(text: str) -> str:
  """Returns an error with the name of its argument as the user typed it."""
  name, colon, rest = text.partition(':')
  return _FLAG_OF.get(name, name) + colon + rest


def _one_line(text: object) -> str:
  return ' '.join(str(text).split())


def run() -> None:
  """Entry point of `hpmoe`."""
  code = main(sys.argv[1:])
  if code == INTERRUPTED:
    # JAX may crash at exit if it was interrupted in its own threads.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


if __name__ == '__main__':
  run()
