r"""What a token takes in generation: `--moe=host` beside `--moe=framework`.

The two layers decode the same tokens by turns, some steps each; a figure is the
median of its steps, a quotient one of medians.  Models:

  tiny    --tiny, a folder of `hpmoe train`; deepseek_tiny untrained without one
  qwen    one layer of the widths of qwen3_30b_a3b, a small vocabulary, so that
          the layer is most of it

Example:
  python -m benchmarks.decode --tiny=out/train/model --keep
"""

from collections.abc import Iterator
import dataclasses
import importlib
import itertools
import statistics
import sys
import time

from absl import app
from absl import flags
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.models.checkpoint import convert
from hpmoe.reference.contract import stable_random
from hpmoe.tools.docs import figures

_TINY = flags.DEFINE_string('tiny', None, 'Folder of the trained tiny model.')
_MODELS = flags.DEFINE_list(
  'models', ['tiny:float32', 'qwen:float32', 'qwen:bfloat16'], 'Models.'
)
_FRAMEWORKS = flags.DEFINE_list(
  'frameworks', ['jax', 'mindspore'], 'Where they run.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Turns of each layer.')

LAYERS = ('framework', 'host')
BATCHES = (1, 16)
_PROMPT, _STEPS = 8, 8


def model_of(name: str) -> tuple[config_lib.ModelConfig, dict[str, np.ndarray]]:
  """Returns the configuration and weights of one of `--models`."""
  model, dtype = name.split(':')
  if model == 'tiny' and _TINY.value:
    weights = convert.read(_TINY.value, dtype)
    return weights.config, weights.load()
  config = config_lib.load('deepseek_tiny')
  if model != 'tiny':
    config = dataclasses.replace(
      config_lib.load('qwen3_30b_a3b'),
      num_hidden_layers=1,
      vocab_size=config.vocab_size,
    )
  return config, init.init(config, 0, dtype)


def steps(model, tokens: np.ndarray) -> Iterator[float]:
  """Yields the seconds of each token after the prompt; tokens `[B, S]`."""
  cache = model.empty(*tokens.shape, None)
  _, cache = model.step(tokens[:, :_PROMPT], cache)
  for place in range(_PROMPT, tokens.shape[1]):
    start = time.perf_counter()
    _, cache = model.step(tokens[:, place : place + 1], cache)
    yield time.perf_counter() - start


def milliseconds(
  stepper, config, params, batch: int, rounds: int
) -> dict[str, float]:
  """Returns the median of a step with each layer."""
  models = {layer: stepper(params, config, layer) for layer in LAYERS}
  drawn_from = stable_random.seed_of('decode', batch)
  shape = (batch, _PROMPT + _STEPS)
  tokens = stable_random.integers(drawn_from, shape, config.vocab_size)
  tokens = tokens.astype(np.int32)
  seconds_by_layer: dict[str, list[float]] = {layer: [] for layer in LAYERS}
  for turn in range(rounds + 1):
    for layer in LAYERS[:: -1 if turn % 2 else 1]:
      seconds = list(steps(models[layer], tokens))
      if turn:  # the first compiles
        seconds_by_layer[layer] += seconds
  return {
    n: 1e3 * statistics.median(values) for n, values in seconds_by_layer.items()
  }


def main(argv):
  del argv
  rows = []
  for name in _MODELS.value:
    config, params = model_of(name)
    for framework, batch in itertools.product(_FRAMEWORKS.value, BATCHES):
      side = importlib.import_module(f'hpmoe.models.{framework}.stepper')
      ms = milliseconds(side.Stepper, config, params, batch, _ROUNDS.value)
      quotient = ms['framework'] / ms['host']
      cells = *(f'{ms[layer]:.3g}' for layer in LAYERS), f'{quotient:.2f}'
      rows.append([name, framework, str(batch), *cells])
      print(*(cell.ljust(14) for cell in rows[-1]), flush=True)
  columns = ['model', 'in', 'batch', *(f'{n}, ms' for n in LAYERS), 'quotient']
  if figures.KEEP.value:
    flags_given = (word for word in sys.argv[1:] if word != '--keep')
    ran = figures.run(' '.join(['python -m benchmarks.decode', *flags_given]))
    figures.write('decode', columns, rows, [ran])


if __name__ == '__main__':
  app.run(main)
