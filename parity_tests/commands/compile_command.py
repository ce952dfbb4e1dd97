"""`hpmoe compile`."""

import dataclasses
import math
import pathlib

from absl import flags

from hpmoe.parity_tests.case import flags as case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.report import text_table

# Of balanced routing, what ranks and experts of full shapes hold: lossless, the
# table of ep16 has 12 million tasks, nearly all of them empty.
_FULL_SHAPE_FACTOR = 2


def _sized(f: flags.FlagValues, preset):
  """Returns (config, options) with the capacities that were asked for."""
  from hpmoe.reference.contract import presets

  config = presets.config(
    preset, f.ranks or preset.num_ranks, f.tokens, f.capacity
  )
  options = layer_flags.options(f)
  given = f.schedule is not None or f.capacity is not None
  if given or preset.runs_here:
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


def _define_compile(f: flags.FlagValues) -> None:
  cli.define(f, [*layer_flags.ONE_PASS, case_flags.RANKS_OF_PRESET])
  cli.option(
    f,
    'target',
    'What will run the image: `ascend` refuses tiles that do not fit in the '
    "memories of an NPU's core, and what its source has no kernels for; its "
    'tiles are 128 x 256 where no option of theirs is given.',
    'host',
    choices=('host', 'ascend'),
  )
  cli.option(f, 'out', 'Write the image here.')
  cli.option(
    f, 'check', 'Prove this image, which --out wrote, and compile nothing.'
  )
  cli.define_json(f)


def _load_image(path: str):
  """Returns the image in a file as if it had just been compiled.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is not an image, is truncated or has another bit flipped.
  """
  from hpmoe.backend_ascend import compiler
  from hpmoe.backend_ascend.taskflow import flow as flow_lib
  from hpmoe.backend_ascend.taskflow import image as image_lib
  from hpmoe.backend_ascend.taskflow.proofs import proofs

  try:
    image = image_lib.Image(pathlib.Path(path).read_bytes())
  except ValueError as error:
    raise cli.UsageError(f'check: {path}: {error}') from error
  flow = flow_lib.Flow(
    config=image.config,
    policy=image.policy,
    options=image.options,
    direction=image.direction,
    **image.tables,
  )
  return compiler.Compiled(image, flow, proofs.prove(image))


def _check_image(f: flags.FlagValues) -> int:
  for name in sorted(f):
    if f[name].present and name not in ('check', 'json'):
      raise cli.UsageError(
        f'{name}: expected none beside --check={f.check}, got '
        f'{cli.text(f[name].value)}'
      )
  loaded = _load_image(f.check)
  summary = loaded.summary()
  cli.write_json(f.json, summary)
  _print_summary(summary)
  for violation in loaded.proof.violations:
    print(violation.text)
  return cli.PARITY if loaded.proof.proved else cli.NO_PARITY


def _compile(f: flags.FlagValues) -> int:
  if f.check is None:
    return _compile_layer(f)
  cli.check_writable('json', f.json)
  return _check_image(f)


def _compile_layer(f: flags.FlagValues) -> int:
  import time

  from hpmoe.backend_ascend import compiler
  from hpmoe.reference.contract import presets

  cli.check_writable('json', f.json)
  cli.check_writable('out', f.out)
  layer_flags.refuse_without_effect(f, f.direction)
  preset = presets.get(layer_flags.preset(f))
  layer_flags.fill_cores(f)
  if f.target != 'host':
    layer_flags.fill_tiles(f)
  config, options = _sized(f, preset)
  policy = layer_flags.policy(f)
  compile_pass = {
    'forward': compiler.compile_forward,
    'backward': compiler.compile_backward,
  }[f.direction]
  start = time.perf_counter()
  compiled = compile_pass(config, policy, options, target=f.target)
  seconds = time.perf_counter() - start
  summary = compiled.summary() | dict(compile_seconds=round(seconds, 3))
  if f.out is not None:
    pathlib.Path(f.out).write_bytes(compiled.image)
  cli.write_json(f.json, summary)
  _print_summary(summary)
  return cli.PARITY


def _print_summary(summary: dict) -> None:
  proofs = {
    rule['name']: f'{_OUTCOME[rule["proved"]]}, {rule["checked"]} checked'
    for rule in summary['proofs']
  }
  lines = _flat(summary | dict(proofs=proofs))
  print(text_table.text(('name', 'value'), lines))


_OUTCOME = {True: 'proved', False: 'refused'}


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
  'compiles, proves and serialises a layer.',
  (
    'hpmoe compile --preset=ep16 --out=flow.img',
    'hpmoe compile --preset=small --ranks=2 --event_grain=expert',
    'hpmoe compile --direction=backward --chain_rows=1024',
    'hpmoe compile --preset=small --dtype=bf16 --target=ascend',
    'hpmoe compile --preset=ep16 --dtype=bf16 --schedule=ep16.schedule',
    'hpmoe compile --check=flow.img',
  ),
  _define_compile,
  _compile,
  '0 the image is proved, '
  '1 a proof of --check is refused, '
  '2 the request was wrong or the image is damaged',
)
