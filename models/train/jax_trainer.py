"""Training steps of the JAX decoders, as pure functions."""

from collections.abc import Mapping
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hpmoe.models import config as config_lib
from hpmoe.models import parameters as parameters_lib
from hpmoe.models.jax import decoder
from hpmoe.models.jax import moe as moe_lib
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

  params: dict[str, at.Array]
  moments: Any


class Metrics(NamedTuple):
  """What a step says of itself.

  Attributes:
    loss: `[]` mean cross-entropy of the step's batch, nats for each token.
    unevenness: `[]` mean of `balance.loss` over the layers with experts.
    loads: `[M, E]` int32, tokens of each expert of each such layer.
  """

  loss: at.Float[at.Array, '']
  unevenness: at.Float[at.Array, '']
  loads: at.Int32[at.Array, 'M E']


@functools.lru_cache(maxsize=8)
def trainer(
  config: config_lib.ModelConfig, settings: settings_lib.Settings
) -> 'Trainer':
  """Returns the trainer of a run; the same one, already compiled, if asked."""
  return Trainer(config, settings)


class Trainer:
  """A model and its optimizer; holds no state of the run.

  Args:
    config: sizes and options.
    settings: of the run.
  """

  def __init__(
    self, config: config_lib.ModelConfig, settings: settings_lib.Settings
  ):
    self._config, self._settings = config, settings
    self._layer = moe_lib.named(settings.moe)
    shapes = parameters_lib.parameter_shapes(config)
    self._frozen = frozen.names(shapes, settings.freeze)
    self._optimizer = optimizer(settings)
    self.step = jax.jit(self._step, donate_argnums=0)
    self.loss = jax.jit(lambda params, batch: self._loss(params, batch)[1].loss)

  def first(self, values: Mapping[str, np.ndarray]) -> State:
    """Returns the state before step 0, of parameters by name."""
    params = jax.tree.map(jnp.asarray, dict(values))
    return State(params, self._optimizer.init(self._trained(params)))

  def _trained(self, params: Mapping[str, at.Array]) -> dict[str, at.Array]:
    return {
      name: array
      for name, array in params.items()
      if name not in self._frozen and not parameters_lib.is_router_bias(name)
    }

  def _step(
    self, state: State, batch: at.Int32[at.Array, 'B T+1']
  ) -> tuple[State, Metrics]:
    trained = self._trained(state.params)
    fixed = {k: v for k, v in state.params.items() if k not in trained}

    def total(trained):
      return self._loss({**trained, **fixed}, batch)

    grads, metrics = jax.grad(total, has_aux=True)(trained)
    updates, moments = self._optimizer.update(grads, state.moments, trained)
    trained = optax.apply_updates(trained, updates)
    params = {**trained, **self._moved(fixed, metrics.loads)}
    return State({k: params[k] for k in state.params}, moments), metrics

  def _loss(
    self, params: Mapping[str, at.Array], batch: at.Int32[at.Array, 'B T+1']
  ) -> tuple[at.Float[at.Array, ''], Metrics]:
    """Returns what is minimised, and the metrics."""
    settings = self._settings
    logits, aux = decoder.forward(
      params,
      self._config,
      batch[:, :-1],
      moe=self._layer,
      ranks=settings.ranks,
    )
    entropy = optax.softmax_cross_entropy_with_integer_labels(
      logits.astype(jnp.float32), batch[:, 1:]
    ).mean()
    routed = [r for r in aux.routed.values() if r is not None]
    uneven = jnp.stack(
      [balance.loss(self._config, r, len(batch)) for r in routed]
    )
    loads = jnp.stack([r.loads for r in routed])
    total = entropy + balance.factor(self._config) * jnp.sum(uneven)
    return total, Metrics(entropy, jnp.mean(uneven), loads)

  def _moved(
    self, fixed: Mapping[str, at.Array], loads: at.Int32[at.Array, 'M E']
  ) -> dict[str, at.Array]:
    rows = {layer: n for n, layer in enumerate(self._config.moe_layers())}
    return {
      name: value
      if name in self._frozen
      else balance.moved_bias(
        value, loads[rows[int(name.split('.')[2])]], self._settings.bias_rate
      )
      for name, value in fixed.items()
    }


def optimizer(
  settings: settings_lib.Settings,
) -> optax.GradientTransformation:
  """Returns AdamW with clipping, a warm-up, and a rate that stays then."""
  rate = optax.linear_schedule(
    settings.learning_rate / max(1, settings.warmup),
    settings.learning_rate,
    max(1, settings.warmup - 1),
  )
  return optax.chain(
    optax.clip_by_global_norm(settings.clip),
    optax.adamw(
      rate,
      *settings_lib.BETAS,
      weight_decay=settings.weight_decay,
      mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
    ),
  )
