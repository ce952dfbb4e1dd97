"""`hpmoe convert`."""

import dataclasses
import math
import time

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


def _list_formats() -> tuple[str, ...]:
  from hpmoe.models.checkpoint import convert

  return tuple(convert.FORMATS)


def _describe_formats() -> str:
  from hpmoe.models.checkpoint import convert

  return '; '.join(f'{n}: {m.HELP}' for n, m in convert.FORMATS.items())


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  source: str | None = option_fields.option(
    None,
    'Folder with weights and config.json, in any of the formats.',
    flag='from',
  )
  target: str | None = option_fields.option(
    None,
    'Folder to write; it must not exist.',
    flag='to',
  )
  format: str = option_fields.option(
    'hf',
    lambda: f'{_describe_formats()}.',
    choices=_list_formats,
  )
  dtype: str | None = option_fields.option(
    None,
    'Round the weights to this dtype. Default: the dtype in config.json; '
    'then no weight is rounded.',
    choices=('float32', 'bfloat16'),
  )


def _list_options() -> list[option_fields.Option]:
  return [*option_fields.list_options(_Options)]


def _convert(f: parser.Values) -> int:
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


COMMAND = cli.Command(
  'convert',
  _list_options,
  _convert,
)
