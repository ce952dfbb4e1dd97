"""The oracle: one MoE layer on all ranks; returns every intermediate.

This module, `layer_grad` and their imports load no JAX: `stages` loads it when
the first stage runs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import functools

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Arrays = Mapping[str, at.Array]
# The type of `stages.run`.
Run = Callable[..., at.Array]


def stage(
  name: str,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  arrays: Arrays,
) -> at.Array:
  """Returns one tensor, see `stages.run`."""
  from hpmoe.reference import stages

  return stages.run(name, config, policy, arrays)


def forward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  x: at.Float[at.Array, 'R T D'],
  topk_ids: at.Int32[at.Array, 'R T K'],
  topk_weights: at.Float[at.Array, 'R T K'],
  w_gate_up: at.Float[at.Array, 'R L D 2*F'],
  w_down: at.Float[at.Array, 'R L F D'],
  *,
  run: Run = stage,
  **parts: at.Array,
) -> dict[str, at.Array]:
  """Runs the layer; shapes and kinds are those of `tensors.FORWARD`.

  Arrays may be JAX's or numpy's.  Pure and jit-able with `config` and `policy`
  static.  Shapes and dtypes are checked, and ids unless they are traced;
  `checks.check_inputs` checks other values.  Under a policy in float64, inputs
  may be narrower.

  Args:
    config: sizes.
    policy: dtypes, placement of the weights, activation.
    x: `[R, T, D]` storage.
    topk_ids: `[R, T, K]` int32.
    topk_weights: `[R, T, K]` float32.
    w_gate_up: `[R, L, D, 2F]` storage, gate columns first.
    w_down: `[R, L, F, D]` storage.
    run: computes one tensor.
    **parts: the layer's further tensors of `tensors.inputs`, and the scales of
      rows that `policy.static_scales` names.

  Returns:
    Every tensor of `tensors.PLAN` and `tensors.stages` by its name.

  Raises:
    ValueError: an array is not as above, the ids are not a valid routing, or
      the policy is in float64 and jax_enable_x64 is off.
  """
  arrays = (x, topk_ids, topk_weights, w_gate_up, w_down)
  inputs = dict(zip(tensors.INPUTS, arrays, strict=True)) | parts
  names = (*tensors.inputs(config), *policy.static_scales)
  for name in {*parts} - {*names}:
    raise ValueError(f'{name}: expected only {", ".join(names)}, got it too')
  return _run(config, policy, inputs, run)


def sublayer(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  inputs: Arrays,
  *,
  run: Run = stage,
) -> dict[str, at.Array]:
  """Runs the sub-layer that `config.sublayer` names, as `forward` the layer.

  Args:
    config: sizes.
    policy: dtypes, epsilon, activation.
    inputs: the tensors of `tensors.inputs`; of `activation` `[R, N, F]`, rows
      past those of the plan are not read.
    run: computes one tensor.

  Returns:
    Every tensor of `tensors.PLAN` and `tensors.stages` by its name.

  Raises:
    ValueError: as in `forward`, or routing weights are not applied at combine.
  """
  if policy.placement != 'combine':
    raise ValueError(
      f'placement: expected combine of a sub-layer, got {policy.placement!r}'
    )
  return _run(config, policy, inputs, run)


def _run(config, policy, inputs: Arrays, run: Run) -> dict[str, at.Array]:
  names = (*tensors.inputs(config), *policy.static_scales)
  checks.check_arrays(config, policy, inputs, names)
  arrays = {name: inputs[name] for name in names}
  make = functools.partial(run, config=config, policy=policy)
  return compute_each(tensors.PLAN + tensors.stages(config), make, arrays)


def name_inputs(
  config: config_lib.MoEConfig, arrays: Sequence[at.Array]
) -> dict[str, at.Array]:
  """Returns the inputs of a layer by name, from arrays in their order.

  Raises:
    ValueError: the number of arrays is wrong.
  """
  names = tensors.inputs(config)
  if len(names) != len(arrays):
    raise ValueError(
      f'arrays: expected {", ".join(names)}, got {len(arrays)} arrays'
    )
  return dict(zip(names, arrays))


def compute_each(
  names: Iterable[str], make: Callable[..., at.Array], arrays: Arrays
) -> dict[str, at.Array]:
  """Returns tensors by name, each computed from `arrays` and earlier ones."""
  outputs: dict[str, at.Array] = {}
  for name in names:
    outputs[name] = make(name, arrays={**arrays, **outputs})
  return outputs
