"""What a run begins with: a model, its first weights, its tokens."""

from collections.abc import Callable, Mapping
import dataclasses
import pathlib
from typing import Any

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.models import parameters
from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import tokenizer
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import text as text_lib


@dataclasses.dataclass(frozen=True)
class Start:
  """The beginning of a run.

  Attributes:
    config: sizes and options.
    first: returns the parameters before step 0, by name.
    encoding: what tokens are.
    files: by name, those of the tokenizer, which go into the model's folder.
    fields: of config.json, which do too; None for those of `config`.
  """

  config: config_lib.ModelConfig
  first: Callable[[], dict[str, np.ndarray]]
  encoding: text_lib.Encoding
  files: Mapping[str, bytes]
  fields: Mapping[str, Any] | None = None


def from_settings(settings: settings_lib.Settings) -> Start:
  """Returns the beginning of a run.

  The tokenizer is that of the folder of weights, or beside the config.json.
  Weights of a folder are trained in float32.  A head for later tokens is not
  trained, and so not written.

  Raises:
    OSError: a file cannot be read.
    ValueError: a file is not a model's, or its tokens are more than the model
      has.
  """
  if settings.source is not None:
    return _of_folder(settings.source)
  config = _without_head(config_lib.load(settings.model))
  encoding = text_lib.encoding_of(settings.model, config)
  files = _files(config, encoding, pathlib.Path(settings.model).parent)
  first = lambda: init.init(config, settings.seed)
  return Start(config, first, encoding, files)


def _of_folder(folder: str) -> Start:
  weights = convert.read(folder, 'float32')
  config = dataclasses.replace(_without_head(weights.config), dtype='float32')
  has_head = bool(weights.config.num_nextn_predict_layers)
  encoding = text_lib.encoding_of(folder, config)
  files = _files(config, encoding, pathlib.Path(folder))
  names = parameters.parameter_shapes(config)
  return Start(
    config,
    lambda: {name: weights.read(name) for name in names},
    encoding,
    files,
    None if has_head else weights.fields,
  )


def _without_head(config: config_lib.ModelConfig) -> config_lib.ModelConfig:
  return dataclasses.replace(config, num_nextn_predict_layers=0)


def _files(
  config: config_lib.ModelConfig,
  encoding: text_lib.Encoding,
  folder: pathlib.Path,
) -> dict[str, bytes]:
  if encoding.tokenizer is not None:
    return config_file.extras(folder)
  size = tokenizer.byte_level().get_vocab_size()
  if config.vocab_size < size:
    raise ValueError(
      f'vocab_size: expected at least {size}, bytes and specials, got '
      f'{config.vocab_size}'
    )
  return tokenizer.byte_level_files()
