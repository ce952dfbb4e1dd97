"""Executes a task image on several NPUs: one process for each, one session.

Every rank makes a `Launch` with the same images and calls it with its own
slabs.  Before a launch ranks exchange messages over the host, by `Comm`; during
it they exchange only the kernel's puts and signals.
"""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import ctypes
import dataclasses
import pathlib
from typing import Self

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.device.npus import native
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.host.load import task_names
from hpmoe.backend_ascend.host.ranks import rank_runtime
from hpmoe.reference.contract import tensors


@dataclasses.dataclass(frozen=True)
class Slab:
  """Where the rank's part of a tensor lies.

  Attributes:
    address: address of its first element.
    bytes: its size.
    on_device: whether it is in the NPU's memory, 64-byte aligned, and is used
      there.
  """

  address: int
  bytes: int
  on_device: bool = False


class DeviceError(RuntimeError):
  """A call of ACL or SHMEM failed."""


def _raise(end: native.End, image=None, plan=None) -> None:
  """Raises the error of a call, unless it succeeded."""
  if end.code == native.SUCCESS:
    return
  text = end.text.decode(errors='replace')
  ranks = tuple(end.ranks[: end.num_ranks])
  if end.code == native.INPUT:
    raise ValueError(text)
  if end.code in (native.RANK_LOST, native.UNREACHABLE):
    raise rank_runtime.RankError(text, ranks)
  if end.code == native.DEADLINE and image is not None:
    raise runtime.WaitError(_diagnosis(end, image, text), plan or {})
  if end.code == native.INTERNAL:
    raise runtime.BrokenError(text)
  raise DeviceError(text)


def _diagnosis(end, image, text) -> runtime.Diagnosis:
  name = lambda task: task_names.task_name(image, task)
  return runtime.Diagnosis(
    reason='deadline',
    task=None if end.task < 0 else name(end.task),
    event=end.event if end.task >= 0 else -1,
    expected=end.expected,
    actual=end.actual,
    missing=0,
    suspects=tuple(map(name, end.suspects[: end.num_suspects])),
    adders=(),
    losers=(),
    text=text,
  )


class Launch:
  """Images of one layer, on this process's NPU and those of the other ranks.

  Use it with `with`, or call `close`.
  """

  def __init__(
    self,
    images: Sequence,
    comm: rank_runtime.Comm,
    *,
    library: str | pathlib.Path,
    kernel: str | pathlib.Path,
    device: int | None = None,
    deadline_s: float = 60.0,
    start_s: float = 60.0,
    poison: bool = False,
  ):
    """Opens the device, and joins the other ranks.

    Args:
      images: images as `runtime.Launch` takes them; the same on every rank.
      comm: joins as many ranks as the images have.
      library: the host program that `make ascend-npus` builds.
      kernel: the kernel's binary that it builds.
      device: the device's number in ACL; None: the rank's number.
      deadline_s: seconds of one wait, and for all ranks to begin a launch.
      start_s: seconds for ranks to start.
      poison: whether elements that no task writes become `POISON`, to check.

    Raises:
      ValueError: an image is corrupt or an argument out of range.
      RankError: a rank cannot take part, or NPUs do not reach each other; on
        every rank.
      DeviceError: a call of ACL or SHMEM failed.
    """
    self._comm = comm
    self._session = ctypes.c_void_p()
    self._library = native.load(library)
    self._deadline_s, self._poison = deadline_s, poison
    self._images = [image_lib.load(image) for image in images]
    try:
      self._join(self._exchange_offers(self._open, kernel, device, start_s))
    except BaseException:
      with contextlib.suppress(DeviceError):
        self.close()
      raise

  def _exchange_offers(self, make, *arguments) -> list[bytes]:
    """Returns the offers of all ranks; raises on all if one cannot offer."""
    try:
      offer = make(*arguments)
    except (ValueError, RuntimeError) as error:
      self._comm.allgather(str(error))
      raise
    heard = self._comm.allgather(offer)
    bad = [rank for rank, reply in enumerate(heard) if isinstance(reply, str)]
    if bad:
      raise rank_runtime.RankError(
        '; '.join(f'rank {rank}: {heard[rank]}' for rank in bad), bad
      )
    return heard

  def _join(self, heard: list[bytes]) -> None:
    hellos = (native.Hello * len(heard))(
      *(native.Hello.from_buffer_copy(hello) for hello in heard)
    )
    end = native.End()
    self._library.hpmoe_npus_join(self._session, hellos, end)
    _raise(end)

  def _open(self, kernel, device, start_s) -> bytes:
    comm = self._comm
    heap_bytes = 0
    for image in self._images:
      bits = np.frombuffer(memoryview(image), np.uint8)
      image_heap_bytes = self._library.hpmoe_npus_heap_bytes(
        bits.ctypes.data, len(bits)
      )
      heap_bytes = max(heap_bytes, image_heap_bytes)
    options = native.Options(
      rank=comm.rank,
      num_ranks=comm.num_ranks,
      device=comm.rank if device is None else device,
      heap_bytes=heap_bytes,
      start_s=start_s,
      kernel=str(kernel).encode(),
    )
    hello, end = native.Hello(), native.End()
    self._library.hpmoe_npus_open(
      options, hello, ctypes.byref(self._session), end
    )
    _raise(end)
    return bytes(hello)

  def run(
    self,
    image,
    inputs: Mapping[str, np.ndarray],
    names: Iterable[str] | None = None,
  ) -> dict[str, np.ndarray]:
    """Executes this rank's part of an image.

    Args:
      image: one of the images of this launch.
      inputs: the rank's slabs, as in `rank_runtime.launch_rank`.
      names: names of tensors to return; None: all outputs.

    Returns:
      The rank's slabs, those of `runtime.launch`, bit for bit.

    Raises:
      ValueError: an input does not fit the image.
      RankError: a rank's input or image does not suit, or a rank is lost.
      runtime.WaitError: a task waited for an event that did not come.
      DeviceError: a call of ACL or SHMEM failed.
    """
    comm = self._comm
    counts = self._agree(image, inputs)
    image = image_lib.load(image)
    read = arrays.inputs(image, inputs, of_rank=True)
    routing = _native.Routing(
      image, read['topk_ids'], rank=comm.rank, counts=counts
    )
    plan = dict(
      counts=routing.counts[comm.rank].copy(),
      row_base=routing.row_base[comm.rank].copy(),
      row_of_slot=routing.row_of_slot.copy(),
    )
    all_names = arrays.outputs(image)
    names = all_names if names is None else tuple(names)
    outputs = arrays.zeros(image, set(names) - set(tensors.PLAN), of_rank=True)
    operands = read | {
      name: arrays.bits(array) for name, array in outputs.items()
    }
    ids = operands.pop('topk_ids')
    slabs = {n: Slab(a.ctypes.data, a.nbytes) for n, a in operands.items()}
    self._call(image, ids, counts, slabs, plan)
    return {name: (outputs | plan)[name] for name in names}

  def run_at(
    self, image, topk_ids: np.ndarray, slabs: Mapping[str, Slab]
  ) -> None:
    """Executes this rank's part with tensors where they are.

    Values are not checked.

    Args:
      image: one of the images of this launch.
      topk_ids: `[T, K]` i32, the rank's.
      slabs: the image's other inputs and the results to write, by name, dense,
        in its dtypes.

    Raises:
      ValueError: a slab is missing or has another size.
      RankError, runtime.WaitError, DeviceError: as `run`.
    """
    counts = self._agree(image, dict(topk_ids=topk_ids))
    image = image_lib.load(image)
    ids = arrays.fitting(image, 'topk_ids', topk_ids, True)
    self._call(image, ids, counts, slabs, {})

  def _agree(self, image, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns counts of all ranks, after a check that all can take part."""
    comm = self._comm
    offer = rank_runtime.make_offer(image, comm.rank, comm.num_ranks, inputs)
    return rank_runtime.agree(comm.allgather(offer))

  def _call(self, image, ids, counts, slabs, plan) -> None:
    native_tensors = [
      native.Tensor(name.encode(), slab.address, slab.bytes, slab.on_device)
      for name, slab in slabs.items()
    ]
    bits = np.frombuffer(memoryview(image), np.uint8)
    counts = np.ascontiguousarray(counts, np.int32)
    call = native.Call(
      image=bits.ctypes.data,
      image_bytes=len(bits),
      topk_ids=ids.ctypes.data,
      counts=counts.ctypes.data,
      tensors=(native.Tensor * len(native_tensors))(*native_tensors),
      num_tensors=len(native_tensors),
      poison=self._poison,
      deadline_s=self._deadline_s,
    )
    end = native.End()
    self._library.hpmoe_npus_launch(self._session, call, end)
    _raise(end, image, plan)

  def close(self) -> None:
    """Leaves the session; every rank must call it.

    Raises:
      DeviceError: a call of ACL or SHMEM failed.
    """
    session, self._session = self._session, ctypes.c_void_p()
    if session:
      end = native.End()
      self._library.hpmoe_npus_close(session, end)
      _raise(end)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error) -> None:
    self.close()
