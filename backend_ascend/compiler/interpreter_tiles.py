"""What a task of `interpreter.py` computes: its rows, its tile, its puts.

The row arithmetic of a launch is `image/rows.h`.  Every sum is a float32
`matmul`, whose order of addition is numpy's.  Outputs equal a launch's bit for
bit where every order gives the same sum: on small integers, with the activation
'absolute'.
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


class Tiles:
  """Memory of all ranks, and what tasks do to it.

  Attributes:
    memory: tensor name to array; `[R, ...]`, one slab a rank, stage tensors in
      the storage dtype, zero where no task has written.
    expert_slots: for each expert, `[n, 3]` (source rank, token, slot) of its n
      rows.  `argwhere` lists them in deterministic token order, so the position
      of a row in this list is its row in the expert.
  """

  def __init__(self, image: image_lib.Image, inputs: Mapping[str, np.ndarray]):
    """Lays out the memory of a layer.

    Args:
      image: of the forward pass of a layer without relay and codes.
      inputs: as of `interpreter.interpret`.

    Raises:
      ValueError: the image is of another pass, of a sub-layer, of codes, or has
        relay.
    """
    self.config, self.policy = image.config, image.policy
    options = (image.direction, self.config.sublayer, self.policy.rows)
    if any(options) or image.options.relay:
      raise ValueError(
        'image: expected the forward pass of a layer without relay and codes, '
        f'got {image.direction.name}, sublayer={self.config.sublayer}, '
        f'relay={image.options.relay}, rows={self.policy.rows!r}'
      )
    self.dtype = storage.FORMATS[self.policy.storage].numpy
    self.memory = dict(inputs) | {
      name: np.zeros(tensors.SPECS[name].dims(**self.config.dims()), self.dtype)
      for name in tensors.STAGES
    }
    self.expert_slots = [
      np.argwhere(inputs['topk_ids'] == expert)
      for expert in range(self.config.num_experts)
    ]

  def run(self, task: np.void):
    """Computes the tile of a task from `memory` into `memory`."""
    getattr(self, f'_run_{layout.Kind(task["kind"]).name.lower()}')(task)

  def count_rows(self, task: np.void, rank: int, events: np.ndarray):
    """Returns `[events]`: the rows that a put lands in each row block.

    The put that sends the last row of an expert (rank 0's first put where the
    expert has no row) also counts the padding rows behind it.  Thresholds stay
    static while routing is dynamic.
    """
    counts = np.zeros(len(events), np.int32)
    rows, slots = self.list_expert_rows(task)
    if layout.FORM_OF_KIND[task['kind']] == layout.Form.HOME_PUT:
      source, token, slot = slots.T
      rows = (token * self.config.top_k + slot)[source == rank]
      np.add.at(counts, rows // events['part_rows'][0], 1)
      return counts
    np.add.at(counts, rows // events['part_rows'][0], 1)
    num_rows = len(self.expert_slots[task['expert']])
    is_last = num_rows - 1 in rows
    if is_last or (num_rows == task['rank'] == task['row_begin'] == 0):
      begin = np.arange(len(events)) * events['part_rows']
      counts += events['threshold'] - np.clip(
        num_rows - begin, 0, events['threshold']
      )
    return counts

  def list_expert_rows(self, task: np.void) -> tuple[np.ndarray, np.ndarray]:
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
    return self.memory[name][owner], base + self.list_expert_rows(task)[0]

  def _read(self, task: np.void, name: str) -> np.ndarray:
    slab, rows = self.locate_rows(task, name)
    return slab[rows].astype(np.float32)

  def _write(self, task: np.void, name: str, values: np.ndarray, weighted=''):
    """Stores a tile, times the routing weights if the policy says so here."""
    if weighted == self.policy.placement:
      slots = self.list_expert_rows(task)[1]
      values = values * self.memory['topk_weights'][tuple(slots.T)][:, None]
    slab, rows = self.locate_rows(task, name)
    slab[rows, _columns(task)] = values.astype(self.dtype)

  def _run_dispatch(self, task: np.void):
    slab, rows = self.locate_rows(task, 'expert_in')
    source, token, _ = self.list_expert_rows(task)[1].T
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
    slots = self.list_expert_rows(task)[1]
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
