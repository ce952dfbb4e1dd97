"""Scales of another scope are told by what they are the largest of."""

import numpy as np
import pytest

from hpmoe.parity_tests.explain import code_patterns
from hpmoe.reference.contract import quantised

FORM = quantised.FORMS['e4m3_1x128']
WIDTH, ROWS, EXPERT = 128, 6, np.array([0, 0, 0, 1, 1, 1])


def find_largest(size, scope):
  """Returns `[n, g]`, the magnitude that a kernel takes for each group."""
  groups = size.reshape(ROWS, -1, WIDTH)
  largest = np.empty(groups.shape[:2])
  for row, group in np.ndindex(*largest.shape):
    is_own = EXPERT[row] == EXPERT
    largest[row, group] = {
      'a whole row': size[row],
      'an expert': size[is_own],
      'the group in all rows of an expert': groups[is_own, group],
      'a column': groups[is_own, group, 0],
    }[scope].max()
  return largest


@pytest.mark.parametrize(
  'scope',
  [
    'a whole row',
    'an expert',
    'the group in all rows of an expert',
    'a column',
  ],
)
def test_the_scope_of_the_largest_magnitude_is_named(scope):
  # Given scales of a kernel that takes the largest of something else,
  values = np.random.default_rng(0).standard_normal((ROWS, 2 * WIDTH))
  values = values.astype(np.float32).astype(np.float64)
  size = np.abs(values)
  expected = size.reshape(ROWS, -1, WIDTH).max(-1) / 448
  actual = find_largest(size, scope) / 448
  wrong = code_patterns.WrongCodes(
    FORM, values, actual, expected, actual != expected, expected, EXPERT
  )
  # then that is what is said of them.
  pattern = code_patterns.describe(wrong, 'activation_scales')
  assert pattern.endswith(scope), pattern


@pytest.mark.parametrize(
  ('change', 'pattern'),
  [
    ('1.01', '2 of 12 scales are 1.01 times what they should be'),
    ('next', 'as if they were the scales of the next row; 2 of 12 are wrong'),
    ('1', 'as if scales were 1'),
  ],
)
def test_scales_of_one_row_are_not_put_down_to_the_form(change, pattern):
  # Given a kernel whose scales are wrong in one row alone,
  values = np.random.default_rng(1).standard_normal((ROWS, 2 * WIDTH))
  values = values.astype(np.float32).astype(np.float64)
  expected = np.abs(values).reshape(ROWS, -1, WIDTH).max(-1) / 448
  actual = expected.copy()
  actual[1] = {'1.01': 1.01 * expected[1], 'next': expected[2], '1': 1}[change]
  wrong = code_patterns.WrongCodes(
    FORM, values, actual, expected, actual != expected, expected, EXPERT
  )
  # then no property of all scales is named, such as their largest code.
  assert code_patterns.describe(wrong, 'activation_scales') == pattern
