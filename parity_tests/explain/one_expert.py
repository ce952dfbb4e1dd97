"""A mistake in one expert, searched where y alone was returned.

The slots that tokens sent to the expert are cut into a layer of one rank, one
expert and one slot a token.  It is computed in float64, so that each known bug
costs a product of the expert's rows.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.explain import element_sizes
from hpmoe.parity_tests.explain import explain
from hpmoe.parity_tests.explain import failed_stage
from hpmoe.parity_tests.explain import known_bugs
from hpmoe.reference.contract import storage

# The stages that are computed again, and what they read.
_READS = {
  'y': ('topk_weights',),
  'expert_out': ('w_down', 'activation'),
  'activation': ('gate_up',),
  'gate_up': ('w_gate_up', 'expert_in'),
}
_GEMMS = (('gate_up', 'w_gate_up'), ('expert_out', 'w_down'))
# Fewer wrong tokens, or elements, say nothing of an expert.
_FEWEST_TOKENS, _FEWEST = 3, 6
# More experts that all wrong tokens chose are not searched.
_MOST_EXPERTS = 3
# Errors below so many roundings of a row are those of its other slots too.
_ROUNDINGS = 32

Activate = Callable[[np.ndarray], np.ndarray]
Arrays = Mapping[str, np.ndarray]


def find_cause(stage: failed_stage.FailedStage, activate: Activate) -> str:
  """Returns the expert and its bug in words, or '' if none explains y.

  Args:
    stage: y, of a layer without biases whose stages were not returned.
    activate: the activation `[n, F]` of gate and up `[n, 2F]`, in float64.
  """
  for expert in _list_suspects(stage):
    part = _cut(stage, expert, activate)
    words = '' if part is None else explain.find_bug(part)
    if words:
      return f'expert {expert}: {words}'
  return ''


def _list_suspects(stage: failed_stage.FailedStage) -> list[int]:
  """Returns experts that all wrong tokens chose; [] if no token is right."""
  ids = stage.tiling.topk_ids
  is_wrong = stage.bad.any(axis=-1)
  is_served = (ids >= 0).any(axis=-1)
  if is_wrong.sum() < _FEWEST_TOKENS or is_wrong[is_served].all():
    return []
  counts = np.bincount(ids[is_wrong][ids[is_wrong] >= 0])
  suspects = np.flatnonzero(counts == is_wrong.sum()).tolist()
  return suspects if len(suspects) <= _MOST_EXPERTS else []


def _cut(
  stage: failed_stage.FailedStage, expert: int, activate: Activate
) -> failed_stage.FailedStage | None:
  """Returns y of the expert's slots `[1, n, D]`; None: too little is wrong."""
  reads = stage.reads
  rank, token, slot = np.nonzero(stage.tiling.topk_ids == expert)
  arrays = {
    'expert_in': _widen(reads['expert_in']['x'][rank, token])[None],
    'topk_weights': _widen(reads['y']['topk_weights'][rank, token, slot]),
  }
  arrays['topk_weights'] = arrays['topk_weights'][None, :, None]
  weights = {name: reads[gemm][name] for gemm, name in _GEMMS}
  arrays |= {n: _take_expert(w, expert) for n, w in weights.items()}
  layer = _Layer(arrays, activate)
  own = layer.compute({})
  actual, expected = (
    _widen(a[rank, token])[None] for a in (stage.actual, stage.expected)
  )
  unit = storage.FORMATS[str(stage.actual.dtype)].unit_roundoff
  sizes = element_sizes.measure_sizes(expected)
  sizes = sizes + element_sizes.measure_sizes(own)
  with np.errstate(invalid='ignore', over='ignore'):
    error = actual - expected
    bad = stage.bad[rank, token][None] & np.isfinite(error + own)
    bad &= np.abs(error) >= _ROUNDINGS * unit * sizes
  if bad.sum() < _FEWEST:
    return None
  return failed_stage.FailedStage(
    'y',
    0,
    error + own,
    own,
    bad,
    {
      name: {n: (arrays | layer.right)[n] for n in names}
      for name, names in _READS.items()
    },
    layer.compute,
    stage.tiling,
    False,
    {},
    variants=[*_list_neighbours(weights, expert, layer)],
  )


def _widen(array: np.ndarray) -> np.ndarray:
  return array.astype(np.float64)


def _take_expert(weight: np.ndarray, expert: int) -> np.ndarray:
  """Returns `[1, 1, X, Y]` float64 of a weight `[R, L, X, Y]`."""
  flat = weight.reshape(-1, *weight.shape[2:])
  return _widen(flat[expert % len(flat)])[None, None]


def _list_neighbours(
  weights: Arrays, expert: int, layer: '_Layer'
) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
  """Yields y of a layer with another expert's weights, with words."""
  for step, noun in ((1, 'next'), (-1, 'previous')):
    neighbours = {n: _take_expert(w, expert + step) for n, w in weights.items()}
    for gemm, name in _GEMMS:
      bugs = {gemm: {name: _replace_by(neighbours[name])}}
      says = f'as if {name} was that of the {noun} expert where {gemm} reads it'
      yield says, known_bugs.EXPERT, functools.partial(layer.compute, bugs)
    all_bugs = {g: {n: _replace_by(neighbours[n])} for g, n in _GEMMS}
    says = f'as if all weights were those of the {noun} expert'
    yield says, known_bugs.EXPERT, functools.partial(layer.compute, all_bugs)


def _replace_by(array: np.ndarray) -> known_bugs.Bug:
  return lambda a: array


@dataclasses.dataclass(frozen=True)
class _Layer:
  """A layer of one expert, in float64.

  Attributes:
    arrays: expert_in `[1, n, D]`, topk_weights `[1, n, 1]`, and the weights
      `[1, 1, X, Y]`.
    activate: see `find_cause`.
  """

  arrays: Arrays
  activate: Activate

  @functools.cached_property
  def right(self) -> dict[str, np.ndarray]:
    """The stages before y `[1, n, X]`, without a bug."""
    return self._compute_stages({})

  def compute(self, bugs: known_bugs.Bugs) -> np.ndarray:
    """Returns y `[1, n, D]` with some bugs."""
    stages = self._compute_stages(bugs) if bugs else self.right
    weights = _change(bugs, 'y', 'topk_weights', self.arrays['topk_weights'])
    with np.errstate(invalid='ignore', over='ignore'):
      return stages['expert_out'] * weights

  def _compute_stages(self, bugs: known_bugs.Bugs) -> dict[str, np.ndarray]:
    def read(stage: str, name: str) -> np.ndarray:
      return _change(bugs, stage, name, {**self.arrays, **stages}[name])

    stages: dict[str, np.ndarray] = {}
    with np.errstate(invalid='ignore', over='ignore'):
      stages['gate_up'] = (
        read('gate_up', 'expert_in') @ read('gate_up', 'w_gate_up')[0]
        if 'gate_up' in bugs or not bugs
        else self.right['gate_up']
      )
      stages['activation'] = self.activate(read('activation', 'gate_up')[0])[
        None
      ]
      rows = read('expert_out', 'activation')
      stages['expert_out'] = rows @ read('expert_out', 'w_down')[0]
    return stages


def _change(
  bugs: known_bugs.Bugs, stage: str, name: str, array: np.ndarray
) -> np.ndarray:
  bug = bugs.get(stage, {}).get(name)
  changed_array = None if bug is None else bug(array)
  return array if changed_array is None else changed_array
