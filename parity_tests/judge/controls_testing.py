"""Controls: what every check must refuse, from a kernel that is wrong once.

A control spoils one stage; the stages after it are computed from that, so that
a result alone shows it too.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.reference.contract import granularity

Tensors = dict[str, np.ndarray]
# (case, the tensors so far, the name of the one to spoil).
Spoil = Callable[[pass_case.PassCase, Tensors, str], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Control:
  """One way to be wrong.

  Attributes:
    name: what it is.
    stages: the tensors that it spoils, of either pass; empty: all of them.
    spoil: returns such a tensor, spoiled.
  """

  name: str
  stages: tuple[str, ...]
  spoil: Spoil


class Answers(candidates.Candidate):
  """Answers with tensors that were computed before, call after call."""

  name = 'kernel'

  def __init__(self, options: granularity.Options, answers: Sequence[Tensors]):
    self.options, self._answers = options, iter(answers)

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    return next(self._answers)


def answer(case: pass_case.PassCase, control: Control | None = None) -> Tensors:
  """Returns what a kernel with the control's fault, or without, computes."""
  oracle, computed = case.oracle, {}
  spoiled_stages = spoils(case, control) if control else ()
  for name in case.layer_pass.stages:
    computed[name] = oracle.stage(name, computed)
    if control and name in spoiled_stages:
      computed[name] = control.spoil(case, computed, name).astype(
        computed[name].dtype
      )
  return (oracle.plan if case.layer_pass.plan else {}) | computed


def spoils(case: pass_case.PassCase, control: Control) -> tuple[str, ...]:
  """Returns the stages of a pass that a control spoils."""
  stages = case.layer_pass.stages
  return tuple(n for n in stages if n in (control.stages or stages))


def busy(tiling: tiles.Tiling) -> tuple[int, int, slice]:
  """Returns (rank, local expert, its rows) of the fullest expert."""
  rows = tiling.counts.sum(axis=0)
  expert = int(np.argmax(rows))
  rank, local = divmod(expert, tiling.config.experts_per_rank)
  begin = int(rows[expert - local : expert].sum())
  return rank, local, slice(begin, begin + int(rows[expert]))


def tile_of(value: float) -> Spoil:
  """Returns what gives a tile of the fullest expert one value."""

  def spoil(case, computed, name):
    rank, _, rows = busy(case.tiling)
    wrong_tensor = computed[name].astype(np.float32)
    wrong_tensor[rank, rows.start : rows.start + 4, :8] = value
    return wrong_tensor

  return spoil


def _swapped_experts(case, computed, name):
  rank, local, rows = busy(case.tiling)
  wrong_tensor = computed[name].astype(np.float32)
  if case.layer_pass is passes.FORWARD:
    before, weights = 'expert_in', case.inputs.arrays['w_gate_up']
  else:
    before = 'd_expert_out'
    weights = np.swapaxes(case.inputs.arrays['w_down'], -1, -2)
  other = weights[rank, local ^ 1].astype(np.float32)
  wrong_tensor[rank, rows] = (
    computed[before][rank, rows].astype(np.float32) @ other
  )
  return wrong_tensor


def _stale_row(case, computed, name):
  rank, _, rows = busy(case.tiling)
  wrong_tensor = computed[name].astype(np.float32)
  wrong_tensor[rank, rows.start + 1] = wrong_tensor[rank, rows.start + 2]
  return wrong_tensor


def _lost_slot(case, computed, name):
  forward = case.layer_pass is passes.FORWARD
  returned_rows = computed['returned' if forward else 'd_returned'][1, 5]
  weights = case.inputs.arrays['topk_weights'][1, 5].copy()
  if not forward or case.inputs.policy.placement == 'before_down':
    weights[:] = 1
  weights[0] = 0
  wrong_tensor = computed[name].astype(np.float32)
  wrong_tensor[1, 5] = weights @ returned_rows.astype(np.float32)
  return wrong_tensor


def _misplaced_weight(case, computed, name):
  """A row is scaled by the weight of the row after it."""
  rank, _, rows = busy(case.tiling)
  slots = case.tiling.slot_of_row[rank][rows]
  weights = case.inputs.arrays['topk_weights'].reshape(-1)[slots]
  # The two rows whose weights are furthest apart; the first one's is not 0.
  right, wrong = np.argmax(weights), np.argmin(weights)
  wrong_tensor = computed[name].astype(np.float32)
  wrong_tensor[rank, rows.start + right] *= weights[wrong] / weights[right]
  return wrong_tensor


def _swapped_halves(case, computed, name):
  return np.roll(computed[name], case.inputs.config.d_ff, axis=-1)


def answer_with_changed_input(
  case: pass_case.PassCase,
  name: str,
  change: Callable[[np.ndarray], np.ndarray],
) -> Tensors:
  """Returns what a kernel computes that changes one of its inputs first."""
  arrays = dict(case.inputs.arrays)
  arrays[name] = change(arrays[name]).astype(arrays[name].dtype)
  inputs = dataclasses.replace(case.inputs, arrays=arrays)
  return answer(dataclasses.replace(case, inputs=inputs))


def controls(case: pass_case.PassCase) -> tuple[Control, ...]:
  """Returns the controls of a pass."""
  early = case.inputs.policy.placement == 'before_down'
  # Where a row's weight shows: at combine it scales the row that returns.
  weighted = ('expert_out', 'd_expert_out')
  if early:
    weighted = ('activation', 'd_gate_up')
  return (
    Control(
      'all zeros',
      (),
      lambda case, computed, name: np.zeros_like(computed[name]),
    ),
    Control(
      'all NaN', (), lambda case, computed, name: np.nan * computed[name]
    ),
    Control('dropped tile', ('gate_up', 'd_activation'), tile_of(0)),
    Control('swapped experts', ('gate_up', 'd_activation'), _swapped_experts),
    Control('stale row', ('expert_in', 'd_expert_out'), _stale_row),
    Control('lost slot', ('y', 'dx'), _lost_slot),
    Control('misplaced weight', weighted, _misplaced_weight),
    Control('gate and up swapped', ('gate_up', 'd_gate_up'), _swapped_halves),
  )
