"""One MoE layer in two runs: where they choose otherwise, why, what that costs.

What a layer reads may part by `find_limit` of its size, in the median over
tokens: a measured limit, not a derived one.  The median, since a token whose
experts differ in a layer before parts by far more.
"""

import dataclasses
import functools

import numpy as np

from hpmoe.models import parameters
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.parity_tests.agreement import choices as choices_lib
from hpmoe.parity_tests.agreement import expert_pairs
from hpmoe.parity_tests.agreement import replay
from hpmoe.parity_tests.agreement import runs
from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference import routing
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import router as router_lib

NAN = float('nan')
# Roundings by which a right module may part, as `compare/run_diff.py` has them.
_FACTORS = {2.0**-53: 64.0, 2.0**-24: 32.0}
_NARROW_FACTOR = 8.0
# Tokens whose y is computed, beside one of each expert.
_SAMPLE = 32


@dataclasses.dataclass(frozen=True)
class First:
  """The first token of a layer whose experts differ.

  Attributes:
    token: its row.
    slot: the first slot of left's that right has not.
    left, right: experts `[K]`.
    reason: see `choices`.
  """

  token: int
  slot: int
  left: tuple[int, ...]
  right: tuple[int, ...]
  reason: str


@dataclasses.dataclass(frozen=True)
class Row:
  """One layer.

  Attributes:
    name: of the block.
    number: of the layer.
    tokens: that both runs have.
    choices: of experts.
    first: token that differs; None: none does.
    x_apart: the median over tokens of how far what it reads is apart.
    y_apart: how far y is apart, relatively.
    y_replayed: the same, once the right has the left's experts.
    alone: how far the right's y is from float64 on what it read, under the
      left's weights (the right's, if they have more bits), in parts of the
      limit; above 1: no rounding explains it.
    faults: what is wrong, a line each.
    notes: what could not be told.
  """

  name: str
  number: int
  tokens: int
  choices: choices_lib.Choices
  first: First | None
  x_apart: float
  y_apart: float
  y_replayed: float
  alone: float
  faults: tuple[str, ...]
  notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Model:
  """The weights of a folder, for what dumps lack.

  Attributes:
    weights: of the folder; None: there is none.
  """

  weights: weights_lib.Weights | None = None

  def read(self, number: int, role: str) -> np.ndarray | None:
    """Returns a weight of a layer in a role of `runs.OF_LAYER`, or None."""
    if self.weights is None or number < 0:
      return None
    config = self.weights.config
    block = f'model.layers.{number}.{config.family.block}'
    gate = f'{block}.{config.family.gate}'
    name = {
      'router_weight': f'{gate}.weight',
      'router_bias': f'{gate}.bias',
      'choice_bias': f'{gate}.e_score_correction_bias',
    }.get(role, f'{parameters.experts_prefix(config, number)}{role}')
    return self.weights.read(name) if name in self.weights.specs else None


def find_limit(unit: float, number: int) -> float:
  """Returns how far what a layer reads may part, relatively.

  Args:
    unit: roundoff of the run.
    number: of the layer: roundings of the layers before add up.
  """
  factor = _FACTORS.get(unit, _NARROW_FACTOR)
  return factor * unit * float(np.sqrt(2 * max(number, 0) + 2))


def compare(
  router: router_lib.Router | None,
  left: runs.Layer,
  right: runs.Layer,
  rows: runs.Rows,
  model: Model,
  is_first_fault: bool = True,
) -> Row:
  """Returns what parts a layer of two runs.

  Args:
    router: the rule; None: it is not known.
    left: the reference.
    right: the candidate.
    rows: the tokens of both.
    model: for what the dumps lack.
    is_first_fault: whether no layer before has one, so that what this layer
      reads must agree.

  Raises:
    ValueError: ids are no experts.
  """
  return _Comparison(router, left, right, rows, model, is_first_fault).run()


class _Comparison:
  """The tensors of a layer, each read once."""

  def __init__(self, router, left, right, rows, model, is_first_fault):
    self._router, self._rows, self._model = router, rows, model
    self._layers = left, right
    self._is_first_fault = is_first_fault
    self._bias = model.read(right.number, 'choice_bias')
    self._faults: list[str] = []
    self._notes: list[str] = []

  def run(self) -> Row:
    routers, experts = self._compare_weights()
    order = self._find_order(routers, experts)
    left, right = self._read_sides()
    if order is not None:
      right = _renumber(right, order)
    is_other_router = bool(routers.text) and order is None
    if left.router is not None and (right.router is None or is_other_router):
      right = dataclasses.replace(right, router=left.router)
    choices = choices_lib.compare(self._router, left, right, self._bias)
    if not is_other_router:
      self._name_wrong_router(choices, left, right)
    y_apart, y_replayed, alone = self._measure_y(left, right, choices, order)
    return Row(
      name=self._layers[1].name,
      number=self._layers[1].number,
      tokens=len(right.ids),
      choices=choices,
      first=_find_first(choices, left, right),
      x_apart=self._measure_x(left, right),
      y_apart=y_apart,
      y_replayed=y_replayed,
      alone=alone,
      faults=tuple(self._faults),
      notes=tuple(self._notes),
    )

  def _measure_x(self, left, right) -> float:
    """Returns how far what the layer reads is apart; names what is too far."""
    if left.x is None or right.x is None or left.x.shape != right.x.shape:
      return NAN
    x_apart = float(np.median(replay.measure_tokens(left.x, right.x)))
    units = [ulp.unit_roundoff(str(side.x.dtype)) for side in (left, right)]
    limit = find_limit(max(units), self._layers[1].number)
    if x_apart > limit and self._is_first_fault:
      self._faults.append(
        f'its input differs by {x_apart:.2g} of its size; rounding explains '
        f'{limit:.2g}: an earlier module is wrong'
      )
    return x_apart

  def _measure_y(
    self, left, right, choices, order
  ) -> tuple[float, float, float]:
    """Returns how far y is apart, with left's experts too, and how wrong."""
    y = [
      layer.read_rows('y', rows)
      for layer, rows in zip(
        self._layers, (self._rows.left, self._rows.right), strict=True
      )
    ]
    if y[1] is None:
      return NAN, NAN, NAN
    alone = self._judge_experts(right, y[1], order)
    if y[0] is None or y[0].shape != y[1].shape:
      return NAN, NAN, alone
    y_apart = replay.measure_distance(y[0], y[1])
    replayed = self._replay(left, right, y[1], choices, order)
    if replayed is None:
      return y_apart, NAN, alone
    return y_apart, replay.measure_distance(y[0], replayed), alone

  def _read_sides(self) -> tuple[choices_lib.Side, choices_lib.Side]:
    numbers = self._rows.left, self._rows.right
    left, right = (
      self._read_side(layer, rows)
      for layer, rows in zip(self._layers, numbers, strict=True)
    )
    if left.ids.shape != right.ids.shape:
      raise ValueError(
        f'right: expected {left.ids.shape[1]} experts a token in '
        f'{self._layers[1].name}, got {right.ids.shape[1]}'
      )
    return left, right

  def _read_side(self, layer: runs.Layer, rows) -> choices_lib.Side:
    ids = layer.read_rows('topk_ids', rows)
    if ids is None:
      raise ValueError(
        f'{layer.name}: expected ids of {len(rows)} tokens, got fewer'
      )
    logits = layer.read_rows('logits', rows)
    experts = int(ids.max(initial=0)) + 1 if logits is None else logits.shape[1]
    if router_limits.find_invalid(ids, experts).any():
      raise ValueError(
        f'{layer.name}: expected different experts below {experts} for each '
        f'token, got {ids.min()} to {ids.max()}'
      )
    router, shift = (
      self._read_router(layer, role, logits)
      for role in ('router_weight', 'router_bias')
    )
    return choices_lib.Side(
      ids.astype(np.int64),
      layer.read_rows('topk_weights', rows),
      layer.read_rows('x', rows),
      logits,
      router,
      shift,
    )

  def _read_router(
    self, layer: runs.Layer, role: str, logits: np.ndarray | None
  ) -> np.ndarray | None:
    """Returns a weight of a router; the folder's is in the logits' dtype."""
    array = layer.read_weight(role)
    if array is not None:
      return array
    array = self._model.read(layer.number, role)
    if array is None or logits is None:
      return array
    return _round_to(array, logits.dtype)

  def _compare_weights(
    self,
  ) -> tuple[expert_pairs.Difference, expert_pairs.Difference | None]:
    """Returns what parts routers, and experts where both are there."""
    pair = [layer.read_weight('router_weight') for layer in self._layers]
    routers = expert_pairs.Difference()
    if pair[0] is not None and pair[1] is not None:
      routers = expert_pairs.compare_routers(*pair)
    experts = None
    for role in ('w_gate_up', 'w_down'):
      slabs = [layer.read_weight(role) for layer in self._layers]
      if slabs[0] is None or slabs[1] is None:
        continue
      difference = expert_pairs.compare_experts(*slabs)
      if experts is None or (difference.text and not experts.text):
        experts = difference
    return routers, experts

  def _find_order(
    self,
    routers: expert_pairs.Difference,
    experts: expert_pairs.Difference | None,
  ) -> np.ndarray | None:
    """Returns the left's expert of each of the right's, if it is but an order.

    Names what is more than an order.
    """
    order = routers.order
    own_order = None if experts is None else experts.order
    if order is not None and _are_equal(order, own_order):
      self._notes.append(f'{routers.text}, alike in experts and router')
      if experts is not None and experts.rest:
        self._faults.append(f'expert weights: {experts.rest}')
      return order
    if routers.text:
      self._faults.append(f'router weights: {routers.text}')
    if experts is not None and experts.text:
      suffix = '' if routers.text else ', but the router is not'
      is_order = experts.order is not None
      self._faults.append(
        f'expert weights: {experts.text}{suffix if is_order else ""}'
      )
    return None

  def _name_wrong_router(self, choices, left, right) -> None:
    if self._router is None:
      return
    for name, side in (('left', left), ('right', right)):
      text = choices_lib.find_wrong_scores(self._router, side, self._bias)
      text = text or choices_lib.find_wrong_logits(side)
      if not text and choices.wrong.get(name):
        count = len(choices.wrong[name])
        text = f'{count} unexplained choices: {choices.texts[name]}'
      if text:
        self._faults.append(f'router of {name}: {text}')

  def _read_slabs(
    self, sides: tuple[int, ...], ids: np.ndarray
  ) -> list[np.ndarray] | None:
    """Returns the experts' weights of the first side that has those of ids.

    A rank may hold a part of the experts.
    """
    number = self._layers[1].number
    sources = [self._layers[side].read_weight for side in sides]
    sources.append(lambda role: self._model.read(number, role))
    for read in sources:
      slabs = [read(role) for role in ('w_gate_up', 'w_down')]
      if slabs[0] is None or slabs[1] is None:
        continue
      if len(slabs[0]) > ids.max(initial=-1):
        return [slabs[0], slabs[1]]
    self._note('no weights of all experts: --model names their folder')
    return None

  def _note(self, text: str) -> None:
    if text not in self._notes:
      self._notes.append(text)

  def _replay(self, left, right, y, choices, order) -> np.ndarray | None:
    """Returns the right's y with the left's experts."""
    tokens = np.flatnonzero(choices.is_other)
    if not tokens.size:
      return y
    slabs = self._read_slabs((1, 0), np.stack([left.ids, right.ids]))
    if slabs is None or right.x is None or right.weights is None:
      return None
    if self._router is None or right.logits is None:
      self._note(
        'not replayed: no rule or no logits from which the weights follow'
      )
      return None
    weights = routing.weigh_choice(
      self._router,
      right.logits[tokens].astype(np.float64),
      self._bias,
      left.ids[tokens],
    )
    x = right.x[tokens]
    slabs = _renumber_slabs(slabs, order)
    own, _ = replay.compute_y(
      x, right.ids[tokens], right.weights[tokens], *slabs
    )
    other, _ = replay.compute_y(x, left.ids[tokens], weights, *slabs)
    result = y.astype(np.float64)
    result[tokens] += other - own
    return result

  @functools.cached_property
  def _has_own(self) -> bool:
    """Whether the right's dump has its experts' weights."""
    roles = 'w_gate_up', 'w_down'
    return all(self._layers[1].read_weight(r) is not None for r in roles)

  def _read_least_rounded(
    self, ids: np.ndarray, size: int, order: np.ndarray | None
  ) -> list[np.ndarray] | None:
    """Returns the left's weights, or the right's if the left's are narrower.

    Both are in the left's numbers of experts.

    Args:
      ids: `[N, K]`.
      size: bytes of an element of x.
      order: see `_find_order`.
    """
    slabs = self._read_slabs((0, 1), ids)
    if slabs is None or slabs[0].dtype.itemsize >= size or not self._has_own:
      return slabs
    own = self._read_slabs((1, 0), ids)
    if own is None or own[0].dtype.itemsize <= slabs[0].dtype.itemsize:
      return slabs
    return _renumber_slabs(own, order)

  def _judge_experts(self, right, y, order) -> float:
    """Returns the largest error of a token's y, in parts of its limit."""
    if right.x is None or right.weights is None:
      return NAN
    slabs = self._read_least_rounded(right.ids, right.x.dtype.itemsize, order)
    if slabs is None or slabs[1].shape[2] != y.shape[1]:
      return NAN
    tokens = _sample_tokens(right.ids)
    narrow = [_round_to(slab, right.x.dtype) for slab in slabs]
    expected, size = replay.compute_y(
      right.x[tokens], right.ids[tokens], right.weights[tokens], *narrow
    )
    unit = ulp.unit_roundoff(str(y.dtype))
    largest = max(unit, *(ulp.unit_roundoff(str(a.dtype)) for a in narrow))
    # Weights that the right's dump lacks may have more bits than these.
    if largest > unit and not self._has_own:
      unit = largest
    factor = _FACTORS.get(unit, _NARROW_FACTOR)
    apart = np.linalg.norm(y[tokens].astype(np.float64) - expected, axis=-1)
    share = apart / np.where(size == 0, 1.0, factor * unit * size)
    worst = int(np.argmax(share))
    if share[worst] > 1:
      self._faults.append(
        "experts: right's y differs by "
        f'{apart[worst] / (size[worst] or 1):.2g} of its size in '
        f'{int((share > 1).sum())} of {len(tokens)} tokens, on its own x, ids '
        f'and weights, first token {int(tokens[share > 1][0])}'
      )
    return float(share[worst])


def _are_equal(left: np.ndarray, right: np.ndarray | None) -> bool:
  return right is not None and np.array_equal(left, right)


def _round_to(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
  """Returns weights in a dtype, if that is narrower."""
  is_narrow = values.dtype.itemsize <= dtype.itemsize
  return values if is_narrow else values.astype(dtype)


def _renumber_slabs(
  slabs: list[np.ndarray], order: np.ndarray | None
) -> list[np.ndarray]:
  """Returns the right's weights in the left's numbers; see `_find_order`."""
  return slabs if order is None else [s[np.argsort(order)] for s in slabs]


def _renumber(side: choices_lib.Side, order: np.ndarray) -> choices_lib.Side:
  """Returns a side in the left's numbers of experts.

  Args:
    side: of the right.
    order: `[E]` the left's expert that each of the right's is.
  """
  place = np.argsort(order)
  logits, router, shift = (
    None if a is None else a[..., place] if a is side.logits else a[place]
    for a in (side.logits, side.router, side.shift)
  )
  return dataclasses.replace(
    side, ids=order[side.ids], logits=logits, router=router, shift=shift
  )


def _find_first(choices, left, right) -> First | None:
  tokens = np.flatnonzero(choices.is_other)
  if not tokens.size:
    return None
  token = int(tokens[0])
  ids = left.ids[token], right.ids[token]
  return First(
    token,
    choices_lib.find_first_slot(*ids),
    tuple(ids[0].tolist()),
    tuple(ids[1].tolist()),
    choices.reasons[0],
  )


def _sample_tokens(
  ids: at.Int[np.ndarray, 'N K'],
) -> at.Int[np.ndarray, 'T']:
  """Returns the first tokens, and one of each expert."""
  _, places = np.unique(ids.reshape(-1), return_index=True)
  return np.unique([*range(min(_SAMPLE, len(ids))), *(places // ids.shape[1])])
