"""A workload's inputs as those of one rank's layer.

Experts that are not on the rank have no slot, and those of the rank that no
token chose are left out: neither has a part in the output.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, Self

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.definitions import input_kinds as kinds_lib
from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.reference import routing
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import tensors
from hpmoe.reference.quantised import quantise

_BLOCK = 128
_MOST_NAMED = 8  # experts that a line lists
# A weight of x is one of gate, of its silu and of up.
_TIMES_OF_INPUT = 3
_NVFP4_GROUP = 16
Inputs = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Routing:
  """Which experts tokens go to, of all ranks.

  Attributes:
    ids: `[T, K]` int32.
    weights: `[T, K]` float32.
    undecided: the choices that rounding allows, of tokens with several.
    weight_ulp: how far weights of a right kernel may be off.
  """

  ids: at.Int32[np.ndarray, 'T K']
  weights: at.Float[np.ndarray, 'T K']
  undecided: Mapping[int, list[tuple[int, ...]]]
  weight_ulp: float


@dataclasses.dataclass(frozen=True)
class Layer:
  """A definition's inputs by their roles.

  Attributes:
    kind: of the definition.
    inputs: of a workload, by their names in the definition.
    router: the rule; None: ids and weights are inputs.
  """

  kind: kinds_lib.Kind
  inputs: Inputs
  router: router_lib.Router | None

  @classmethod
  def from_inputs(
    cls, kind: kinds_lib.Kind, name: str, inputs: Inputs
  ) -> 'Layer':
    """Returns the layer of a definition `name` with these inputs.

    Raises:
      ValueError: sizes do not suit.
    """
    numbers = kind.read_numbers(name)
    router = None
    if kind.rule:
      scale = inputs.get(kind.tensors.get('scale', ''), kind.factor)
      router = router_lib.Router(kind.rule, scale=float(scale), **numbers)
      router.check(inputs[kind.tensors['logits']].shape[-1])
    return cls(kind, inputs, router)

  def get(self, role: str) -> Any:
    """Returns the input of a role; None: the kind has none."""
    return self.inputs.get(self.kind.tensors.get(role, ''))

  def route(self) -> Routing:
    """Returns the routing, its weights rounded from float64."""
    if self.router is None:
      return Routing(*self._read_routing(), {}, 0.0)
    logits, bias = self.get('logits'), self.get('bias')
    ids = self._choose()
    undecided = router_limits.find_undecided(
      self.router, router_limits.bound_scores(self.router, logits, bias)
    )
    ulp = router_limits.bound_weight_ulp(self.router, logits, bias, ids)
    times = _TIMES_OF_INPUT if self.kind.weighs_input else 1
    return Routing(ids, self.weigh(ids), undecided, times * ulp)

  def _choose(self) -> np.ndarray:
    """Returns the experts `[T, K]` that the rule chooses in float32."""
    assert self.router is not None  # `route`
    logits, bias = self.get('logits'), self.get('bias')
    return routing.route(
      self.router,
      logits[None].astype(np.float32),
      None if bias is None else bias.astype(np.float32),
    ).topk_ids[0]

  def weigh(self, ids: at.Int[np.ndarray, 'T K']) -> np.ndarray:
    """Returns the weights `[T, K]` float32 of chosen experts `[T, K]`."""
    assert self.router is not None  # `route`
    bias = self.get('bias')
    weights = routing.weigh_choice(
      self.router,
      self.get('logits').astype(np.float64),
      None if bias is None else bias.astype(np.float64),
      ids,
    )
    return weights.astype(np.float32)

  def _read_routing(self) -> tuple[np.ndarray, np.ndarray]:
    packed_ids = self.get('packed_ids')
    if packed_ids is None:
      ids, weights = self.get('ids'), self.get('topk_weights')
      return ids.astype(np.int32), weights.astype(np.float32)
    bits = (packed_ids & 0xFFFF).astype(np.uint16)
    weights = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    return (packed_ids >> 16).astype(np.int32), weights

  @property
  def _num_held(self) -> int:
    return self.get('w_gate_up').shape[0]

  @property
  def _first_expert(self) -> int:
    return int(self.get('first_expert') or 0)

  def _find_local(self, choice: Routing) -> tuple[np.ndarray, np.ndarray]:
    """Returns local numbers of experts `[T, K]`, and which are held here."""
    local = choice.ids - self._first_expert
    return local, (local >= 0) & (local < self._num_held)

  def move_to_busiest_rank(self) -> Self:
    """Returns the layer of another rank: of the one with the most rows.

    Not of the first, whose kernel may ignore the offset of its experts, but
    where all rows are the first's.
    """
    name = self.kind.tensors.get('first_expert')
    if name is None or self.router is None:
      return self
    rows = np.bincount(self._choose().ravel() // self._num_held)
    rank = 1 + int(rows[1:].argmax()) if rows[1:].any() else 0
    first = rank * self._num_held
    return dataclasses.replace(self, inputs={**self.inputs, name: first})

  def describe_experts(self, choice: Routing) -> str:
    """Returns which experts of the definition a report's numbers stand for."""
    local, is_local = self._find_local(choice)
    experts = self._first_expert + np.unique(local[is_local])
    served = int(is_local.any(axis=-1).sum())
    text = f'{served} of {len(local)} tokens have an expert here'
    if not len(experts):
      return f'{text}: every output must be 0'
    listing = ', '.join(map(str, experts[:_MOST_NAMED]))
    listing += '' if len(experts) <= _MOST_NAMED else ', ...'
    return (
      f'{text}; experts 0 to {len(experts) - 1} of this report are experts '
      f'{listing} of the definition'
    )

  def make_arrays(self, choice: Routing) -> dict[str, np.ndarray]:
    """Returns the inputs of one rank's layer, by the contract's names.

    Args:
      choice: the experts and weights.

    Raises:
      ValueError: an expert is none, or a block of scales is cut.
    """
    local, is_local = self._find_local(choice)
    used_experts = np.unique(local[is_local])
    if not used_experts.size:
      used_experts = np.zeros(1, np.int64)
    numbers = np.full(self._num_held, tensors.UNUSED, np.int32)
    numbers[used_experts] = np.arange(len(used_experts))
    ids = np.where(is_local, numbers[np.where(is_local, local, 0)], -1)
    weights = np.where(is_local, choice.weights, 0.0)
    factors = np.ones((len(ids), 1), np.float32)
    if self.kind.weighs_input:  # each token has one expert
      factors = choice.weights.astype(np.float32)
      weights = np.where(is_local, 1.0, 0.0)
    # Slots that are used come first, and as many are kept as a token uses.
    order = np.argsort(~is_local, axis=-1, kind='stable')
    order = order[:, : max(1, int(is_local.sum(-1).max(initial=0)))]
    return (
      dict(
        topk_ids=np.take_along_axis(ids, order, -1)[None].astype(np.int32),
        topk_weights=np.take_along_axis(weights, order, -1)[None].astype(
          np.float32
        ),
      )
      | self._make_x(factors)
      | self._make_gate_up(used_experts)
      | self._make_down(used_experts)
    )

  def _make_x(self, factors: np.ndarray) -> dict[str, np.ndarray]:
    """Returns x, or its codes and scales, times factors `[T, 1]`."""
    x, scales = self.get('x'), self.get('x_scales')
    if self.kind.is_nvfp4:
      return dict(x=_read_nvfp4(x, scales)[None])
    if not self.kind.x_form:
      return dict(x=(x.astype(np.float32) * factors)[None])
    if scales is None:
      by_token = factors
    elif np.ndim(scales) == 0:  # one number of all tokens
      by_token = np.full((x.shape[0], 1), scales, np.float32)
    else:
      by_token = np.ascontiguousarray(scales.T)
    return dict(x_codes=x[None], x_scales=self._multiplier(by_token)[None])

  def _make_gate_up(self, experts: np.ndarray) -> dict[str, np.ndarray]:
    matrices = self.get('w_gate_up')
    half = matrices.shape[1] // 2
    if self.kind.is_nvfp4:
      read = [self._read_gate_up(e, half) for e in experts]
      return dict(w_gate_up=np.stack(read)[None])
    weights = np.stack([_gate_first(matrices[e], half).T for e in experts])
    if not self.kind.weights:
      return dict(w_gate_up=weights.astype(np.float32)[None])
    scales = self.get('gate_up_scales')
    if scales is None:
      gate, up = self.get('gate_scales'), self.get('up_scales')
      by_column = np.stack([np.repeat([gate[e], up[e]], half) for e in experts])
    elif scales.ndim == 1:
      by_column = np.repeat(scales[experts][:, None], 2 * half, 1)
    else:
      if half % _BLOCK:
        raise ValueError(
          f'definition: expected F to be a multiple of {_BLOCK}, so that '
          f'gate and up share no scale, got {half}'
        )
      blocks = half // _BLOCK
      by_block = [_gate_first(scales[e], blocks).T for e in experts]
      return self._coded('w_gate_up', weights, np.stack(by_block))
    return self._coded('w_gate_up', weights, by_column[:, None])

  def _read_gate_up(self, expert: int, half: int) -> np.ndarray:
    """Returns `[D, 2F]` float32, gate first, of codes in NVFP4."""
    rows = _read_nvfp4(
      self.get('w_gate_up')[expert], self.get('gate_up_scales')[expert]
    )
    rows = rows if self.kind.gate_first else _gate_first(rows, half)
    rows[:half] *= self.get('gate_scales')[expert]
    rows[half:] *= self.get('up_scales')[expert]
    return rows.T

  def _make_down(self, experts: np.ndarray) -> dict[str, np.ndarray]:
    matrices, scales = self.get('w_down'), self.get('down_scales')
    if self.kind.is_nvfp4:
      factors = self.get('down_factors')
      read = [
        (_read_nvfp4(matrices[e], scales[e]) * factors[e]).T for e in experts
      ]
      return dict(w_down=np.stack(read)[None])
    weights = np.stack([matrices[e].T for e in experts])
    if not self.kind.weights:
      return dict(w_down=weights.astype(np.float32)[None])
    if scales.ndim == 1:
      by_column = np.repeat(scales[experts][:, None], matrices.shape[1], 1)
      return self._coded('w_down', weights, by_column[:, None])
    by_block = np.stack([scales[e].T for e in experts])
    return self._coded('w_down', weights, by_block)

  def _coded(
    self, name: str, codes: np.ndarray, scales: np.ndarray
  ) -> dict[str, np.ndarray]:
    scales = self._multiplier(np.ascontiguousarray(scales))
    codes = np.ascontiguousarray(codes)
    return {f'{name}_codes': codes[None], f'{name}_scales': scales[None]}

  def _multiplier(self, scales: np.ndarray) -> np.ndarray:
    """Returns float32 factors of codes."""
    scales = scales.astype(np.float32)
    return np.float32(1) / scales if self.kind.divides else scales


def _gate_first(rows: np.ndarray, half: int) -> np.ndarray:
  """Returns rows `[2n, ...]`, the first half, which is up's, behind gate's."""
  return np.concatenate([rows[half:], rows[:half]])


def _read_nvfp4(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
  """Returns `[n, X]` float32, exactly, of bytes `[n, X/2]`, low half first.

  Scales are `[n, X/16]`.
  """
  values = quantise.unpack(quantised.FORMS['nvfp4'], codes).astype(np.float32)
  return values * np.repeat(scales.astype(np.float32), _NVFP4_GROUP, axis=-1)
