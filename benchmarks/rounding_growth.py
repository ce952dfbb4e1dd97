r"""How far rounding alone drives two training runs apart, step by step.

The model of rounding (Higham and Mary, 2019): each rounding errs at random,
uniform in half a unit in the last place.  For numbers spread evenly over an
octave in the logarithm that is U = 2^-24 / sqrt(3) * sqrt(0.75 / ln 4) of the
value, root mean square.  A sum of d products of random sign, each added by one
rounding, errs by U * sqrt(d / 2); two kernels that add in other orders differ
by sqrt(2) times that.  The depths are those of the layer's GEMMs.

So the reference layer is trained with a relative normal disturbance of that
size on what every MoE layer returns, forward and backward, drawn anew in every
layer and step; all else is the same program.  Its distance to the undisturbed
run, root mean square over seeds, is what rounding predicts: the growth, the
ties of the router that flip and what follows are the model's own.

Example, beside two runs of `hpmoe train --batch=16 --length=64 --steps=200`:
  python -m benchmarks.rounding_growth --steps=200 --base=out/oracle \
    --beside=out/host
  python -m benchmarks.rounding_growth --steps=200 --seeds=0 --base=out/jax \
    --beside=out/mindspore
"""

from collections.abc import Sequence
import dataclasses
import functools
import json
import math
import pathlib

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.jax import moe
from hpmoe.models.train import jax_trainer
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import text as text_lib
from hpmoe.parity_tests.report import text_table

_MODEL = flags.DEFINE_string('model', 'deepseek_tiny', 'Configuration.')
_BATCH = flags.DEFINE_integer('batch', 16, 'Sequences of a step.')
_LENGTH = flags.DEFINE_integer('length', 64, 'Bytes of a sequence.')
_STEPS = flags.DEFINE_integer('steps', 20, 'Of every run.')
_SEEDS = flags.DEFINE_integer('seeds', 2, 'Disturbed runs; 0: only compare.')
_BASE = flags.DEFINE_string('base', None, 'Folder of the undisturbed run.')
_BESIDE = flags.DEFINE_list('beside', [], 'Folders of runs to compare.')
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

# Root mean square of one rounding in float32, of the rounded value.
U = 2**-24 / math.sqrt(3) * math.sqrt(0.75 / math.log(4))


@dataclasses.dataclass(frozen=True)
class Disturbance:
  """Relative root mean square of what two right layers differ by.

  Attributes:
    y: of the result.
    dx: of the gradient of the rows.
    weights: of the gradient of the routing weights.
    matrices: of the gradients of the experts.
  """

  y: float
  dx: float
  weights: float
  matrices: float


def predicted(config: config_lib.ModelConfig, tokens: int) -> Disturbance:
  """Returns what the model of rounding says of a layer of `tokens` tokens."""
  wide, narrow = config.hidden_size, config.moe_intermediate_size
  top_k = config.num_experts_per_tok
  rows = tokens * top_k // config.num_experts

  def apart(*depths: int) -> float:
    # Sums follow one another: their errors add up as squares do.
    return math.sqrt(2 * sum(U**2 * depth / 2 for depth in depths))

  # Two of `wide`: gate, and up.
  read = (wide, wide)
  return Disturbance(
    y=apart(*read, narrow, top_k),
    dx=apart(*read, wide, 2 * narrow, top_k),
    weights=apart(*read, narrow, wide),
    matrices=apart(*read, wide, rows),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _disturbed(x, forward: float, backward: float, seed: int):
  del backward
  return _drawn(x, forward, seed)


def _disturbed_forward(x, forward, backward, seed):
  return _disturbed(x, forward, backward, seed), None


def _disturbed_backward(forward, backward, seed, saved, gradient):
  del forward, saved
  return (_drawn(gradient, backward, seed + 1),)


_disturbed.defvjp(_disturbed_forward, _disturbed_backward)


def _drawn(x, sigma: float, seed: int):
  """Returns x with a relative normal error, another one for other values."""
  if not sigma:
    return x
  of_values = jax.lax.bitcast_convert_type(jnp.sum(x), jnp.uint32)
  key = jax.random.fold_in(jax.random.PRNGKey(seed), of_values)
  return x + x * (sigma * jax.random.normal(key, x.shape, x.dtype))


def disturbed_layer(sigma: Disturbance, seed: int) -> moe.Layer:
  """Returns the reference layer with errors of `sigma`."""

  def layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy):
    read = (
      (x, sigma.dx),
      (topk_weights, sigma.weights),
      (w_gate_up, sigma.matrices),
      (w_down, sigma.matrices),
    )
    x, topk_weights, w_gate_up, w_down = (
      _disturbed(array, 0.0, size, 10 * seed + n)
      for n, (array, size) in enumerate(read)
    )
    y = moe.oracle(x, topk_ids, topk_weights, w_gate_up, w_down, policy)
    return _disturbed(y, sigma.y, 0.0, 10 * seed + 8)

  return layer


def trained(
  settings: settings_lib.Settings, steps: int, layer: moe.Layer | None
) -> list[dict]:
  """Returns loss and loads of each step, as a run's metrics.jsonl."""
  trainer = jax_trainer.Trainer(config_lib.load(settings.model), settings)
  if layer is not None:
    trainer._layer = layer
  state = trainer.first()
  text = text_lib.split(text_lib.read(settings.text)).train
  rows = []
  for step in range(steps):
    batch = text_lib.batch(
      text, settings.length, settings.batch, settings.seed, step
    )
    state, metrics = trainer.step(state, batch)
    loads = np.asarray(metrics.loads).tolist()
    rows.append(dict(loss=float(metrics.loss), loads=loads))
  return rows


def read_run(folder: str, steps: int) -> list[dict]:
  """Returns the first steps of a run's metrics."""
  lines = (pathlib.Path(folder) / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines[:steps]]


def first_other_choice(run: Sequence[dict], base: Sequence[dict]) -> int | None:
  """Returns the first step in which an expert got another number of tokens."""
  pairs = enumerate(zip(run, base))
  return next((n for n, (a, b) in pairs if a['loads'] != b['loads']), None)


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  steps = _STEPS.value
  settings = settings_lib.Settings(
    model=_MODEL.value,
    moe='oracle',
    batch=_BATCH.value,
    length=_LENGTH.value,
  )
  config = config_lib.load(settings.model)
  sigma = predicted(config, settings.batch * settings.length)
  base = (
    read_run(_BASE.value, steps)
    if _BASE.value
    else trained(settings, steps, None)
  )
  runs = {
    f'seed {seed}': trained(settings, steps, disturbed_layer(sigma, seed))
    for seed in range(1, _SEEDS.value + 1)
  }
  drawn = list(runs)
  runs |= {folder: read_run(folder, steps) for folder in _BESIDE.value}
  apart = {
    name: [a['loss'] - b['loss'] for a, b in zip(run, base)]
    for name, run in runs.items()
  }
  rms = np.full(steps, np.nan)  # nobody drew
  if drawn:
    squares = np.square([apart[name] for name in drawn])
    rms = np.sqrt(np.mean(squares, axis=0))
  cells = [
    (
      str(n),
      f'{base[n]["loss"]:.6f}',
      f'{rms[n]:.2g}',
      *(f'{apart[name][n]:+.2g}' for name in _BESIDE.value),
    )
    for n in range(min(map(len, apart.values())))
  ]
  print(text_table.text(('step', 'loss', 'predicted', *_BESIDE.value), cells))
  choices = {n: first_other_choice(run, base) for n, run in runs.items()}
  for name, step in choices.items():
    print(f'{name}: first other choice of an expert at step {step}')
  if _JSON.value:
    content = dict(
      sigma=dataclasses.asdict(sigma),
      predicted=rms.tolist() if drawn else None,
      apart=apart,
      first_other_choice=choices,
    )
    pathlib.Path(_JSON.value).write_text(json.dumps(content, indent=1))


if __name__ == '__main__':
  app.run(main)
