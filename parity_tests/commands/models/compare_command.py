"""`hpmoe compare`."""

import dataclasses
import shlex
from typing import Any

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.parity_tests.commands.models import compare_runs
from hpmoe.parity_tests.commands.models import dry_run
from hpmoe.reference.contract import option_fields

_DUMP = compare_runs.DUMP
# Flags that need a text.
_TEXT_FLAGS = ('text', 'score_windows', 'sequence', 'batch', 'dtype')


@dataclasses.dataclass(frozen=True)
class _Options(dry_run.MindSporeOptions):
  """Options that set no field of another object."""

  left: str = option_fields.option(
    'jax:oracle',
    "The reference. Beside --right=dump:DIR the dump of another engine's "
    'run, dump:DIR, or model:FOLDER, which runs here in --dtype. Else '
    'FRAMEWORK:MOE: jax or mindspore, and oracle (jax), host (the '
    "megakernel), framework (the framework's own operators) or your "
    'pkg.module:function; or jax: and flags of hpmoe check that ask for a '
    "candidate, such as 'jax:--candidate=pkg.module:function'.",
  )
  right: str = option_fields.option(
    'jax:host',
    'The candidate, in the form of --left; or dump:DIR, a dump that '
    'msprobe wrote of a run: its routing is compared with that of --left '
    'or, without --left, every module with --model in float64. The default '
    'is jax:framework for a model whose experts have biases (GPT-OSS).',
  )
  left_model: str | None = option_fields.option(
    None,
    'With --right_model: the reference, a folder of Hugging Face, of '
    'Megatron-LM (torch_dist) or of MindSpore (.ckpt, .safetensors). The '
    'weights are compared tensor by tensor, and the changes that a conversion '
    'made are named.',
  )
  right_model: str | None = option_fields.option(
    None,
    'The candidate; see --left_model.',
  )
  names: str | None = option_fields.option(
    None,
    'With two dumps: a file that describes modules that are not built in; '
    'see docs/elsewhere.md.',
  )
  router: str = option_fields.option(
    '',
    'With two dumps: the routing rule, as in hpmoe check. Default: that of '
    '--model, or the rule that the routing weights of --left follow.',
  )
  layers: str | None = option_fields.option(
    None,
    'With two dumps: numbers of the MoE layers to compare, such as 3,5:8; '
    '5:8 is 5, 6, 7.',
  )
  model: str = option_fields.option(
    'deepseek_tiny',
    lambda: (
      'Folder with weights in any format of hpmoe convert; or a '
      'configuration, with random weights from --seed: a config.json or one '
      f'of {cli.name_models()}.'
    ),
  )
  text: str | None = option_fields.option(
    None,
    "Text to read, as tokens of the model's tokenizer.json, or as bytes: a "
    'file, or a folder of .txt and .jsonl. Default: the included text.',
  )
  out: str = option_fields.option(
    'out/compare',
    'Folder for the inputs of the MoE layers.',
  )
  cases: str | None = option_fields.option(
    None,
    'Write a test case of each MoE layer into this folder, with the inputs '
    'that the layer had in --right: hpmoe check --case=CASES/layer_1.',
  )
  png: str | None = option_fields.option(
    None,
    'Write a plot of the difference by layer and step here.',
    writes='picture',
  )
  csv: str | None = option_fields.option(
    None,
    "Write the table here, with msprobe's column names.",
    writes='file',
  )
  fault: str | None = option_fields.option(
    None,
    'Fault to plant into the candidate, jax:host; see hpmoe check.',
  )
  seed: int = option_fields.option(
    0,
    'Seed of the weights, and of the position in the text.',
  )
  batch: int = option_fields.option(
    2,
    'Number of sequences.',
  )
  sequence: int = option_fields.option(
    32,
    'Tokens of a sequence.',
  )
  ranks: int = option_fields.option(
    1,
    'Number of expert-parallel ranks of the MoE layers.',
  )
  fault_layer: int | None = option_fields.option(
    None,
    'Layer, counted from 0, that has the fault.',
  )
  steps: int = option_fields.option(
    0,
    'Number of training steps after the comparison. In each step, every '
    'MoE layer of --right is judged; the report also says how far rounding '
    'alone makes two runs diverge.',
  )
  score_windows: int = option_fields.option(
    0,
    'Number of windows of --sequence tokens, from the beginning of --text, '
    'in batches of --batch: perplexity, top-1 agreement and KL of the two '
    'sides; 0: none.',
  )
  direction: str = option_fields.option(
    'both',
    '`both` also compares the gradients of the loss.',
    choices=('forward', 'both'),
  )


def _list_options() -> list[option_fields.Option]:
  return [*option_fields.list_options(_Options)]


def _compare(f: parser.Values) -> int:
  if f.left_model is not None or f.right_model is not None:
    return _compare_weights(f)
  if f.left.startswith(compare_runs.SIDES):
    return compare_runs.execute(f)
  if f.right.startswith(_DUMP):
    return _compare_run(f)
  return _compare_layers(f)


def _compare_run(f: parser.Values) -> int:
  """Compares a dumped run with the model of a folder."""
  from hpmoe.models.checkpoint import convert
  from hpmoe.parity_tests.compare import run_diff
  from hpmoe.parity_tests.compare import run_dump
  from hpmoe.parity_tests.compare import run_report
  from hpmoe.parity_tests.compare.weights import weight_sides
  from hpmoe.parity_tests.judge import verdicts

  known_names = {'right', 'model', 'json'}
  cli.refuse_all_but(f, known_names, f'with --right={f.right}')
  files = weight_sides.open_side('model', f.model).files
  dump = run_dump.open_dump(f.right.removeprefix(_DUMP))
  weights = convert.read(f.model)
  with cli.progress(run_diff.count_steps(weights)) as step:
    result = run_diff.compare(weights, files, dump, step)
  cli.write_json(f.json, run_report.to_json(result, f.model, dump.name))
  print(f'{f.right} compared with {f.model} in float64')
  print(run_report.format_table(result))
  print(f'\n{run_report.conclude(result)}')
  return cli.PARITY if result.verdict == verdicts.PASS else cli.NO_PARITY


def _compare_weights(f: parser.Values) -> int:
  """Compares two folders of weights."""
  from hpmoe.parity_tests.compare.weights import weight_diff
  from hpmoe.parity_tests.compare.weights import weight_report
  from hpmoe.parity_tests.compare.weights import weight_sides
  from hpmoe.parity_tests.judge import verdicts

  pair = {'left_model': 'right_model', 'right_model': 'left_model'}
  for name, other in pair.items():
    if f[name].value is None:
      raise cli.UsageError(
        f'{name}: expected a folder with --{other}, got none'
      )
  known_names = {'left_model', 'right_model', 'json', *_TEXT_FLAGS}
  beside = 'with --left_model, which compares weights'
  cli.refuse_all_but(f, known_names, beside)
  unused = [n for n in _TEXT_FLAGS if f[n].present]
  if unused and not f.score_windows:
    raise cli.UsageError(
      f'{unused[0]}: expected --score_windows=N with it, which compares '
      'predictions, got none'
    )
  left, right = (
    weight_sides.open_side(name, f[name].value, f[other].value)
    for name, other in pair.items()
  )
  with cli.progress(weight_diff.count_steps(left)) as step:
    result = weight_diff.compare(left, right, step)
  report, texts = _score_folders(f) if f.score_windows else ({}, [])
  report = weight_report.to_json(result, f.left_model, f.right_model) | report
  cli.write_json(f.json, report)
  print(f'{f.right_model} compared with {f.left_model}: weights')
  if table := weight_report.format_table(result):
    print(f'{table}\n')
  for text in texts:
    print(f'{text}\n')
  print(weight_report.conclude(result))
  return cli.PARITY if result.verdict == verdicts.PASS else cli.NO_PARITY


def _score_folders(
  f: parser.Values,
) -> tuple[dict[str, Any], list[str]]:
  """Compares the predictions of two folders' models on a text: data, tables."""
  from hpmoe.models.checkpoint import convert
  from hpmoe.models.train import text as text_lib
  from hpmoe.parity_tests.compare import scores

  try:
    sides = [convert.read(n, f.dtype) for n in (f.left_model, f.right_model)]
  except ValueError as error:
    return dict(not_run=str(error)), [f'not run: {error}']
  cli.warn_of_bytes(f.left_model, sides[0].config)
  encoding = text_lib.encoding_of(f.left_model, sides[0].config)
  tokens = text_lib.read(f.text, encoding).tokens
  windows = scores.cut_windows(tokens, f.sequence, f.score_windows)
  distances = scores.measure_modules(sides[0], sides[1], windows[: f.batch])
  left, right = (
    scores.compute_logits(side.config, side.load()) for side in sides
  )
  with cli.progress(-(-len(windows) // f.batch)) as step:
    measured = scores.measure(windows, f.batch, left, right, step)
  modules = [dataclasses.asdict(distance) for distance in distances]
  report = dict(scores=measured.to_json(), modules=modules)
  tables = [scores.format_distances(distances), scores.format_scores(measured)]
  return report, tables


def _score_layers(f: parser.Values, request, subject):
  """Compares the predictions of a model with two layers on its text."""
  from hpmoe.parity_tests.compare import compare
  from hpmoe.parity_tests.compare import scores

  windows = scores.cut_windows(subject.text, f.sequence, f.score_windows)
  left, right = (
    compare.compute_logits(request, subject, side)
    for side in (request.left, request.right)
  )
  with (
    cli.launches_in_frameworks(),
    cli.progress(-(-len(windows) // f.batch)) as step,
  ):
    return scores.measure(windows, f.batch, left, right, step)


def _compare_layers(f: parser.Values) -> int:
  from hpmoe.parity_tests.compare import compare
  from hpmoe.parity_tests.compare import report
  from hpmoe.parity_tests.compare import scores
  from hpmoe.parity_tests.compare import subject as subject_lib
  from hpmoe.parity_tests.judge import verdicts

  if f.steps:
    import optax  # noqa: F401
  request = compare.Request(
    left=_pair(f, 'left'),
    right=_pair(f, 'right'),
    backward=f.direction == 'both',
    fault=f.fault,
    fault_layer=f.fault_layer,
    out=f.out,
    cases=f.cases,
    steps=f.steps,
    device=f.device,
    command=(
      'compare',
      *cli.arguments(f, exclude=('json', 'csv', 'png', 'cases')),
    ),
  )
  if dry_run.is_requested(f):
    return dry_run.execute(f, 'compare', _sides(f, request))
  subject = subject_lib.load(
    f.model, f.text, f.seed, f.batch, f.sequence, f.ranks, f.dtype
  )
  if not (f['right'].present or subject.config.is_launched):
    right = dataclasses.replace(request.right, moe='framework')
    request = dataclasses.replace(request, right=right)
  cli.warn_of_bytes(f.model, subject.config)
  steps = compare.count_steps(request, subject)
  with cli.launches_in_frameworks(), cli.progress(steps) as step:
    result = compare.run(request, subject, step)
  measured = _score_layers(f, request, subject) if f.score_windows else None
  json_report = report.to_json(request, subject, result)
  if measured is not None:
    json_report['scores'] = measured.to_json()
  cli.write_json(f.json, json_report)
  if f.csv is not None:
    report.write_csv(f.csv, result)
  if f.png is not None:
    from hpmoe.parity_tests.compare import plot

    plot.write(f.png, f'{request.right} compared with {request.left}', result)
  print(report.heading(request, subject))
  print(report.table(result, cli.colour()))
  if measured is not None:
    print(f'\n{scores.format_scores(measured)}')
  print(f'\n{report.conclusion(request, result)}')
  return cli.PARITY if result.verdict == verdicts.PASS else cli.NO_PARITY


def _sides(f: parser.Values, request) -> list[dict[str, Any]]:
  """Returns the request to `dry_run_main` of each side in MindSpore."""
  sides = [request.left, request.right]
  names = dict.fromkeys(s.moe for s in sides if s.framework == 'mindspore')
  if not names:
    raise cli.UsageError(
      f'device: expected a side in mindspore with it, got {f.device}'
    )
  request_fields = dict(
    model=f.model,
    batch=f.batch,
    sequence=f.sequence,
    ranks=f.ranks,
    dtype=f.dtype,
    backward=request.backward,
  )
  return [dict(request_fields, moe=moe) for moe in names]


def _pair(f: parser.Values, name: str):
  """Returns a side, with its candidate if it is given as `hpmoe check` flags.

  Raises:
    ValueError: the flags are none of a candidate's, or ask for no computation.
  """
  from hpmoe.parity_tests.candidates import candidate_table
  from hpmoe.parity_tests.candidates import tiling_fields
  from hpmoe.parity_tests.case import case as case_lib
  from hpmoe.parity_tests.commands import backend_flags
  from hpmoe.parity_tests.commands import check_command
  from hpmoe.parity_tests.compare import compare

  side = compare.pair(name, f[name].value)
  if not side.moe.startswith('--'):
    return side
  try:
    typed = check_command.COMMAND.parse(shlex.split(side.moe))
  except ValueError as error:
    raise cli.UsageError(f'{name}: {" ".join(str(error).split())}') from error
  candidate_flags = {
    row.name for row in (*candidate_table.FLAGS, *tiling_fields.FLAGS)
  } - {'outputs'}
  if wrong := [
    n for n in typed if typed[n].present and n not in candidate_flags
  ]:
    raise cli.UsageError(
      f'{name}: expected flags of a candidate that computes, such as '
      f'--candidate or --command, got {wrong[0]}'
    )
  case = case_lib.Case(f.direction, dtype=f.dtype or 'float32')
  return dataclasses.replace(
    side, candidate=backend_flags.candidate(typed, case)
  )


COMMAND = cli.Command(
  'compare',
  _list_options,
  _compare,
)
