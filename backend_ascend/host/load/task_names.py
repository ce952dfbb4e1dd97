"""What reports call a task."""

import dataclasses

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout


@dataclasses.dataclass(frozen=True)
class TaskName:
  """A task as a report names it.

  Attributes:
    index: into the image's tasks.
    kind: a name of `layout.Kind`, in small letters.
    rank: rank that executes it.
    expert: global expert, or -1 for a task of tokens.
    row_block: row tile.
    col_block: column tile.
  """

  index: int
  kind: str
  rank: int
  expert: int
  row_block: int
  col_block: int

  def __str__(self) -> str:
    expert = '' if self.expert < 0 else f'expert {self.expert}, '
    return (
      f'{self.kind} task {self.index} (rank {self.rank}, {expert}'
      f'row block {self.row_block}, column block {self.col_block})'
    )


def task_name(image: image_lib.Image, index: int) -> TaskName:
  """Returns the readable name of a task of a parsed image."""
  task = image.tables['tasks'][index]
  return TaskName(
    index=index,
    kind=layout.Kind(task['kind']).name.lower(),
    **{
      name: int(task[name])
      for name in ('rank', 'expert', 'row_block', 'col_block')
    },
  )
