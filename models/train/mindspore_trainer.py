"""Training steps of the MindSpore decoders: as `jax_trainer.py`.

A state is of numpy's arrays: what is saved is what the next step begins with.
"""

from collections.abc import Mapping
from typing import Any

import mindspore as ms
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import moe as moe_lib
from hpmoe.models.mindspore import ops
from hpmoe.models.train import balance
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import trainer as trainer_lib
from hpmoe.reference.contract import array_typing as at

_EPS = 1e-8

Arrays = dict[str, np.ndarray]


class Trainer(trainer_lib.Trainer):
  """See `trainer.Trainer`.

  Moments are `count` `[]` int32, steps done, and `mu` and `nu` by name.
  """

  def __init__(
    self, config: config_lib.ModelConfig, settings: settings_lib.Settings
  ):
    super().__init__(config, settings, moe_lib.find_layer(settings.moe))

  def first(self, values: Arrays) -> trainer_lib.State:
    """Returns the state before step 0, of parameters by name."""
    zeros = {
      name: np.zeros_like(values[name])
      for name in self._select_trainable(values)
    }
    moments = dict(count=np.int32(0), mu=zeros, nu=dict(zeros))
    return trainer_lib.State(values, moments)

  def step(
    self, state: trainer_lib.State, batch: at.Int32[np.ndarray, 'B T+1']
  ) -> tuple[trainer_lib.State, trainer_lib.Metrics]:
    """Returns the state after a step on `batch`, and the step's metrics."""
    params = {name: ms.Tensor(array) for name, array in state.params.items()}
    trainable = list(self._select_trainable(params))
    outputs: dict[str, trainer_lib.Metrics] = {}

    # Positions: a gradient over a dict is an empty tuple, without an error.
    def total(*values):
      merged_params = params | dict(zip(trainable, values, strict=True))
      loss, outputs['metrics'] = self._loss(merged_params, batch)
      return loss

    places = tuple(range(len(trainable)))
    grads = ms.grad(total, places)(*(params[name] for name in trainable))
    grads_by_name = dict(zip(trainable, grads, strict=True))
    values, moments = updated(
      self._settings, params, grads_by_name, state.moments
    )
    metrics = outputs['metrics']
    fixed = {k: v for k, v in state.params.items() if k not in values}
    new_params = values | self._move_biases(fixed, metrics.loads)
    return trainer_lib.State(
      {name: new_params[name] for name in state.params}, moments
    ), metrics

  def loss(
    self, params: Mapping[str, np.ndarray], batch: at.Int32[np.ndarray, 'B T+1']
  ) -> float:
    """Returns the mean cross-entropy of a batch, nats for each token."""
    tensors = {name: ms.Tensor(array) for name, array in params.items()}
    return self._loss(tensors, batch)[1].loss

  def _loss(
    self, params: ops.Params, batch: at.Int32[np.ndarray, 'B T+1']
  ) -> tuple[ms.Tensor, trainer_lib.Metrics]:
    """Returns the loss to minimise, and the metrics."""
    config = self._config
    tokens = ms.Tensor(np.ascontiguousarray(batch[:, :-1]), ms.int32)
    after = ms.Tensor(np.ascontiguousarray(batch[:, 1:]), ms.int32)
    logits, aux = decoder.forward(
      params, config, tokens, moe=self._layer, ranks=self._settings.ranks
    )
    shares = ops.log_softmax(logits.astype(ms.float32))
    target_scores = ms_ops.gather_elements(shares, -1, after.expand_dims(-1))
    entropy = -target_scores.mean()
    routed = [r for r in aux.routed.values() if r is not None]
    uneven = [
      balance.loss(decoder.OPERATORS, config, r, len(batch)) for r in routed
    ]
    total = entropy + balance.factor(config) * sum(uneven)
    loads = np.stack([ops.to_numpy(r.loads) for r in routed])
    mean = float(sum(uneven)) / len(uneven)
    return total, trainer_lib.Metrics(float(entropy), mean, loads)


def learning_rate(settings: settings_lib.Settings, count: int) -> float:
  """Returns the rate of the step after `count` others: a warm-up, then even."""
  low = settings.learning_rate / max(1, settings.warmup)
  share = min(count / max(1, settings.warmup - 1), 1.0)
  return low + (settings.learning_rate - low) * share


def updated(
  settings: settings_lib.Settings,
  params: Mapping[str, ms.Tensor],
  grads: Mapping[str, ms.Tensor],
  moments: Mapping[str, Any],
) -> tuple[Arrays, dict[str, Any]]:
  """Returns parameters and moments after a step of AdamW on clipped gradients.

  As optax's `clip_by_global_norm` and `adamw` together; in float32.

  Args:
    settings: rate, decay and clip.
    params: by name.
    grads: of those that are trained.
    moments: of `Trainer`.
  """
  squares = [(grad * grad).sum() for grad in grads.values()]
  norm = ms_ops.sqrt(ms_ops.stack(squares).sum())
  shrink = 1.0 if float(norm) < settings.clip else settings.clip / norm
  count = int(moments['count']) + 1
  rate = learning_rate(settings, count - 1)
  out: dict[str, Arrays] = dict(params={}, mu={}, nu={})
  for name, grad in grads.items():
    grad, param = grad * shrink, params[name]
    mu = _average(settings_lib.BETAS[0], moments['mu'][name], grad)
    nu = _average(settings_lib.BETAS[1], moments['nu'][name], grad * grad)
    right = ms_ops.sqrt(nu / (1 - settings_lib.BETAS[1] ** count)) + _EPS
    change = mu / (1 - settings_lib.BETAS[0] ** count) / right
    if param.ndim > 1:
      change = change + settings.weight_decay * param
    for kind, value in (
      ('params', param - rate * change),
      ('mu', mu),
      ('nu', nu),
    ):
      out[kind][name] = ops.to_numpy(value)
  values = out.pop('params')
  return values, dict(count=np.int32(count), **out)


def _average(beta: float, before: np.ndarray, value: ms.Tensor) -> ms.Tensor:
  return beta * ms.Tensor(before) + (1 - beta) * value
