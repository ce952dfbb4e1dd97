"""The megakernel on one page: a task image, executed in plain numpy.

Start here to learn how an image runs.  A launch has no scheduler.  Each worker,
one core of one rank, walks its own static queue and repeats four steps:

  fetch    take the task at the head of the queue
  wait     until every event of the task has reached its threshold
  run      compute one tile, or put rows into the memory of a rank
  signal   add to the counters of the events that other workers wait for

The C++ worker loop is `image/worker.h`, the row arithmetic `image/rows.h`, and
the tables of kinds and buffers `image/kinds.h`.  This file covers the forward
pass of a layer.  It executes one task at a time, so a put is complete when its
task ends; on real hardware it is complete only at the event that it signals.

Every sum is a float32 `matmul`, whose order of addition is numpy's.  Outputs
equal a launch's bit for bit where every order gives the same sum: on small
integers, with the activation 'absolute'.
"""

from collections.abc import Callable, Mapping
import functools

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
  'absolute': np.abs,
  'swiglu': lambda gate: gate / (1 + np.exp(-gate)),
}


class Interpreter:
  """Memory, event counters and queues of one launch on all ranks.

  Attributes:
    memory: tensor name to array; `[R, ...]`, one slab a rank, stage tensors in
      the storage dtype, zero where no task has written.
    counters: `[events]` i32.
    expert_slots: for each expert, `[n, 3]` (source rank, token, slot) of its n
      rows.  `argwhere` lists them in deterministic token order, so the position
      of a row in this list is its row in the expert.
  """

  def __init__(self, image, inputs: Mapping[str, np.ndarray]):
    """Lays out a launch.

    Args:
      image: a forward image of a layer without relay, or its bytes; of values.
      inputs: x `[R, T, D]`, topk_ids and topk_weights `[R, T, K]`, w_gate_up
        `[R, L, D, 2F]`, w_down `[R, L, F, D]`.

    Raises:
      ValueError: the image is of another pass, of a sub-layer, of codes, or has
        relay.
    """
    self.image = image_lib.load(image)
    self.config, self.policy = self.image.config, self.image.policy
    options = (self.image.direction, self.config.sublayer, self.policy.rows)
    if any(options) or self.image.options.relay:
      raise ValueError(
        'image: expected the forward pass of a layer without relay and codes, '
        f'got {self.image.direction.name}, sublayer={self.config.sublayer}, '
        f'relay={self.image.options.relay}, rows={self.policy.rows!r}'
      )
    self.dtype = storage.FORMATS[self.policy.storage].numpy
    self.memory = dict(inputs) | {
      name: np.zeros(tensors.SPECS[name].dims(**self.config.dims()), self.dtype)
      for name in tensors.STAGES
    }
    self.tables = self.image.tables
    self.counters = np.zeros(len(self.tables['events']), np.int32)
    self.expert_slots = [
      np.argwhere(inputs['topk_ids'] == expert)
      for expert in range(self.config.num_experts)
    ]

  def run(self, generator: np.random.Generator | None = None):
    """Walks all queues to their ends.

    Args:
      generator: draws the worker that steps next; None: workers in turn.

    Raises:
      RuntimeError: no worker can step, though tasks are left (a deadlock).
    """
    tasks: list[np.void] = list(self.tables['tasks'])
    queue_tasks = self.tables['queue_tasks']
    queues = [
      list(queue_tasks[q['begin'] : q['begin'] + q['count']])
      for q in self.tables['queues']
    ]
    while any(queues):
      order = np.arange(len(queues))
      if generator is not None:
        generator.shuffle(order)
      ready = [
        q for q in order if queues[q] and self.is_ready(tasks[queues[q][0]])
      ]
      if not ready:
        raise RuntimeError('image: no task is ready, and some have not run')
      for q in ready if generator is None else ready[:1]:
        task = tasks[queues[q].pop(0)]
        self.run_tile(task)
        self.signal(task)

  def is_ready(self, task: np.void) -> bool:
    """Returns whether every event of a task has reached its threshold."""
    begin = task['wait_begin']
    waits = self.tables['waits'][begin : begin + task['wait_count']]
    return bool((self.counters[waits['event']] >= waits['threshold']).all())

  def run_tile(self, task: np.void):
    """Computes the tile of a task from `memory` into `memory`."""
    getattr(self, f'_run_{layout.Kind(task["kind"]).name.lower()}')(task)

  def signal(self, task: np.void):
    """Adds to the events of a task: a constant, or one for each row put."""
    begin = task['signal_begin']
    for signal in self.tables['signals'][begin : begin + task['signal_count']]:
      if signal['amount'] == layout.PER_ROW:
        self._count_rows(task, signal)
      else:
        self.counters[signal['event']] += signal['amount']

  def _count_rows(self, task: np.void, signal: np.void):
    """Counts each row into the row block where it lands.

    The put that sends the last row of an expert (rank 0's first put where the
    expert has no row) also counts the padding rows behind it.  Thresholds stay
    static while routing is dynamic.
    """
    counters = self.counters[signal['event'] :][: signal['span']]
    events = self.tables['events'][signal['event'] :][: signal['span']]
    rows, slots = self._expert_rows(task)
    if layout.FORM_OF_KIND[task['kind']] == layout.Form.HOME_PUT:
      source, token, slot = slots.T
      landing = (token * self.config.top_k + slot)[source == signal['rank']]
      np.add.at(counters, landing // events['part_rows'][0], 1)
      return
    np.add.at(counters, rows // events['part_rows'][0], 1)
    num_rows = len(self.expert_slots[task['expert']])
    is_last = num_rows - 1 in rows
    if is_last or (num_rows == task['rank'] == task['row_begin'] == 0):
      begin = np.arange(len(events)) * events['part_rows']
      counters += events['threshold'] - np.clip(
        num_rows - begin, 0, events['threshold']
      )

  def _expert_rows(self, task: np.void) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of its expert that a task has, and their slots.

    A dispatch has rows of the slice that its own rank sends.  A put home has
    rows of the slice of rank `peer` or, like a GEMM, of the whole expert.  Rows
    past the last real one are cut: the task does nothing, and still signals.
    """
    slots = self.expert_slots[task['expert']]
    rows = np.arange(len(slots))
    form = layout.FORM_OF_KIND[task['kind']]
    if form == layout.Form.SLICE_PUT:
      rows = rows[slots[:, 0] == task['rank']]
    elif (
      form == layout.Form.HOME_PUT and task['peer'] != layout.ROW_BLOCK_RANGE
    ):
      rows = rows[slots[:, 0] == task['peer']]
    rows = rows[task['row_begin'] : task['row_end']]
    return rows, slots[rows]

  def locate_rows(
    self, task: np.void, name: str
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns a tensor's slab on the expert's rank, and the task's rows in it.

    Each rank holds `[N, columns]`, the rows of its experts one after the other.
    """
    local = self.config.experts_per_rank
    expert = int(task['expert'])
    owner = expert // local
    base = sum(map(len, self.expert_slots[owner * local : expert]))
    return self.memory[name][owner], base + self._expert_rows(task)[0]

  def _read(self, task: np.void, name: str) -> np.ndarray:
    slab, rows = self.locate_rows(task, name)
    return slab[rows].astype(np.float32)

  def _write(self, task: np.void, name: str, values: np.ndarray, weighted=''):
    """Stores a tile, times the routing weights if the policy says so here."""
    if weighted == self.policy.placement:
      slots = self._expert_rows(task)[1]
      values = values * self.memory['topk_weights'][tuple(slots.T)][:, None]
    slab, rows = self.locate_rows(task, name)
    slab[rows, _columns(task)] = values.astype(self.dtype)

  def _run_dispatch(self, task: np.void):
    slab, rows = self.locate_rows(task, 'expert_in')
    source, token, _ = self._expert_rows(task)[1].T
    slab[rows] = self.memory['x'][source, token]

  def _run_gemm(
    self,
    task: np.void,
    left: str,
    right: str,
    target: str,
    weighted: str = '',
  ):
    local_expert = task['expert'] % self.config.experts_per_rank
    weight = self.memory[right][task['rank'], local_expert][:, _columns(task)]
    product = self._read(task, left) @ weight.astype(np.float32)
    self._write(task, target, product, weighted)

  _run_gate_up = functools.partialmethod(
    _run_gemm, left='expert_in', right='w_gate_up', target='gate_up'
  )
  _run_down = functools.partialmethod(
    _run_gemm,
    left='activation',
    right='w_down',
    target='expert_out',
    weighted='epilogue',
  )

  def _run_swiglu(self, task: np.void):
    gate, up = np.split(self._read(task, 'gate_up'), 2, axis=1)
    activation = _ACTIVATIONS[self.policy.activation](gate) * up
    columns = activation[:, _columns(task)]
    self._write(task, 'activation', columns, weighted='before_down')

  def _run_return(self, task: np.void):
    slab, rows = self.locate_rows(task, 'expert_out')
    slots = self._expert_rows(task)[1]
    self.memory['returned'][tuple(slots.T)] = slab[rows]

  def _run_combine(self, task: np.void):
    tokens = (task['rank'], slice(task['row_begin'], task['row_end']))
    rows = self.memory['returned'][*tokens, :, _columns(task)].astype(
      np.float32
    )
    if self.policy.placement == 'combine':
      rows = rows * self.memory['topk_weights'][tokens][..., None]
    total = functools.reduce(np.add, rows.swapaxes(0, 1))  # in slot order
    self.memory['y'][*tokens, _columns(task)] = total.astype(self.dtype)


def _columns(task: np.void) -> slice:
  return slice(task['col_begin'], task['col_end'])


def interpret(
  image,
  inputs: Mapping[str, np.ndarray],
  generator: np.random.Generator | None = None,
) -> dict[str, np.ndarray]:
  """Executes a task image.

  Args:
    image: as of `Interpreter`.
    inputs: as of `Interpreter`.
    generator: draws the worker that steps next; None: workers in turn.

  Returns:
    The stage tensors, as `runtime.launch` names and shapes them.

  Raises:
    ValueError: as `Interpreter`.
    RuntimeError: the launch deadlocks.
  """
  interpreter = Interpreter(image, inputs)
  interpreter.run(generator)
  return {name: interpreter.memory[name] for name in tensors.STAGES}
