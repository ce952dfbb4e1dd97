"""`hpmoe train`."""

import dataclasses
import math
import pathlib
import time

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.parity_tests.commands.models import dry_run
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class _Options(dry_run.DryRunOptions):
  """Options that set no field of another object."""

  steps: int = option_fields.option(
    200,
    'Total number of steps, including those before --resume.',
  )
  save_every: int = option_fields.option(
    100,
    'Steps between saved states.',
  )
  out: str = option_fields.option(
    'out/train',
    'Folder of the run: states, metrics, plots and model.',
  )
  resume: bool = option_fields.option(
    False,
    'Resume from the newest state of --out.',
  )


def _list_options() -> list[option_fields.Option]:
  from hpmoe.models.train import settings

  return [*option_fields.list_options(settings.Settings, _Options)]


def _train(f: parser.Values) -> int:
  from hpmoe.models.train import settings as settings_lib

  if f['from'].value is not None and f['model'].present:
    raise cli.UsageError(f'model: expected none with --from, got {f.model}')
  rows = option_fields.list_options(settings_lib.Settings)
  settings = settings_lib.Settings(**cli.fields(f, rows))
  if dry_run.is_requested(f):
    return dry_run.execute(
      f, 'train', [dict(settings=dataclasses.asdict(settings))]
    )
  return _run(f, settings)


def _run(f: parser.Values, settings) -> int:
  # What is drawn after the work is missed before it.
  import matplotlib  # noqa: F401  # type: ignore[import-untyped]

  from hpmoe.models.train import plots
  from hpmoe.models.train import run
  from hpmoe.models.train import start as start_lib

  began = time.perf_counter()
  start = start_lib.from_settings(settings)
  cli.warn_of_bytes(settings.source or settings.model, start.config)
  with cli.launches_in_frameworks(), cli.progress(f.steps) as step:
    result = run.train(
      settings, f.out, f.steps, f.save_every, f.resume, step, start
    )
  seconds = time.perf_counter() - began
  plots.write(
    f.out,
    result.losses,
    result.loads,
    result.moe_layers,
    result.bigram,
    result.held_out,
    result.unit,
  )
  summary = {
    'steps': len(result.losses),
    'seconds': round(seconds, 3),
    'seconds_per_step': round(
      seconds / max(1, len(result.losses) - result.first), 4
    ),
    'first_loss': float(result.losses[0]),
    'last_loss': result.last,
    'held_out_loss': result.held_out,
    'bigram_entropy': result.bigram,
    'unit': f'nats per {result.unit}',
    'model': str(pathlib.Path(f.out) / run.MODEL),
  }
  content = dict(settings=settings, **summary)
  cli.write_json(f.json, content | dict(losses=result.losses.tolist()))
  _print(summary, result.unit)
  return cli.PARITY


def _print(summary: dict, unit: str) -> None:
  from hpmoe.models.train import run

  def format_loss(name: str) -> str:
    nats = summary[name]
    return f'{nats:.4f} nats, {nats / math.log(2):.4f} bits'

  print(f'{summary["steps"]} steps, {summary["seconds_per_step"]:.3f} s each')
  for name, text in (
    ('first_loss', 'loss of the first step'),
    ('last_loss', f'mean loss of the last {min(summary["steps"], run.LAST)}'),
    ('held_out_loss', 'loss on held-out text'),
    ('bigram_entropy', 'bigram entropy of the text'),
  ):
    print(f'  {text:<28}{format_loss(name)} a {unit}')
  print(f'hpmoe generate --from={summary["model"]}')


COMMAND = cli.Command(
  'train',
  _list_options,
  _train,
)
