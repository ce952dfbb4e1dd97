"""The cheapest row of the table of fixed orders is what the page says."""

from benchmarks import determinism
from hpmoe.tools.docs import figures


def test_the_cheapest_row_is_that_of_the_page():
  rows = figures.load('determinism')['rows']
  assert list(determinism.time_dysharp_layer('S-8')) in rows
