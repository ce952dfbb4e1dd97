"""A failure keeps the names that its fields had in 0.3."""

import copy
import pickle

import pytest

from hpmoe.parity_tests.report import reports_testing


def test_old_names_of_fields_work():
  failure = reports_testing.failure(location='real.npz y[0]')
  assert (failure.got, failure.there) == (failure.actual, failure.location)
  for other in (copy.deepcopy(failure), pickle.loads(pickle.dumps(failure))):
    assert other == failure and other.got == failure.actual


def test_an_unknown_name_is_no_field():
  with pytest.raises(AttributeError, match='wrong_name'):
    _ = reports_testing.failure().wrong_name
