"""`hpmoe export`."""

import dataclasses

from absl import flags

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import definition_flags
from hpmoe.parity_tests.commands import layer_flags


def _define(f: flags.FlagValues) -> None:
  cli.define(f, case_flags.FLAGS, direction='forward')
  from hpmoe.parity_tests.case.layouts import project_layouts

  words = project_layouts.list_words()
  cli.own(
    f,
    'export',
    dict(layouts=', '.join(words)),
    layout=dict(choices=words),
  )
  definition_flags.define_definition(f)


def _export_definition(f: flags.FlagValues) -> int:
  from hpmoe.parity_tests.definitions import trace_set

  decides = f'with --definition={f.definition}, which decides it'
  cli.refuse_all_but(f, ('definition', 'tokens', 'seed', 'out'), decides)
  if f.tokens is None:
    raise cli.UsageError(
      'tokens: expected a number with --definition, got none'
    )
  path = trace_set.write_trace_set(f.out, f.definition, f.tokens, f.seed)
  print(
    f'{f.out}: a set of traces of FlashInfer-Bench; the same inputs here:\n'
    f'  hpmoe check --definition={f.definition} --workload={path} '
    '--solution=kernel.py::run'
  )
  return cli.PARITY


def _export(f: flags.FlagValues) -> int:
  from hpmoe.parity_tests.case.layouts import names
  from hpmoe.parity_tests.judge import case_export

  if f.out is None:
    raise cli.UsageError('out: expected a folder to write, got none')
  if f.definition is not None:
    return _export_definition(f)
  layouts = names.read(f.names, f.layout or '').layouts
  of_weights = layouts.get('topk_weights')
  dtype = of_weights.dtype if of_weights else ''
  case = dataclasses.replace(layer_flags.case(f), weights=dtype or 'float32')
  with cli.progress(4) as step:
    folder, layer_inputs, absent = case_export.write(
      f.out,
      case,
      f.per_rank,
      layouts,
      ' '.join(cli.arguments(f, exclude=('out',))),
      step,
    )
  for line in absent:
    print(line)
  if 'topk_weights' in layer_inputs.facts:
    print(f'topk_weights: {layer_inputs.facts["topk_weights"]}, in every lane')
  print(
    f'{f.out}: case {folder.id[:12]}, {", ".join(folder.data)} data; a '
    f'kernel elsewhere:\n'
    f'  python {f.out}/read_case.py {f.out} kernel.py:function OUT\n'
    f'and its verdict:\n'
    f'  hpmoe check --case={f.out} --outputs=OUT'
  )
  return cli.PARITY


COMMAND = cli.Command('export', _define, _export, compiles=True)
