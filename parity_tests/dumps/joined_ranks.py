"""Calls of a layer whose experts lie on several ranks, joined to one.

A rank's dump has the tokens that the rank routed, with ids of all experts, what
came back for them, and the weights of its own experts.  So the tokens of the
ranks that together hold all experts, one after the other, are a layer that can
be judged.  Where several ranks hold the same experts, the first of each are one
such group, the second the next.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.dumps import dump_layers

_EXPERTS = ('w_gate_up', 'w_down', 'd_w_gate_up', 'd_w_down')


@dataclasses.dataclass(frozen=True)
class JoinedTensor:
  """Tensors of several ranks, one after the other along the first axis."""

  tensors: tuple[tensor_files.StoredTensor, ...]

  def read(self) -> np.ndarray:
    """Returns their bits; rows of one axis of tokens.

    Raises:
      ValueError: a file cannot be read, or the ranks' tensors do not fit.
    """
    return np.concatenate([tensor.read() for tensor in self.tensors])


@dataclasses.dataclass(frozen=True)
class TokenTensor:
  """A tensor of a rank's tokens, as rows of one axis."""

  tensor: tensor_files.StoredTensor

  def read(self) -> np.ndarray:
    """Returns its bits, `[tokens, ...]`."""
    array = self.tensor.read()
    return array.reshape(-1, array.shape[-1])


def join(
  calls: Sequence[dump_layers.LayerCall],
) -> list[dump_layers.LayerCall]:
  """Returns calls, those of ranks that share a layer's experts joined.

  Args:
    calls: of all steps and ranks.

  Raises:
    ValueError: a file cannot be read.
  """
  groups: dict[tuple[str, str, int], list[dump_layers.LayerCall]] = {}
  for call in calls:
    step = call.place.rpartition('/')[0]
    groups.setdefault((step, call.path, call.call), []).append(call)
  results = [
    call
    for group in groups.values()
    for call in (_join_group(group) if _is_split(group) else group)
  ]
  # As ranks are in the dump, then layers.
  first_rank = lambda call: call.place.partition('+')[0]
  order = list(dict.fromkeys(call.place for call in calls))
  return sorted(results, key=lambda call: order.index(first_rank(call)))


def _is_split(group: list[dump_layers.LayerCall]) -> bool:
  """Says whether ids name experts that no rank of these holds alone."""
  needed_roles = {'topk_ids', 'w_gate_up'}
  if len(group) < 2 or not all(needed_roles <= {*c.files} for c in group):
    return False
  if any(not call.kind.layouts['w_gate_up'].startswith('E ') for call in group):
    return False
  experts = max(call.files['w_gate_up'].read().shape[0] for call in group)
  last = max(int(c.files['topk_ids'].read().max(initial=-1)) for c in group)
  return last >= experts


def _join_group(
  group: list[dump_layers.LayerCall],
) -> list[dump_layers.LayerCall]:
  """Returns a call for each group of ranks that hold all experts once."""
  shards: list[bytes] = []
  groups: dict[int, list[dump_layers.LayerCall]] = {}
  for call in group:
    shard = call.files['w_gate_up'].read().tobytes()
    groups.setdefault(shards.count(shard), []).append(call)
    shards.append(shard)
  return [_join_calls(calls) for calls in groups.values()]


def _join_calls(
  calls: list[dump_layers.LayerCall],
) -> dump_layers.LayerCall:
  step = calls[0].place.rpartition('/')[0]
  ranks = '+'.join(call.place.rpartition('/')[2] for call in calls)
  readers = calls if _have_own_tokens(calls) else calls[:1]
  files: dict[str, tensor_files.StoredTensor] = {}
  for role in calls[0].files:
    own_tensors = [call.files.get(role) for call in calls]
    tensors = [tensor for tensor in own_tensors if tensor is not None]
    if len(tensors) < len(calls):
      continue
    if role not in _EXPERTS:
      tensors = [TokenTensor(t) for t in tensors[: len(readers)]]
    files[role] = JoinedTensor(tuple(tensors))
  place = f'{step}/{ranks}' if step else ranks
  return dataclasses.replace(calls[0], place=place, files=files)


def _have_own_tokens(calls: list[dump_layers.LayerCall]) -> bool:
  """Says whether ranks route other tokens, not all the same."""
  if any('x' not in call.files for call in calls):
    return True
  tokens = {call.files['x'].read().tobytes() for call in calls}
  return len(tokens) > 1
