"""A decoder whose experts somebody else chose: what routing alone changes.

The decoder runs in float64 on the tokens of both runs, once with the experts
that the left chose and once with the right's, each weighted by its own scores.
What is left of the runs' difference of log-probabilities, once the difference
of these two is taken away, is about what a right engine would have that replays
the left's routing.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import routed as routed_lib
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.parity_tests.agreement import log_shares
from hpmoe.parity_tests.agreement import runs
from hpmoe.parity_tests.compare import predictions
from hpmoe.parity_tests.compare import run_steps
from hpmoe.parity_tests.dumps import dump_layers
from hpmoe.reference import numerics
from hpmoe.reference.contract import array_typing as at


@dataclasses.dataclass(frozen=True)
class Replay:
  """Mean differences of log-probabilities without sign, in nats.

  Attributes:
    runs: of the two runs.
    routing: of the decoder under the routing of each.
    rest: of the runs, once the left's routing is replayed on the right.
  """

  runs: float
  routing: float
  rest: float


def replay(
  weights: weights_lib.Weights,
  left: runs.Run,
  right: runs.Run,
  rows: runs.Rows,
  shares: log_shares.Agreement | None,
  progress: Callable[[str], None] = lambda name: None,
) -> Replay | None:
  """Returns what routing changes; None: runs without tokens or logits.

  Args:
    weights: of the model of both.
    left: the reference.
    right: the candidate.
    rows: the tokens of both.
    shares: how both predict.
    progress: called with each module's name before it is computed.
  """
  batch = _find_batch(rows)
  if shares is None or batch is None or rows.tokens is None:
    return None
  tokens = rows.tokens.reshape(batch)
  targets = rows.tokens[shares.rows + 1]
  sides = []
  for run, numbers in ((left, rows.left), (right, rows.right)):
    ids = {
      layer.number: layer.read_rows('topk_ids', numbers)
      for layer in run.layers.values()
    }
    slots = compute_slots(weights, tokens, ids, progress=progress)
    logits = slots['lm_head', run_steps.OUTPUT]
    flat = logits.reshape(-1, logits.shape[-1])[shares.rows]
    logs = predictions.find_log_shares(flat)
    sides.append(np.take_along_axis(logs, targets[:, None], -1)[:, 0])
  apart, routing = shares.right - shares.left, sides[1] - sides[0]
  rest = apart - routing
  return Replay(*(float(np.abs(a).mean()) for a in (apart, routing, rest)))


def _find_batch(rows: runs.Rows) -> tuple[int, int] | None:
  """Returns how many sequences of how many tokens; None: they are not alike."""
  count = int(rows.sequence.max(initial=0)) + 1
  length = len(rows.position) // count
  expected = np.arange(count * length) % length
  return (count, length) if np.array_equal(rows.position, expected) else None


def compute_slots(
  weights: weights_lib.Weights,
  tokens: at.Int[np.ndarray, 'B S'],
  ids: Mapping[int, np.ndarray | None],
  dtype: str = 'float64',
  progress: Callable[[str], None] = lambda name: None,
) -> dict[run_steps.Slot, np.ndarray]:
  """Returns what every module of a decoder reads and returns, by its name.

  Args:
    weights: of the model; a module's are read at a time.
    tokens: `[B, S]`.
    ids: experts `[B S, K]` by layer; one that is absent chooses for itself.
    dtype: in which it computes.
    progress: called with each module's name before it is computed.
  """
  config = weights.config
  slots: dict[run_steps.Slot, Any] = {}
  with numerics.use_x64():
    count = tokens.shape[1]
    run = run_steps.make_run(config, {}, dtype)
    numpy_dtype = run_steps.find_dtype(dtype)
    visible = run.nn.find_positions(config, 0, count, count, numpy_dtype, None)
    for step in run_steps.list_steps(config):
      progress(step.name)
      names = run_steps.list_parameters(step, list(weights.specs))
      params = {n: run_steps.to_array(weights.read(n), dtype) for n in names}
      run = run_steps.make_run(config, params, dtype)
      inputs = [
        tokens if read.source is None else slots[read.source]
        for read in step.reads
      ]
      arrays = [run_steps.to_array(a, dtype) for a in inputs]
      own_ids = (
        ids.get(dump_layers.find_number(step.name)) if step.is_choice else None
      )
      if own_ids is None:
        results = step.compute(run, visible, arrays)
      else:
        results = own_ids, _weigh(run, config, arrays[0], own_ids)
      slots |= {r.slot: a for r, a in zip(step.reads, inputs, strict=True)}
      slots |= dict(zip(step.results, map(np.asarray, results), strict=True))
  return slots


def _weigh(run, config: config_lib.ModelConfig, scores, ids) -> Any:
  """Returns the weights `[N, K]` of experts that somebody else chose."""
  flat = scores.reshape(-1, config.num_experts)
  shares = routed_lib.find_shares(run.nn, config, flat)
  return routed_lib.weigh(
    run.nn, config, shares, run_steps.to_array(ids, 'float32')
  )
