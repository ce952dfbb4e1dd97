"""The routing task of a kernel: its rule, its inputs and the right routing."""

from collections.abc import Iterator, Mapping
import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.explain import routing_mistakes
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.router import grad_mistakes
from hpmoe.parity_tests.judge.router import router_data
from hpmoe.parity_tests.judge.router import router_grads
from hpmoe.parity_tests.judge.router import router_logits
from hpmoe.reference import routing as routing_lib
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import tensors as tensors_lib

_LOGITS = router_logits.LOGITS
U = ulp.unit_roundoff('float32')


@dataclasses.dataclass(frozen=True)
class Routing:
  """Experts and weights.

  Attributes:
    ids: `[R, T, K]` int32.
    weights: `[R, T, K]` float32.
    weight_ulp: the largest error of a kernel's weights.
  """

  ids: at.Int32[np.ndarray, 'R T K']
  weights: at.Float[np.ndarray, 'R T K']
  weight_ulp: float


@dataclasses.dataclass(frozen=True)
class Task:
  """The routing task of a kernel.

  Attributes:
    router: the rule.
    inputs: logits and bias.
    layer: all other inputs by name; None: they are drawn.
    gemm: the GEMM of the logits, if the kernel computes them.
    spread: `[R, T, E]`, the largest errors of its logits; None: zero.
  """

  router: router_lib.Router
  inputs: router_data.RouterInputs
  layer: Mapping[str, np.ndarray] | None = None
  gemm: router_logits.RouterGemm | None = None
  spread: at.Float[np.ndarray, 'R T E'] | None = None

  @classmethod
  def from_case(cls, case: case_lib.Case) -> 'Task':
    """Returns the task of a case with a router.

    Raises:
      ValueError: the router does not suit the case.
    """
    if case.routing != 'text' and case.router_gemm:
      raise ValueError(
        'routing: expected text with --router_gemm, whose logits follow from '
        f'x, got {case.routing}'
      )
    if case.input is not None:
      return cls._from_inputs(case, _read_inputs(case.input))
    config, policy = case.estimate_sizes()
    router = router_lib.parse_router(case.router, config.top_k)
    plain = dataclasses.replace(case, router='', router_gemm=False)
    if not case.router_gemm:
      ids = None
      if case.routing != 'text':
        ids = _require_whole(case, plain.make().arrays['topk_ids'])
      return cls(router, router_data.draw(config, router, case.seed, ids))
    x = np.array(plain.make().arrays['x'])
    experts = config.num_experts
    weights_and_bias = router_data.draw_weights(
      policy, router, x, experts, case.seed
    )
    return cls._from_gemm(router, policy, x, *weights_and_bias)

  @classmethod
  def _from_inputs(
    cls, case: case_lib.Case, arrays: Mapping[str, np.ndarray]
  ) -> 'Task':
    layer = dict(arrays)
    read, axes = ('router_w', 2) if case.router_gemm else (_LOGITS, 3)
    array, bias = layer.pop(read, None), layer.pop('router_bias', None)
    if array is None or np.ndim(array) != axes:
      shape = '[D, E]' if case.router_gemm else '[R, T, E]'
      raise ValueError(
        f'input: expected {read} {shape} with --router, got {sorted(arrays)}'[
          :200
        ]
      )
    for name in (*tensors_lib.ROUTING, _LOGITS):
      if name in layer:
        raise ValueError(f'input: expected {read} in place of {name}, got both')
    router = router_lib.parse_router(case.router)
    router.check(array.shape[-1])
    own_bias = _read_bias(bias, array.shape[-1])
    if case.router_gemm:
      _, policy = case.estimate_sizes()
      x = layer['x']
      policy = dataclasses.replace(policy, storage=str(x.dtype))
      if x.shape[-1:] != array.shape[:1]:
        raise ValueError(
          f'router_w: expected {x.shape[-1]} rows, as x has columns, got '
          f'{list(array.shape)}'
        )
      return cls._from_gemm(router, policy, x, array, own_bias, layer)
    wide = np.asarray(array, np.float32)
    checks.check_scores(wide)
    return cls(router, router_data.RouterInputs(wide, own_bias), layer)

  @classmethod
  def _from_gemm(
    cls, router, policy, x, router_w, bias=None, layer=None
  ) -> 'Task':
    adds_bias = router.table.bias == 'logits'
    checks.check_finite('router_w', router_w)
    checks.check_finite('x', x)
    if adds_bias and bias is not None:
      checks.check_finite('router_bias', bias)
    gemm = router_logits.RouterGemm(policy, x, router_w, bias, adds_bias)
    logits, spread = gemm.bound_logits()
    later_bias = None if adds_bias else bias
    inputs = router_data.RouterInputs(logits, later_bias)
    return cls(router, inputs, layer, gemm, spread)

  def follow(self, own_logits: np.ndarray | None) -> 'Task':
    """Returns the task of a kernel that computed logits `[R, T, E]`.

    If they are None or not finite, any kernel's choices stay possible.
    """
    if own_logits is None or not np.isfinite(own_logits).all():
      return self
    logits = own_logits.astype(np.float64)
    inputs = dataclasses.replace(self.inputs, logits=logits)
    return dataclasses.replace(self, inputs=inputs, spread=None)

  @functools.cached_property
  def undecided(self) -> dict[int, list[tuple[int, ...]]]:
    """The possible choices of each token `[R T]` that has several."""
    return router_limits.find_undecided(self.router, self.scores)

  @functools.cached_property
  def scores(self) -> router_limits.Scores:
    """The scores by which all tokens `[R T]` choose experts."""
    logits = self.inputs.logits
    flat = logits.reshape(-1, logits.shape[-1])
    spread = None if self.spread is None else self.spread.reshape(flat.shape)
    return router_limits.bound_scores(
      self.router, flat, self.inputs.bias, spread
    )

  @property
  def stored_logits(self) -> np.ndarray:
    """`[R, T, E]`, the logits as the GEMM stores them."""
    assert self.gemm is not None  # or nobody stores them
    dtype = self.gemm.policy.dtype(_LOGITS)
    return self.inputs.logits.astype(ulp.storage_dtype(dtype))

  @property
  def through_router(self) -> tuple[Any, ...]:
    """What `pass_case.PassCase.with_router` takes; (): no GEMM."""
    if self.gemm is None:
      return ()
    arrays = {'router_w': self.gemm.router_w, _LOGITS: self.stored_logits}
    if self.inputs.bias is not None:
      arrays['router_bias'] = self.inputs.bias
    return self.router, arrays

  def list_factors(
    self,
    case: pass_case.PassCase,
    d_weights: at.Float[np.ndarray, 'R T K'],
  ) -> grad_mistakes.Inputs:
    """Returns what gradients of logits are made of in a backward pass."""
    ids = case.inputs.arrays['topk_ids']
    logits, bias = self.inputs.logits, self.inputs.bias
    return grad_mistakes.Inputs(self.router, logits, bias, ids, d_weights)

  @property
  def weight_grads(self) -> tuple[str, ...]:
    """The gradients of weights of the router that a kernel may return."""
    if self.gemm is None:
      return (router_grads.OF_BIAS,) * self.bias_has_grad
    names = router_grads.OF_WEIGHTS, router_grads.OF_BIAS
    return names[: 1 + self.bias_has_grad]

  @property
  def bias_has_grad(self) -> bool:
    """Whether the bias is one of the logits, and not of the choice alone."""
    bias = self.inputs.bias if self.gemm is None else self.gemm.bias
    return bias is not None and self.router.table.bias == 'logits'

  @property
  def weight_ulp(self) -> float:
    """The largest error of routing weights, in float32 roundings."""
    return router_limits.count_float32_roundings(
      self.router, self.inputs.logits, self.inputs.bias
    )

  def route(self) -> Routing:
    """Returns the right routing."""
    ids = routing_lib.route(
      self.router, self.inputs.logits, self.inputs.bias
    ).topk_ids
    return self.weigh_float32(ids)

  def weigh_float32(self, ids: np.ndarray) -> Routing:
    """Returns the routing to some experts `[R, T, K]`."""
    wide = self.weigh(ids)
    bias = self.inputs.bias
    arguments = self.inputs.logits, bias, ids, self.spread
    units = router_limits.bound_weight_ulp(self.router, *arguments)
    return Routing(ids.astype(np.int32), wide.astype(np.float32), units)

  def spread_weights(self, ids: np.ndarray) -> np.ndarray:
    """Returns the errors of weights `[R, T, K]` due to those of logits."""
    bias = self.inputs.bias
    arguments = self.inputs.logits, bias, ids, self.spread
    return router_limits.spread_weights(self.router, *arguments)

  def weigh(self, ids: np.ndarray) -> np.ndarray:
    """Returns weights `[R, T, K]` float64 of some experts `[R, T, K]`."""
    bias = self.inputs.bias
    return routing_lib.weigh_choice(
      self.router,
      self.inputs.logits.astype(np.float64),
      None if bias is None else bias.astype(np.float64),
      ids,
    )

  def find_invalid(self, ids: np.ndarray) -> np.ndarray:
    """Returns bool, ids `[R, T, K]` that are no experts, or duplicates."""
    return router_limits.find_invalid(ids, self.inputs.logits.shape[-1])


def _require_whole(case: case_lib.Case, ids: np.ndarray) -> np.ndarray:
  """Returns ids if each slot has an expert, as a router's have."""
  if (ids < 0).any():
    raise ValueError(
      f'routing: expected one that uses every slot with --router={case.router},'
      f' got {case.routing}'
    )
  return np.array(ids)


def _read_bias(
  bias: np.ndarray | None, num_experts: int
) -> at.Float[np.ndarray, 'E'] | None:
  """Returns a bias `[E]`; -inf is that of an expert that nobody may choose.

  Raises:
    ValueError: it has another shape, NaN or infinity.
  """
  if bias is None:
    return None
  narrow = np.asarray(bias, np.float32)
  if narrow.shape != (num_experts,):
    raise ValueError(
      f'router_bias: expected [{num_experts}], got {[*narrow.shape]}'
    )
  checks.check_finite('router_bias', np.where(np.isneginf(narrow), 0, narrow))
  return narrow


def _read_inputs(source: str | Mapping) -> dict[str, np.ndarray]:
  """Returns inputs by name, of a file or as they are."""
  if isinstance(source, Mapping):
    return {n: np.asarray(a) for n, a in source.items()}
  bits = tensor_files.read(pathlib.Path(source))[0]
  return {name: read_case.as_numpy(array) for name, array in bits.items()}


def list_wrong_weights(
  task: Task, ids: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields known mistakes of weights `[R, T, K]`, with a description."""
  return routing_mistakes.list_wrong_weights(
    task.router, task.inputs.logits, task.inputs.bias, ids
  )
