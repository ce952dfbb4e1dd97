"""What a decoder refuses before it computes, in either framework."""

from collections.abc import Mapping
from typing import Any

from hpmoe.models import config as config_lib
from hpmoe.models import parameters


def check_parameters(
  params: Mapping[str, Any], config: config_lib.ModelConfig, shards: int = 1
) -> None:
  """Refuses parameters that are not the model's.

  Args:
    params: arrays by name.
    config: sizes and options.
    shards: parts that the experts are divided into; one of them is given.

  Raises:
    ValueError: one is missing or misshapen.
  """
  for name, spec in parameters.parameter_shapes(config).items():
    shape = spec.shape
    if parameters.is_of_experts(name):
      shape = (shape[0] // shards, *shape[1:])
    if name not in params or params[name].shape != shape:
      actual = list(params[name].shape) if name in params else 'nothing'
      raise ValueError(f'{name}: expected shape {list(shape)}, got {actual}')


def check(
  config: config_lib.ModelConfig,
  tokens: Any,
  are_integers: bool,
  ranks: int,
  capacity: int | None,
  mtp: bool,
) -> None:
  """Refuses tokens and options that do not go together.

  Args:
    config: sizes and options.
    tokens: `[B, S]`.
    are_integers: whether the framework calls them so.
    ranks: that a layer's tokens and experts lie on.
    capacity: tokens that the cache has room for; None for no cache.
    mtp: whether the logits of the head for later tokens are asked for.

  Raises:
    ValueError: names the argument.
  """
  if tokens.ndim != 2 or not are_integers:
    raise ValueError(
      f'tokens: expected integers [B, S], got {tokens.dtype} '
      f'{list(tokens.shape)}'
    )
  count = tokens.shape[0] * tokens.shape[1]
  if ranks < 1 or count % ranks or config.num_experts % ranks:
    raise ValueError(
      f'ranks: expected a divisor of {count} tokens and of '
      f'{config.num_experts} experts, got {ranks}'
    )
  cached = capacity is not None
  if mtp and (cached or not config.num_nextn_predict_layers):
    raise ValueError(
      'mtp: expected a model with num_nextn_predict_layers=1 and no cache, got '
      f'{config.num_nextn_predict_layers} and {"a" if cached else "no"} cache'
    )
