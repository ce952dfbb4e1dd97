"""`hpmoe convert`."""

import dataclasses
import math
import time

from absl import flags

from hpmoe.parity_tests.commands import cli


def _define(f: flags.FlagValues) -> None:
  from hpmoe.models.checkpoint import convert

  formats = '; '.join(f'{n}: {m.HELP}' for n, m in convert.FORMATS.items())
  cli.own(
    f,
    'convert',
    dict(formats=formats),
    format=dict(choices=tuple(convert.FORMATS)),
  )


def _convert(f: flags.FlagValues) -> int:
  from hpmoe.models.checkpoint import convert
  from hpmoe.parity_tests.report import text_table

  for name in ('from', 'to'):
    if f[name].value is None:
      raise cli.UsageError(f'{name}: expected a folder, got none')
  start = time.perf_counter()
  weights = convert.read(f['from'].value, f.dtype)
  with cli.progress(len(weights.specs)) as step:

    def read(name):
      step(name)
      return weights.read(name)

    counted_weights = dataclasses.replace(weights, read=read)
    convert.write(f.to, counted_weights, f.format)
  summary = {
    'from': f['from'].value,
    'from_format': convert.format_of(f['from'].value),
    'to': f.to,
    'to_format': f.format,
    'model_type': weights.config.model_type,
    'tensors': len(weights.specs),
    'parameters': sum(math.prod(s.shape) for s in weights.specs.values()),
    'dtypes': sorted({str(spec.dtype) for spec in weights.specs.values()}),
    'seconds': round(time.perf_counter() - start, 3),
  }
  cli.write_json(f.json, summary)
  lines = [(name, str(value)) for name, value in summary.items()]
  print(text_table.format_table(('name', 'value'), lines))
  return cli.PARITY


COMMAND = cli.Command('convert', _define, _convert)
