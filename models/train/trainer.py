"""What the training steps of both frameworks have in common."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hpmoe.models import config as config_lib
from hpmoe.models import parameters as parameters_lib
from hpmoe.models.train import balance
from hpmoe.models.train import frozen
from hpmoe.models.train import settings as settings_lib
from hpmoe.reference.contract import array_typing as at


class State(NamedTuple):
  """What a step changes.

  Attributes:
    params: by the names of `parameters.parameter_shapes`.
    moments: of the optimizer.
  """

  params: dict[str, Any]
  moments: Any


class Metrics(NamedTuple):
  """What a step says of itself.

  Attributes:
    loss: `[]` mean cross-entropy of the step's batch, nats for each token.
    unevenness: `[]` mean of `balance.loss` over the layers with experts.
    loads: `[M, E]` int32, tokens of each expert of each such layer.
  """

  loss: at.Float[Any, '']
  unevenness: at.Float[Any, '']
  loads: at.Int32[Any, 'M E']


class Trainer:
  """A model and its optimizer; holds no state of the run.

  Args:
    config: sizes and options.
    settings: of the run.
    layer: of routed experts.
  """

  def __init__(
    self,
    config: config_lib.ModelConfig,
    settings: settings_lib.Settings,
    layer: Any,
  ):
    self._config, self._settings, self._layer = config, settings, layer
    shapes = parameters_lib.parameter_shapes(config)
    self._frozen_names = frozen.names(shapes, settings.freeze)

  def _select_trainable(self, params: Mapping[str, Any]) -> dict[str, Any]:
    return {
      name: array
      for name, array in params.items()
      if name not in self._frozen_names and parameters_lib.has_gradient(name)
    }

  def _move_biases(
    self, fixed: Mapping[str, Any], loads: at.Int32[Any, 'M E']
  ) -> dict[str, Any]:
    """Returns the parameters without gradients, with routers' biases moved."""
    rows = {layer: n for n, layer in enumerate(self._config.moe_layers())}
    return {
      name: value
      if name in self._frozen_names
      else balance.moved_bias(
        value, loads[rows[int(name.split('.')[2])]], self._settings.bias_rate
      )
      for name, value in fixed.items()
    }
