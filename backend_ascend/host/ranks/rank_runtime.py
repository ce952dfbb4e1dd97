"""Executes one rank's part of a task image, the other ranks being elsewhere.

Every rank calls `launch_rank` with the same image and its own slabs.  What
passes between ranks goes through a `Transport`: host collectives before the
first task and after the last one, one-sided puts and remote adds in between.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Protocol

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.reference.contract import tensors

# Tasks of a turn.
_TASKS_PER_POLL = 64


class Comm(Protocol):
  """How ranks talk before and between launches.

  Attributes:
    rank: of the caller.
    num_ranks: R.
  """

  @property
  def rank(self) -> int: ...

  @property
  def num_ranks(self) -> int: ...

  def allgather(self, value: Any) -> list[Any]:
    """Returns every rank's value, by rank.

    Raises:
      RankError: a rank is gone.
    """


class Transport(Comm, Protocol):
  """What joins the ranks; `host/ranks/transport.h` says what calls mean."""

  def allocate(
    self, heap_bytes: int, num_events: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rank's heap `[heap_bytes]` u8 and counters `[events]` i32.

    Both are zero; the heap is aligned for floats.
    """

  def peers(self) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns what `allocate` returned, of all ranks, as mapped here, or [].

    Where it is mapped, put, flush and add are not called: the native part
    copies and adds by itself.
    """

  def barrier(self) -> None: ...

  def put(self, rank: int, offset: int, data: memoryview) -> None: ...

  def flush(self, rank: int) -> None: ...

  def add(self, rank: int, event: int, amount: int) -> None: ...

  def sync(self) -> None: ...

  def progress(self) -> None:
    """Called while idle; raises RankLost or Asked when a rank has ended."""


class RankError(RuntimeError):
  """A rank cannot take part, or no longer does.

  Attributes:
    ranks: those at fault.
  """

  def __init__(self, text: str, ranks: Sequence[int]):
    super().__init__(text)
    self.ranks = tuple(ranks)


class RankLost(RankError):
  """Another rank ended, and why is known."""


class DiagnosisRequest(Exception):
  """Another rank gave up waiting: this one is to say what it waits for."""


@dataclasses.dataclass(frozen=True)
class Offer:
  """What a rank tells the others before a launch.

  Attributes:
    version: of its image's layout.
    crc32: of its image.
    heap_bytes: of the heap that its image needs.
    counts: `[E]` i32, its routed rows by expert, with relay `[2E]`, then those
      that cross; None after an error.
    error: why it cannot take part, or ''.
  """

  version: int
  crc32: int
  heap_bytes: int
  counts: np.ndarray | None
  error: str


def name_ranks(ranks: Sequence[int]) -> str:
  """Returns 'rank 1' or 'ranks 1, 2'."""
  return f'rank{"s" * (len(ranks) > 1)} {", ".join(map(str, ranks))}'


def load_if_good(image):
  """Returns a loaded image, or bytes that are none: an offer says why."""
  try:
    return image_lib.load(image)
  except ValueError:
    return image


def make_offer(image, rank: int, num_ranks: int, inputs: Mapping) -> Offer:
  """Returns the rank's offer; bad input is told, not raised.

  Args:
    image: the blob.
    rank: of the caller.
    num_ranks: R of the transport.
    inputs: as in `launch_rank`, or topk_ids alone where the others cannot be
      looked at.
  """
  header = np.zeros(1, layout.HEADER)
  raw = np.frombuffer(image, np.uint8)[: header.nbytes]
  header.view(np.uint8)[: raw.size] = raw
  image_id = dict(
    version=int(header['version'][0]), crc32=int(header['crc32'][0])
  )
  try:
    image = image_lib.load(image)
    if image.config.num_ranks != num_ranks:
      raise ValueError(
        f'ranks: expected {image.config.num_ranks}, those of the image, '
        f'got {num_ranks}'
      )
    if set(inputs) == {'topk_ids'}:
      ids = arrays.fitting(image, 'topk_ids', inputs['topk_ids'], True)
    else:
      ids = arrays.inputs(image, inputs, of_rank=True)['topk_ids']
    slot_counts = _native.count_slots(image, rank, ids)
  except ValueError as error:
    return Offer(**image_id, heap_bytes=0, counts=None, error=str(error))
  counts = np.array(slot_counts, np.int32)
  return Offer(**image_id, heap_bytes=image.heap_bytes, counts=counts, error='')


def agree(offers: Sequence[Offer]) -> np.ndarray:
  """Returns counts `[R, E]` or, with relay, `[R, 2E]` of a launch.

  Every rank can take part in it.

  Raises:
    RankError: a rank's image differs from most, or its input is bad.  The same
      on every rank.
  """
  for name in ('version', 'crc32', 'heap_bytes'):
    # A bad image or input has its own text below.
    heard = {
      rank: getattr(offer, name)
      for rank, offer in enumerate(offers)
      if name == 'version' or not offer.error
    }
    if len(set(heard.values())) <= 1:
      continue
    usual = collections.Counter(heard.values()).most_common(1)[0][0]
    differing_ranks = [rank for rank, value in heard.items() if value != usual]
    agreeing_ranks = [rank for rank, value in heard.items() if value == usual]
    raise RankError(
      f'{name_ranks(differing_ranks)}: expected the image {name} {usual} of '
      f'{name_ranks(agreeing_ranks)}, got {heard[differing_ranks[0]]}',
      differing_ranks,
    )
  bad = [rank for rank, offer in enumerate(offers) if offer.error]
  if bad:
    raise RankError(
      '; '.join(f'rank {rank}: {offers[rank].error}' for rank in bad), bad
    )
  return np.stack([o.counts for o in offers if o.counts is not None])


class RankLaunch:
  """One rank's prepared launch.

  Others may put from the construction on; the caller sees to it that all ranks
  are past it before the first one runs.
  """

  def __init__(
    self,
    image,
    inputs: Mapping[str, np.ndarray],
    counts: np.ndarray,
    transport: Transport,
    isa: str | None = None,
    plan: _native.Routing | None = None,
  ):
    self._image = image = image_lib.load(image)
    read = arrays.inputs(image, inputs, of_rank=True)
    self._rank = transport.rank
    self._plan = plan or _native.Routing(
      image, read['topk_ids'], rank=self._rank, counts=counts
    )
    self._heap, counters = transport.allocate(
      image.heap_bytes, len(image.tables['events'])
    )
    self._outputs = self._make_outputs()
    self._native = _native.RankLaunch(
      image,
      self._plan,
      read,
      {name: arrays.bits(array) for name, array in self._outputs.items()},
      self._heap,
      counters,
      transport,
      isa,
      transport.peers(),
    )

  def _make_outputs(self) -> dict[str, np.ndarray]:
    names = set(arrays.outputs(self._image))
    names -= {*tensors.PLAN, *self._image.heap_offsets}
    return arrays.zeros(self._image, names, of_rank=True)

  def run_some(self, max_tasks: int) -> str:
    """Runs up to so many ready tasks; returns 'ran', 'blocked' or 'done'."""
    return ('ran', 'blocked', 'done')[self._native.run_some(max_tasks)]

  def run(self, deadline_s: float) -> None:
    """Runs all tasks.

    Raises:
      runtime.WaitError: none ended in time.  The suspects are of other ranks.
      RankError: the transport knows that a rank is lost.
    """
    try:
      is_done = self._native.run(deadline_s)
    except DiagnosisRequest:
      # What can run does, so that the answer does not depend on the moment.
      while (state := self.run_some(_TASKS_PER_POLL)) == 'ran':
        pass
      is_done = state == 'done'
    if not is_done:
      raise runtime.WaitError(self.find_blocked(), self.plan())

  def find_blocked(self) -> runtime.Diagnosis:
    """Returns the wait that says most about why nothing runs."""
    return runtime.build_diagnosis(self._image, self._native.blocked())

  def plan(self) -> dict[str, np.ndarray]:
    """Returns the rank's slabs of the launch plan."""
    return dict(
      counts=self._plan.counts[self._rank].copy(),
      row_base=self._plan.row_base[self._rank].copy(),
      row_of_slot=self._plan.row_of_slot.copy(),
    )

  def outputs(self) -> dict[str, np.ndarray]:
    """Returns the rank's slabs; good once no rank puts any more."""
    values = self._outputs | self.plan()
    for name, offset in self._image.heap_offsets.items():
      dtype = arrays.dtype(self._image, name)
      shape = arrays.shape(self._image, name, of_rank=True)
      size = int(np.prod(shape)) * dtype.itemsize
      slab = self._heap[offset : offset + size]
      values[name] = slab.view(dtype).reshape(shape).copy()
    names = arrays.outputs(self._image)
    return {name: values[name] for name in names}


def launch_rank(
  image,
  inputs: Mapping[str, np.ndarray],
  transport: Transport,
  *,
  deadline_s: float = 60.0,
  isa: str | None = None,
) -> dict[str, np.ndarray]:
  """Executes one rank's part of the image; every rank must call it.

  Args:
    image: as in `runtime.launch`, the same on every rank.
    inputs: as in `runtime.launch`, without the leading rank axis: the rank's
      own slab of each.
    transport: joins as many ranks as the image has.
    deadline_s: seconds without a task of this rank ending after which to give
      up.
    isa: instruction set of the tile kernels; None means the best one.

  Returns:
    The rank's slab of what `runtime.launch` returns, bit for bit.

  Raises:
    RankError: a rank's image or input does not suit, or a rank was lost.
    runtime.WaitError: a task waited for a signal that did not come.
  """
  rank, image = transport.rank, load_if_good(image)
  offer = make_offer(image, rank, transport.num_ranks, inputs)
  counts = agree(transport.allgather(offer))
  launch = RankLaunch(image, inputs, counts, transport, isa)
  transport.barrier()
  launch.run(deadline_s)
  transport.barrier()
  return launch.outputs()
