"""A launch of a task image, for the judge: which task wrote which element."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import expert_placement as placement_lib
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.judge import isolated_replay
from hpmoe.reference.contract import tensors

Masks = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ImageLaunch(candidates.Launch):
  """One launch of the megakernel, without its tensors.

  Attributes:
    image: what was launched.
    plan: the routing plan.
    view: the placement of experts; None: the layer's own.
  """

  image: image_lib.Image = dataclasses.field(kw_only=True)
  plan: _native.Routing = dataclasses.field(kw_only=True)
  view: placement_lib.View | None = dataclasses.field(
    kw_only=True, default=None
  )

  @property
  def num_tasks(self) -> int:
    """See `Launch`."""
    return len(self.image.tables['tasks'])

  def find_wrong_tasks(
    self, lane: str, bad: Masks
  ) -> list[isolated_replay.WrongTask]:
    """See `Launch`."""
    image_masks = self.view.place(bad) if self.view else bad
    return find_wrong_tasks(self.image, self.plan, lane, image_masks)

  def find_left_out(self, like: Masks) -> dict[str, np.ndarray]:
    """See `Launch`."""
    assert self.left_out is not None
    return self.find_written(self.left_out, like)

  def find_written(
    self, tasks: np.ndarray, like: Masks
  ) -> dict[str, np.ndarray]:
    """As `mask_written_elements`, in the layer's own order of experts."""
    if self.view is None:
      return mask_written_elements(self.image, self.plan, tasks, like)
    image_masks = mask_written_elements(
      self.image, self.plan, tasks, self.view.place(like)
    )
    return self.view.restore(image_masks)


def find_wrong_tasks(
  image: image_lib.Image,
  plan: _native.Routing,
  lane: str,
  bad: Masks,
) -> list[isolated_replay.WrongTask]:
  """Returns the tasks that wrote bad elements, in the image's order.

  Args:
    image: what was launched.
    plan: the routing plan.
    lane: the lane that judged.
    bad: by tensor name, bool in the tensor's shape.
  """
  accesses, _ = runtime.inspect(image, plan)
  wrong_tasks = []
  for buffer in layout.Buffer:
    name = buffer.name.lower()
    if name not in bad or not bad[name].any():
      continue
    writes = accesses[(accesses['write'] == 1) & (accesses['buffer'] == buffer)]
    counts = _count_elements(writes, _by_slab(name, bad[name]))
    for task, (wrong, elements) in counts.items():
      wrong_tasks.append(
        isolated_replay.WrongTask(
          direction=image.direction.name.lower(),
          task=runtime.task_name(image, task),
          lanes=(lane,),
          tensor=name,
          bad=wrong,
          elements=elements,
          remark=_describe_chain(image, task),
        )
      )
  return sorted(wrong_tasks, key=lambda wrong: wrong.task.index)


def _by_slab(name: str, bad: np.ndarray) -> np.ndarray:
  """Returns `[slabs, rows, columns]`; an expert's weight is a slab."""
  is_weight = 'L' in tensors.SPECS[name].shape.split()
  slabs = bad.shape[0] * (bad.shape[1] if is_weight else 1)
  return bad.reshape(slabs, -1, bad.shape[-1])


def _count_elements(
  accesses: np.ndarray, bad: np.ndarray
) -> dict[int, tuple[int, int]]:
  """Returns the numbers of wrong and of all elements of each wrong task.

  Partial sums of a chain lie past the tensor's columns, so only the last link
  of a chain has elements here.
  """
  counts: dict[int, tuple[int, int]] = {}
  for a in accesses:
    task = int(a['task'])
    box = _box(bad, a)
    wrong, elements = counts.get(task, (0, 0))
    counts[task] = wrong + int(box.sum()), elements + box.size
  return {task: count for task, count in counts.items() if count[0]}


_CHAINED = layout.select_kinds(layout.Form.WEIGHT_TILE)


def _count_links(image: image_lib.Image, task: int) -> int:
  """Returns the number of tasks that sum one tile in a chain."""
  if image.tables['tasks'][task]['kind'] not in _CHAINED:
    return 1
  header = image.header
  return -(-int(header['expert_capacity']) // int(header['chain_rows']))


def _describe_chain(image: image_lib.Image, task: int) -> str:
  links = _count_links(image, task)
  if links == 1:
    return ''
  return f'the last of {links} links that sum this tile; any may be wrong'


def mask_written_elements(
  image: image_lib.Image,
  plan: _native.Routing,
  tasks: np.ndarray,
  like: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns which elements some tasks write last.

  Args:
    image: what was launched.
    plan: the routing plan.
    tasks: `[tasks]` bool.
    like: tensors by name.

  Returns:
    By the names of `like`, bool in the tensor's shape.
  """
  accesses, _ = runtime.inspect(image, plan)
  masks = {name: np.zeros(a.shape, bool) for name, a in like.items()}
  for a in accesses[(accesses['write'] == 1) & tasks[accesses['task']]]:
    name = layout.Buffer(a['buffer']).name.lower()
    if name in masks:
      _box(_by_slab(name, masks[name]), a)[...] = True
  return masks


def _box(slabs: np.ndarray, access: np.void) -> np.ndarray:
  a = access
  rows = slice(a['row_begin'], a['row_end'])
  return slabs[a['slab'], rows, a['col_begin'] : a['col_end']]
