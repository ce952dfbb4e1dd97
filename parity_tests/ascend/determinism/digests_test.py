"""The megakernel returns the bits that it returned when they were recorded.

A change that means to add in another order records what `compute_digests`
returns.
"""

import dataclasses
import json
import pathlib

from hpmoe.parity_tests.ascend.determinism import interleavings

RECORDS = pathlib.Path(__file__).parent / 'testdata/digests.json'
# Three dtypes, both passes, three granularities.
PLAN = interleavings.Plan(
  tokens=13, interleavings=2, threads=(1,), layouts=((3, 5),)
)


def compute_digests(plan: interleavings.Plan = PLAN) -> dict[str, str]:
  """Returns the digest of each result, by pass, dtype and name."""
  table = interleavings.run(plan, lambda step: None)
  assert table.holds
  return {
    ' '.join((row.direction, row.dtype.split()[0], row.tensor)): row.sha256[0]
    for row in table.rows
  }


def test_bits_are_those_of_the_record():
  assert compute_digests() == json.loads(RECORDS.read_text())


def test_another_order_of_additions_has_other_digests():
  # Given bf16 products that are added in another order,
  plan = dataclasses.replace(
    PLAN, dtypes=('bfloat16',), accumulation_orders=('even_odd_32',)
  )
  # when results are compared with the record,
  records = json.loads(RECORDS.read_text())
  digests = compute_digests(plan)
  # then some have other bits.
  apart = [name for name in digests if digests[name] != records[name]]
  assert apart
