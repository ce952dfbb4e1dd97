"""Small models for tests: a configuration, and a folder of weights.

The folder has a tokenizer of its own.
"""

import collections
import json
import pathlib
import re

import tokenizers

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import train_state
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import text as text_lib

_SPLIT = '[A-Za-z]+|[^A-Za-z]'
# Of models that are a second's work.
_ONE_LAYER = dict(
  deepseek_tiny=dict(
    hidden_size=32,
    num_hidden_layers=1,
    first_k_dense_replace=0,
    intermediate_size=32,
    moe_intermediate_size=16,
    n_routed_experts=8,
  ),
  mixtral_tiny=dict(
    hidden_size=32, num_hidden_layers=1, intermediate_size=16, head_dim=8
  ),
)


def config(folder: pathlib.Path, name: str, **changes) -> str:
  """Writes config.json of one layer, or as changed; returns its path."""
  fields = config_lib.load(name).to_hf() | _ONE_LAYER[name] | changes
  path = folder / 'config.json'
  path.write_text(json.dumps(fields))
  return str(path)


def settings(
  folder: pathlib.Path, moe: str, **changes
) -> settings_lib.Settings:
  """Returns a run of a model that is a second's work, on the text shipped."""
  model = config(folder, 'deepseek_tiny')
  return settings_lib.Settings(
    model=model, moe=moe, batch=2, length=16, warmup=3, **changes
  )


def state(folder: pathlib.Path) -> bytes:
  """Returns the newest state of a run."""
  newest = train_state.latest(folder / 'states')
  assert newest is not None
  return (newest / 'state.safetensors').read_bytes()


def write(path: pathlib.Path, family: str = 'deepseek_tiny') -> pathlib.Path:
  """Writes a model of one layer in bfloat16 with `words`; returns it."""
  fields = config_lib.load(family).to_hf() | dict(
    hidden_size=32,
    num_hidden_layers=1,
    intermediate_size=32,
    vocab_size=256,
    eos_token_id=255,
    dtype='bfloat16',
  )
  if family == 'deepseek_tiny':
    fields |= _ONE_LAYER[family]
  config = config_lib.from_hf(fields)
  convert.write(
    path,
    weights_lib.of_parameters(
      config,
      init.init(config, 5),
      {'tokenizer.json': words().to_str().encode()},
    ),
  )
  return path


def words() -> tokenizers.Tokenizer:
  """Returns 254 words of the shipped text; 0 is any other, 255 the end."""
  text = text_lib.SHIPPED.read_text()
  common = collections.Counter(re.findall(_SPLIT, text)).most_common(254)
  vocabulary = {'?': 0} | {word: n for n, (word, _) in enumerate(common, 1)}
  tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, '?'))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(
    tokenizers.Regex(_SPLIT), 'removed', invert=True
  )
  tokenizer.add_special_tokens(['<end>'])
  return tokenizer
