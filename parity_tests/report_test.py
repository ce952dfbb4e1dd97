"""Plain data and text of a report."""

import json

import numpy as np
import pytest

from parity_tests import patterns
from parity_tests import report
from parity_tests import ulp


def test_floats_that_json_has_no_word_for_become_strings():
  value = dict(a=float('nan'), b=[np.float64('inf')], c=np.int64(3), d=(1.5,))

  text = json.dumps(report.jsonable(value), allow_nan=False)

  assert json.loads(text) == dict(a='nan', b=['inf'], c=3, d=[1.5])


def _tile(rng=np.random.default_rng(5)):
  return rng.normal(size=(6, 8)).astype(np.float32)


def _halved(got):
  return got * np.float32(0.5)


def _early(got):
  return got.astype(ulp.BFLOAT16).astype(np.float32)


@pytest.mark.parametrize(
    ('spoil', 'text'),
    [
        (np.zeros_like, 'all zero'),
        (lambda a: np.full_like(a, np.nan), 'NaN: never written'),
        (_halved, 'got = 0.5 * expected'),
        (lambda a: np.roll(a, -1, axis=1), 'shifted by one column'),
        (lambda a: np.roll(a, 1, axis=0), "holds another row's values"),
        (_early, 'bfloat16 could hold'),
        (lambda a: a * np.float32(1.001), 'near what is expected'),
        (lambda a: _tile(), ''),
    ],
)
def test_patterns(spoil, text):
  right = _tile()
  got = spoil(right.copy())

  said = patterns.describe(got, right, got != right, right)

  assert said.startswith(text) if text.startswith('got') else text in said
  assert text or not said


def test_small_integers_are_not_called_rounded():
  # Given a fault that is not rounding, on values that bfloat16 holds anyway,
  right = np.random.default_rng(7).integers(-9, 9, (6, 8)).astype(np.float32)
  got = right + np.arange(1, 9, dtype=np.float32)

  said = patterns.describe(got, right, got != right, right)

  assert 'bfloat16' not in said
