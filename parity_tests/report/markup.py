"""Markup that is HTML and XML at once, from trees and never from strings.

Text goes in as data, so nothing that a user named can become markup.
"""

import xml.etree.ElementTree as ET

# Elements that HTML lets be without an end; all others get one.
_VOID = ('meta',)
_CLIP = 10_000


def escape_text(text: str, max_chars: int = _CLIP) -> str:
  """Returns text that a reader sees as it is.

  What has no glyph, or would turn the direction of what follows, is spelt out;
  so is a byte of a command line that was no UTF-8.

  Args:
    text: anything.
    max_chars: characters that are kept; how many are not is said.
  """
  num_cut = len(text) - max_chars
  if num_cut > 0:
    text = f'{text[:max_chars]} ... and {num_cut} more characters'
  return ''.join(
    c if c == '\n' or c.isprintable() else ascii(c)[1:-1] for c in text
  )


def make_tag(
  name: str, /, *children: ET.Element | str, **attributes: object
) -> ET.Element:
  """Returns an element.

  Args:
    name: of the element.
    *children: elements and text, in order.
    **attributes: None leaves one out; a last '_' is dropped and others become
      '-', so that Python's own words can be said.
  """
  element = ET.Element(name)
  for key, value in attributes.items():
    if value is not None:
      element.set(key.rstrip('_').replace('_', '-'), escape_text(str(value)))
  for child in children:
    _append(element, child)
  if not len(element) and not element.text and name not in _VOID:
    element.text = '\n'  # An empty element would be cut to <td />.
  return element


def _append(parent: ET.Element, child: ET.Element | str) -> None:
  if not isinstance(child, str):
    parent.append(child)
  elif len(parent):
    parent[-1].tail = (parent[-1].tail or '') + escape_text(child)
  else:
    parent.text = (parent.text or '') + escape_text(child)


def format_page(root: ET.Element) -> str:
  """Returns the file."""
  return f'<!DOCTYPE html>\n{format_element(root)}\n'


def format_element(element: ET.Element) -> str:
  """Returns one element of a page."""
  return ET.tostring(element, encoding='unicode')
