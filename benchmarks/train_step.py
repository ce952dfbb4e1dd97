"""Seconds of a training step of `deepseek_tiny`, by its MoE layer.

Each layer trains its own model on the same batches, 16 sequences of 128 bytes
as `hpmoe train` does; the layers take turns, a step each, and medians are
compared: of the clock, and of the processor's time in all threads, which says
more on a machine with other work.  `capacity` is a plain JAX layer of fixed
capacity (`capacity_layer.py`), which loses rows; `none` has no experts, so that
what a layer costs is its step less that one.

Predicted before the first run: the three layers with experts compute 3.6 GFLOP
a step of 10 in all, and share all else. `oracle` 3 times the step of `host`;
`framework` 1.5 times; `capacity` 1.1 times (a quarter more rows, and a copy of
each in and out, but XLA fuses SwiGLU); `none` 0.7 times.

Example:
  python benchmarks/train_step.py --repeats=20 --json=/tmp/steps.json
"""

import collections
import json
import os
import statistics
import time

from absl import app
from absl import flags
import capacity_layer
import jax
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.train import jax_trainer
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import text as text_lib

_REPEATS = flags.DEFINE_integer('repeats', 20, 'Interleaved steps of each.')
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

LAYERS = {name: name for name in ('host', 'oracle', 'framework')} | {
  'capacity': 'capacity_layer:layer',
  'none': 'capacity_layer:none',
}
WARM_UP = 2


def timed(repeats: int) -> dict[str, dict[str, float]]:
  """Returns medians and what was learnt, by layer."""
  settings = {n: settings_lib.Settings(moe=moe) for n, moe in LAYERS.items()}
  config = config_lib.load(settings['host'].model)
  trainers = {n: jax_trainer.trainer(config, s) for n, s in settings.items()}
  states = {n: trainer.first() for n, trainer in trainers.items()}
  text = text_lib.read(None)
  seen = collections.defaultdict(list)
  for turn in range(WARM_UP + repeats):
    of = settings['host']
    batch = text_lib.batch(text, of.length, of.batch, of.seed, turn)
    for name, trainer in trainers.items():
      begin, used = time.perf_counter(), time.process_time()
      states[name], metrics = jax.block_until_ready(
        trainer.step(states[name], batch)
      )
      if turn >= WARM_UP:
        seen[name, 'clock_s'].append(time.perf_counter() - begin)
        seen[name, 'processor_s'].append(time.process_time() - used)
        seen[name, 'loss'].append(float(metrics.loss))
        seen[name, 'lost'].append(_lost(metrics.loads))
  return {
    name: {
      'clock_s': statistics.median(seen[name, 'clock_s']),
      'processor_s': statistics.median(seen[name, 'processor_s']),
      'loss': seen[name, 'loss'][-1],
      'lost': statistics.mean(seen[name, 'lost']) * (name == 'capacity'),
    }
    for name in LAYERS
  }


def _lost(loads: jax.Array) -> float:
  """Returns the share of rows beyond a fixed capacity, of `[M, E]` loads."""
  slots = int(np.sum(loads[0]))
  room = capacity_layer.capacity(slots, loads.shape[1])
  return float(np.sum(np.maximum(np.asarray(loads) - room, 0)) / np.sum(loads))


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'expected no arguments, got {argv[1:]}')
  print(__doc__[__doc__.index('Predicted') : __doc__.index('Example:')])
  load = [os.getloadavg()[0]]
  found = timed(_REPEATS.value)
  load.append(os.getloadavg()[0])
  base = found['host']
  for name, of in found.items():
    print(
      f'{name:10} {of["clock_s"]:6.3f} s, {of["processor_s"]:6.3f} s of '
      f'processors: {of["clock_s"] / base["clock_s"]:5.2f} and '
      f'{of["processor_s"] / base["processor_s"]:5.2f} of host; '
      f'last loss {of["loss"]:.4f}, rows lost {100 * of["lost"]:.1f} %'
    )
  print(
    f'{os.cpu_count()} cores, load {load[0]:.1f} before, {load[1]:.1f} after'
  )
  if _JSON.value:
    with open(_JSON.value, 'w', encoding='utf-8') as f:
      json.dump(
        dict(cores=os.cpu_count(), load=load, layers=found), f, indent=1
      )


if __name__ == '__main__':
  app.run(main)
