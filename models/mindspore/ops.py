"""What the blocks of a decoder share: read, compute wide, round once.

As `models/jax/ops.py`.  On a CPU MindSpore's float32 `exp` is wrong by 5e-6 of
its value and with it softmax, sigmoid and silu, a hundred times what rounding
explains; its float64 kernels are exact.  So there those four are computed in
float64 and rounded once.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any

import mindspore as ms
from mindspore import ops

# Gives back numpy's name 'bfloat16', which the import above took.
from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.frontends import mindspore_npu
from hpmoe.reference.contract import array_typing as at

Params = Mapping[str, ms.Tensor]

to_numpy = mindspore_layer.to_numpy


def dtype_name(dtype) -> str:
  """Returns 'float32' of `mindspore.float32`."""
  return str(dtype).lower()


def wide(dtype):
  """Returns the dtype of arithmetic on `dtype`: float32, or float64."""
  return ms.float64 if dtype == ms.float64 else ms.float32


def constant(value, like: ms.Tensor) -> ms.Tensor:
  """Returns a number or an array in the dtype of `like`.

  Python's numbers are taken as float32.
  """
  return ms.Tensor(value, like.dtype)


def linear(
  params: Params, name: str, x: at.Float[ms.Tensor, '*batch X']
) -> at.Float[ms.Tensor, '*batch Y']:
  """Returns x times the weight `name`, `[Y, X]`, plus its bias if it has one.

  `[..., Y]` in the dtype of `x`, summed in `wide`.
  """
  wide_dtype = wide(x.dtype)
  weight = params[f'{name}.weight'].astype(wide_dtype)
  rows = x.astype(wide_dtype).reshape(-1, x.shape[-1])
  y = ops.matmul(rows, weight.swapaxes(0, 1))
  if (bias := params.get(f'{name}.bias')) is not None:
    y = y + bias.astype(wide_dtype)
  return y.astype(x.dtype).reshape(*x.shape[:-1], -1)


def rms_norm(
  x: at.Float[ms.Tensor, '*batch X'],
  weight: at.Float[ms.Tensor, 'X'],
  eps: float,
) -> at.Float[ms.Tensor, '*batch X']:
  """Returns `weight * x / sqrt(mean(x^2) + eps)`, `[..., X]`, as x's dtype."""
  values = x.astype(wide(x.dtype))
  mean = (values * values).mean(axis=-1, keep_dims=True)
  normed = values * ops.rsqrt(mean + constant(eps, mean))
  return (normed * weight.astype(normed.dtype)).astype(x.dtype)


def _exactly(x: ms.Tensor) -> ms.Tensor:
  """Returns `x` in a dtype in which this device's `exp` rounds as it should."""
  on_cpu = ms.get_context('device_target') == 'CPU'
  return x.astype(ms.float64) if on_cpu and not mindspore_npu.dry else x


def gated(
  gate: at.Float[ms.Tensor, '*batch F'],
  up: at.Float[ms.Tensor, '*batch F'],
  alpha: float = 1.0,
  limit: float = 0.0,
  offset: float = 0.0,
  *,
  activation: str = 'swiglu',
) -> at.Float[ms.Tensor, '*batch F']:
  """Returns `gate * sigmoid(alpha * gate) * (up + offset)`, `[..., F]`.

  With a limit, of `min(gate, limit)`, and `up` within it on both sides.  With
  the activation 'geglu' it is `gelu(gate) * up`, with 'geglu_tanh' by a tanh.
  """
  if activation == 'geglu':
    exact = _exactly(gate)
    share = ops.erf(exact * constant(0.5**0.5, exact)) + constant(1.0, exact)
    share = share * constant(0.5, exact)
    return (exact * share).astype(gate.dtype) * up
  if activation == 'geglu_tanh':
    exact = _exactly(gate)
    cubic = exact + exact * exact * exact * constant(0.044715, exact)
    # 1 + tanh(z) is twice the sigmoid of 2 z.
    share = ops.sigmoid(cubic * constant(2 * (2 / math.pi) ** 0.5, exact))
    return (exact * share).astype(gate.dtype) * up
  if limit:
    bound = constant(limit, gate)
    gate = ops.where(gate > bound, bound, gate)
    up = ops.where(up.abs() > bound, up.sign() * bound, up)
  exact = _exactly(gate)
  result = exact * ops.sigmoid(exact * constant(alpha, exact))
  return result.astype(gate.dtype) * (up + constant(offset, up))


def sigmoid(
  x: at.Float[ms.Tensor, '*batch X'],
) -> at.Float[ms.Tensor, '*batch X']:
  """Returns `1 / (1 + exp(-x))`, `[..., X]`, as x's dtype."""
  return ops.sigmoid(_exactly(x)).astype(x.dtype)


def softplus(
  x: at.Float[ms.Tensor, '*batch X'],
) -> at.Float[ms.Tensor, '*batch X']:
  """Returns `log(1 + exp(x))`, `[..., X]`, as x's dtype."""
  exact = _exactly(x)
  peak = ops.stop_gradient(ops.relu(exact))  # so that no exponential overflows
  return (peak + ops.log(ops.exp(exact - peak) + ops.exp(-peak))).astype(
    x.dtype
  )


def exp(
  x: at.Float[ms.Tensor, '*batch X'],
) -> at.Float[ms.Tensor, '*batch X']:
  """Returns `exp(x)`, `[..., X]`, as x's dtype."""
  return ops.exp(_exactly(x)).astype(x.dtype)


def tanh(
  x: at.Float[ms.Tensor, '*batch X'],
) -> at.Float[ms.Tensor, '*batch X']:
  """Returns the hyperbolic tangent of `x`, `[..., X]`, as x's dtype."""
  return ops.tanh(_exactly(x)).astype(x.dtype)


def softmax(
  x: at.Float[ms.Tensor, '*batch X'],
) -> at.Float[ms.Tensor, '*batch X']:
  """Returns `exp(x) / sum(exp(x))` along the last axis, as x's dtype."""
  return ops.softmax(_exactly(x), -1).astype(x.dtype)


def log_softmax(
  x: at.Float[ms.Tensor, '*batch X'],
) -> at.Float[ms.Tensor, '*batch X']:
  """Returns `x - log(sum(exp(x)))` along the last axis, as x's dtype.

  MindSpore's own is no better in float64 than in float32 on a CPU.
  """
  exact = _exactly(x)
  exact = exact - ops.stop_gradient(exact.max(axis=-1, keepdims=True))
  total = ops.exp(exact).sum(axis=-1, keepdims=True)
  return (exact - ops.log(total)).astype(x.dtype)


def embed(
  embeddings: at.Float[ms.Tensor, 'V D'], tokens: at.Int32[ms.Tensor, 'B S']
) -> at.Float[ms.Tensor, 'B S D']:
  """Returns the rows of `tokens`."""
  # No bfloat16 gather on a CPU.
  rows = embeddings.astype(wide(embeddings.dtype))
  return ops.gather(rows, tokens, 0).astype(embeddings.dtype)


def parts(
  x: at.Float[ms.Tensor, '*batch X'], width: int
) -> tuple[ms.Tensor, ms.Tensor]:
  """Returns the first `width` of the last axis, and the rest."""
  # The gradient of a slice has no bfloat16 on a CPU; here and below.
  values = x.astype(wide(x.dtype))
  first, rest = values[..., :width], values[..., width:]
  return first.astype(x.dtype), rest.astype(x.dtype)


def broadcast(x: ms.Tensor, shape: tuple[int, ...]) -> ms.Tensor:
  """Returns `x` repeated to `shape`."""
  return ops.broadcast_to(x.astype(wide(x.dtype)), shape).astype(x.dtype)


def without_last(
  x: at.Float[ms.Tensor, 'B S D'],
) -> at.Float[ms.Tensor, 'B S-1 D']:
  """Returns `x` without the last token."""
  return x.astype(wide(x.dtype))[:, :-1].astype(x.dtype)


def best(
  scores: at.Float[ms.Tensor, '*batch E'], count: int
) -> at.Int32[ms.Tensor, '*batch K']:
  """Returns the places of the most, the most first, then the lower place.

  Not `ops.topk`, which takes any of equal values.
  """
  # Stable, and -0.0 and 0.0 tie only if they are made the same.
  plain = ops.stop_gradient(scores) + 0.0
  order = ops.argsort(plain, axis=-1, descending=True)
  return order[..., :count].astype(ms.int32)


def scan(
  step: Callable[[Any, tuple[ms.Tensor, ...]], tuple[Any, ms.Tensor]],
  state: ms.Tensor,
  arrays: tuple[ms.Tensor, ...],
) -> tuple[ms.Tensor, ms.Tensor]:
  """As `models/jax/ops.py`, eagerly."""
  results = []
  for token in range(arrays[0].shape[1]):
    state, result = step(state, tuple(array[:, token] for array in arrays))
    results.append(result)
  return state, ops.stack(results, 1)
