"""The cheapest columns of the tables of public rules are those of the page."""

from benchmarks import coded_kernel
from benchmarks import public_rules
from hpmoe.tools.docs import figures

_CHEAP = 'Megatron-LM'


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
