"""What a dumped layer does not say as tensors of its own, from what it says.

Three kinds of modules have no ids of experts in their dump:

* Experts that get sorted rows: the number of rows of each expert, or sums of
  these, says which rows are whose; a row is a token with one expert.
* Experts whose weights are one matrix: it is cut by the number of experts.
* Modules that route by themselves: the dump has router logits.  Of a token
  whose choice rounding leaves open, the choice nearest to y is judged.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.dumps import dump_layers
from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.reference import routing
from hpmoe.reference.contract import router as router_lib

# Of what is derived.
LAYOUTS = {'topk_ids': 'M K', 'topk_weights': 'M K'}
_FLAT = {'w_gate_up': 'x', 'w_down': 'y', 'd_w_gate_up': 'x', 'd_w_down': 'y'}


@dataclasses.dataclass(frozen=True)
class CompleteCall:
  """A call with ids and weights.

  Attributes:
    call: with them among its files.
    weight_ulp: how far a right module's routing weights may be from these, in
      unit roundoffs; 0: they are its own.
  """

  call: dump_layers.LayerCall
  weight_ulp: float = 0.0


def complete(
  call: dump_layers.LayerCall, router: router_lib.Router | None
) -> CompleteCall:
  """Returns a call with what its kind does not dump.

  Args:
    call: as the dump has it.
    router: the rule of modules that route by themselves; None: unknown.

  Raises:
    ValueError: a tensor's shape does not fit, or the rule is needed and None.
  """
  files = dict(call.files)
  if dump_layers.COUNTS in files:
    files |= _sort_rows(files)
  if call.kind.is_flat:
    files |= _cut_weights(files)
  weight_ulp = 0.0
  if dump_layers.ROUTER_LOGITS in files and 'topk_ids' not in files:
    if router is None:
      raise ValueError(
        'it routes by itself: --router=RULE:top_k=K says how, see '
        'docs/contract.md'
      )
    added_files, weight_ulp = _route(call.kind, files, router)
    files |= added_files
  return CompleteCall(dataclasses.replace(call, files=files), weight_ulp)


def _sort_rows(
  files: Mapping[str, tensor_files.StoredTensor],
) -> dict[str, tensor_files.StoredTensor]:
  """Returns ids and weights of rows that are sorted by expert."""
  counts = files[dump_layers.COUNTS].read().reshape(-1).astype(np.int64)
  rows = files['x'].read().shape[0] if 'x' in files else int(counts.sum())
  if (
    counts.sum() != rows and counts[-1] == rows and (np.diff(counts) >= 0).all()
  ):
    counts = np.diff(counts, prepend=0)
  if counts.sum() != rows:
    raise ValueError(
      f'{dump_layers.COUNTS}: expected {rows} rows in all, got '
      f'{int(counts.sum())}'
    )
  ids = np.repeat(np.arange(counts.size), counts)[:, None]
  results: dict[str, tensor_files.StoredTensor] = {
    'topk_ids': tensor_files.ArrayTensor(ids)
  }
  if 'topk_weights' not in files:
    unit_weights = np.ones((rows, 1), np.float32)
    results['topk_weights'] = tensor_files.ArrayTensor(unit_weights)
  for role in ('topk_weights', 'd_topk_weights'):
    if role in files:
      results[role] = tensor_files.ArrayTensor(
        files[role].read().reshape(-1, 1)
      )
  return results


def _cut_weights(
  files: Mapping[str, tensor_files.StoredTensor],
) -> dict[str, tensor_files.StoredTensor]:
  """Returns weights `[E, D, 2F]` and `[E, F, D]` of matrices of all experts."""
  if dump_layers.COUNTS in files:
    experts = files[dump_layers.COUNTS].read().size
  elif dump_layers.ROUTER_WEIGHT in files:
    experts = files[dump_layers.ROUTER_WEIGHT].read().shape[0]
  else:
    return {}
  results: dict[str, tensor_files.StoredTensor] = {}
  width = files['x'].read().shape[-1] if 'x' in files else 0
  for role, source in _FLAT.items():
    if role in files:
      shape = (experts, width, -1) if source == 'x' else (experts, -1, width)
      bits = np.ascontiguousarray(files[role].read())
      results[role] = tensor_files.ArrayTensor(bits.reshape(shape))
  return results


def _route(
  kind: dump_layers.Kind,
  files: Mapping[str, tensor_files.StoredTensor],
  router: router_lib.Router,
) -> tuple[dict[str, tensor_files.StoredTensor], float]:
  """Returns ids and weights of router logits, and how far weights may be."""

  def read(role: str) -> np.ndarray:
    return np.asarray(read_case.as_numpy(files[role].read()), np.float32)

  logits = read(dump_layers.ROUTER_LOGITS)
  logits = logits.reshape(-1, logits.shape[-1])
  has_bias = dump_layers.ROUTER_BIAS in files
  bias = read(dump_layers.ROUTER_BIAS) if has_bias else None
  routed = routing.route(router, logits[None], bias)
  ids = np.array(routed.topk_ids[0])
  scores = router_limits.bound_scores(router, logits, bias)
  choices = router_limits.find_undecided(router, scores)
  if choices:
    x, y, gate_up, down = map(read, ('x', 'y', 'w_gate_up', 'w_down'))
    gate_up = _move_axes(gate_up, kind.layouts['w_gate_up'], 'E D 2F')
    down = _move_axes(down, kind.layouts['w_down'], 'E F D')
    x, y = x.reshape(len(ids), -1), y.reshape(len(ids), -1)
    for token, token_choices in choices.items():
      errors = []
      for choice in token_choices:
        weights = routing.weigh_choice(
          router, logits[None, [token]], bias, np.array([[choice]])
        )
        own = _compute_token(x[token], choice, weights[0, 0], gate_up, down)
        errors.append(float(np.square(own - y[token]).sum()))
      ids[token] = token_choices[int(np.argmin(errors))]
  weights = routing.weigh_choice(router, logits[None], bias, ids[None])[0]
  derived = dict(topk_ids=ids, topk_weights=np.asarray(weights, np.float32))
  ulp = router_limits.bound_weight_ulp(router, logits, bias, ids)
  return {
    role: tensor_files.ArrayTensor(array) for role, array in derived.items()
  }, ulp


def _move_axes(array: np.ndarray, layout: str, target: str) -> np.ndarray:
  axes = layout.partition(',')[0].split()
  return array.transpose([axes.index(axis) for axis in target.split()])


def _compute_token(x, choice, weights, gate_up, down) -> np.ndarray:
  """Returns y `[D]` of a token under a choice, to tell choices apart."""
  y = np.zeros(down.shape[-1])
  for expert, weight in zip(choice, weights, strict=True):
    gate, up = np.split(x.astype(np.float64) @ gate_up[expert], 2)
    y += weight * (gate / (1 + np.exp(-gate)) * up) @ down[expert]
  return y
