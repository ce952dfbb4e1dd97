"""Sizes of configurations that ship, against every parameter by name."""

import dataclasses
import math

import pytest

from hpmoe.backend_ascend.simulator.plan import published
from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.models import plan_sizes


@pytest.mark.parametrize('name', config_lib.names())
def test_parameters_are_those_by_name(name):
  # Given a configuration, then its sizes count every weight, but for biases,
  # the last norm and norms of heads.
  config = dataclasses.replace(
    config_lib.load(name), num_nextn_predict_layers=0
  )
  shapes = parameters.parameter_shapes(config)
  spare = ('q_norm.weight', 'k_norm.weight', 'model.norm.weight', 'bias')
  total = sum(
    math.prod(spec.shape)
    for key, spec in shapes.items()
    if not key.endswith(spare)
  )
  assert plan_sizes.from_config(config, name).count() == total


@pytest.mark.parametrize(
  'model',
  [
    published.PANGU_ULTRA_MOE,
    published.DEEPSEEK_V3,
    published.QWEN3_235B,
    published.QWEN3_30B,
  ],
  ids=lambda model: model.name,
)
def test_published_models_are_their_configurations(model):
  model_sizes = plan_sizes.from_config(config_lib.load(model.name), model.name)
  if not model.dense:  # No layer is that wide.
    model_sizes = dataclasses.replace(model_sizes, dense_width=0)
  rope = model_sizes.rope_dim if model.kv_rank else 0
  assert dataclasses.replace(model_sizes, rope_dim=rope) == model


def test_a_model_without_experts_is_refused():
  config = config_lib.load('deepseek_tiny')
  dense = dataclasses.replace(
    config, first_k_dense_replace=config.num_hidden_layers
  )
  with pytest.raises(ValueError, match='model: expected a layer with experts'):
    plan_sizes.from_config(dense, 'mine')
