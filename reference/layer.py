"""The oracle: one MoE layer on all ranks, every intermediate returned."""

import jax.numpy as jnp

from hpmoe.reference import combine
from hpmoe.reference import expert_gemm
from hpmoe.reference import movement
from hpmoe.reference import numerics
from hpmoe.reference import swiglu
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision


def forward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  x: at.Float[at.Array, 'R T D'],
  topk_ids: at.Int32[at.Array, 'R T K'],
  topk_weights: at.Float[at.Array, 'R T K'],
  w_gate_up: at.Float[at.Array, 'R L D 2*F'],
  w_down: at.Float[at.Array, 'R L F D'],
) -> dict[str, at.Array]:
  """Runs the layer; shapes and kinds are those of `tensors.FORWARD`.

  Arrays may be JAX's or numpy's.
  Pure and jit-able with `config` and `policy` static.  Values are not checked
  here, see `checks.check_inputs`.  Stored inputs narrower than the policy's
  storage, bfloat16 under a golden policy for one, are widened exactly.

  Args:
    config: sizes.
    policy: dtypes, placement of the weights, activation.
    x: `[R, T, D]` storage.
    topk_ids: `[R, T, K]` int32.
    topk_weights: `[R, T, K]` float32.
    w_gate_up: `[R, L, D, 2F]` storage, gate columns first.
    w_down: `[R, L, F, D]` storage.

  Returns:
    Every tensor of `tensors.PLAN` and `tensors.STAGES` by its name.

  Raises:
    ValueError: an input would be narrowed, or the policy is in float64 and
      jax_enable_x64 is off.
  """
  x, topk_ids, topk_weights, w_gate_up, w_down = map(
    jnp.asarray, (x, topk_ids, topk_weights, w_gate_up, w_down)
  )
  _check_widening(policy, x=x, w_gate_up=w_gate_up, w_down=w_down)
  plan = token_order.plan(config, topk_ids)
  moves = movement.by_address(config, plan, topk_ids)
  x = x.astype(numerics.storage_dtype(policy))
  weights = topk_weights, w_gate_up, w_down
  return plan._asdict() | stages(config, policy, plan, moves, x, *weights)


def stages(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  plan: token_order.Plan,
  moves: movement.Movement,
  x: at.Float[at.Array, 'R T D'],
  topk_weights: at.Float[at.Array, 'R T K'],
  w_gate_up: at.Float[at.Array, 'R L D 2*F'],
  w_down: at.Float[at.Array, 'R L F D'],
) -> dict[str, at.Array]:
  """Returns the tensors of `tensors.STAGES` by name, however rows travel.

  Args:
    config: sizes, as the expert GEMMs see them.
    policy: dtypes, placement of the weights, activation.
    plan: says the GEMMs which expert a row belongs to.
    moves: how rows travel.
    x: `[R, T, D]` storage.
    topk_weights: `[R, T, K]` float32.
    w_gate_up: `[R, L, D, 2F]` storage.
    w_down: `[R, L, F, D]` storage.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  expert_in = moves.dispatch(x)
  gate_up = expert_gemm.expert_gemm(config, policy, plan, expert_in, w_gate_up)
  weight = None
  if policy.placement == 'before_down':
    weight = moves.row_weight(topk_weights)
  activation = swiglu.swiglu(policy, gate_up, weight)
  expert_out = expert_gemm.expert_gemm(config, policy, plan, activation, w_down)
  returned = moves.return_rows(expert_out)
  return dict(
    expert_in=expert_in,
    gate_up=gate_up,
    activation=activation,
    expert_out=expert_out,
    returned=returned,
    y=combine.combine(policy, returned, topk_weights),
  )


def _check_widening(
  policy: precision.PrecisionPolicy, **values: at.Array
) -> None:
  storage = numerics.storage_dtype(policy)
  for name, value in values.items():
    if jnp.promote_types(value.dtype, storage) != storage:
      raise ValueError(
        f'{name}: expected {storage} or narrower, got {value.dtype}'
      )
