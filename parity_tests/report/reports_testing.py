"""Failures and reports for tests, which name only what matters to them."""

import collections

from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts

_FAILURE = dict(
  **dict.fromkeys(('expert', 'token', 'source_rank', 'slot')),
  **dict.fromkeys(('rank', 'row_block', 'col_block'), 0),
  **dict.fromkeys(('ulp', 'bad_rows', 'bad_cols'), 1),
  **dict(stage='y', lane='exact', rule='rule', index=(0,)),
  **dict(actual=0.0, expected=1.0),
)
_POLICY = dict(
  storage='float32', placement='combine', accumulation_order='ascending'
)


def failure(**fields) -> verdicts.Failure:
  """Returns the failure of one element, with some other fields."""
  return verdicts.Failure(**{**_FAILURE, **fields})


def report(*results: verdicts.Result, **config) -> check.Report:
  """Returns a report of some rows; lanes are theirs, every size is 1."""
  plain = dict(
    candidate='mine:forward',
    layer=collections.defaultdict(lambda: 1),
    routing='text',
    standards=[],
    policy=_POLICY,
    command='hpmoe check',
    lanes=sorted({r.lane for r in results}),
    modes=dict(isolate=False, races=False),
  )
  return check.Report(plain | config, results, 1.5)
