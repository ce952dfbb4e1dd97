"""The megakernel on one page: a task image, executed in plain numpy.

Start here to learn how an image runs.  A launch has no scheduler.  Each worker,
one core of one rank, walks its own static queue and repeats four steps:

  fetch    take the task at the head of the queue
  wait     until every event of the task has reached its threshold
  run      compute one tile, or put rows into the memory of a rank
  signal   add to the counters of the events that other workers wait for

What a task computes is in `interpreter_tiles.py`.  The C++ worker loop is
`image/worker.h`; the tables of kinds and buffers are in `image/kinds.h`.  One
task runs at a time here, so a put is complete when its task ends; on real
hardware it is complete only at the event that it signals.
"""

from collections.abc import Mapping

import numpy as np

from hpmoe.backend_ascend.compiler import interpreter_tiles
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import tensors


class Interpreter:
  """Event counters and queues of one launch on all ranks.

  Attributes:
    tables: the image's tables of tasks, queues, events, waits and signals.
    counters: `[events]` i32.
    tiles: the memory of all ranks, and what tasks do to it.
  """

  def __init__(self, image, inputs: Mapping[str, np.ndarray]):
    """Lays out a launch of an image; for arguments see `interpret`."""
    launch_image = image_lib.load(image)
    self.tables = launch_image.tables
    self.counters = np.zeros(len(self.tables['events']), np.int32)
    self.tiles = interpreter_tiles.Tiles(launch_image, inputs)

  def run(self, generator: np.random.Generator | None = None):
    """Walks all queues to their ends; see `interpret`."""
    tasks: list[np.void] = list(self.tables['tasks'])
    queues = [
      list(self.tables['queue_tasks'][q['begin'] :][: q['count']])
      for q in self.tables['queues']
    ]
    while workers := [queue for queue in queues if queue]:
      if generator is not None:
        generator.shuffle(workers)
      ready = [queue for queue in workers if self.is_ready(tasks[queue[0]])]
      if not ready:
        raise RuntimeError('image: no task is ready, and some have not run')
      for queue in ready if generator is None else ready[:1]:
        task = tasks[queue.pop(0)]
        self.tiles.run(task)
        self.signal(task)

  def is_ready(self, task: np.void) -> bool:
    """Returns whether every event of a task has reached its threshold."""
    waits = self.tables['waits'][task['wait_begin'] :][: task['wait_count']]
    return bool((self.counters[waits['event']] >= waits['threshold']).all())

  def signal(self, task: np.void):
    """Adds to the events of a task: a constant, or one for each row put."""
    signals = self.tables['signals'][task['signal_begin'] :]
    for signal in signals[: task['signal_count']]:
      span = slice(signal['event'], signal['event'] + signal['span'])
      if signal['amount'] == layout.PER_ROW:
        self.counters[span] += self.tiles.count_rows(
          task, signal['rank'], self.tables['events'][span]
        )
      else:
        self.counters[signal['event']] += signal['amount']


def interpret(
  image,
  inputs: Mapping[str, np.ndarray],
  generator: np.random.Generator | None = None,
) -> dict[str, np.ndarray]:
  """Executes a task image.

  Args:
    image: a forward image of a layer, see `interpreter_tiles.Tiles`; or bytes.
    inputs: x `[R, T, D]`, topk_ids and topk_weights `[R, T, K]`, w_gate_up
      `[R, L, D, 2F]`, w_down `[R, L, F, D]`.
    generator: draws the worker that steps next; None: workers in turn.

  Returns:
    The stage tensors, as `runtime.launch` names and shapes them.

  Raises:
    ValueError: the image is of another pass.
    RuntimeError: no worker can step, though tasks are left (a deadlock).
  """
  interpreter = Interpreter(image, inputs)
  interpreter.run(generator)
  return {name: interpreter.tiles.memory[name] for name in tensors.STAGES}
