"""The process in which a dry run's model computes: see `dry_run.py`.

Takes a file with a task of `TASKS` and what is asked of it, and writes one with
what ran, or with the error that ended it.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
import pathlib
import sys
from typing import Any

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.checkpoint import convert
from hpmoe.models.mindspore import device
from hpmoe.models.mindspore import dry_run
from hpmoe.models.mindspore import stepper as stepper_lib
from hpmoe.models.train import mindspore_trainer
from hpmoe.models.train import settings as settings_lib
from hpmoe.parity_tests.compare import mindspore_side
from hpmoe.parity_tests.compare import subject as subject_lib

# Tokens of each prompt, and tokens after them.
_PROMPT, _TOKENS = 8, 2


def _config(model: str, dtype: str | None = None) -> config_lib.ModelConfig:
  """Returns the first layers of a configuration, or of a folder's, in small."""
  if pathlib.Path(model).is_dir():
    config = convert.read(model, dtype).config
  else:
    config = config_lib.load(model)
  return dry_run.narrow(dry_run.shortened(config))


def _train(settings: Mapping[str, Any]) -> None:
  """Runs a step of training, and the loss after it."""
  # Parameters that stay as they are may lie in layers that are left out.
  run_settings = settings_lib.Settings(**{**settings, 'freeze': ''})
  config = dataclasses.replace(
    _config(run_settings.source or run_settings.model),
    num_nextn_predict_layers=0,
  )
  device.use(run_settings.device, run_settings.moe)
  trainer = mindspore_trainer.Trainer(config, run_settings)
  state = trainer.first(dry_run.zeros(config, 'float32'))
  batch = np.zeros((run_settings.batch, run_settings.length + 1), np.int32)
  state, _ = trainer.step(state, batch)
  trainer.loss(state.params, batch)


def _generate(model: str, moe: str, batch: int, dtype: str | None) -> None:
  """Runs what reads prompts, padded, and what reads a token after them."""
  config = _config(model, dtype)
  device.use('ascend', moe)
  stepper = stepper_lib.Stepper(dry_run.zeros(config, dtype), config, moe)
  starts = np.arange(batch, dtype=np.int32) % _PROMPT
  cache = stepper.empty(batch, _PROMPT + _TOKENS, starts)
  for count in (_PROMPT, 1):
    _, cache = stepper.step(np.zeros((batch, count), np.int32), cache)


def _compare(
  model: str,
  moe: str,
  batch: int,
  sequence: int,
  ranks: int,
  dtype: str | None,
  backward: bool,
) -> None:
  """Runs a side."""
  config = _config(model, dtype)
  params = dry_run.zeros(config, dtype)
  tokens = np.zeros((batch, sequence), np.int32)
  subject = subject_lib.Subject(model, config, params, tokens, ranks)
  mindspore_side.run(subject, moe, backward, device='ascend')


TASKS: Mapping[str, Callable[..., None]] = dict(
  train=_train, generate=_generate, compare=_compare
)


def _run(task: str, fields: Mapping[str, Any]) -> dict[str, Any]:
  try:
    with dry_run.recorded() as operators:
      TASKS[task](**fields)
  except (ValueError, OSError, ImportError) as error:
    return dict(error=' '.join(str(error).split()))
  rows = [dict(row._asdict(), count=n) for row, n in operators.items()]
  return dict(operators=rows)


def main(arguments: list[str]) -> None:
  """Runs the task of the first file and writes the second."""
  request, result = map(pathlib.Path, arguments)
  report = _run(**json.loads(request.read_text()))
  result.write_text(json.dumps(report))


if __name__ == '__main__':
  main(sys.argv[1:])
