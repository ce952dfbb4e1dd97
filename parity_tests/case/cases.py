"""Routings of layers too large to compute: who goes where, and nothing else."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import text_router
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import presets

NAMES = ('text', 'skewed', *routings.GENERATORS)
_TEXT_WIDTH = 256  # of the embedding that text is routed by


def topk_ids(
  name: str,
  preset: presets.Preset,
  config: config_lib.MoEConfig,
  seed: int = 0,
) -> np.ndarray:
  """Returns `[R, T, K]` i32: the experts of every token.

  'text' is routed by a narrow embedding: the layer's own would take gigabytes.

  Raises:
    ValueError: no such routing, or one that the layer cannot have.
  """
  if name == 'skewed':
    return routings.skewed(config, seed)
  if name != 'text':
    if name not in routings.GENERATORS:
      raise ValueError(f'routing: expected some of {list(NAMES)}, got {name!r}')
    return routings.make(name, config, seed).topk_ids
  narrow = dataclasses.replace(config, d_model=min(_TEXT_WIDTH, config.d_model))
  x = text_router.embed(narrow, text_router.read(), seed)
  scores = text_router.gate_scores(narrow, x, seed)
  return text_router.route(narrow, preset.router, scores, seed).topk_ids
