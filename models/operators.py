"""What a framework provides to a decoder, and what one call of it is given."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hpmoe.models import config as config_lib
from hpmoe.reference.contract import precision

Params = Mapping[str, Any]


class Operators(NamedTuple):
  """What a framework provides; `x` has any leading axes.

  Attributes:
    linear: `(params, name, x)`: x times a weight, plus its bias if it has one.
    rms_norm: `(x, weight, eps)`.
    gated: `(gate, up)`: silu(gate) times up, or the `activation` of it.
    sigmoid: `(x)`.
    softplus: `(x)`: log(1 + exp(x)).
    exp: `(x)`.
    tanh: `(x)`.
    softmax: `(x)` along the last axis.
    best: `(scores, count)`: int32 places of the most along the last axis, the
      most first, of equal ones the lower place first; without a gradient.
    gather: `(values, places)` along the last axis.
    where: `(condition, x, y)`.
    constant: `(value, like)`: a number, or NumPy's array, in the dtype of
      `like`.
    wide: `(dtype)`: that of sums of `dtype`.
    matmul: `(x, y)` of the last two axes.
    embed: `(embeddings, tokens)`: their rows.
    parts: `(x, width)`: the first `width` of the last axis, and the rest.
    concat: `(arrays)` along the last axis, or `axis`.
    broadcast: `(x, shape)`.
    without_last: `(x)`: `[B, S, D]` without the last token.
    attend: `(queries, keys, values, mask, scale)`, and `sinks` or None.
    seen: `(config, length, count, capacity, dtype)`: who sees whom.
    append: `(entries, new, length)`: of a cache.
    scan: `(step, state, arrays)`: the last state, and results `[B, S, ...]`,
      of `step(state, arrays of one token) -> state, result`, token by token.
  """

  linear: Callable[..., Any]
  rms_norm: Callable[..., Any]
  gated: Callable[..., Any]
  sigmoid: Callable[..., Any]
  softplus: Callable[..., Any]
  exp: Callable[..., Any]
  tanh: Callable[..., Any]
  softmax: Callable[..., Any]
  best: Callable[..., Any]
  gather: Callable[..., Any]
  select: Callable[..., Any]
  constant: Callable[..., Any]
  wide: Callable[..., Any]
  matmul: Callable[..., Any]
  embed: Callable[..., Any]
  parts: Callable[..., Any]
  concat: Callable[..., Any]
  broadcast: Callable[..., Any]
  without_last: Callable[..., Any]
  attend: Callable[..., Any]
  find_positions: Callable[..., Any]
  append: Callable[..., Any]
  scan: Callable[..., Any]


class Run(NamedTuple):
  """What every layer of one call is given."""

  nn: Operators
  config: config_lib.ModelConfig
  params: Params
  layer: Callable[..., Any]
  policy: precision.PrecisionPolicy
  ranks: int
  between: Callable[[str, Any], Any]

  def scaled(self, x: Any, factor: float) -> Any:
    """Returns `x` times a number, rounded once."""
    if factor == 1:
      return x
    wide = x.astype(self.nn.wide(x.dtype))
    return (wide * self.nn.constant(factor, wide)).astype(x.dtype)

  def norm(
    self, params: Params, name: str, x: Any, eps: float | None = None
  ) -> Any:
    """Returns `x` after the norm `name` of a layer.

    Args:
      params: those of the layer.
      name: of the norm.
      x: `[..., X]`.
      eps: None for the model's `rms_norm_eps`.
    """
    config, weight = self.config, params[f'{name}.weight']
    if offset := config.family.norm_offset:
      wide = weight.astype(self.nn.wide(weight.dtype))
      weight = wide + self.nn.constant(offset, wide)
    return self.nn.rms_norm(x, weight, eps or config.rms_norm_eps)
