"""`hpmoe export`."""

import dataclasses

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import definition_flags
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


def _list_layouts() -> tuple[str, ...]:
  from hpmoe.parity_tests.case.layouts import project_layouts

  return project_layouts.list_words()


@dataclasses.dataclass(frozen=True)
class _Options:
  """Options that set no field of another object."""

  out: str | None = option_fields.option(
    None,
    'The folder to write; it must be empty or absent.',
  )
  per_rank: bool = option_fields.option(
    False,
    'Write one file for each rank.',
  )
  layout: str | None = option_fields.option(
    None,
    lambda: (
      'Project whose layout the tensors have, one of '
      f'{", ".join(_list_layouts())}; see '
      "docs/contract.md. Default: the contract's layout, or that of --names."
    ),
    choices=_list_layouts,
  )
  names: str | None = option_fields.option(
    None,
    'A file whose [layouts] say how the kernel stores its tensors; see '
    'docs/elsewhere.md.',
  )


def _list_options() -> list[option_fields.Option]:
  definition = option_fields.select(definition_flags.FLAGS, 'definition')
  return [
    *option_fields.replace_defaults(case_flags.FLAGS, direction='forward'),
    *option_fields.list_options(_Options),
    *definition,
  ]


def _export_definition(f: parser.Values) -> int:
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


def _export(f: parser.Values) -> int:
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


COMMAND = cli.Command(
  'export',
  _list_options,
  _export,
  compiles=True,
)
