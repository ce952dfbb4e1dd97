"""The examples of the docs run as they stand, and print what they say."""

import contextlib
import io
import pathlib
import re

import pytest

import hpmoe

ROOT = pathlib.Path(__file__).parents[1]
_BLOCK = re.compile(
  r'^```python\n(?P<code>.*?)^```\n(?:```text\n(?P<said>.*?)^```\n)?',
  flags=re.MULTILINE | re.DOTALL,
)


def run(page: str) -> dict:
  """Runs the blocks of a page, each after the one before; returns its names.

  Raises:
    AssertionError: one prints something else than the page says.
  """
  names: dict = {'__name__': 'docs'}
  blocks = list(_BLOCK.finditer(page))
  assert blocks, 'expected a block of python'
  for block in blocks:
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
      exec(block['code'], names)
    code, said = block['code'], block['said'] or ''
    assert (code, told.getvalue()) == (code, said)
  return names


@pytest.mark.parametrize(
  'page', ['README.md', 'docs/api.md', 'docs/fast_lane.md']
)
def test_a_page_prints_what_it_says(page):
  run((ROOT / page).read_text())


def test_a_page_that_prints_something_else_is_named():
  with pytest.raises(AssertionError, match='print'):
    run('```python\nprint(1)\n```\n```text\n2\n```\n')


def test_the_page_shows_every_name():
  page = (ROOT / 'docs/api.md').read_text()
  unseen = [
    n for n in hpmoe.__all__ if not re.search(rf'`{n}`|hpmoe\.{n}\b', page)
  ]
  assert not unseen
