r"""Draws what a command prints as an SVG picture, for a page.

Example:
  hpmoe check ... | python -m hpmoe.tools.docs.draw_text docs/plots/failure.svg
"""

import html
import re
import sys

_LINE_HEIGHT, _CHARACTER_WIDTH, _MARGIN = 19, 7.83, 16
_COLUMNS = 104
_STYLES = (
  (re.compile(r'✕'), '#D55E00'),
  (re.compile(r'✓'), '#009E73'),
  (re.compile(r'(?<=: )[.#]+'), '#D55E00'),
)


def draw_text(text: str) -> str:
  """Returns an SVG picture of lines of text, marks of a verdict coloured."""
  lines = [_shorten(line) for line in text.splitlines()]
  width = round(2 * _MARGIN + _COLUMNS * _CHARACTER_WIDTH)
  height = 2 * _MARGIN + _LINE_HEIGHT * len(lines)
  rows = [
    f'<text x="{_MARGIN}" y="{_MARGIN + _LINE_HEIGHT * (row + 0.75):.0f}">'
    f'{_colour(html.escape(line, quote=False))}</text>'
    for row, line in enumerate(lines)
  ]
  return '\n'.join(
    [
      '<svg xmlns="http://www.w3.org/2000/svg" '
      f'viewBox="0 0 {width} {height}">',
      f'<rect width="{width}" height="{height}" rx="8" fill="#f7f7f7"/>',
      '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" '
      'font-size="13" fill="#222222" xml:space="preserve">',
      *rows,
      '</g>',
      '</svg>',
      '',
    ]
  )


def _shorten(line: str) -> str:
  if len(line) <= _COLUMNS:
    return line
  return line[: _COLUMNS - 1] + '…'


def _colour(line: str) -> str:
  for pattern, colour in _STYLES:
    span = rf'<tspan fill="{colour}" font-weight="bold">\g<0></tspan>'
    line = pattern.sub(span, line)
  return line


def main() -> None:
  (path,) = sys.argv[1:]
  picture = draw_text(sys.stdin.read())
  with open(path, 'w', encoding='utf-8') as file:
    file.write(picture)


if __name__ == '__main__':
  main()
