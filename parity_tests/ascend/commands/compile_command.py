"""`hpmoe compile`."""

import dataclasses
import math
import pathlib

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import option_fields

# Capacity of a rank or expert of a full shape, over its rows under balanced
# routing.  With lossless capacity ep16 has 12 million tasks, most of them
# empty.
_FULL_SHAPE_FACTOR = 2


def _size_layer(f: parser.Values, preset):
  """Returns (config, options) with the capacities that the flags name."""
  from hpmoe.reference.contract import presets

  config = presets.config(
    preset, f.ranks or preset.num_ranks, f.tokens, f.capacity
  )
  options = layer_flags.options(f)
  has_capacity = f.schedule is not None or f.capacity is not None
  if has_capacity or preset.runs_here:
    return config, options
  rows = config.num_tokens * config.top_k * _FULL_SHAPE_FACTOR
  lossless = config.num_ranks * config.num_tokens
  return (
    dataclasses.replace(config, capacity=min(config.num_rows, rows)),
    dataclasses.replace(
      options,
      expert_capacity=min(lossless, math.ceil(rows / config.experts_per_rank)),
    ),
  )


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  target: str = option_fields.option(
    'host',
    'Where the image will run. `ascend` refuses tiles that do not fit in '
    'the memories of an NPU core, and tasks for which the device source '
    'has no kernel; its default tile is 128 x 256.',
    choices=('host', 'ascend'),
  )
  out: str | None = option_fields.option(
    None,
    'Write the image here.',
    writes='file',
  )


def _list_options() -> list[option_fields.Option]:
  return [
    *layer_flags.ONE_PASS,
    case_flags.RANKS_OF_PRESET,
    *option_fields.list_options(_Options),
  ]


def _compile(f: parser.Values) -> int:
  import time

  from hpmoe.backend_ascend.compiler import compiler
  from hpmoe.parity_tests.case import passes
  from hpmoe.reference.contract import presets

  layer_flags.refuse_without_effect(f, f.direction)
  preset = presets.get(layer_flags.preset(f))
  layer_flags.fill_cores(f)
  if f.target != 'host':
    layer_flags.fill_tiles(f)
  config, options = _size_layer(f, preset)
  policy = layer_flags.policy(f)
  (layer_pass,) = passes.from_direction(f.direction)
  compile_pass = compiler.COMPILE[layer_pass.direction]
  start = time.perf_counter()
  compiled = compile_pass(config, policy, options, target=f.target)
  seconds = time.perf_counter() - start
  summary = compiled.summary() | dict(compile_seconds=round(seconds, 3))
  if f.out is not None:
    pathlib.Path(f.out).write_bytes(compiled.image)
  cli.write_json(f.json, summary)
  proofs = {
    rule['name']: f'proved, {rule["checked"]} checked'
    for rule in summary['proofs']
  }
  lines = _flat(summary | dict(proofs=proofs))
  print(text_table.format_table(('name', 'value'), lines))
  return cli.PARITY


def _flat(content, prefix: str = '') -> list[tuple[str, str]]:
  """Returns the names and values of nested plain data."""
  lines: list[tuple[str, str]] = []
  for name, value in content.items():
    if isinstance(value, dict):
      lines += _flat(value, f'{prefix}{name}.')
    else:
      lines.append((prefix + name, str(value)))
  return lines


COMMAND = cli.Command(
  'compile',
  _list_options,
  _compile,
)
