"""The cheapest columns of the tables of public rules are those of the page."""

import pytest

from benchmarks import coded_kernel
from benchmarks import public_rules
from hpmoe.parity_tests.definitions import definition_check
from hpmoe.tools.docs import figures

_CHEAP = 'Megatron-LM'


def test_the_page_has_every_kernel_and_rule():
  table = figures.load('public_rules')
  assert [row[0] for row in table['rows']] == [*public_rules.KERNELS]
  names = [test.name for test in public_rules.TESTS]
  assert table['columns'][1:-1] == names
  table = figures.load('public_rules_in_codes')
  assert [row[0] for row in table['rows']] == [*public_rules.KERNELS]
  assert table['columns'][1:-1] == [*definition_check.RECORDS]
  assert [*table['accepted_by']] == public_rules.QUANTISED


def test_the_cheapest_column_is_that_of_the_page():
  (test,) = (test for test in public_rules.TESTS if test.name == _CHEAP)
  table = figures.load('public_rules')
  column = table['columns'].index(_CHEAP)
  page = {row[0]: row[column] for row in table['rows']}
  counts = public_rules.count_test(test)
  assert {wrong: cells[0] for wrong, cells in counts.items()} == page
  # Ours accepts the two right kernels alone.
  ours_of_right = ['3/3', '3/3', *['0/3'] * (len(page) - 2)]
  assert [cells[1] for cells in counts.values()] == ours_of_right


@pytest.mark.parametrize('layer', ['int4'])
def test_a_layer_in_codes_is_as_on_the_page(layer):
  outcomes = public_rules.judge_sample(public_rules.make_coded_sample(layer))
  page = figures.load('public_rules_in_codes')['accepted_by'][layer]
  assert public_rules.list_accepting(dict(outcomes)) == page


def test_every_wrong_kernel_computes_another_y():
  sample = public_rules.make_coded_sample('int8')
  arrays = sample.case.make().arrays
  right_y, *wrong_ys = (
    coded_kernel.compute_y(
      public_rules.make_kernel(wrong, sample.form), arrays
    ).tobytes()
    for wrong in public_rules.KERNELS
  )
  assert len({right_y, *wrong_ys}) == 1 + len(wrong_ys)
