"""Training steps of the JAX decoders, as pure functions."""

from collections.abc import Mapping
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hpmoe.models import config as config_lib
from hpmoe.models.jax import decoder
from hpmoe.models.jax import moe as moe_lib
from hpmoe.models.train import balance
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import trainer as trainer_lib
from hpmoe.reference.contract import array_typing as at


class Trainer(trainer_lib.Trainer):
  """See `trainer.Trainer`; its steps are compiled once."""

  def __init__(
    self, config: config_lib.ModelConfig, settings: settings_lib.Settings
  ):
    super().__init__(config, settings, moe_lib.find_layer(settings.moe))
    self._optimizer = optimizer(settings)
    self.step = jax.jit(self._step, donate_argnums=0)
    self.loss = jax.jit(lambda params, batch: self._loss(params, batch)[1].loss)

  def first(self, values: Mapping[str, np.ndarray]) -> trainer_lib.State:
    """Returns the state before step 0, of parameters by name."""
    params = jax.tree.map(jnp.asarray, dict(values))
    moments = self._optimizer.init(self._select_trainable(params))
    return trainer_lib.State(params, moments)

  def _step(
    self, state: trainer_lib.State, batch: at.Int32[at.Array, 'B T+1']
  ) -> tuple[trainer_lib.State, trainer_lib.Metrics]:
    trainable = self._select_trainable(state.params)
    fixed = {k: v for k, v in state.params.items() if k not in trainable}

    def total(params):
      return self._loss({**params, **fixed}, batch)

    grads, metrics = jax.grad(total, has_aux=True)(trainable)
    updates, moments = self._optimizer.update(grads, state.moments, trainable)
    trainable = optax.apply_updates(trainable, updates)
    params = {**trainable, **self._move_biases(fixed, metrics.loads)}
    ordered = {name: params[name] for name in state.params}
    return trainer_lib.State(ordered, moments), metrics

  def _loss(
    self, params: Mapping[str, at.Array], batch: at.Int32[at.Array, 'B T+1']
  ) -> tuple[at.Float[at.Array, ''], trainer_lib.Metrics]:
    """Returns the loss to minimise, and the metrics."""
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
      [
        balance.loss(decoder.OPERATORS, self._config, r, len(batch))
        for r in routed
      ]
    )
    loads = jnp.stack([r.loads for r in routed])
    total = entropy + balance.factor(self._config) * jnp.sum(uneven)
    return total, trainer_lib.Metrics(entropy, jnp.mean(uneven), loads)


# The same one, already compiled, if it is asked for again.
trainer = functools.lru_cache(maxsize=8)(Trainer)


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
