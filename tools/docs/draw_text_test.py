"""A picture of text holds each line, escaped and cut to the page's width."""

from xml.etree import ElementTree

from hpmoe.tools.docs import draw_text


def test_a_picture_holds_every_line():
  picture = draw_text.draw_text('gate_up ✕ a < b\n' + 'x' * 500)
  root = ElementTree.fromstring(picture)
  lines = [
    ''.join(text.itertext())
    for text in root.iter()
    if text.tag.endswith('}text')
  ]
  assert lines[0] == 'gate_up ✕ a < b'
  assert len(lines) == 2 and lines[1].endswith('x…')
