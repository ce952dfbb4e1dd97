"""The oracle's backward pass: every gradient, on all ranks."""

import functools

from hpmoe.reference import layer
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


def reads(
  config: config_lib.MoEConfig, policy: precision.PrecisionPolicy
) -> tuple[str, ...]:
  """Returns the names of the forward tensors that `backward` reads."""
  layer_args = config, policy.placement
  return (
    tensors.read_again(*layer_args)
    + tensors.PLAN
    + tensors.saved_stages(*layer_args)
  )


def backward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  forward: layer.Arrays,
  dy: at.Float[at.Array, 'R _ _'],
  *,
  run: layer.Run = layer.stage,
) -> dict[str, at.Array]:
  """Runs the backward stages; shapes are those of `tensors.BACKWARD`.

  Pure and jit-able with `config` and `policy` static.  Every stage reads stored
  values, computes in the accumulate dtype and rounds once, to storage, when it
  writes.  `d_expert_out` at placement 'before_down' and `d_returned` are
  copies.  `d_topk_weights` is rounded to the dtype of `topk_weights` instead,
  float32 by contract; a caller that needs it in float64 passes them in float64.

  Args:
    config: sizes.
    policy: dtypes, placement of the weights, activation.
    forward: inputs and outputs of `layer.forward` by name; `reads` lists the
      necessary ones.
    dy: `[R, T, D]` storage; for a sub-layer d_gate_up, `[R, N, 2F]`.
    run: computes one tensor.

  Returns:
    Every tensor of `tensors.grads` by its name.

  Raises:
    ValueError: as in `layer.forward`, or a tensor of `forward` is missing.
  """
  output_grad = tensors.grad_given(config)
  arrays = {**forward, output_grad: dy}
  names = (*reads(config, policy), output_grad)
  checks.check_arrays(config, policy, arrays, names)
  arrays = {name: arrays[name] for name in names}
  make = functools.partial(run, config=config, policy=policy)
  return layer.compute_each(tensors.grads(config), make, arrays)
