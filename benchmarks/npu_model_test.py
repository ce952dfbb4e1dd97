"""The model that an NPU is to run has the loss that the page shows."""

import json
import pathlib

import numpy as np
import pytest

from hpmoe.models.jax import decoder
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import start as start_lib
from hpmoe.models.train import text

_FIGURES = pathlib.Path(__file__).parent / 'figures/npu_model.json'


@pytest.mark.slow
def test_the_loss_of_step_0_is_that_of_the_page():
  # Given the request of the page, then any framework has this loss.
  figures = dict(json.loads(_FIGURES.read_text())['rows'])
  settings = settings_lib.Settings(moe='framework', batch=16, length=64)
  start = start_lib.from_settings(settings)
  tokens, _ = text.split(text.read(settings.text, start.encoding).tokens)
  batch = text.batch(tokens, settings.length, settings.batch, settings.seed, 0)

  logits, _ = decoder.forward(
    start.first(), start.config, batch[:, :-1], moe='framework'
  )

  scores = np.asarray(logits, np.float64)
  scores -= scores.max(axis=-1, keepdims=True)
  logs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
  loss = -np.take_along_axis(logs, batch[:, 1:, None], axis=-1).mean()
  assert abs(loss - float(figures['loss, step 0'])) < 1e-4
