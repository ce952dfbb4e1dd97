"""Executes one rank's part of a task image, the other ranks being elsewhere.

Every rank calls `launch_rank` with the same image and its own slabs.  What
passes between ranks goes through a `Transport`: host collectives before the
first task and after the last one, one-sided puts and remote adds in between.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import tensors

INPUTS = {
  layout.Direction.FORWARD: tensors.INPUTS,
  layout.Direction.BACKWARD: (
    'dy',
    *(name for name in tensors.INPUTS if name != 'x'),
    *tensors.saved('combine'),
  ),
}
OUTPUTS = {
  layout.Direction.FORWARD: tensors.PLAN + tensors.STAGES,
  layout.Direction.BACKWARD: tensors.GRADS,
}


# Tasks of a turn.
_SOME = 64


class Transport(Protocol):
  """What joins the ranks; `kernels/host/transport.h` says what calls mean.

  Attributes:
    rank: of the caller.
    num_ranks: R.
  """

  @property
  def rank(self) -> int: ...

  @property
  def num_ranks(self) -> int: ...

  def allgather(self, value: Any) -> list[Any]:
    """Returns every rank's value, by rank."""

  def allocate(
    self, heap_bytes: int, num_events: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rank's heap `[heap_bytes]` u8 and counters `[events]` i32.

    Both are zero; the heap is aligned for floats.
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


class Asked(Exception):
  """Another rank gave up waiting: this one is to say what it waits for."""


@dataclasses.dataclass(frozen=True)
class Offer:
  """What a rank tells the others before a launch.

  Attributes:
    version: of its image's layout.
    crc32: of its image.
    heap_bytes: of the heap that its image needs.
    counts: `[E]` i32, its routed rows by expert; None after an error.
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


def make_offer(image, rank: int, num_ranks: int, inputs: Mapping) -> Offer:
  """Returns the rank's offer; bad input is told, not raised.

  Args:
    image: the blob.
    rank: of the caller.
    num_ranks: R of the transport.
    inputs: as in `launch_rank`.
  """
  header = np.zeros(1, layout.HEADER)
  raw = np.frombuffer(image, np.uint8)[: header.nbytes]
  header.view(np.uint8)[: raw.size] = raw
  told = dict(version=int(header['version'][0]), crc32=int(header['crc32'][0]))
  try:
    blob, parsed = runtime.load(image)
    if parsed.config.num_ranks != num_ranks:
      raise ValueError(
        f'ranks: expected {parsed.config.num_ranks}, those of the image, '
        f'got {num_ranks}'
      )
    arrays = check_inputs(parsed, inputs)
    counts = np.zeros(parsed.config.num_experts, np.int32)
    _native.count_slots(blob, rank, arrays['topk_ids'], counts)
  except ValueError as error:
    return Offer(**told, heap_bytes=0, counts=None, error=str(error))
  return Offer(**told, heap_bytes=heap_bytes(blob), counts=counts, error='')


def heap_bytes(image) -> int:
  """Returns the bytes that other ranks write on each rank."""
  return _native.rank_heap(np.frombuffer(image, np.uint8))[0]


def agree(offers: Sequence[Offer]) -> np.ndarray:
  """Returns counts `[R, E]` i32 of a launch that every rank can take part in.

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
    others = [rank for rank, value in heard.items() if value != usual]
    same = [rank for rank, value in heard.items() if value == usual]
    raise RankError(
      f'{name_ranks(others)}: expected the image {name} {usual} of '
      f'{name_ranks(same)}, got {heard[others[0]]}',
      others,
    )
  bad = [rank for rank, offer in enumerate(offers) if offer.error]
  if bad:
    raise RankError(
      '; '.join(f'rank {rank}: {offers[rank].error}' for rank in bad), bad
    )
  return np.stack([o.counts for o in offers if o.counts is not None])


def _dtype(image: image_lib.Image, spec: tensors.TensorSpec) -> np.dtype:
  if spec.kind == 'storage' and image.policy.storage == 'bfloat16':
    return np.dtype(ml_dtypes.bfloat16)
  return np.dtype(np.int32 if spec.kind == 'i32' else np.float32)


def _slab(image: image_lib.Image, spec: tensors.TensorSpec) -> tuple[int, ...]:
  return spec.dims(**image.config.dims())[1:]


def _bits(array: np.ndarray) -> np.ndarray:
  return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def check_inputs(
  image: image_lib.Image, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Returns the rank's slabs as the native part takes them.

  Raises:
    ValueError: a name, shape or dtype is not the image's, or a value is not
      finite.
  """
  names = set(INPUTS[runtime.direction(image)])
  # A weight that is applied before w_down has its gradient there.
  unread = {'returned'} if image.policy.placement == 'before_down' else set()
  if not names - unread <= set(inputs) <= names:
    raise ValueError(
      f'inputs: expected {sorted(names - unread)}, got {sorted(inputs)}'
    )
  return {
    name: _checked(image, tensors.SPECS[name], inputs[name])
    for name in names - unread
  }


def _checked(image, spec: tensors.TensorSpec, value) -> np.ndarray:
  value = np.asarray(value)
  dtype, shape = _dtype(image, spec), _slab(image, spec)
  if value.dtype != dtype:
    raise ValueError(f'{spec.name}: expected dtype {dtype}, got {value.dtype}')
  if value.shape != shape:
    raise ValueError(f'{spec.name}: expected shape {shape}, got {value.shape}')
  value = _bits(np.ascontiguousarray(value))
  # As in one process: what a forward pass saved may have overflowed.
  if spec.kind != 'i32' and spec.name not in tensors.STAGES:
    at = _native.first_non_finite(value)
    if at >= 0:
      index = tuple(int(i) for i in np.unravel_index(at, shape))
      raise ValueError(
        f'{spec.name}: expected finite values, got another at {index}'
      )
  return value


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
    plan=None,
  ):
    blob, self._image = runtime.load(image)
    self._rank = transport.rank
    _, self._offsets = _native.rank_heap(blob)
    self._heap, counters = transport.allocate(
      heap_bytes(blob), len(self._image.tables['events'])
    )
    self._counts = counts
    self._outputs = self._make_outputs()
    self._native = _native.RankLaunch(
      blob,
      transport.rank,
      check_inputs(self._image, inputs) | dict(counts=counts),
      {name: _bits(array) for name, array in self._outputs.items()},
      self._heap,
      counters,
      transport,
      isa or '',
      plan,
    )

  def _make_outputs(self) -> dict[str, np.ndarray]:
    wanted = OUTPUTS[runtime.direction(self._image)]
    specs = [tensors.SPECS[n] for n in dict.fromkeys(tensors.PLAN + wanted)]
    return {
      s.name: np.zeros(_slab(self._image, s), _dtype(self._image, s))
      for s in specs
      if s.name not in self._offsets
    }

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
      done = self._native.run(deadline_s)
    except Asked:
      # What can run does, so that the answer does not depend on the moment.
      while (state := self.run_some(_SOME)) == 'ran':
        pass
      done = state == 'done'
    if not done:
      raise runtime.WaitError(self.blocked(), self.plan())

  def blocked(self) -> runtime.Diagnosis:
    """Returns the wait that says most about why nothing runs."""
    return runtime.diagnosis(self._image, self._native.blocked())

  def plan(self) -> dict[str, np.ndarray]:
    """Returns the rank's slabs of the launch plan."""
    made = dict(self._outputs, counts=self._counts[self._rank].copy())
    return {name: made[name] for name in tensors.PLAN}

  def outputs(self) -> dict[str, np.ndarray]:
    """Returns the rank's slabs; good once no rank puts any more."""
    values = self._outputs | self.plan()
    for name, offset in self._offsets.items():
      spec = tensors.SPECS[name]
      dtype, shape = _dtype(self._image, spec), _slab(self._image, spec)
      size = int(np.prod(shape)) * dtype.itemsize
      slab = self._heap[offset : offset + size]
      values[name] = slab.view(dtype).reshape(shape).copy()
    wanted = OUTPUTS[runtime.direction(self._image)]
    return {name: values[name] for name in wanted}


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
  rank = transport.rank
  offer = make_offer(image, rank, transport.num_ranks, inputs)
  counts = agree(transport.allgather(offer))
  launch = RankLaunch(image, inputs, counts, transport, isa)
  transport.barrier()
  launch.run(deadline_s)
  transport.barrier()
  return launch.outputs()
