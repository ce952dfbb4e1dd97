"""Experts on other ranks than their numbers say, and copies of hot ones.

A layer numbers its experts rank by rank.  Under uneven routing the rank whose
experts are popular decides the time of all.  A placement says which expert lies
in each place of each rank.  An image knows places only: it is that of a layer
whose experts are the places, so whatever is proven of it holds for every
placement.  The plan of a launch maps ids to places, the loader puts weights
there, and what comes back is in the order of the layer's experts.

An expert may have copies on several ranks.  Of C copies, in the order of their
places, tokens of rank r go to copy r * C // R: a rank knows it by itself, and
rows of the first copy precede those of the second in the order of the layer.
The loader sums float32 gradients of copies, the first one first; others would
be rounded twice and are refused.
"""

from collections.abc import Sequence
import dataclasses
import functools
import json
import os
import pathlib
import reprlib

import numpy as np

from hpmoe.backend_ascend.host.load import arrays
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import tensors

FORMAT = 'hpmoe-expert-placement'
LOADS, COPIES = 'loads:', 'copies:'
Tensors = dict[str, np.ndarray]
# An exchange of experts takes at least this share off the fullest rank.
_LEAST_GAIN = 1e-4


@dataclasses.dataclass(frozen=True)
class ExpertPlacement:
  """Which expert lies in each place.

  Attributes:
    experts: of every place, those of rank 0 first.
    num_ranks: R; every rank has as many places.

  Raises:
    ValueError: an expert has no place, or two on one rank.
  """

  experts: tuple[int, ...]
  num_ranks: int

  def __post_init__(self):
    ranks, experts = self.num_ranks, self.experts
    if ranks < 1 or not experts or len(experts) % ranks:
      raise ValueError(
        'experts: expected as many places on each of '
        f'{ranks} ranks, got {len(experts)} in all'
      )
    if {*experts} != set(range(self.num_experts)):
      raise ValueError(
        f'experts: expected each of 0 to {self.num_experts - 1} in some '
        f'place, got {sorted({*experts})}'
      )
    if self.num_experts % ranks:
      raise ValueError(
        f'experts: expected a multiple of {ranks} ranks, got {self.num_experts}'
      )
    for rank, local in enumerate(np.reshape(experts, (ranks, -1)).tolist()):
      if len({*local}) < len(local):
        raise ValueError(
          f'experts: expected no expert twice on a rank, got {local} on rank '
          f'{rank}'
        )

  @property
  def num_experts(self) -> int:
    """E, without copies."""
    return max(self.experts) + 1

  @property
  def has_copies(self) -> bool:
    """Whether an expert has more than one place."""
    return len(self.experts) > self.num_experts

  @functools.cached_property
  def places(self) -> np.ndarray:
    """`[R, E]` i32: the place of an expert, for tokens of a rank."""
    ranks, experts = self.num_ranks, np.array(self.experts)
    table = np.empty((ranks, self.num_experts), np.int32)
    for expert in range(self.num_experts):
      copies = np.flatnonzero(experts == expert)
      table[:, expert] = copies[np.arange(ranks) * len(copies) // ranks]
    return table

  def map_ids(self, topk_ids: np.ndarray) -> np.ndarray:
    """Returns `[R, T, K]` i32 places.

    Args:
      topk_ids: `[R, T, K]` i32 experts.

    Raises:
      ValueError: an id is none of an expert.
    """
    wrong = (topk_ids < 0) | (topk_ids >= self.num_experts)
    if wrong.any():
      raise ValueError(
        f'topk_ids: expected ids in [0, {self.num_experts}), got '
        f'{topk_ids[wrong][0]}'
      )
    ranks = np.arange(self.num_ranks)[:, None, None]
    return self.places[ranks, topk_ids]


@dataclasses.dataclass(frozen=True)
class _Plan:
  """Where rows of a routing lie: the plan of a launch, in plain numpy.

  Attributes:
    counts, row_base: `[R, E]` i4.
    row_of_slot: `[R, T, K]` i4.
    owner: `[R, T, K]` i4, rank of the row.
  """

  counts: np.ndarray
  row_base: np.ndarray
  row_of_slot: np.ndarray
  owner: np.ndarray


def _plan(config: config_lib.MoEConfig, ids: np.ndarray) -> _Plan:
  ranks, experts = config.num_ranks, config.num_experts
  slices = (np.arange(ranks)[:, None, None] * experts + ids).ravel()
  counts = np.bincount(slices, minlength=ranks * experts)
  counts = counts.reshape(ranks, experts)
  # An expert's rows: source ranks ascending.  A rank's: experts ascending.
  by_owner = counts.T.reshape(ranks, -1)
  base = (by_owner.cumsum(axis=1) - by_owner).reshape(experts, ranks).T
  row = np.empty(ids.size, np.int64)
  order = np.argsort(slices, kind='stable')
  begin = counts.ravel().cumsum() - counts.ravel()
  sorted_slices = slices[order]
  row[order] = (
    base.ravel()[sorted_slices] + np.arange(ids.size) - begin[sorted_slices]
  )
  return _Plan(
    counts.astype(np.int32),
    base.astype(np.int32),
    row.reshape(ids.shape).astype(np.int32),
    ids // config.experts_per_rank,
  )


class PlacedLayer:
  """A layer and a routing under a placement.

  Attributes:
    config: of the layer whose experts are the places; its ranks hold what this
      routing sends.
  """

  def __init__(
    self,
    placement: ExpertPlacement,
    config: config_lib.MoEConfig,
    topk_ids: np.ndarray,
  ):
    """Maps a routing.

    Args:
      placement: of the layer's experts.
      config: of the layer.
      topk_ids: `[R, T, K]` i32.

    Raises:
      ValueError: the placement is of another layer, or of a sub-layer.
    """
    tensors.require_layer(config, 'whose experts are image_config')
    for name in ('num_experts', 'num_ranks'):
      if getattr(placement, name) != getattr(config, name):
        raise ValueError(
          f'expert_placement: expected one of {name}={getattr(config, name)}, '
          f'got {getattr(placement, name)}'
        )
    self._placement = placement
    self._layer = config
    self._ids = placement.map_ids(topk_ids)
    image_config = dataclasses.replace(
      config, num_experts=len(placement.experts), capacity=None
    )
    self._before = _plan(config, topk_ids)
    self._after = _plan(image_config, self._ids)
    if config.capacity is not None:
      rows = self._after.counts.sum(axis=0).reshape(config.num_ranks, -1)
      capacity = max(config.capacity, int(rows.sum(axis=1).max()))
      image_config = dataclasses.replace(image_config, capacity=capacity)
    self.config = image_config

  def place(self, layer: Tensors) -> Tensors:
    """Returns a layer's tensors, by name, as the image has them."""
    return {name: self._place(name, array) for name, array in layer.items()}

  def restore(self, image: Tensors) -> Tensors:
    """Returns an image's tensors, by name, as the layer has them.

    A row past the last valid one of a rank that is not zero, which the layer
    has no place for, stands in the last row.

    The gradient of an expert that has copies is the sum of theirs, in the order
    of their places.

    Raises:
      ValueError: such a gradient is not of float32.
    """
    return {name: self._restore(name, array) for name, array in image.items()}

  def sums(self, name: str) -> bool:
    """Whether a tensor of the layer is a sum over copies."""
    has_experts = 'L' in tensors.SPECS[name].shape.split()
    return has_experts and self._placement.has_copies

  def _place(self, name: str, array: np.ndarray) -> np.ndarray:
    axes = arrays.find_spec(name).shape.split()
    if name == 'topk_ids':
      return self._ids
    if name in tensors.PLAN:
      return getattr(self._after, name)
    if 'L' in axes:
      experts = array.reshape(self._layer.num_experts, *array.shape[2:])
      local = self.config.num_ranks, self.config.experts_per_rank
      local_weights = experts[list(self._placement.experts)]
      return local_weights.reshape(*local, *array.shape[2:])
    if 'N' in axes:
      shape = self.config.num_ranks, self.config.num_rows, *array.shape[2:]
      rows = np.zeros(shape, array.dtype)
      rows[self._after.owner, self._after.row_of_slot] = array[
        self._before.owner, self._before.row_of_slot
      ]
      return rows
    return array

  def _restore(self, name: str, array: np.ndarray) -> np.ndarray:
    axes = arrays.find_spec(name).shape.split()
    if name == 'counts':
      return self._restore_counts(array)
    if name in tensors.PLAN:
      return self._restore_rows_of(name, array)
    if 'L' in axes:
      local = self._layer.num_ranks, self._layer.experts_per_rank
      total = self._sum_copies(name, array.reshape(-1, *array.shape[2:]))
      return total.reshape(*local, *array.shape[2:])
    if 'N' in axes:
      shape = self._layer.num_ranks, self._layer.num_rows, *array.shape[2:]
      rows = np.zeros(shape, array.dtype)
      rows[self._before.owner, self._before.row_of_slot] = array[
        self._after.owner, self._after.row_of_slot
      ]
      for rank, stray in self._find_stray_rows(array):
        rows[rank, -1] = stray
      return rows
    return array

  def _sum_copies(self, name: str, grads: np.ndarray) -> np.ndarray:
    """Returns the gradient of every expert: that of its first copy and so on.

    Args:
      name: of the gradient.
      grads: of every place.
    """
    experts = np.array(self._placement.experts)
    is_first = np.arange(len(experts)) == self._first_places[experts]
    total = grads[self._first_places]
    if is_first.all():
      return total
    if grads.dtype not in (np.float32, bool):
      raise ValueError(
        'expert_placement: expected float32 where gradients of copies are '
        f'summed, as others round twice, got {name} in {grads.dtype}'
      )
    for place in np.flatnonzero(~is_first):
      total[experts[place]] += grads[place]
    return total

  @functools.cached_property
  def _first_places(self) -> np.ndarray:
    """`[E]`: the place of the first copy of each expert."""
    return np.unique(self._placement.experts, return_index=True)[1]

  def _restore_counts(self, counts: np.ndarray) -> np.ndarray:
    """Returns the sums over copies: rows of a copy that has none show."""
    total = np.zeros_like(self._before.counts)
    np.add.at(total.T, list(self._placement.experts), counts.T)
    return total

  def _restore_rows_of(self, name: str, rows: np.ndarray) -> np.ndarray:
    """Returns rows as far from the layer's as these are from the image's."""
    apart = rows - getattr(self._after, name)
    if name == 'row_base':
      ranks = np.arange(self._layer.num_ranks)[:, None]
      apart = apart[ranks, self._placement.places]
    return getattr(self._before, name) + apart

  def _find_stray_rows(self, array: np.ndarray):
    """Yields (rank, row) where rows past the last valid one are not zero."""
    counts = self._after.counts.sum(axis=0)
    valid = counts.reshape(self.config.num_ranks, -1).sum(axis=1)
    for rank, num_rows in enumerate(valid):
      past = array[rank, num_rows:]
      stray = past.any(axis=tuple(range(1, past.ndim)))
      if stray.any():
        yield rank, past[stray.argmax()]


class UnplacedLayer:
  """A layer whose experts are where their numbers say.

  Attributes:
    config: of the layer.
  """

  def __init__(self, config: config_lib.MoEConfig):
    self.config = config

  def place(self, layer: Tensors) -> Tensors:
    """Returns the tensors."""
    return layer

  def restore(self, image: Tensors) -> Tensors:
    """Returns the tensors."""
    return image

  def sums(self, name: str) -> bool:
    """Whether a tensor of the layer is a sum over copies: none is."""
    del name
    return False


View = PlacedLayer | UnplacedLayer


def view_layer(
  source: str | ExpertPlacement | None,
  config: config_lib.MoEConfig,
  topk_ids: np.ndarray,
) -> View:
  """Returns a layer as its image has it.

  Args:
    source: a placement, or what `read` takes; None or '': experts stay.
    config: of the layer.
    topk_ids: `[R, T, K]` i32.

  Raises:
    OSError, ValueError: as `read` and `PlacedLayer`.
  """
  if not source:
    return UnplacedLayer(config)
  if isinstance(source, str):
    source = read(source, config.num_ranks)
  return PlacedLayer(source, config, topk_ids)


def place_by_loads(
  loads: np.ndarray, num_ranks: int, copies: bool = False
) -> ExpertPlacement:
  """Returns a placement that evens out the loads of ranks.

  The fullest expert first goes to the emptiest rank that has room; then experts
  of the fullest rank are exchanged while that helps.  With copies, each rank
  has a place more, and the R fullest experts have two.

  Args:
    loads: `[E]`, of each expert, of batches that are not the one that runs.
    num_ranks: R.
    copies: whether there are copies.

  Raises:
    ValueError: loads are not finite and positive or 0, R does not divide E, or
      copies on one rank.
  """
  loads = np.asarray(loads, float)
  if loads.ndim != 1 or not np.isfinite(loads).all() or (loads < 0).any():
    raise ValueError('loads: expected [E] finite numbers of at least 0')
  if not loads.size or loads.size % num_ranks:
    raise ValueError(
      f'loads: expected those of a multiple of {num_ranks} experts, got '
      f'{loads.size}'
    )
  if copies and num_ranks < 2:
    raise ValueError('copies: expected at least 2 ranks, got 1')
  room = loads.size // num_ranks + copies
  ranks: list[list[int]] = [[] for _ in range(num_ranks)]
  totals = np.zeros(num_ranks)
  order = np.argsort(-loads, kind='stable')
  for position, expert in enumerate(order):
    twice = copies and position < num_ranks
    for _ in range(1 + twice):
      sizes = np.array([len(local) for local in ranks])
      is_held = np.array([expert in local for local in ranks])
      # Copies spread evenly, so that the last expert finds two ranks.
      key = totals + 2 * loads.sum() * sizes * twice
      rank = int(np.where((sizes < room) & ~is_held, key, np.inf).argmin())
      ranks[rank].append(int(expert))
      totals[rank] += loads[expert] / (1 + twice)
  copies_of = np.bincount([e for local in ranks for e in local])
  _exchange_experts(ranks, loads / copies_of)
  return ExpertPlacement(tuple(e for local in ranks for e in local), num_ranks)


def _exchange_experts(ranks: list[list[int]], loads: np.ndarray) -> None:
  """Exchanges experts of the fullest rank while that makes it less full.

  Each time those two whose ranks are then the least full.

  Args:
    ranks: experts of each; changed.
    loads: `[E]`, of one copy.
  """
  while True:
    totals = np.array([loads[local].sum() for local in ranks])
    fullest = int(totals.argmax())
    best, exchange = totals[fullest] * (1 - _LEAST_GAIN), None
    for rank, local in enumerate(ranks):
      if rank == fullest:
        continue
      gives, takes = np.meshgrid(ranks[fullest], local, indexing='ij')
      moved_load = loads[gives] - loads[takes]
      peak = np.maximum(totals[fullest] - moved_load, totals[rank] + moved_load)
      # An expert has one place on a rank.
      peak[np.isin(gives, local) | np.isin(takes, ranks[fullest])] = np.inf
      position = np.unravel_index(peak.argmin(), peak.shape)
      if peak[position] < best:
        best, exchange = peak[position], (rank, *map(int, position))
    if exchange is None:
      return
    rank, first, second = exchange
    ranks[fullest][first], ranks[rank][second] = (
      ranks[rank][second],
      ranks[fullest][first],
    )


def save(path: str | os.PathLike, placement: ExpertPlacement) -> None:
  """Writes a placement to a file.

  Raises:
    OSError: the file cannot be written.
  """
  experts = np.reshape(placement.experts, (placement.num_ranks, -1)).tolist()
  content = dict(format=FORMAT, experts=experts)
  pathlib.Path(path).write_text(json.dumps(content) + '\n')


def read(source: str, num_ranks: int) -> ExpertPlacement:
  """Returns the placement that a text names.

  Args:
    source: a file of `save`; or `loads:FILE` or `copies:FILE`, JSON of `[E]`
      loads or of `[batches, E]`, without and with copies.
    num_ranks: R of the layer.

  Raises:
    OSError: the file cannot be read.
    ValueError: it holds none of these.
  """
  for prefix in (LOADS, COPIES):
    if source.startswith(prefix):
      content = _parse(source.removeprefix(prefix))
      return _of_loads(source, content, num_ranks, prefix == COPIES)
  content = _parse(source)
  if not isinstance(content, dict) or content.get('format') != FORMAT:
    raise ValueError(
      f'expert_placement: expected a file that `hpmoe tune` wrote, loads:FILE '
      f'or copies:FILE, got {source}, which has no "format": {FORMAT!r}'
    )
  try:
    ranks: Sequence[Sequence[int]] = content['experts']
    if len({len(local) for local in ranks}) > 1:
      raise ValueError('expected as many experts on each rank')
    experts = tuple(int(e) for local in ranks for e in local)
    return ExpertPlacement(experts, len(ranks))
  except (ValueError, TypeError, KeyError) as error:
    raise ValueError(
      f'expert_placement: expected "experts" as lists of ids, one for each '
      f'rank, in {source}: {error}'
    ) from error


def _of_loads(source, content, num_ranks, copies) -> ExpertPlacement:
  try:
    loads = np.asarray(content)
  except ValueError:  # lists of several lengths
    loads = np.asarray(None)
  if loads.dtype.kind not in 'iuf' or loads.ndim not in (1, 2):
    raise ValueError(
      'expert_placement: expected a JSON list of numbers [E] or [batches, E], '
      f'got {reprlib.repr(content)} in {source}'
    )
  try:
    totals = np.atleast_2d(loads).sum(axis=0)
    return place_by_loads(totals, num_ranks, copies)
  except ValueError as error:
    raise ValueError(f'expert_placement: {source}: {error}') from error


def _parse(path: str):
  try:
    return json.loads(pathlib.Path(path).read_bytes())
  except ValueError as error:
    raise ValueError(
      f'expert_placement: expected JSON in {path}, got {error}'
    ) from error
