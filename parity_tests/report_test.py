"""Plain data and text of a report."""

import json

import numpy as np
import pytest

from parity_tests import patterns
from parity_tests import report


def test_floats_that_json_has_no_word_for_become_strings():
  value = dict(a=float('nan'), b=[np.float64('inf')], c=np.int64(3), d=(1.5,))

  text = json.dumps(report.jsonable(value), allow_nan=False)

  assert json.loads(text) == dict(a='nan', b=['inf'], c=3, d=[1.5])


def _tile(rng=np.random.default_rng(5)):
  return rng.normal(size=(6, 8)).astype(np.float32)


def _halved(got):
  return got * np.float32(0.5)


def _early(got):
  word = got.view(np.uint32) & np.uint32(0xFFFF0000)
  return word.view(np.float32)


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
