"""Judges a sample of a large layer without computing the oracle's whole layer.

Movement and order are compared in full, because they cost no arithmetic.  Some
tiles of each stage are judged against their golden rows.  The layer end to end
is judged on some tokens of each rank: the result of a token depends on no other
token, so they form a small layer with the same weights.
"""

import dataclasses

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import code_lane
from hpmoe.parity_tests.judge.lanes import equality
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.reference.contract import tensors

# Golden rows that are copied, not computed, at once.
_ROWS = 1 << 12


def lanes_of_sample(
  options: pass_case.LaneOptions,
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
  sample: tiles.Sample,
) -> pass_case.Findings:
  """Judges lanes bitwise and bounded of a forward pass on a sample of tiles."""
  layer_pass = case.layer_pass
  tensors.require_layer(case.inputs.config, 'to judge a sample of its tiles')
  options.progress(f'{layer_pass.name}, real data: candidate')
  answer = case.ask(candidate)
  outputs = answer.outputs
  options.progress(f'{layer_pass.name}, bitwise: order and movement')
  plan = case.oracle.plan
  results = [
    equality.compare_equal(
      name, 'bitwise', equality.ORACLE_RULE, outputs, plan, case.tiling
    )
    for name in layer_pass.plan
  ]
  tiling = dataclasses.replace(case.tiling, sample=sample)
  golden = dataclasses.replace(case.golden(answer.sources), tiling=tiling)
  for name in layer_pass.stages:
    options.progress(f'{layer_pass.name}, bounded: {name}')
    results += _stage(case, golden, name, answer)
  results += code_lane.judge_codes(case, answer, tiling)
  options.progress(f'{layer_pass.name}, bounded: layer')
  return pass_case.Findings(results + _layer(case, outputs, sample), outputs)


def _stage(
  case: pass_case.PassCase,
  golden: golden_lib.Rows,
  name: str,
  answer: pass_case.Answer,
) -> pass_case.Results:
  outputs = answer.outputs
  moves = name in case.movement
  lane = 'bitwise' if moves else 'bounded'
  rule = equality.ORACLE_RULE if moves else verdicts.BOUND_RULE
  needed_names = (name, *case.sources[name])
  usable = (
    {name: outputs[name], **case.select_usable(name, answer.sources)}
    if name in outputs
    else {}
  )
  missing = [n for n in needed_names if n not in usable]
  if missing:
    return [verdicts.not_captured(name, lane, rule, missing[0])]
  if not moves:
    return tile_lanes.tolerances(name, outputs[name], golden, None, ())
  home = np.zeros(outputs[name].shape, outputs[name].dtype)
  for rank in case.tiling.judged_ranks:
    rows = case.tiling.rows(name, home, rank)
    for lo in range(0, len(rows), _ROWS):
      hi = min(lo + _ROWS, len(rows))
      rows[lo:hi] = golden.rows(name, rank, lo, hi).value
  return [
    tile_lanes.compare(name, lane, rule, outputs[name], home, case.tiling)
  ]


def _layer(
  case: pass_case.PassCase, outputs: pass_case.Arrays, sample: tiles.Sample
) -> pass_case.Results:
  """Judges the layer on some tokens of each rank, with the first and last."""
  config, (result,) = case.inputs.config, case.layer_pass.results
  tokens = _tokens(config.num_tokens, sample)
  arrays = {
    name: a[:, tokens] if tiles.is_of_tokens(name) else a
    for name, a in case.inputs.arrays.items()
    if name in tensors.SPECS  # values, and not the codes that they come from
  }
  small = dataclasses.replace(config, num_tokens=len(tokens))
  plan = oracle_lib.Oracle(small, case.inputs.policy, arrays).plan
  tiling = dataclasses.replace(
    case.tiling,
    config=small,
    counts=plan['counts'],
    row_of_slot=plan['row_of_slot'],
    topk_ids=arrays['topk_ids'],
  )
  golden = pass_reference.build_golden(
    case.layer_pass, tiling, case.inputs.policy, arrays, {}
  )
  row = verdicts.ROWS[result]
  results = tile_lanes.tolerances(
    row, outputs[result][:, tokens], golden, None, ()
  )
  return [
    _in_whole(result, tokens, case.tiling.token_block) for result in results
  ]


def _tokens(num_tokens: int, sample: tiles.Sample) -> np.ndarray:
  rng = np.random.default_rng((sample.seed, num_tokens))
  sampled = rng.permutation(num_tokens)[: sample.tiles]
  return np.unique(np.concatenate([sampled, [0, num_tokens - 1]]))


def _in_whole(
  result: verdicts.Result, tokens: np.ndarray, token_block: int
) -> verdicts.Result:
  """Returns a result with the tokens numbered as in the whole layer."""

  def whole(failure: verdicts.Failure) -> verdicts.Failure:
    rank, token, *rest = failure.index
    token = int(tokens[token])
    return dataclasses.replace(
      failure,
      index=(rank, token, *rest),
      token=token,
      row_block=token // token_block,
      bad_rows=0,
    )

  return result.part.but(whole)
