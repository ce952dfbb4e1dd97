"""Columns of words and figures."""

from hpmoe.parity_tests.report import text_table


class TestText:
  def test_words_to_the_left_figures_to_the_right(self):
    assert text_table.format_table(
      ('stage', 'tiles', 'share'), [('y', '8', '1e-06'), ('dx', '12', '-')]
    ).splitlines() == [
      'stage  tiles  share',
      '-----  -----  -----',
      'y          8  1e-06',
      'dx        12      -',
    ]

  def test_one_word_makes_a_column_of_words(self):
    assert (
      text_table.format_table(('n',), [('1',), ('none',)]).splitlines()[2]
      == '1'
    )

  def test_a_row_is_coloured_as_a_whole(self):
    lines = text_table.format_table(
      ('a', 'b'), [('x', '1'), ('y', '2')], ('C', '')
    )
    assert lines.splitlines()[2:] == ['Cx  1\x1b[0m', 'y  2']

  def test_without_rows_there_is_the_heading(self):
    assert text_table.format_table(('a', 'bc'), []) == 'a  bc\n-  --'
