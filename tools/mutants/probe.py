"""Checks the tree it runs in until something is found.

The first check is the one that a user types first, `hpmoe check` without a
flag; the others follow, the cheapest first.

Runs in a process of its own, in a tree with a planted bug.  Each line that it
prints is one JSON object: a rung that begins, or what was found there.
"""

import dataclasses
import importlib.util
import json
import os
import sys
from typing import Any

from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import mpi_launcher
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import presets
from hpmoe.tools.mutants import score

_DEADLINE_S = 20.0  # a wait that no task meets ends a launch long before
_TILE_FIELDS = ('rank', 'expert', 'row_block', 'col_block')
# Tiles, events and chains so small that even the smallest shape has many.
_FINE = granularity.Options(
  row_block=4, col_block=8, put_rows=3, token_block=3, chain_rows=8
)
_RELAY = dataclasses.replace(_FINE, relay=True)
_COARSE = granularity.Options(event_grain='expert', row_block=8, put_rows=5)


def rungs() -> dict[str, check.Request]:
  """Returns the requests by name, in the order of use."""
  # Room for every routing, so that the oracle is compiled once for all.
  shape = presets.config(presets.get('tiny'), ranks=2)
  megakernel = host.Megakernel(deadline_s=_DEADLINE_S)
  tiny = check.Request(
    case_lib.Case('both', 'tiny', 2, capacity=shape.num_rows), megakernel
  )
  request = tiny.but
  narrow = dict(dtype='bfloat16')
  down = dict(placement='before_down')
  sums = dict(placement='epilogue')
  odd: dict[str, Any] = dict(preset='odd', capacity=None)
  wide: dict[str, Any] = dict(ranks=4, tokens=64, preset='small', capacity=None)
  requests = {
    # As the command makes it, but for the time that a hang may take.
    score.DEFAULT: check.Request(case_lib.Case('both'), megakernel),
    'tiny': tiny,
    'tiny bf16 before_down': request(**narrow, **down),
    'tiny fine': request(options=_FINE),
    'tiny bf16 before_down fine': request(**narrow, **down, options=_FINE),
    'tiny relay': request(options=_RELAY),
    'tiny relay bf16 before_down': request(**narrow, **down, options=_RELAY),
    'tiny relay races': request(
      options=_RELAY, checking=checking.Checking(races=True)
    ),
    'tiny relay empty_experts': request(
      options=_RELAY, routing='empty_experts'
    ),
    'tiny races': request(
      options=_FINE, checking=checking.Checking(races=True)
    ),
    'tiny late_puts': request(
      options=_FINE, checking=checking.Checking(late_puts=True)
    ),
    # Chains of several experts are under way at once.
    'tiny permute last': request(
      options=dataclasses.replace(
        _FINE, order=granularity.WEIGHT_GRAD_ORDERS['last']
      ),
      checking=checking.Checking(permute=1),
    ),
    'tiny coarse': request(options=_COARSE),
    'tiny coarse late_puts': request(
      **narrow,
      **down,
      options=_COARSE,
      checking=checking.Checking(late_puts=True),
    ),
    'tiny before_down': request(**down),
    'tiny bf16 epilogue fine': request(**narrow, **sums, options=_FINE),
    'tiny bf16': request(**narrow),
    'tiny f16': request(dtype='float16'),
    'tiny empty_experts': request(routing='empty_experts', options=_FINE),
    'tiny one_rank': request(routing='one_rank', options=_FINE),
    'odd': request(**odd),
    'odd bf16 before_down': request(**odd, **narrow, **down),
    'small bf16 before_down': request(**wide, **narrow, **down),
  }
  if importlib.util.find_spec('mpi4py'):
    ranks = mpi_launcher.MpiMegakernel(deadline_s=_DEADLINE_S)
    for fields in ({}, narrow | down):
      name = ' '.join(['tiny mpi', *fields.values()])
      requests[name] = request(candidate=ranks, **fields)
    requests['tiny relay mpi'] = request(candidate=ranks, options=_RELAY)
  return requests


def examine(request: check.Request) -> dict[str, Any] | None:
  """Returns the finding of a check, as plain data, or None.

  Lane exact goes first: it takes a third of the time, and finds most.  If it
  finds only that the layer as a whole is wrong, the other lanes locate the bug.
  """
  other_lanes = tuple(lane for lane in verdicts.LANES if lane != 'exact')
  first = _find_failure(request.but(lanes=('exact',)))
  if first is not None and first['by'] != ['bounded']:
    return first
  return _find_failure(request.but(lanes=other_lanes)) or first


def _find_failure(request: check.Request) -> dict[str, Any] | None:
  try:
    report = check.run(request)
  except Exception as error:  # whatever a bug makes of our own code
    return _stopped(error)
  failures = [r for r in report.results if r.verdict == verdicts.FAIL]
  if not failures and not report.num_races:
    return None
  finders = [
    lane for lane in verdicts.LANES if any(r.lane == lane for r in failures)
  ]
  finders += ['races'] * bool(report.num_races)
  failure = report.first_failure
  if failure is None:
    text = str(report.races[0]) if report.races else failures[0].reason
    stage = failures[0].stage if failures else ''
    return dict(by=finders, stage=stage, tile={}, text=text)
  tile = {name: getattr(failure, name) for name in _TILE_FIELDS}
  text = f'{failure.stage} {failure.lane}: {failure.rule}'
  return dict(by=finders, stage=failure.stage, tile=tile, text=text)


def _stopped(error: BaseException) -> dict[str, Any]:
  """Returns the finding for a launch that was refused or did not end."""
  causes = list(_chain(error))
  is_refused = any(isinstance(cause, proofs.ProofError) for cause in causes)
  is_launch_error = any(
    isinstance(cause, candidates.CandidateError) for cause in causes
  )
  finder = 'proof' if is_refused else 'launch' if is_launch_error else 'error'
  text = ' '.join(f'{type(error).__name__}: {error}'.split())
  return dict(by=[finder], stage='', tile={}, text=text)


def _chain(error: BaseException | None):
  while error is not None:
    yield error
    error = error.__cause__


def main() -> None:
  root = os.getcwd()
  if not proofs.__file__.startswith(root):
    sys.exit(f'hpmoe: expected the one in {root}, got {proofs.__file__}')
  for name, request in rungs().items():
    print(json.dumps(dict(rung=name)), flush=True)
    finding = examine(request)
    if finding is not None:
      print(json.dumps(dict(rung=name, found=finding)), flush=True)
      return
  print(json.dumps(dict(rung=None)), flush=True)


if __name__ == '__main__':
  main()
