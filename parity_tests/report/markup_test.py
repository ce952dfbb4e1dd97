"""Whatever goes in as text comes out as text."""

import xml.etree.ElementTree as ET

import pytest

from hpmoe.parity_tests.report import markup


@pytest.mark.parametrize(
  ('text', 'page_text'),
  [
    ('<script>alert(1)</script>&amp;"\'', None),
    ('two\nlines, é and ✕', None),
    ('nul \0, bell \x07', 'nul \\x00, bell \\x07'),
    ('turned \u202e round', 'turned \\u202e round'),
    ('a byte \udcff of no UTF-8', 'a byte \\udcff of no UTF-8'),
  ],
)
def test_text_is_shown_as_it_is(text, page_text):
  tag = markup.make_tag('p', text, markup.make_tag('b', 'x'), text, title=text)

  page = markup.format_page(tag)
  page.encode('utf-8')
  parsed = ET.fromstring(page)

  page_text = page_text or text
  assert [c.tag for c in parsed] == ['b']
  assert parsed.text == parsed[0].tail == parsed.get('title') == page_text


def test_too_much_text_is_cut_and_says_so():
  assert markup.escape_text('abcdef', 2) == 'ab ... and 4 more characters'
  assert markup.escape_text('abcdef', 6) == 'abcdef'


def test_only_void_elements_end_themselves():
  page = markup.format_page(
    markup.make_tag('tr', markup.make_tag('td'), markup.make_tag('meta'))
  )

  assert page == '<!DOCTYPE html>\n<tr><td>\n</td><meta /></tr>\n'


def test_an_attribute_may_have_the_name_of_a_word_of_python():
  tag = markup.make_tag('td', 'x', class_='a', http_equiv='b', open=None)

  assert tag.attrib == {'class': 'a', 'http-equiv': 'b'}
