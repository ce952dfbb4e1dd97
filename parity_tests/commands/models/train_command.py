"""`hpmoe train`."""

import dataclasses
import math
import pathlib
import time

from absl import flags

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands.models import dry_run

# Flag -> (field of Settings, help).
_SETTINGS = {
  'model': (
    'model',
    'Configuration, or path of a config.json, whose folder may have a '
    'tokenizer.json. One of {names}.',
  ),
  'from': (
    'source',
    'Folder of weights to go on from, in any format of hpmoe convert, with its '
    'tokenizer; trained in float32. Instead of --model.',
  ),
  'freeze': (
    'freeze',
    'Parameters that stay as they are: some of {groups}, or patterns of their '
    'names such as model.layers.0.*',
  ),
  'framework': ('framework', 'Where the model runs: jax or mindspore.'),
  'device': (
    'device',
    'Where MindSpore computes: cpu; or ascend, an NPU, with --moe=ascend (the '
    'megakernel) or framework. Not tried on one yet.',
  ),
  'moe': (
    'moe',
    'Layer of routed experts: oracle, host (the megakernel), framework (the '
    "framework's own operators), or your pkg.module:function.",
  ),
  'ranks': ('ranks', "Ranks that the layer's tokens and experts lie on."),
  'text': (
    'text',
    'Text to learn from: a file, or a folder of .txt and .jsonl with a text a '
    'line. Default: the one that ships.',
  ),
  'batch': ('batch', 'Batch size: sequences of a step.'),
  'length': (
    'length',
    'Sequence length, in tokens: bytes without a tokenizer.',
  ),
  'seed': ('seed', 'Seed of the initial weights and of the order of the text.'),
  'learning_rate': ('learning_rate', 'Peak learning rate of AdamW.'),
  'warmup': ('warmup', 'Steps in which the learning rate rises to its peak.'),
  'weight_decay': (
    'weight_decay',
    'Weight decay of AdamW, of matrices alone: vectors are spared.',
  ),
  'clip': ('clip', 'Maximum global gradient norm.'),
  'bias_rate': (
    'bias_rate',
    "Update of a router's bias a step, for an even load.",
  ),
}


def _define(f: flags.FlagValues) -> None:
  from hpmoe.models import config as config_lib
  from hpmoe.models.train import frozen
  from hpmoe.models.train import settings

  told = dict(
    names=', '.join(config_lib.names()), groups=', '.join(frozen.GROUPS)
  )
  defaults = dataclasses.asdict(settings.Settings())
  for flag, (field, text) in _SETTINGS.items():
    default = defaults[field]
    kind = str if default is None else type(default)
    text = text.format(**told)
    cli.option(f, flag, text, default, kind)
  for name, value, text in (
    ('steps', 200, 'Steps of the run, those before --resume included.'),
    ('save_every', 100, 'Steps between saved states.'),
  ):
    cli.option(f, name, text, value, int)
  cli.option(
    f,
    'out',
    'Folder of the run: its states, metrics, plots and model.',
    'out/train',
  )
  cli.option(f, 'resume', 'Resume from the newest state of --out.', False, bool)
  dry_run.define(f)
  cli.define_json(f)


def _train(f: flags.FlagValues) -> int:
  from hpmoe.models.train import settings as settings_lib

  cli.check_writable('json', f.json)
  if f['from'].value is not None and f['model'].present:
    raise cli.UsageError(f'model: expected none beside --from, got {f.model}')
  given = {field: f[flag].value for flag, (field, _) in _SETTINGS.items()}
  settings = settings_lib.Settings(**given)
  if dry_run.asked(f):
    return dry_run.execute(
      f, 'train', [dict(settings=dataclasses.asdict(settings))]
    )
  return _run(f, settings)


def _run(f: flags.FlagValues, settings) -> int:
  # What is drawn after the work is missed before it.
  import matplotlib  # noqa: F401  # type: ignore[import-untyped]

  from hpmoe.models.train import plots
  from hpmoe.models.train import run
  from hpmoe.models.train import start as start_lib

  began = time.perf_counter()
  start = start_lib.of(settings)
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
  content = dict(settings=dataclasses.asdict(settings), **summary)
  cli.write_json(f.json, content | dict(losses=result.losses.tolist()))
  _print(summary, result.unit)
  return cli.PARITY


def _print(summary: dict, unit: str) -> None:
  from hpmoe.models.train import run

  def both(name: str) -> str:
    nats = summary[name]
    return f'{nats:.4f} nats, {nats / math.log(2):.4f} bits'

  print(f'{summary["steps"]} steps, {summary["seconds_per_step"]:.3f} s each')
  for name, text in (
    ('first_loss', 'loss of the first step'),
    ('last_loss', f'mean loss of the last {min(summary["steps"], run.LAST)}'),
    ('held_out_loss', 'loss on held-out text'),
    ('bigram_entropy', 'bigram entropy of the text'),
  ):
    print(f'  {text:<28}{both(name)} a {unit}')
  print(f'hpmoe generate --from={summary["model"]}')


COMMAND = cli.Command('train', _define, _train)
