"""A launch of a task image, as the judge sees it: who wrote what."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import expert_placement as placement_lib
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.judge import isolation
from hpmoe.reference.contract import tensors

Masks = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ImageLaunch(candidates.Launch):
  """One launch of our backend, but for its tensors.

  Attributes:
    image: what was launched.
    plan: of its routing.
    view: of the layer, in which experts may have other places; None: as it is.
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
  ) -> list[isolation.WrongTask]:
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
    """As `written_by`, in the layer's own order of experts."""
    if self.view is None:
      return written_by(self.image, self.plan, tasks, like)
    image_masks = written_by(
      self.image, self.plan, tasks, self.view.place(like)
    )
    return self.view.restore(image_masks)


def find_wrong_tasks(
  image: image_lib.Image,
  plan: _native.Routing,
  lane: str,
  bad: Masks,
) -> list[isolation.WrongTask]:
  """Returns the tasks that wrote bad elements, in the image's order.

  Args:
    image: what was launched.
    plan: of its routing.
    lane: that judged.
    bad: by tensor name, bool in the tensor's shape.
  """
  accesses, _ = runtime.inspect(image, plan)
  found = []
  for buffer in layout.Buffer:
    name = buffer.name.lower()
    if name not in bad or not bad[name].any():
      continue
    mine = accesses[(accesses['write'] == 1) & (accesses['buffer'] == buffer)]
    counts = _counts(mine, _by_slab(name, bad[name]))
    for task, (wrong, elements) in counts.items():
      found.append(
        isolation.WrongTask(
          direction=image.direction.name.lower(),
          task=runtime.task_name(image, task),
          lanes=(lane,),
          tensor=name,
          bad=wrong,
          elements=elements,
          why=_chain(image, task),
        )
      )
  return sorted(found, key=lambda wrong: wrong.task.index)


def _by_slab(name: str, bad: np.ndarray) -> np.ndarray:
  """Returns `[slabs, rows, columns]`; an expert's weight is a slab."""
  is_weight = 'L' in tensors.SPECS[name].shape.split()
  slabs = bad.shape[0] * (bad.shape[1] if is_weight else 1)
  return bad.reshape(slabs, -1, bad.shape[-1])


def _counts(
  accesses: np.ndarray, bad: np.ndarray
) -> dict[int, tuple[int, int]]:
  """Returns wrong and all elements of the tasks that have a wrong one.

  What links of a chain hand on lies past the tensor's columns: of a chain only
  the last one has elements here.
  """
  counts: dict[int, tuple[int, int]] = {}
  for a in accesses:
    task = int(a['task'])
    box = _box(bad, a)
    wrong, elements = counts.get(task, (0, 0))
    counts[task] = wrong + int(box.sum()), elements + box.size
  return {task: count for task, count in counts.items() if count[0]}


_CHAINED = layout.select_kinds(layout.Form.WEIGHT_TILE)


def _links(image: image_lib.Image, task: int) -> int:
  """Returns how many tasks sum one tile together, in a chain."""
  if image.tables['tasks'][task]['kind'] not in _CHAINED:
    return 1
  header = image.header
  return -(-int(header['expert_capacity']) // int(header['chain_rows']))


def _chain(image: image_lib.Image, task: int) -> str:
  links = _links(image, task)
  if links == 1:
    return ''
  return f'the last of {links} links that sum this tile, of which any is wrong'


def written_by(
  image: image_lib.Image,
  plan: _native.Routing,
  tasks: np.ndarray,
  like: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns which elements some tasks write last.

  Args:
    image: what was launched.
    plan: of its routing.
    tasks: `[tasks]` bool.
    like: tensors by name.

  Returns:
    By the names of `like`, bool in the tensor's shape.
  """
  accesses, _ = runtime.inspect(image, plan)
  written = {name: np.zeros(a.shape, bool) for name, a in like.items()}
  for a in accesses[(accesses['write'] == 1) & tasks[accesses['task']]]:
    name = layout.Buffer(a['buffer']).name.lower()
    if name in written:
      _box(_by_slab(name, written[name]), a)[...] = True
  return written


def _box(slabs: np.ndarray, access: np.void) -> np.ndarray:
  a = access
  rows = slice(a['row_begin'], a['row_end'])
  return slabs[a['slab'], rows, a['col_begin'] : a['col_end']]
