"""The cheapest row of the table of fixed orders is what the page says."""

from matplotlib import image  # type: ignore[import-untyped]
import numpy as np

from benchmarks import determinism
from hpmoe.tools.docs import figures


def test_the_cheapest_row_is_that_of_the_page():
  rows = figures.load('determinism')['rows']
  assert list(determinism.time_dysharp_layer('S-8')) in rows


def test_the_plot_of_the_page_is_drawn_from_its_table(tmp_path):
  # Given the rows of the page, drawn again, and rows with another cost,
  rows = figures.load('determinism')['rows']
  other_rows = [rows[0], *([*row[:2], '+1.0%', *row[3:]] for row in rows[1:])]
  for name, table in (('same.png', rows), ('other.png', other_rows)):
    determinism.plot_costs(table, tmp_path / name)
  # then the picture of the page has the bars of the first alone.
  on_page, redrawing, contrast = (
    image.imread(path)
    for path in (
      determinism.PLOT,
      tmp_path / 'same.png',
      tmp_path / 'other.png',
    )
  )
  assert on_page.shape == redrawing.shape
  assert np.mean(np.abs(on_page - redrawing)) < 0.2 * np.mean(
    np.abs(on_page - contrast)
  )
