"""Each kind of candidate understands its own flags, and no other's."""

import dataclasses

import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import twin_candidate
from hpmoe.parity_tests.candidates import candidate_table
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.case import case as case_lib

_ALL = sorted({name for row in candidate_table.ROWS for name in row.flags})
_ASKING = {row.flag for row in candidate_table.ROWS}


def _flags_for(row: candidate_table.Row) -> dict[str, str]:
  return {row.flag: row.value or 'a:b'} if row.flag else {}


@pytest.mark.parametrize('row', candidate_table.ROWS, ids=lambda row: row.head)
def test_a_flag_of_others_is_refused_by_name(row):
  for name in {*_ALL} - _ASKING:
    flag_values = _flags_for(row) | {name: 'given'}
    if name in row.flags:
      assert candidate_table.find(flag_values) is row
      continue
    with pytest.raises(ValueError, match=f'^{name}: expected .* got given'):
      candidate_table.find(flag_values)


def test_the_first_that_is_asked_for_is_it_and_the_other_is_named():
  flag_values = dict(candidate='a:b', launcher='mpi')
  with pytest.raises(ValueError, match='^launcher: expected none with --cand'):
    candidate_table.find(flag_values)
  assert (
    candidate_table.find(dict(candidate='a:b')).kind
    is function_candidate.Subprocess
  )
  assert candidate_table.find({}) is candidate_table.DEFAULT


def test_every_flag_is_defined_once_and_somebody_understands_it():
  names = [flag.name for flag in candidate_table.FLAGS]
  assert len(names) == len(set(names)) and set(names) <= set(_ALL)
  fields = {f.name for f in dataclasses.fields(checking.Checking)}
  assert fields == {flag.field for flag in checking.FLAGS}


@pytest.mark.parametrize(
  ('candidate', 'case_fields', 'message'),
  [
    (twin_candidate.Twin(), dict(dtype='float16'), 'dtype: expected float32'),
    (
      twin_candidate.Twin(),
      dict(accumulation_order='even_odd_32', dtype='bfloat16'),
      'accumulation_order: expected ascending with ascend_twin',
    ),
    (
      function_candidate.Subprocess(
        'a:b', checking=checking.Checking(permute=1)
      ),
      {},
      'permute: expected none with a:b, got 1',
    ),
    (host.Megakernel(fault='nope'), {}, 'fault: expected one of'),
  ],
)
def test_what_a_kind_cannot_do_is_refused(candidate, case_fields, message):
  with pytest.raises(ValueError, match=f'^{message}'):
    candidate.ready(case_lib.Case(**case_fields))


def test_who_is_ready_has_launched_nothing():
  candidate = host.Megakernel()
  candidate.launches.append(None)
  assert not candidate.ready(case_lib.Case()).launches


def test_reports_keep_the_keys_of_capabilities():
  facts = twin_candidate.Twin().facts()
  assert facts['can']['why'].startswith('the twin runs')
  assert not {'capabilities', 'checking'} & {*facts}
