"""Orders of routed rows: by expert, by slot, by source rank.

A slot is `(source rank * T + token) * K + k`.  Each used slot has one row, so
an order of rows gives coordinates of each used slot; coordinates of unused
slots have no meaning.
"""

import dataclasses
import functools

import numpy as np

Coordinates = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class RowOrder:
  """Our order of rows: on each rank by expert, then by slot.

  Attributes:
    ids: `[R, T, K]` experts; -1 for unused slots.
    num_experts: E, a multiple of R.
  """

  ids: np.ndarray
  num_experts: int

  @property
  def local(self) -> int:
    """L."""
    return self.num_experts // len(self.ids)

  @functools.cached_property
  def expert(self) -> np.ndarray:
    """`[slots]` expert of each slot."""
    return self.ids.reshape(-1).astype(np.int64)

  @functools.cached_property
  def routed_slots(self) -> np.ndarray:
    """The slots that have a row, ascending."""
    return np.flatnonzero(self.expert >= 0)

  @property
  def owner(self) -> np.ndarray:
    """`[slots]` rank of each slot's expert."""
    return self.expert // self.local

  @functools.cached_property
  def row(self) -> np.ndarray:
    """`[slots]` row of each slot on its owner."""
    return self.ranked(self.owner, self.expert)

  @functools.cached_property
  def position(self) -> np.ndarray:
    """`[slots]` number of earlier rows of the same expert."""
    return self.ranked(self.expert)

  @functools.cached_property
  def counts(self) -> np.ndarray:
    """`[E]` rows of each expert."""
    experts = self.expert[self.routed_slots]
    return np.bincount(experts, minlength=self.num_experts)

  def ranked(self, group: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Returns `[slots]` positions within groups, by keys, then by slot."""
    order = np.lexsort((*reversed(keys), group))
    place = np.empty_like(order)
    in_order = group[order]
    place[order] = np.arange(len(order)) - np.searchsorted(in_order, in_order)
    return place

  def starts(self, block: int) -> np.ndarray:
    """Returns `[E]` first row of each expert on its rank, rounded up."""
    sizes = -(-self.counts // block) * block
    by_rank = sizes.reshape(-1, self.local)
    return (np.cumsum(by_rank, axis=1) - by_rank).reshape(-1)

  def slot_of(self, rank: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Returns the slots of rows.

    Raises:
      KeyError: a row is past the last valid row of its rank.
    """
    slots = self._slots
    if (row >= slots.shape[1]).any() or (slots[rank, row] < 0).any():
      raise KeyError('a row that is no slot')
    return slots[rank, row]

  @functools.cached_property
  def _slots(self) -> np.ndarray:
    """`[R, most]` slot of each row, -1 for none."""
    row = self.row[self.routed_slots]
    slots = np.full((len(self.ids), int(row.max(initial=-1)) + 1), -1)
    slots[self.owner[self.routed_slots], row] = self.routed_slots
    return slots

  # The following methods return coordinates of slots, by axis.

  def pack(self, block: int = 1) -> Coordinates:
    """By expert; rows of each begin at a multiple of `block`."""
    starts = self.starts(block)[self.expert]
    return dict(R=self.owner, N=starts + self.position)

  def order_by_source(self) -> Coordinates:
    """By source rank, then by expert."""
    source = np.arange(len(self.expert)) // self.ids[0].size
    return dict(R=self.owner, N=self.ranked(self.owner, source, self.expert))

  def fill_buffers(self) -> Coordinates:
    """In a buffer for each expert."""
    rank, local = np.divmod(self.expert, self.local)
    return dict(R=rank, L=local, C=self.position)

  def slots(self) -> Coordinates:
    """On the token's rank."""
    return dict(zip('RTK', np.unravel_index(self._all_slots, self.ids.shape)))

  def list_slots_of_all(self) -> Coordinates:
    """On the expert's rank, which has room for the slots of all tokens."""
    top_k = self.ids.shape[-1]
    return dict(
      R=self.owner, M=self._all_slots // top_k, K=self._all_slots % top_k
    )

  @property
  def _all_slots(self) -> np.ndarray:
    return np.arange(len(self.expert))
