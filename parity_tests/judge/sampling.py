"""A layer of a real size, judged in part: without the oracle's whole layer.

Movement and order are compared whole, because they cost no arithmetic.  Of each
stage some tiles are judged against their golden rows.  The layer end to end is
judged on some tokens of each rank: a token's result depends on no other one, so
they are a small layer of their own, with the same weights.
"""

import dataclasses

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import equality
from hpmoe.parity_tests.judge import lanes
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_case
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.reference.contract import tensors

# Golden rows that are copied, not computed, at once.
_ROWS = 1 << 12


def lanes_of_sample(
  asked: pass_case.LaneOptions,
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
  sample: tiles.Sample,
) -> pass_case.Findings:
  """Lanes bitwise and bounded of a forward pass, on a sample of its tiles."""
  which = case.which
  tensors.require_layer(case.made.config, 'to judge a sample of its tiles')
  asked.progress(f'{which.name}, real data: candidate')
  got = case.ask(candidate).got
  asked.progress(f'{which.name}, bitwise: order and movement')
  plan = case.oracle.plan
  results = [
    equality.compare_equal(
      name, 'bitwise', equality.ORACLE_RULE, got, plan, case.tiling
    )
    for name in which.plan
  ]
  tiling = dataclasses.replace(case.tiling, sample=sample)
  golden = dataclasses.replace(case.golden(got), tiling=tiling)
  for name in which.stages:
    asked.progress(f'{which.name}, bounded: {name}')
    results += _stage(case, golden, name, got)
  asked.progress(f'{which.name}, bounded: layer')
  return pass_case.Findings(results + _layer(case, got, sample), got)


def _stage(
  case: pass_case.PassCase,
  golden: golden_lib.Rows,
  name: str,
  got: pass_case.Got,
) -> pass_case.Results:
  moves = name in case.movement
  lane = 'bitwise' if moves else 'bounded'
  rule = equality.ORACLE_RULE if moves else verdicts.BOUND_RULE
  needed = (name, *case.sources[name])
  usable = {name: got[name], **case.usable(name, got)} if name in got else {}
  missing = [n for n in needed if n not in usable]
  if missing:
    return [verdicts.not_captured(name, lane, rule, missing[0])]
  if not moves:
    return lanes.tolerances(name, got[name], golden, None, ())
  home = np.zeros(got[name].shape, got[name].dtype)
  for rank in case.tiling.held:
    rows = case.tiling.rows(name, home, rank)
    for lo in range(0, len(rows), _ROWS):
      hi = min(lo + _ROWS, len(rows))
      rows[lo:hi] = golden.rows(name, rank, lo, hi).value
  return [lanes.compare(name, lane, rule, got[name], home, case.tiling)]


def _layer(
  case: pass_case.PassCase, got: pass_case.Got, sample: tiles.Sample
) -> pass_case.Results:
  """The layer on some tokens of each rank, the first and last among them."""
  config, (result,) = case.made.config, case.which.results
  tokens = _tokens(config.num_tokens, sample)
  arrays = {
    name: a[:, tokens] if tiles.is_of_tokens(name) else a
    for name, a in case.made.arrays.items()
  }
  small = dataclasses.replace(config, num_tokens=len(tokens))
  plan = oracle_lib.Oracle(small, case.made.policy, arrays).plan
  tiling = dataclasses.replace(
    case.tiling,
    config=small,
    counts=plan['counts'],
    row_of_slot=plan['row_of_slot'],
    topk_ids=arrays['topk_ids'],
  )
  golden = pass_reference.golden(
    case.which, tiling, case.made.policy, arrays, {}
  )
  row = verdicts.ROWS[result]
  found = lanes.tolerances(row, got[result][:, tokens], golden, None, ())
  return [_in_whole(one, tokens, case.tiling.token_block) for one in found]


def _tokens(num_tokens: int, sample: tiles.Sample) -> np.ndarray:
  rng = np.random.default_rng((sample.seed, num_tokens))
  some = rng.permutation(num_tokens)[: sample.tiles]
  return np.unique(np.concatenate([some, [0, num_tokens - 1]]))


def _in_whole(
  result: verdicts.Result, tokens: np.ndarray, token_block: int
) -> verdicts.Result:
  """Names the tokens of a result as the whole layer does."""

  def whole(one: verdicts.Failure) -> verdicts.Failure:
    rank, token, *rest = one.index
    token = int(tokens[token])
    return dataclasses.replace(
      one,
      index=(rank, token, *rest),
      token=token,
      row_block=token // token_block,
      bad_rows=0,
    )

  return result.part.but(whole)
