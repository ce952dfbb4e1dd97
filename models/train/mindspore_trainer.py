"""Training steps of the MindSpore decoders: as `jax_trainer.py`.

A state is of numpy's arrays: what is saved is what the next step begins with.
"""

from collections.abc import Mapping
import functools
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters as parameters_lib
from hpmoe.models import routed as routed_lib
from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import moe as moe_lib
from hpmoe.models.mindspore import ops
from hpmoe.models.train import balance
from hpmoe.models.train import frozen
from hpmoe.models.train import settings as settings_lib
from hpmoe.reference.contract import array_typing as at

_EPS = 1e-8

Arrays = dict[str, np.ndarray]


class State(NamedTuple):
  """What a step changes; the fields are those of `jax_trainer.State`.

  Attributes:
    params: by the names of `parameters.parameter_shapes`.
    moments: `count` `[]` int32, steps done; `mu` and `nu` by name.
  """

  params: Arrays
  moments: dict[str, Any]


class Metrics(NamedTuple):
  """What a step says of itself, as `jax_trainer.Metrics`."""

  loss: float
  unevenness: float
  loads: at.Int32[np.ndarray, 'M E']


@functools.lru_cache(maxsize=8)
def trainer(
  config: config_lib.ModelConfig, settings: settings_lib.Settings
) -> 'Trainer':
  """Returns the trainer of a run."""
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

  def first(self, values: Arrays) -> State:
    """Returns the state before step 0, of parameters by name."""
    zeros = {
      name: np.zeros_like(values[name]) for name in self._trained(values)
    }
    moments = dict(count=np.int32(0), mu=zeros, nu=dict(zeros))
    return State(values, moments)

  def _trained(self, params: Mapping[str, Any]) -> list[str]:
    biases = filter(parameters_lib.is_router_bias, params)
    left = self._frozen.union(biases)
    return [name for name in params if name not in left]

  def step(
    self, state: State, batch: at.Int32[np.ndarray, 'B T+1']
  ) -> tuple[State, Metrics]:
    """Returns the state after a step on `batch`, and the step's metrics."""
    params = {name: ms.Tensor(array) for name, array in state.params.items()}
    trained = self._trained(params)
    seen: dict[str, Metrics] = {}

    # Positions: a gradient over a dict is an empty tuple, without an error.
    def total(*values):
      given = params | dict(zip(trained, values, strict=True))
      loss, seen['metrics'] = self._loss(given, batch)
      return loss

    places = tuple(range(len(trained)))
    grads = ms.grad(total, places)(*(params[name] for name in trained))
    named = dict(zip(trained, grads, strict=True))
    values, moments = updated(self._settings, params, named, state.moments)
    metrics = seen['metrics']
    fixed = {k: v for k, v in state.params.items() if k not in values}
    made = values | self._moved(fixed, metrics.loads)
    return State({name: made[name] for name in state.params}, moments), metrics

  def loss(
    self, params: Mapping[str, np.ndarray], batch: at.Int32[np.ndarray, 'B T+1']
  ) -> float:
    """Returns the mean cross-entropy of a batch, nats for each token."""
    given = {name: ms.Tensor(array) for name, array in params.items()}
    return self._loss(given, batch)[1].loss

  def _loss(
    self, params: ops.Params, batch: at.Int32[np.ndarray, 'B T+1']
  ) -> tuple[ms.Tensor, Metrics]:
    """Returns what is minimised, and the metrics."""
    config = self._config
    tokens = ms.Tensor(np.ascontiguousarray(batch[:, :-1]), ms.int32)
    after = ms.Tensor(np.ascontiguousarray(batch[:, 1:]), ms.int32)
    logits, aux = decoder.forward(
      params, config, tokens, moe=self._layer, ranks=self._settings.ranks
    )
    shares = ops.log_softmax(logits.astype(ms.float32))
    picked = ms_ops.gather_elements(shares, -1, after.expand_dims(-1))
    entropy = -picked.mean()
    routed = [r for r in aux.routed.values() if r is not None]
    uneven = [unevenness(config, r, len(batch)) for r in routed]
    total = entropy + balance.factor(config) * sum(uneven)
    loads = np.stack([ops.to_numpy(r.loads) for r in routed])
    mean = float(sum(uneven)) / len(uneven)
    return total, Metrics(float(entropy), mean, loads)

  def _moved(self, fixed: Arrays, loads: np.ndarray) -> Arrays:
    rows = {layer: n for n, layer in enumerate(self._config.moe_layers())}
    moved = dict(fixed)
    for name, bias in fixed.items():
      if name in self._frozen:
        continue
      of = loads[rows[int(name.split('.')[2])]].astype(np.int64)
      # Exact: no mean is rounded.
      step = np.sign(np.sum(of) - of * of.size).astype(bias.dtype)
      moved[name] = bias + bias.dtype.type(self._settings.bias_rate) * step
    return moved


def unevenness(
  config: config_lib.ModelConfig, routed: routed_lib.Routed, sequences: int
) -> ms.Tensor:
  """Returns `[]`, as `balance.loss`."""
  softmax = config.family.router == 'softmax'
  groups, experts = 1 if softmax else sequences, config.num_experts
  scores = routed.scores.reshape(groups, -1, experts)
  if softmax:
    shares = ops.softmax(scores)
  else:
    shares = ops.sigmoid(scores)
    shares = shares / shares.sum(axis=-1, keepdims=True)
  chosen = routed.topk_ids.reshape(groups, -1, 1)
  hits = (chosen == ms_ops.arange(experts).astype(ms.int32)).astype(
    shares.dtype
  )
  product = hits.mean(axis=1) * shares.mean(axis=1)
  return (experts * product.sum(axis=-1)).mean()


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
    moments: of `State`.
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
