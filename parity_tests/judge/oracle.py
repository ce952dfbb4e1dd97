"""The oracle of a check: the public functions, with cached compiled stages."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import contextvars
import dataclasses
import functools
from typing import Any

import numpy as np

from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import routing
from hpmoe.reference.contract import array_typing
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import tensors

Tensors = Mapping[str, np.ndarray]

stage = programs.Program('hpmoe.reference.stages:run', 3)
# To multiply takes far longer than to read the product.
_multiply = programs.Program(
  'hpmoe.reference.stages:run', 3, max_result=128 << 20
)
_of_many_dtypes = programs.Program('hpmoe.reference.stages:run', 3)
_uncompiled = programs.Program('hpmoe.reference.stages:run', 3, compiled=False)
_store_rounded = programs.Program(
  'hpmoe.reference.numerics:store', 1, compiled=False
)
# Its module imports JAX, which a check with cached results does without.
_multiply_router_rows = programs.Program(
  'hpmoe.reference.expert_gemm_grad:router_rows_grad', 1, compiled=False
)
# Stages whose bits depend on the activation.
_ACTIVATED = (
  *('activation', 'd_gate_up', 'd_topk_weights'),
  *('x', 'dy', 'd_w_norm'),
)
# The gradient of a weight has the product of its row with a bias.
_WITH_GEMM = {
  *tensors.GEMMS,
  *tensors.TRANSPOSED_GEMMS,
  *tensors.WEIGHT_GRADS,
  'd_topk_weights',
}
_ANY_ACTIVATION = dict(activation='swiglu', alpha=1.0, limit=0.0, offset=0.0)
# Fields on which no plan depends.
_ANY_COLUMNS: Mapping[str, Any] = dict(
  d_model=1, d_ff=1, capacity=None, bias=False, d_shared=0, sublayer=False
)


def _run_program(
  name: str,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  arrays: Tensors,
) -> array_typing.Array:
  program = _multiply if name in tensors.GEMMS else stage
  return program(name, config, policy, arrays)


_run_stage = contextvars.ContextVar[Callable]('run', default=_run_program)


@dataclasses.dataclass(frozen=True)
class Oracle:
  """One layer on one set of inputs.

  Attributes:
    config: sizes.
    policy: precision.
    inputs: tensors of `tensors.INPUTS`, at least `topk_ids`; for gradients also
      dy, and router_w `[D, E]` and router_logits `[R, T, E]` with a router.
    router: the rule, if the router's GEMM is a part of the layer.
  """

  config: config_lib.MoEConfig
  policy: precision.PrecisionPolicy
  inputs: Tensors
  router: router_lib.Router | None = None

  def forward(self) -> dict[str, np.ndarray]:
    """Returns every tensor of `tensors.PLAN` and `stages` by name.

    Stages of `layer.forward` are compiled one by one: a check judges single
    stages anyway, and a pass as one function takes longer to compile.
    """
    names = (*tensors.inputs(self.config), *self.policy.static_scales)
    inputs = {n: self.inputs[n] for n in names}
    if self.config.sublayer:
      arguments = self.config, self.policy, inputs
      return _to_numpy(layer.sublayer(*arguments, run=_run))
    return _to_numpy(
      layer.forward(self.config, self.policy, **inputs, run=_run)
    )

  def backward(self, forward: Tensors, dy: np.ndarray) -> dict[str, np.ndarray]:
    """Returns every tensor of `tensors.grads`, as `layer_grad.backward` does.

    Args:
      forward: tensors of `INPUTS`, `PLAN` and `STAGES` by name, with all of
        `layer_grad.reads`.
      dy: `[R, T, D]` storage.

    Raises:
      ValueError: a tensor of `layer_grad.reads` is missing.
    """
    arguments = self.config, self.policy
    return _to_numpy(layer_grad.backward(*arguments, forward, dy, run=_run))

  def stage(
    self,
    name: str,
    sources: Tensors,
    policy: precision.PrecisionPolicy | None = None,
  ) -> np.ndarray:
    """Returns a stage or gradient, from captured tensors and the inputs.

    Args:
      name: of the stage.
      sources: captured tensors by name.
      policy: its policy; None: the layer's.

    Raises:
      KeyError: a source of the stage is missing, or the name is an input.
    """
    if name in passes.ROUTER_ROWS:
      return self._compute_router_rows(name, sources, policy or self.policy)
    arrays = {**self.inputs, **self.plan, **sources}
    return np.asarray(_run(name, self.config, policy or self.policy, arrays))

  def _compute_router_rows(
    self, name: str, sources: Tensors, policy: precision.PrecisionPolicy
  ) -> np.ndarray:
    assert self.router is not None  # or nobody asks
    inputs = self.inputs
    if name == passes.ROUTER_ROWS[0]:
      grads = routing.weigh_choice_grad(
        self.router,
        inputs['router_logits'].astype(np.float32),
        inputs.get('router_bias'),
        inputs['topk_ids'],
        sources['d_topk_weights'].astype(np.float32),
      )
    else:
      grads = _multiply_router_rows(
        policy.storing(name),
        np.asarray(sources['d_router_logits']),
        np.asarray(inputs['router_w']),
      )
    return np.asarray(grads)

  @functools.cached_property
  def plan(self) -> dict[str, np.ndarray]:
    """Every tensor of `tensors.PLAN` by name."""
    make = functools.partial(_run, config=self.config, policy=self.policy)
    return _to_numpy(layer.compute_each(tensors.PLAN, make, self.inputs))


def _to_numpy(
  arrays: Mapping[str, array_typing.Array],
) -> dict[str, np.ndarray]:
  return {name: np.asarray(value) for name, value in arrays.items()}


def _run(
  name: str,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  arrays: Tensors,
) -> array_typing.Array:
  """Returns `stages.run`, compiled once for all policies that agree on it."""
  needs = policy.needs(name, config)
  needs += tuple(n for n in tensors.MAY_READ.get(name, ()) if n in arrays)
  arrays = {name: lazy_tensors.load_whole(arrays[name]) for name in needs}
  # Only a copy of x depends on the form of x, as it has its dtype.
  is_copy = tensors.role(name, policy.placement) == 'movement'
  x_form = policy.x_form if is_copy else ''
  policy = dataclasses.replace(
    policy.of_gemm(name),
    accumulation_order='ascending',
    activation_ulp=precision.ACTIVATION_ULP,
    sigmoid_ulp=0.0,
    weight_ulp=0.0,
    x_form=x_form,
    points=precision.points_of(name, policy),
    **{
      field: getattr(policy, field) if name == summed_tensor else 'slot'
      for field, summed_tensor in precision.SUM_ORDERS.items()
    },
    quantised='',
  )
  if tensors.routed(name) not in _ACTIVATED:
    policy = dataclasses.replace(policy, **_ANY_ACTIVATION)
  if name in tensors.PLAN:
    config = dataclasses.replace(config, **_ANY_COLUMNS)
    policy = precision.PrecisionPolicy()
  return _run_stage.get()(name, config, policy, arrays)


@contextlib.contextmanager
def use_stages(run: Callable) -> Iterator[None]:
  """Computes stages by another function inside the context: `stages.run`."""
  token = _run_stage.set(run)
  try:
    yield
  finally:
    _run_stage.reset(token)


@contextlib.contextmanager
def compile_less() -> Iterator[None]:
  """Compiles as little as possible inside the context, with the same bits.

  For stages under a hundred policies: stages without a GEMM, and the rounding
  of a GEMM's result, run operation by operation.  So one program of a GEMM is
  enough for all dtypes that it reads and writes.
  """
  with use_stages(_run_compiling_less):
    yield


def _is_weighted(
  name: str, config: config_lib.MoEConfig, policy: precision.PrecisionPolicy
) -> bool:
  """Says whether a GEMM depends on the placement of routing weights."""
  if name not in tensors.GEMMS:
    return True
  early = name == 'expert_out' and config.bias
  return early or name == tensors.WEIGHTED[policy.placement]


def _run_compiling_less(name, config, policy, sources):
  if not _is_weighted(name, config, policy):
    # One program of a GEMM for all placements.
    policy = dataclasses.replace(policy, placement='combine')
  if tensors.routed(name) not in _WITH_GEMM:
    return _uncompiled(name, config, policy, sources)
  wide = {
    n: a.astype(policy.accumulate)
    for n, a in sources.items()
    if tensors.SPECS[n].role == 'compute'
  }
  sources = {**sources, **wide}
  # A tensor of a dtype of its own is not rounded to storage.
  if name not in precision.POINTS or tensors.SPECS[name].kind != 'storage':
    return _of_many_dtypes(name, config, policy, sources)
  other_points = [p for p in policy.points if not p.startswith(f'{name}=')]
  points = (*other_points, f'{name}={policy.accumulate}')
  unrounded = dataclasses.replace(policy, points=points)
  sums = _of_many_dtypes(name, config, unrounded, sources)
  return _store_rounded(policy.storing(name), np.asarray(sums))
